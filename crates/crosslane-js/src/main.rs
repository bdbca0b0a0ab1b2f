//! The JavaScript host. Without arguments it is the zygote of one library, started by an engine.
//! `check FILE` prints what a file declares, and `version` the version of V8.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => crosslane_js::host::run(),
        ["version"] => {
            println!("V8 {}", crosslane_js::isolate::version());
            Ok(true)
        }
        ["check", path] => Ok(crosslane_js::host::check(Path::new(path))),
        _ => Err(std::io::Error::other(
            "use: crosslane-js, with a control socket, or: crosslane-js check FILE, or: crosslane-js version",
        )),
    };
    match outcome {
        // SAFETY: nothing needs to be cleaned up. Destructors would run while V8's threads are at
        // work.
        Ok(true) => unsafe { libc::_exit(0) },
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("crosslane-js: {error}");
            ExitCode::FAILURE
        }
    }
}
