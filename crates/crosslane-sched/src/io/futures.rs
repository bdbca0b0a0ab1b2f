//! The traits of the crate `futures-io`, for libraries that use them to read and write.

use super::{Interest, Io};
use futures_io::{AsyncRead, AsyncWrite};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::io::{Read, Result, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

/// As [`Io::read`].
impl<T: AsFd + Unpin> AsyncRead for Io<T>
where
    for<'a> &'a T: Read,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize>> {
        let mut key = self.reading.take();
        let mut read = |descriptor: &T, seen| self.read_now(descriptor, buffer, seen);
        let polled = self.poll_attempt(Interest::Read, &mut key, context, &mut read);
        self.reading = key;
        polled
    }
}

/// As [`Io::write`]. `close` shuts down the writing half of a socket. Other descriptors are closed
/// when they are dropped.
impl<T: AsFd + Unpin> AsyncWrite for Io<T>
where
    for<'a> &'a T: Write,
{
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let mut key = self.writing.take();
        let mut write = |mut descriptor: &T, _| descriptor.write(bytes);
        let polled = self.poll_attempt(Interest::Write, &mut key, context, &mut write);
        self.writing = key;
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut key = self.writing.take();
        let mut flush = |mut descriptor: &T, _| descriptor.flush();
        let polled = self.poll_attempt(Interest::Write, &mut key, context, &mut flush);
        self.writing = key;
        polled
    }

    fn poll_close(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Result<()>> {
        self.group.check()?;
        Poll::Ready(match shutdown(&self.descriptor, Shutdown::Write) {
            // The descriptor is not a socket, or is closed already.
            Ok(()) | Err(Errno::NOTSOCK | Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}
