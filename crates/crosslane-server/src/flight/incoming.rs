//! The connections for Arrow Flight: their number is limited, and silent ones are closed.

use futures_util::Stream;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

/// How long a client may send nothing. Those that live answer the server's pings meanwhile.
pub(super) const SILENT: Duration = Duration::from_secs(60);
/// How long the task that accepts connections waits after an error, such as having no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A client's connection.
#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    /// When it has been silent for too long.
    deadline: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

/// Takes connections, so many at a time; the next wait in the kernel's queue.
pub(super) fn incoming(
    listener: TcpListener,
    most: usize,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> impl Stream<Item = io::Result<Peer>> {
    let places = Arc::new(Semaphore::new(most));
    futures_util::stream::unfold((listener, places, log), |(listener, places, log)| async move {
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        let stream = loop {
            match listener.accept().await.and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => break stream,
                Err(error) => {
                    log(&format!("a connection for Arrow Flight was not taken: {error}"));
                    sleep(PAUSE).await;
                }
            }
        };
        let peer = Peer { stream, deadline: Box::pin(sleep(SILENT)), _place: place };
        Some((Ok(peer), (listener, places, log)))
    })
}

impl Connected for Peer {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.deadline.as_mut().reset(Instant::now() + SILENT);
            return read;
        }
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
