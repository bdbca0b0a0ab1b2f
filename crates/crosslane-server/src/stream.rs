//! Sockets of either kind, encrypted or not. No operation waits.

use crate::address::Address;
use crate::tls::{self, Session};
use rustix::net::{RecvFlags, SendFlags};
use rustls::ServerConfig;
use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// A socket, whose operations do not wait.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(self, buffer, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self, parts, &mut nothing, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    session: Option<Mutex<Session>>,
}

impl Stream {
    fn new(socket: Socket, session: Option<Session>) -> Self {
        Self { socket, session: session.map(Mutex::new) }
    }

    /// Both ends of a connection within this process.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self::new(Socket::Unix(one), None), Self::new(Socket::Unix(other), None)))
    }

    /// Connects within ten seconds to the first of a host's addresses that answers, of which another comes first each `turn`.
    pub(crate) fn connect(address: &Address, turn: usize) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::new(Socket::Unix(UnixStream::connect(path)?), None)),
            Address::Tcp { host, port, tls } => {
                let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                let mut found: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                let first = turn % found.len().max(1);
                found.rotate_left(first);
                for address in found {
                    match TcpStream::connect_timeout(&address, CONNECT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            let session = if *tls { Some(tls::greet(&stream, host, CONNECT)?) } else { None };
                            return Ok(Self::new(Socket::Tcp(stream), session));
                        }
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }

    /// Reads what there is; 0 at the end.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.session {
            Some(session) => lock(session).receive(&self.socket, buffer),
            None => (&self.socket).read(buffer),
        }
    }

    /// Writes as much as there is room for. What is encrypted and could not be written is left for [`Stream::flush`].
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.session {
            Some(session) => lock(session).send(&self.socket, parts),
            None => (&self.socket).write_vectored(parts),
        }
    }

    /// Whether something is left.
    pub(crate) fn is_pending(&self) -> bool {
        self.session.as_ref().is_some_and(|session| lock(session).is_pending())
    }

    /// Writes what is left; an error if it cannot be written now.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.session.as_ref().map_or(Ok(()), |session| lock(session).flush(&self.socket))
    }

    /// Ends both directions: whoever waits for it finds its end.
    pub(crate) fn shut_down(&self) {
        if let Some(session) = &self.session {
            lock(session).close(&self.socket);
        }
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn lock(session: &Mutex<Session>) -> std::sync::MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What takes connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Arc<ServerConfig>>),
    Unix(UnixListener),
}

impl Listener {
    /// Listens. A Unix socket that nobody listens on any more is replaced; only this user may connect to it.
    pub(crate) fn bind(address: &Address, config: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        match address {
            Address::Tcp { tls: true, .. } if config.is_none() => Err(io::Error::other(
                "it is to be encrypted, and there is no certificate (--tls-cert, --tls-key)",
            )),
            Address::Tcp { host, port, tls } => {
                let listener = TcpListener::bind((host.as_str(), *port))?;
                Ok(Listener::Tcp(listener, config.filter(|_| *tls).cloned()))
            }
            Address::Unix(path) => {
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if UnixStream::connect(path).is_err_and(refused) {
                    fs::remove_file(path)?;
                }
                // Until its permissions are set, nobody can connect: it does not listen.
                let socket = rustix::net::socket_with(
                    rustix::net::AddressFamily::UNIX,
                    rustix::net::SocketType::STREAM,
                    rustix::net::SocketFlags::CLOEXEC,
                    None,
                )?;
                rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path.as_path())?)?;
                rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
                rustix::net::listen(&socket, 1024)?;
                Ok(Listener::Unix(UnixListener::from(socket)))
            }
        }
    }

    /// Takes a connection, and says whose it is.
    pub(crate) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(listener, config) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                // A client whose machine is gone would be waited for for ever.
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

    /// Where it can be found: with the port that the system chose.
    pub(crate) fn address(&self, asked: &Address) -> io::Result<Address> {
        match (self, asked) {
            (Listener::Tcp(listener, _), Address::Tcp { host, tls, .. }) => {
                Ok(Address::Tcp { host: host.clone(), port: listener.local_addr()?.port(), tls: *tls })
            }
            _ => Ok(asked.clone()),
        }
    }

    /// Whether only programs of this machine reach it.
    pub(crate) fn is_local(&self) -> bool {
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
