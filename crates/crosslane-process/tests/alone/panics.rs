//! Panics go to the log, and never to another file that is open as descriptor 2.

use crate::beside;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const NAME: &str = "panics::panics_are_logged";

/// Runs this test in another process, which panics. If the test reads its output, it then waits to be
/// killed.
fn child(stderr: Stdio, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test's own program"));
    command.args(["--exact", NAME, "--nocapture"]).env("CROSSLANE_TEST_PANIC", role);
    command.stdout(Stdio::null()).stderr(stderr);
    command
}

fn panic_as(role: &str) {
    crosslane_process::report_panics();
    let thread = std::thread::spawn(|| panic!("what went wrong"));
    assert!(thread.join().is_err());
    if role == "read" {
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn panics_are_logged() {
    if let Ok(role) = std::env::var("CROSSLANE_TEST_PANIC") {
        return panic_as(&role);
    }
    let _beside = beside();
    // This imitates a program whose open database became descriptor 2.
    let path = std::env::temp_dir().join(format!("crosslane-panics-{}", std::process::id()));
    let open = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file: File = open.expect("a file in the temporary folder");
    let status = child(file.into(), "write").status().expect("a child");
    let written = std::fs::read(&path).expect("the file");
    std::fs::remove_file(&path).expect("the file can be removed");
    assert!(status.success());
    assert_eq!(String::from_utf8_lossy(&written), "");

    let mut child = child(Stdio::piped(), "read").spawn().expect("a child");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let told = lines.map_while(Result::ok).find(|line| line.contains("what went wrong"));
    child.kill().expect("it waits");
    child.wait().expect("its end");
    assert!(told.is_some(), "the log has no word of the panic");
}
