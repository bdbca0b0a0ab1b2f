//! TCP and Unix connections, encrypted or not. Only [`Stream::send_all`] and the functions that
//! connect wait.

use crate::address::Address;
use crate::socket::Socket;
use crate::tls::{self, Session};
use crate::wait::Wait;
use crosslane::lock;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustls::ServerConfig;
use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time after which the system checks whether the server of an idle connection is there.
const IDLE: Duration = Duration::from_secs(60);

/// Connects to an address.
fn reach(address: SocketAddr, wait: Wait<'_>) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            wait.ready(socket.as_fd(), PollFlags::OUT)?;
            rustix::net::sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    // Without keepalive, the client would wait for ever for a server whose machine is gone. A proxy
    // may also close a connection that is idle.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, IDLE)?;
    Ok(stream)
}

/// Whether a socket is ready now.
fn is_ready(socket: &impl AsFd, interest: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(socket, interest)], Some(&now))) != Ok(0)
}

/// A connection.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    session: Option<Mutex<Session>>,
}

impl Stream {
    /// How the other end is connected: `unix`, `tcp` or `tls`.
    pub fn kind(&self) -> &'static str {
        match (&self.socket, &self.session) {
            (Socket::Unix(_), _) => "unix",
            (Socket::Tcp(_), None) => "tcp",
            (Socket::Tcp(_), Some(_)) => "tls",
        }
    }

    fn new(socket: Socket, session: Option<Session>) -> Self {
        Self { socket, session: session.map(Mutex::new) }
    }

    /// Makes a connection within this process, and returns both ends.
    ///
    /// # Errors
    /// If the process may open no more descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self::new(Socket::Unix(one), None), Self::new(Socket::Unix(other), None)))
    }

    /// Makes a connection from a connected socket.
    #[cfg(test)]
    pub(crate) fn of(stream: UnixStream) -> Self {
        Self::new(Socket::Unix(stream), None)
    }

    /// Connects to the first of a host's addresses that answers. Each `turn` starts with another
    /// address. The addresses share the time.
    ///
    /// # Errors
    /// The error of the last address, or that of `wait`.
    pub(crate) fn connect(address: &Address, turn: usize, wait: Wait<'_>) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                let socket = unix_socket()?;
                // Without this limit, `connect` would wait for ever if the server takes no
                // connections.
                set_socket_timeout(&socket, Timeout::Send, Some(wait.left()?))?;
                match rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?) {
                    Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
                    connected => {
                        connected?;
                        Ok(Self::new(Socket::Unix(UnixStream::from(socket)), None))
                    }
                }
            }
            Address::Tcp { host, port, tls } => {
                let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
                let mut found: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                let first = turn % found.len().max(1);
                found.rotate_left(first);
                let count = found.len();
                for (tried, address) in found.into_iter().enumerate() {
                    match reach(address, wait.share(count - tried)) {
                        Ok(socket) => {
                            let session = tls.then(|| tls::client(host)).transpose()?;
                            let stream = Self::new(Socket::Tcp(socket), session);
                            stream.greet(wait)?;
                            return Ok(stream);
                        }
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }

    /// Does the TLS handshake, if the connection is encrypted.
    fn greet(&self, wait: Wait<'_>) -> io::Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        loop {
            let greeted = lock(session).greet(&self.socket);
            match greeted {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let interest = if self.is_pending() { PollFlags::OUT } else { PollFlags::IN };
                    wait.ready(self.as_fd(), interest)?;
                }
                greeted => return greeted,
            }
        }
    }

    /// Reads the bytes that the socket has now. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes yet. Also the errors of the socket and of the encryption.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.session {
            Some(session) => lock(session).receive(&self.socket, buffer),
            None => (&self.socket).read(buffer),
        }
    }

    /// Writes as many bytes as the socket has room for. Encrypted bytes that had no room are left
    /// for [`Stream::flush`].
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Also the errors of the socket and of the encryption.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.session {
            Some(session) => lock(session).send(&self.socket, parts),
            None => (&self.socket).write_vectored(parts),
        }
    }

    /// Sends as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    /// The errors of [`Stream::send`] except `WouldBlock`.
    pub fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send(&[IoSlice::new(&bytes[sent..])]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends all bytes, and waits for room. Another thread may receive meanwhile.
    ///
    /// # Errors
    /// The errors of [`Stream::send`] except `WouldBlock`.
    pub fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        loop {
            sent += self.send_some(&bytes[sent..])?;
            match self.flush() {
                Ok(()) if sent == bytes.len() => return Ok(()),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            let _ = rustix::event::poll(&mut [PollFd::new(self, PollFlags::OUT)], None);
        }
    }

    /// Whether there are bytes to receive, or the connection has ended.
    pub fn has_news(&self) -> bool {
        let decrypted = self.session.as_ref().is_some_and(|session| lock(session).has_news());
        decrypted || is_ready(self, PollFlags::IN)
    }

    /// Whether all bytes of the socket were read and no more can come. This is also true after an
    /// error of the socket.
    pub fn is_at_end(&self) -> bool {
        let mut byte = [0];
        match rustix::net::recv(&self.socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, length)) => length == 0,
            Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Whether the other side has closed the connection. Bytes that it sent before may still be
    /// unread.
    pub fn is_closed(&self) -> bool {
        is_ready(self, PollFlags::RDHUP)
    }

    /// Whether encrypted bytes wait for [`Stream::flush`].
    pub fn is_pending(&self) -> bool {
        self.session.as_ref().is_some_and(|session| lock(session).is_pending())
    }

    /// Writes the encrypted bytes that had no room before.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room now. Also the errors of the socket.
    pub fn flush(&self) -> io::Result<()> {
        self.session.as_ref().map_or(Ok(()), |session| lock(session).flush(&self.socket))
    }

    /// Ends both directions. Threads that wait for the connection wake and find its end.
    pub fn shut_down(&self) {
        if let Some(session) = &self.session {
            lock(session).close(&self.socket);
        }
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// Encrypted if there is a configuration.
    Tcp(TcpListener, Option<Arc<ServerConfig>>),
    /// Never encrypted: the bytes do not leave the machine.
    Unix(UnixListener),
}

impl Listener {
    /// Starts to listen. If no server listens on an existing Unix socket, its file is replaced. Only
    /// this user may connect to a Unix socket.
    ///
    /// # Errors
    /// The errors of the system, or that the address is encrypted and there is no certificate.
    pub fn bind(address: &Address, config: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        match address {
            Address::Tcp { tls: true, .. } if config.is_none() => Err(io::Error::other(
                "it is to be encrypted, and there is no certificate (--tls-cert, --tls-key)",
            )),
            Address::Tcp { host, port, tls } => {
                let listener = TcpListener::bind((host.as_str(), *port))?;
                Ok(Listener::Tcp(listener, config.filter(|_| *tls).cloned()))
            }
            Address::Unix(path) => {
                let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
                // A connection to a file that is not a socket is refused, too.
                let is_socket = |file: fs::Metadata| file.file_type().is_socket();
                if fs::symlink_metadata(path).is_ok_and(is_socket)
                    && UnixStream::connect(path).is_err_and(refused)
                {
                    fs::remove_file(path)?;
                }
                let socket = unix_socket()?;
                // With `fchmod` before `bind`, the file has these permissions from the beginning.
                rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path.as_path())?)?;
                rustix::net::listen(&socket, 1024)?;
                Ok(Listener::Unix(UnixListener::from(socket)))
            }
        }
    }

    /// Accepts a connection, and returns it with the client's address.
    ///
    /// # Errors
    /// `WouldBlock` if no client waits. Also the errors of the system.
    pub fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(listener, config) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                // Without keepalive, the server would wait for ever for a client whose machine is
                // gone.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                let session = config.clone().map(Session::accept).transpose()?;
                Ok((Stream::new(Socket::Tcp(stream), session), peer.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::new(Socket::Unix(stream), None), "a Unix socket".to_owned()))
            }
        }
    }

    /// Returns the address at which clients find the listener. It has the port that the system
    /// chose.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn address(&self, asked: &Address) -> io::Result<Address> {
        match (self, asked) {
            (Listener::Tcp(listener, _), Address::Tcp { host, tls, .. }) => {
                Ok(Address::Tcp { host: host.clone(), port: listener.local_addr()?.port(), tls: *tls })
            }
            _ => Ok(asked.clone()),
        }
    }

    /// Whether only programs on this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Listener::Unix(_) => true,
            Listener::Tcp(listener, _) => {
                listener.local_addr().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener, _) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}
