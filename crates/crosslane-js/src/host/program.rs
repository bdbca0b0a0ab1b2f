//! The program of the host: what its arguments ask for.

use crate::isolate;
use std::ffi::c_int;
use std::io;
use std::path::Path;

/// Without arguments, runs the zygote of one library, for the engine that started the program. `check FILE`
/// prints what a file declares, and `version` the version of V8. `context` is for a program that starts a context
/// ([`crate::embed`]). The first argument is not among these:
/// `crates/crosslane-node` adds it. Returns the program's exit code.
pub fn main() -> c_int {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => super::run(),
        ["version"] => {
            println!("V8 {}", isolate::version());
            Ok(true)
        }
        ["check", path] => Ok(super::check(Path::new(path))),
        #[cfg(node)]
        ["context", program] => super::context::run(program).map(|()| true),
        _ => Err(io::Error::other(
            "use: crosslane-js, with a control socket, or: crosslane-js check FILE, or: crosslane-js version",
        )),
    };
    match outcome {
        // SAFETY: nothing needs to be cleaned up. Destructors would run while V8's threads are at
        // work.
        Ok(true) => unsafe { libc::_exit(0) },
        Ok(false) => 1,
        Err(error) => {
            eprintln!("crosslane-js: {error}");
            1
        }
    }
}
