//! What Ruby has in its environment, whatever starts it.

use std::env;
use std::ffi::OsString;

/// What a Ruby that runs functions has in its environment beside that of who starts it: YJIT, unless the user has chosen.
pub fn ruby_environment() -> &'static [(&'static str, &'static str)] {
    if chooses_compiler(|name| env::var_os(name)) { &[] } else { &[("RUBY_YJIT_ENABLE", "1")] }
}

/// Whether a user has chosen which of Ruby's compilers is to run, or that none is. A Ruby without YJIT ignores that one is
/// chosen for it, but ends if it is told of two.
fn chooses_compiler(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let options = variable("RUBYOPT").unwrap_or_default();
    variable("RUBY_YJIT_ENABLE").is_some() || options.to_string_lossy().contains("jit")
}
