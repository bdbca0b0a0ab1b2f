//! Descriptors whose operations wait without holding a worker.

use super::readiness::{Interest, READ, Source};
use crate::dispatcher::{Dispatcher, EventDispatcher};
use crate::idle::Token;
use crate::scheduler::Group;
use crate::worker::{Current, Start};
use rustix::fd::{AsFd, BorrowedFd};
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, ready};

/// A descriptor whose operations wait without holding a worker.
///
/// Its methods take `&self`, so several tasks may read and write at a time. The bytes of one
/// `write` stay together. Other writes may come between the writes of one [`Io::write_all`].
#[derive(Debug)]
pub struct Io<T: AsFd> {
    pub(super) descriptor: T,
    /// The descriptor is a kernel stream. A short read of such a stream shows that it has no more
    /// bytes.
    pub(super) is_stream: bool,
    /// The last `accept` of a listener failed because no resources were left.
    pub(super) is_exhausted: AtomicBool,
    /// The keys of the tasks that wait through the traits of `futures-io`.
    #[cfg(feature = "futures-io")]
    pub(super) reading: Option<u64>,
    #[cfg(feature = "futures-io")]
    pub(super) writing: Option<u64>,
    source: Arc<Source>,
    token: Token,
    dispatcher: Arc<EventDispatcher>,
    pub(super) group: Arc<Group>,
}

impl<T: AsFd> Io<T> {
    /// Registers the descriptor with a dispatcher of the current tag, and makes it non-blocking.
    ///
    /// # Errors
    /// The errors of the kernel. For instance, it is impossible to wait for regular files
    /// (`EPERM`). [`io::ErrorKind::Unsupported`] if the tag has no dispatcher that takes sockets.
    /// [`io::ErrorKind::Other`] if the scheduler has shut down, and in a process that was forked
    /// from the scheduler's process.
    ///
    /// # Panics
    /// Outside of a scheduler ([`Handle::io`](crate::Handle::io) works anywhere).
    pub fn new(descriptor: T) -> io::Result<Io<T>> {
        let group = Current::group().expect("Io::new is called in a task or in block_on of a scheduler");
        Io::register(descriptor, group, None)
    }

    /// Registers the descriptor with this dispatcher. All else is as in [`Io::new`].
    ///
    /// # Errors
    /// As [`Io::new`].
    pub fn with_dispatcher(descriptor: T, dispatcher: &Dispatcher) -> io::Result<Io<T>> {
        Io::register(descriptor, dispatcher.group.clone(), Some(&dispatcher.inner))
    }

    pub(crate) fn register(
        descriptor: T,
        group: Arc<Group>,
        dispatcher: Option<&Arc<EventDispatcher>>,
    ) -> io::Result<Io<T>> {
        group.check()?;
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let source = Arc::new(Source::new());
        let (dispatcher, token) = match dispatcher {
            Some(given) => given.add(source.clone()).map(|token| (given.clone(), token)),
            None => group.dispatchers.add_source(&source),
        }
        .ok_or_else(|| {
            let text = "the tag has no event dispatcher that takes sockets";
            io::Error::new(io::ErrorKind::Unsupported, text)
        })?;
        if let Err(error) = group.poller.add(&descriptor, token) {
            dispatcher.remove(token.source, &group.dispatchers);
            return Err(error);
        }
        Ok(Io {
            descriptor,
            is_stream: false,
            is_exhausted: AtomicBool::new(false),
            #[cfg(feature = "futures-io")]
            reading: None,
            #[cfg(feature = "futures-io")]
            writing: None,
            source,
            token,
            dispatcher,
            group,
        })
    }

    /// Returns the descriptor.
    pub fn get_ref(&self) -> &T {
        &self.descriptor
    }

    /// Runs a non-blocking operation. While it returns [`io::ErrorKind::WouldBlock`], waits for the
    /// descriptor and runs it again.
    ///
    /// # Errors
    /// The errors of the operation. [`io::ErrorKind::Other`] if the scheduler has shut down, also
    /// during the wait. The same error in a process that was forked from the scheduler's process.
    pub async fn with<R>(
        &self,
        interest: Interest,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.attempt(interest, |descriptor, _| operation(descriptor)).await
    }

    /// As [`Io::with`], but the operation also gets the word of readiness from before the
    /// operation.
    async fn attempt<R>(
        &self,
        interest: Interest,
        mut operation: impl FnMut(&T, u64) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut waiting = Waiting { io: self, interest, key: None };
        poll_fn(|context| self.poll_attempt(interest, &mut waiting.key, context, &mut operation)).await
    }

    /// Runs the operation until it is done or must wait. `key` is the task's place in the list of
    /// waiting tasks.
    pub(super) fn poll_attempt<R>(
        &self,
        interest: Interest,
        key: &mut Option<u64>,
        context: &mut Context<'_>,
        operation: &mut impl FnMut(&T, u64) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            // The end of the scheduler wakes waiting tasks. In another process the lock of their
            // list may be held for ever.
            self.group.check()?;
            let seen = ready!(self.poll_ready(interest, key, context));
            match operation(&self.descriptor, seen) {
                // An operation that would wait shows that the descriptor is not closed, even if the
                // kernel reported this before. The kernel reports an error once, and a pipe may be
                // opened again. Also, the event may have been for an earlier descriptor of this
                // number.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.clear(interest.ready(), seen)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Waits until the descriptor is ready, and returns the word of readiness.
    fn poll_ready(&self, interest: Interest, key: &mut Option<u64>, context: &mut Context<'_>) -> Poll<u64> {
        self.source.leave(interest, key);
        let Some(word) = self.source.ready(interest) else {
            return self.source.wait(interest, key, context.waker().clone());
        };
        if Current::spend() {
            return Poll::Ready(word);
        }
        // In the worker's own queue, the task needs no permit, and dispatchers go before it.
        Current::set_start(Start::Behind);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads the available bytes, at most the length of the buffer. Returns how many, and 0 at the
    /// end.
    ///
    /// # Errors
    /// The errors of the descriptor, and of [`Io::with`].
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize>
    where
        for<'a> &'a T: Read,
    {
        self.attempt(Interest::Read, |descriptor, seen| self.read_now(descriptor, buffer, seen)).await
    }

    pub(super) fn read_now(&self, mut descriptor: &T, buffer: &mut [u8], seen: u64) -> io::Result<usize>
    where
        for<'a> &'a T: Read,
    {
        let length = descriptor.read(buffer)?;
        // A stream that fills the buffer only partly has no more bytes (epoll(7)).
        if self.is_stream && length > 0 && length < buffer.len() {
            self.source.clear(READ, seen);
        }
        Ok(length)
    }

    /// Writes as many bytes as the descriptor takes, and returns how many.
    ///
    /// # Errors
    /// The errors of the descriptor, and of [`Io::with`].
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize>
    where
        for<'a> &'a T: Write,
    {
        self.with(Interest::Write, |mut descriptor| descriptor.write(bytes)).await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The errors of the descriptor, and of [`Io::with`]. [`io::ErrorKind::WriteZero`] if the
    /// descriptor takes no more bytes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()>
    where
        for<'a> &'a T: Write,
    {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

/// A waiting task. Dropping this takes it out of the list.
struct Waiting<'a, T: AsFd> {
    io: &'a Io<T>,
    interest: Interest,
    key: Option<u64>,
}

impl<T: AsFd> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if self.io.group.process.is_this() {
            self.io.source.leave(self.interest, &mut self.key);
        }
    }
}

impl<T: AsFd> AsFd for Io<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<T: AsFd> Drop for Io<T> {
    fn drop(&mut self) {
        // A child process shares the epoll with its parent, so the child would unregister the
        // parent's socket.
        if !self.group.process.is_this() {
            return;
        }
        // An error means that the kernel has already forgotten the descriptor.
        let _ = self.group.poller.remove(&self.descriptor);
        self.dispatcher.remove(self.token.source, &self.group.dispatchers);
    }
}
