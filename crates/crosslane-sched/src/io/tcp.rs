//! TCP: listeners and streams.

use super::{Interest, Io};
use crate::timer::Sleep;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a listener waits before it tries again, if the process or the system has no descriptors
/// left.
const EXHAUSTED: Duration = Duration::from_millis(100);

impl Io<TcpListener> {
    /// Waits for a connection, and registers it. Nagle's delay is off.
    ///
    /// When no descriptors or no memory are left, the first call returns an error. Later calls wait
    /// and try again ten times a second until one succeeds. So a loop that continues after errors
    /// keeps no processor busy.
    ///
    /// # Errors
    /// The errors of `accept`, [`Io::with`] and [`Io::new`]. Some errors of `accept` concern one
    /// connection (`ECONNABORTED`) or this process (`EMFILE`). No error of `accept` means that
    /// later connections will fail.
    pub async fn accept(&self) -> io::Result<(Io<TcpStream>, SocketAddr)> {
        let (stream, address) = loop {
            if self.is_exhausted.load(Ordering::Relaxed) {
                let mut pause = Sleep::within(self.group.clone(), EXHAUSTED);
                poll_fn(|context| pause.poll_due(context)).await?;
            }
            let accepted = self.with(Interest::Read, TcpListener::accept).await;
            let is_exhausted = accepted.as_ref().is_err_and(is_exhaustion);
            let was_exhausted = self.is_exhausted.swap(is_exhausted, Ordering::Relaxed);
            if !(is_exhausted && was_exhausted) {
                break accepted?;
            }
        };
        stream.set_nodelay(true)?;
        let mut stream = Io::register(stream, self.group.clone(), None)?;
        stream.is_stream = true;
        Ok((stream, address))
    }
}

/// Returns whether the error means that a resource is used up. It may be free later, and the
/// connection waits until then.
fn is_exhaustion(error: &io::Error) -> bool {
    let all = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| all.contains(&error))
}

impl Io<TcpStream> {
    /// Connects. Nagle's delay is off.
    ///
    /// # Errors
    /// The errors of `connect`, [`Io::with`] and [`Io::new`].
    ///
    /// # Panics
    /// Outside of a scheduler.
    pub async fn connect(address: SocketAddr) -> io::Result<Io<TcpStream>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut stream = Io::new(TcpStream::from(socket))?;
        stream.is_stream = true;
        // A new socket counts as writable, but this socket is not writable before it is connected.
        let connected = |stream: &TcpStream| match rustix::net::getpeername(stream) {
            Ok(_) => Ok(()),
            Err(_) => match sockopt::socket_error(stream)? {
                Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => Err(error.into()),
            },
        };
        stream.with(Interest::Write, connected).await?;
        stream.get_ref().set_nodelay(true)?;
        Ok(stream)
    }
}
