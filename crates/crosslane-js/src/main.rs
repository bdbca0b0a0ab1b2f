//! The JavaScript host: started by an engine, one for each library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match crosslane_js::host::run() {
        // SAFETY: nothing is to be cleaned up. Without destructors, because V8's threads may be at work.
        Ok(()) => unsafe { libc::_exit(0) },
        Err(error) => {
            eprintln!("crosslane: the JavaScript host ends: {error}");
            ExitCode::FAILURE
        }
    }
}
