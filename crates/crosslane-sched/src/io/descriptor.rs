//! Sockets, pipes and other descriptors that tasks wait for.
//!
//! The kernel tells about changes once (edge-triggered), so a [`Source`] remembers what it told: a socket counts
//! as ready until an operation finds that it is not. The number of events so far is kept in the same word, so that
//! an event that comes during such an operation is not forgotten with it.

#[cfg(feature = "futures-io")]
mod futures;

use crate::dispatcher::{Dispatcher, Inner};
use crate::poller::Token;
use crate::scheduler::Group;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::task::wake;
use crate::timer::Sleep;
use crate::worker::{Current, Start};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// There is something to read, or the other side has closed.
    Read,
    /// There is room to write, or the other side has closed.
    Write,
}

const READ: u64 = 1;
const WRITE: u64 = 2;
/// The other side has closed, or there is an error: an operation that finds less than it wanted is no sign that
/// the next one would wait.
const READ_CLOSED: u64 = 4;
const WRITE_CLOSED: u64 = 8;
/// The rest of the word counts events.
const EVENT: u64 = 16;

impl Interest {
    fn ready(self) -> u64 {
        match self {
            Interest::Read => READ | READ_CLOSED,
            Interest::Write => WRITE | WRITE_CLOSED,
        }
    }
}

/// One future that waits.
#[derive(Debug)]
struct Waiter {
    key: u64,
    waker: Waker,
}

/// Who waits: most sockets have one reader and one writer.
#[derive(Debug, Default)]
struct Waiters {
    reader: Option<Waiter>,
    writer: Option<Waiter>,
    more: Vec<Waiter>,
    last_key: u64,
}

impl Waiters {
    fn first(&mut self, interest: Interest) -> &mut Option<Waiter> {
        match interest {
            Interest::Read => &mut self.reader,
            Interest::Write => &mut self.writer,
        }
    }

    fn add(&mut self, interest: Interest, waker: Waker) -> u64 {
        self.last_key += 1;
        let key = self.last_key;
        let waiter = Waiter { key, waker };
        let first = self.first(interest);
        if first.is_none() {
            *first = Some(waiter);
        } else {
            self.more.push(waiter);
        }
        key
    }

    fn remove(&mut self, interest: Interest, key: u64) -> Option<Waiter> {
        if let Some(waiter) = self.first(interest).take_if(|waiter| waiter.key == key) {
            return Some(waiter);
        }
        let at = self.more.iter().position(|waiter| waiter.key == key)?;
        Some(self.more.swap_remove(at))
    }
}

/// The readiness of one descriptor.
#[derive(Debug)]
pub(crate) struct Source {
    readiness: AtomicU64,
    waiters: Mutex<Waiters>,
}

impl Source {
    /// Counts as ready: the first operation finds out, and an operation that succeeds needs no event.
    fn new() -> Self {
        Source { readiness: AtomicU64::new(READ | WRITE), waiters: Mutex::default() }
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        lock(&self.waiters)
    }

    /// Notes what an event tells, and wakes those who wait for it.
    pub(crate) fn deliver(&self, flags: EventFlags) {
        let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut news = 0;
        if flags.contains(EventFlags::IN) {
            news |= READ;
        }
        if flags.contains(EventFlags::OUT) {
            news |= WRITE;
        }
        if ended || flags.contains(EventFlags::RDHUP) {
            news |= READ_CLOSED;
        }
        if ended {
            news |= WRITE_CLOSED;
        }
        let noted = |word: u64| Some((word | news).wrapping_add(EVENT));
        let _ = self.readiness.fetch_update(Ordering::AcqRel, Ordering::Acquire, noted);

        let mut waiters = self.waiters();
        let reader = if news & Interest::Read.ready() != 0 { waiters.reader.take() } else { None };
        let writer = if news & Interest::Write.ready() != 0 { waiters.writer.take() } else { None };
        let more = std::mem::take(&mut waiters.more);
        // A waker may run code of a user, which may come back here.
        drop(waiters);
        for waiter in [reader, writer].into_iter().flatten().chain(more) {
            wake(waiter.waker);
        }
    }

    /// Waits until it is ready, and returns the word of readiness. Who waits has a place in the list, which `key` tells.
    fn poll_ready(&self, interest: Interest, key: &mut Option<u64>, context: &mut Context<'_>) -> Poll<u64> {
        self.leave(interest, key);
        let is_ready = |word: u64| word & interest.ready() != 0;
        let word = self.readiness.load(Ordering::Acquire);
        if is_ready(word) {
            if Current::spend() {
                return Poll::Ready(word);
            }
            // In the worker's own queue it needs no permit, and dispatchers go before it.
            Current::set_start(Start::Behind);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let waker = context.waker().clone();
        let mut waiters = self.waiters();
        // An event is noted before its waiters are woken under the lock, so it is seen here, or finds the waker.
        let word = self.readiness.load(Ordering::Acquire);
        if is_ready(word) {
            drop(waiters);
            return Poll::Ready(word);
        }
        *key = Some(waiters.add(interest, waker));
        Poll::Pending
    }

    /// Leaves the list of those who wait.
    fn leave(&self, interest: Interest, key: &mut Option<u64>) {
        if let Some(key) = key.take() {
            let waiter = self.waiters().remove(interest, key);
            // A waker may run code of a user, so it goes outside of the lock.
            drop(waiter);
        }
    }

    /// Notes that the descriptor is not ready any more for what `bits` say, unless an event came since `seen`.
    fn clear(&self, bits: u64, seen: u64) {
        let _ = self.readiness.compare_exchange(seen, seen & !bits, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A descriptor whose operations wait without holding a worker.
///
/// Its methods take `&self`: several tasks may read and write at a time. What they write is not
/// interleaved within one `write`, but may be between the writes of one [`Io::write_all`].
#[derive(Debug)]
pub struct Io<T: AsFd> {
    descriptor: T,
    /// The kernel's stream itself, not something that reads from one as it likes.
    is_stream: bool,
    /// A listener found no descriptors left when it tried last.
    is_exhausted: AtomicBool,
    /// The places of those who wait by the traits of `futures-io`.
    #[cfg(feature = "futures-io")]
    reading: Option<u64>,
    #[cfg(feature = "futures-io")]
    writing: Option<u64>,
    source: Arc<Source>,
    token: Token,
    dispatcher: Arc<Inner>,
    group: Arc<Group>,
}

impl<T: AsFd> Io<T> {
    /// Registers the descriptor with a dispatcher of the current tag, and makes it non-blocking.
    ///
    /// # Errors
    /// Those of the kernel: regular files, for instance, cannot be waited for (`EPERM`).
    /// [`io::ErrorKind::Unsupported`] if the tag has no dispatcher that takes sockets. [`io::ErrorKind::Other`] if the
    /// scheduler has shut down, and in a process that was forked from the scheduler's.
    ///
    /// # Panics
    /// Outside of a scheduler ([`Handle::io`](crate::Handle::io) works anywhere).
    pub fn new(descriptor: T) -> io::Result<Io<T>> {
        let group = Current::group().expect("Io::new is called in a task or in block_on of a scheduler");
        Io::register(descriptor, group, None)
    }

    /// Registers the descriptor with this dispatcher, as [`Io::new`] does with one of its choice.
    ///
    /// # Errors
    /// As [`Io::new`].
    pub fn with_dispatcher(descriptor: T, dispatcher: &Dispatcher) -> io::Result<Io<T>> {
        Io::register(descriptor, dispatcher.group.clone(), Some(&dispatcher.inner))
    }

    pub(crate) fn register(
        descriptor: T,
        group: Arc<Group>,
        dispatcher: Option<&Arc<Inner>>,
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

    /// The descriptor.
    pub fn get_ref(&self) -> &T {
        &self.descriptor
    }

    /// Runs a non-blocking operation as often as it says [`io::ErrorKind::WouldBlock`], and waits for the
    /// descriptor in between.
    ///
    /// # Errors
    /// Those of the operation. An error of the kind [`io::ErrorKind::Other`] if the scheduler has shut down, also while
    /// this waits, and in a process that was forked from the scheduler's.
    pub async fn with<R>(
        &self,
        interest: Interest,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.attempt(interest, |descriptor, _| operation(descriptor)).await
    }

    /// [`Io::with`] for an operation that wants to know which word of readiness was seen before it.
    async fn attempt<R>(
        &self,
        interest: Interest,
        mut operation: impl FnMut(&T, u64) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut place = Place { io: self, interest, key: None };
        poll_fn(|context| self.poll_attempt(interest, &mut place.key, context, &mut operation)).await
    }

    /// `key` is the place of who waits.
    fn poll_attempt<R>(
        &self,
        interest: Interest,
        key: &mut Option<u64>,
        context: &mut Context<'_>,
        operation: &mut impl FnMut(&T, u64) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            // The end of the scheduler wakes who waits. In another process the list of those who wait may be locked for
            // ever.
            self.group.check()?;
            let seen = ready!(self.source.poll_ready(interest, key, context));
            match operation(&self.descriptor, seen) {
                // An error is told once, a pipe may be opened again, and an event may have been meant for a descriptor
                // that is gone: what would wait is not closed, whatever was told before.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.clear(interest.ready(), seen)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Reads what there is, at most as much as there is room for, and returns how much it was: 0 at the end.
    ///
    /// # Errors
    /// Those of the descriptor, and as [`Io::with`].
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize>
    where
        for<'a> &'a T: Read,
    {
        self.attempt(Interest::Read, |descriptor, seen| self.read_now(descriptor, buffer, seen)).await
    }

    fn read_now(&self, mut descriptor: &T, buffer: &mut [u8], seen: u64) -> io::Result<usize>
    where
        for<'a> &'a T: Read,
    {
        let length = descriptor.read(buffer)?;
        // A stream that gives less than there is room for has no more (epoll(7)).
        if self.is_stream && length > 0 && length < buffer.len() {
            self.source.clear(READ, seen);
        }
        Ok(length)
    }

    /// Writes as much as there is room for, and returns how much it was.
    ///
    /// # Errors
    /// Those of the descriptor, and as [`Io::with`].
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize>
    where
        for<'a> &'a T: Write,
    {
        self.with(Interest::Write, |mut descriptor| descriptor.write(bytes)).await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// Those of the descriptor, and as [`Io::with`]; [`io::ErrorKind::WriteZero`] if it takes no more.
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

/// Leaves the list of those who wait when it is dropped.
struct Place<'a, T: AsFd> {
    io: &'a Io<T>,
    interest: Interest,
    key: Option<u64>,
}

impl<T: AsFd> Drop for Place<'_, T> {
    fn drop(&mut self) {
        if self.io.group.process.is_this() {
            self.io.source.leave(self.interest, &mut self.key);
        }
    }
}

/// How long a listener waits before it tries again, while the process or the system has no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(100);

impl Io<TcpListener> {
    /// Waits for a connection, and registers it. Nagle's delay is off.
    ///
    /// Where no descriptors or no memory are left, the first call that finds so is an error; later ones wait and try
    /// again ten times a second, until one succeeds. So a loop that goes on after errors keeps no processor busy.
    ///
    /// # Errors
    /// Those of `accept`, of which some concern one connection only (`ECONNABORTED`), and some are of this process
    /// (`EMFILE`), and as [`Io::with`] and [`Io::new`]. None of `accept`'s means that later connections would fail.
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

/// Whether something is used up that others may give back, while the connection goes on waiting.
fn is_exhaustion(error: &io::Error) -> bool {
    let all = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| all.contains(&error))
}

impl Io<TcpStream> {
    /// Connects. Nagle's delay is off.
    ///
    /// # Errors
    /// Those of `connect`, and as [`Io::with`] and [`Io::new`].
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
        // A socket that is being connected is not writable yet, whatever a new one counts as.
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

impl<T: AsFd> AsFd for Io<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<T: AsFd> Drop for Io<T> {
    fn drop(&mut self) {
        // A child process would take the parent's socket out of the epoll, which is the parent's too.
        if !self.group.process.is_this() {
            return;
        }
        // An error means that the kernel does not know the descriptor any more, which is what is wanted.
        let _ = self.group.poller.remove(&self.descriptor);
        self.dispatcher.remove(self.token.source, &self.group.dispatchers);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn poll(source: &Source, interest: Interest, key: &mut Option<u64>) -> Poll<u64> {
        source.poll_ready(interest, key, &mut Context::from_waker(Waker::noop()))
    }

    /// The sources of two sockets may have the same number, one after the other.
    #[test]
    fn a_late_event_of_another_socket_is_forgotten() {
        let source = Source::new();
        source.deliver(EventFlags::HUP | EventFlags::ERR);
        for interest in [Interest::Read, Interest::Write] {
            let Poll::Ready(seen) = poll(&source, interest, &mut None) else {
                panic!("it counts as ready");
            };
            source.clear(interest.ready(), seen);
            assert!(poll(&source, interest, &mut None).is_pending());
        }
    }

    #[test]
    fn who_waits_no_more_is_forgotten() {
        let source = Source::new();
        source.clear(READ, READ | WRITE);
        for _ in 0..100 {
            let (mut one, mut other) = (None, None);
            assert!(poll(&source, Interest::Read, &mut one).is_pending());
            assert!(poll(&source, Interest::Read, &mut other).is_pending());
            // Polling again takes a new place, and leaves the old one.
            assert!(poll(&source, Interest::Read, &mut one).is_pending());
            source.leave(Interest::Read, &mut one);
            source.leave(Interest::Read, &mut other);
        }
        let waiters = source.waiters();
        assert!(waiters.reader.is_none() && waiters.more.is_empty());
    }
}
