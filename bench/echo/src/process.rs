//! The server's process: how it is started and stopped.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::{process, thread};

/// The beginning of the line that a server prints when it listens.
const LISTENING: &str = "listening on ";

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    /// The address at which it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub fn start(command: &[OsString]) -> Result<Server> {
        let [program, arguments @ ..] = command else {
            anyhow::bail!("no server is named: say which after `--`, as in `-- ./server --its-option`");
        };
        let shown = program.display();
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("the server {shown} cannot be started"))?;
        let mut line = String::new();
        let printed = BufReader::new(process.stdout.take().expect("stdout is a pipe")).read_line(&mut line);
        let address = printed.ok().and_then(|_| line.trim_end().strip_prefix(LISTENING)?.parse().ok());
        let Some(address) = address else {
            process.kill().ok();
            process.wait().ok();
            anyhow::bail!("the server {shown} printed {line:?}, not \"{LISTENING}127.0.0.1:PORT\"");
        };
        Ok(Server { process, address })
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks the server to end, and waits until it has.
    pub fn stop(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the server was stopped before.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Prints the address of a server that listens, and ends its process when stdin is closed.
pub fn announce(listener: &TcpListener) -> Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{LISTENING}{}", listener.local_addr()?)?;
    stdout.flush()?;
    thread::spawn(|| {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        process::exit(0);
    });
    Ok(())
}
