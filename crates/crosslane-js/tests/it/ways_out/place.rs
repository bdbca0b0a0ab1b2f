//! What the ways out aim at.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// Files and sockets outside of the host, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    _path: UnixListener,
    _name: UnixListener,
    pub(super) library: PathBuf,
    /// The process that stands for the engine.
    pub(super) engine: usize,
    pub(super) tcp: TcpListener,
    pub(super) udp: UdpSocket,
    /// Sockets that the host has from before.
    pub(super) of_tcp: OwnedFd,
    pub(super) of_fast: OwnedFd,
    /// A namespace, opened before.
    pub(super) namespace: fs::File,
    /// The program `true`.
    pub(super) program: Vec<u8>,
}

impl Place {
    pub(super) fn new() -> Self {
        use rustix::net::{AddressFamily, SocketType, socket};
        let folder = std::env::temp_dir().join(format!("crosslane-ways-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        for name in ["database", "victim", "library.js"] {
            fs::write(folder.join(name), "text").expect("a new file");
        }
        let tcp = || socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let name = SocketAddr::from_abstract_name(&name_of_socket(std::process::id())[1..]);
        Self {
            library: folder.join("library.js"),
            engine: std::process::id() as usize,
            tcp: TcpListener::bind("127.0.0.1:0").expect("a port"),
            udp: UdpSocket::bind("127.0.0.1:0").expect("a port"),
            of_tcp: tcp(),
            of_fast: tcp(),
            _path: UnixListener::bind(folder.join("socket")).expect("a socket"),
            _name: UnixListener::bind_addr(&name.expect("a name")).expect("a socket"),
            namespace: fs::File::open("/proc/self/ns/uts").expect("a namespace"),
            program: fs::read("/bin/true").expect("a program"),
            folder,
        }
    }

    /// The path of a file of the test.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The name of the engine's socket that has no path.
    pub(super) fn name_of_socket(&self) -> Vec<u8> {
        name_of_socket(self.engine as u32)
    }

    /// A file of the engine's process.
    pub(super) fn of_engine(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.engine.to_string()).join(name)
    }
}

fn name_of_socket(engine: u32) -> Vec<u8> {
    format!("\0crosslane-ways-{engine}").into_bytes()
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
