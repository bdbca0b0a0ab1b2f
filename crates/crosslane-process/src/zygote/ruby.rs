//! How a Ruby that runs functions is started, by whatever program.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An area for compiled code of 32 MiB. Ruby 3.1 writes to the whole area when it starts, and would
/// take 256 MiB by default.
const CODE_AREA: &str = "--yjit-exec-mem-size=32";
/// How long a Ruby may take to report its version.
const PATIENCE: Duration = Duration::from_secs(5);

/// The environment variable with the Gemfile of a file, or with nothing.
const GEMFILE: &str = "CROSSLANE_GEMFILE";

/// The command of a Ruby that runs the functions of a file, and the variables to add to its
/// environment. It uses the gems of the Gemfile beside the file.
pub fn prepared(command: Vec<String>, file: &Path) -> (Vec<String>, Vec<(String, String)>) {
    let gemfile = gemfile(file).map(|gemfile| gemfile.display().to_string()).unwrap_or_default();
    let (command, compiler) = compiled(command);
    let named = |(name, value): &(&str, &str)| (String::from(*name), String::from(*value));
    let mut environment: Vec<_> = compiler.iter().map(named).collect();
    if !gemfile.is_empty()
        && let Ok(options) = env::var("RUBYOPT")
    {
        environment.push(("RUBYOPT".to_owned(), without_bundler(&options)));
    }
    environment.push((GEMFILE.to_owned(), gemfile));
    (command, environment)
}

/// The Gemfile beside a file.
pub(super) fn gemfile(file: &Path) -> Option<PathBuf> {
    Some(file.with_file_name("Gemfile")).filter(|gemfile| gemfile.is_file())
}

/// Ruby's options, without the one that a program has under `bundle exec`: Bundler sets up the gems
/// of one Gemfile only.
fn without_bundler(options: &str) -> String {
    let is_other = |option: &&str| !(option.starts_with("-r") && option.ends_with("bundler/setup"));
    options.split_whitespace().filter(is_other).collect::<Vec<_>>().join(" ")
}

/// The command of a Ruby that runs functions, and the variables to add to its environment. It
/// enables YJIT, unless the user has chosen a compiler.
fn compiled(mut command: Vec<String>) -> (Vec<String>, &'static [(&'static str, &'static str)]) {
    if chooses_compiler(|name| env::var_os(name)) {
        return (command, &[]);
    }
    if command.first().is_some_and(|program| takes_code_area(program)) {
        command.insert(1, CODE_AREA.to_owned());
    }
    (command, &[("RUBY_YJIT_ENABLE", "1")])
}

/// Whether a user has chosen one of Ruby's compilers, or none. A Ruby without YJIT ignores a
/// variable that enables YJIT, but it exits if two compilers are chosen.
fn chooses_compiler(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let options = variable("RUBYOPT").unwrap_or_default();
    variable("RUBY_YJIT_ENABLE").is_some() || options.to_string_lossy().contains("jit")
}

/// Whether a program is Ruby 3.1 with YJIT. The program is run only once. Which program a name
/// means depends on the path and, with a version manager, on the folder.
fn takes_code_area(program: &str) -> bool {
    type Asked = (String, Option<OsString>, Option<PathBuf>);
    static KNOWN: LazyLock<Mutex<HashMap<Asked, bool>>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = (program.to_owned(), env::var_os("PATH"), env::current_dir().ok());
    if let Some(takes) = known().get(&asked) {
        return *takes;
    }
    let said = version(Command::new(program), PATIENCE).unwrap_or_default();
    let takes = said.starts_with("ruby 3.1.") && said.contains("+YJIT");
    known().insert(asked, takes);
    takes
}

/// The version text of a Ruby that has the option. `None` if it does not have the option, or does
/// not answer in time.
fn version(mut command: Command, patience: Duration) -> Option<String> {
    command.args([CODE_AREA, "--version"]).env("RUBY_YJIT_ENABLE", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    if !succeeds(&mut child, patience) {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let mut said = child.stdout.take()?;
    // The pipe already holds the line. Another program that Ruby's wrapper has started may keep the
    // pipe open, so a read must not block.
    rustix::io::ioctl_fionbio(&said, true).ok()?;
    let mut line = [0; 100];
    let length = said.read(&mut line).ok()?;
    Some(String::from_utf8_lossy(&line[..length]).into_owned())
}

/// Waits until a process has ended. Returns whether it ended in time and with success.
fn succeeds(child: &mut Child, patience: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn said_by(script: &str, patience: Duration) -> Option<String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        version(shell, patience)
    }

    #[test]
    fn a_ruby_says_which_one_it_is() {
        let said = said_by("echo ruby 3.1.2 +YJIT $*", LONG);
        assert_eq!(said.unwrap(), format!("ruby 3.1.2 +YJIT {CODE_AREA} --version\n"));
        assert_eq!(said_by("exec >&-", LONG), Some(String::new()));
        assert_eq!(said_by("echo ruby 3.0.2; exit 1", LONG), None);
        assert_eq!(version(Command::new("/no/such/ruby"), LONG), None);
    }

    #[test]
    fn a_silent_ruby_delays_nothing() {
        assert_eq!(said_by("exec sleep 100", Duration::from_millis(20)), None);
        // Another program holds the pipe open.
        assert_eq!(said_by("sleep 2 & exit 0", LONG), None);
    }
}
