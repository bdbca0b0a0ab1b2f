//! The user's log, which gets the output of workers. It is the program's stderr.
//!
//! # Protocol
//! [`print`] puts bytes into a queue and never waits. One thread for the whole process takes the
//! bytes out and writes them. The reader of the log may be slow. Bytes that do not fit into the
//! queue meanwhile are dropped and counted, and the count is written in their place. [`flush`]
//! waits for the queue as long as the thread makes progress.
//!
//! The thread has all signals blocked. If the log's reader is gone (SIGPIPE), or its file is full
//! (SIGXFSZ), the output is lost, and no process ends.
//!
//! # Descriptors
//! A program may have been started without a stderr. Then descriptor 2 is the next file that the
//! program opens, possibly a database. [`occupy_standard_descriptors`] prevents this after the
//! extension was loaded. For files that were opened before, [`stderr`] decides whether descriptor 2
//! is a stderr.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes that wait for a slow reader.
const MOST: usize = 16 << 20;
/// How long [`flush`] waits for a reader that reads nothing.
const PATIENCE: Duration = Duration::from_millis(250);

/// The most bytes that are written at once.
const PIECE: usize = 64 << 10;

/// The form of a program's log, if it has its own.
#[derive(Debug, Clone, Copy)]
pub struct LogForm {
    /// Writes the output of workers, with [`print`]. It gets whole lines, except for a line that is
    /// long or comes slowly.
    pub printed: fn(&[u8]),
    /// Writes a message of this library, with [`print`].
    pub said: fn(&str),
    /// Returns the line about this many missing bytes. Must not print.
    pub missing: fn(usize) -> String,
}

/// By default, bytes are written as they are.
static FORM: OnceLock<LogForm> = OnceLock::new();

/// Sets the form of the log, once for the process.
pub fn set_log_form(form: LogForm) {
    // The first form stays.
    let _ = FORM.set(form);
}

/// Writes the output of a worker.
pub(crate) fn pass_on(bytes: &[u8]) {
    match FORM.get() {
        _ if bytes.is_empty() => {}
        Some(form) => (form.printed)(bytes),
        None => print(bytes),
    }
}

/// Writes a line of this library.
pub(crate) fn say(line: &str) {
    match FORM.get() {
        Some(form) => (form.said)(line),
        None => print(format!("crosslane: {line}\n").as_bytes()),
    }
}

/// The line about bytes that are missing.
fn missing(bytes: usize) -> String {
    match FORM.get() {
        Some(form) => (form.missing)(bytes),
        None => format!("crosslane: {bytes} bytes of output are missing here: stderr is read too slowly\n"),
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Bytes, not lines: a line of one byte would take much more than one byte of memory.
    bytes: VecDeque<u8>,
    /// How many bytes did not fit since the last ones that did.
    dropped: usize,
    /// Counts the pieces that were written, so that a wait sees whether the thread makes progress.
    written: u64,
    /// Whether the thread has taken a piece that it has not written yet.
    writing: bool,
    /// The process whose thread serves the queue: a fork has none.
    process: u32,
}

struct Log {
    queue: Mutex<Queue>,
    /// Notifies the thread that there are bytes to write, and callers of [`flush`] that bytes were
    /// written.
    change: Condvar,
}

static LOG: LazyLock<Log> = LazyLock::new(|| Log { queue: Mutex::default(), change: Condvar::new() });

impl Log {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, patience: Duration) -> MutexGuard<'a, Queue> {
        self.change.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread's loop. It ends with its process.
    fn serve(&self) {
        block_signals();
        let mut queue = self.lock();
        loop {
            let piece = queue.take();
            if piece.is_empty() {
                queue = self.wait(queue, Duration::from_secs(3600));
                continue;
            }
            queue.writing = true;
            drop(queue);
            write(&piece);
            queue = self.lock();
            queue.writing = false;
            queue.written += 1;
            self.change.notify_all();
        }
    }
}

impl Queue {
    fn push(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > MOST {
            self.dropped += bytes.len();
            return;
        }
        if self.dropped > 0 {
            let note = missing(std::mem::take(&mut self.dropped));
            self.bytes.extend(note.as_bytes());
        }
        self.bytes.extend(bytes);
    }

    /// Takes the bytes to write next. Empty if there are none.
    fn take(&mut self) -> Vec<u8> {
        let piece = self.bytes.drain(..self.bytes.len().min(PIECE)).collect();
        if self.bytes.is_empty() {
            // This frees the memory of a queue that was long.
            self.bytes = VecDeque::new();
        }
        piece
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.writing
    }
}

/// Puts bytes into the program's log. Never waits.
pub fn print(bytes: &[u8]) {
    let mut queue = LOG.lock();
    if queue.process != std::process::id() {
        let thread = std::thread::Builder::new().name("crosslane-log".into());
        if thread.spawn(|| LOG.serve()).is_err() {
            return;
        }
        queue.process = std::process::id();
    }
    queue.push(bytes);
    LOG.change.notify_all();
}

/// Waits until all printed bytes are written, or the log's reader reads nothing.
pub fn flush() {
    let mut queue = LOG.lock();
    let mut seen = (queue.written, Instant::now());
    while !queue.is_empty() && queue.process == std::process::id() {
        if queue.written != seen.0 {
            seen = (queue.written, Instant::now());
        }
        let Some(rest) = PATIENCE.checked_sub(seen.1.elapsed()) else { return };
        queue = LOG.wait(queue, rest);
    }
}

/// Opens `/dev/null` for each of the descriptors 0 to 2 that is closed. So no file or socket that
/// is opened later becomes the program's input, output or log.
pub fn occupy_standard_descriptors() {
    for number in 0..=2 {
        // SAFETY: a closed descriptor is an error here, and nothing else is done with it.
        let standard = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(standard) == Err(Errno::BADF)
            && let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())
        {
            // The lowest free number is this one, unless another thread was faster, which has the
            // same effect.
            if std::os::fd::AsRawFd::as_raw_fd(&null) <= 2 {
                std::mem::forget(null);
            }
        }
    }
}

/// Reports panics of this library to the log. By default they go to descriptor 2, whatever file
/// that is. This hook does not affect the rest of the program, which has a standard library of its
/// own.
pub fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| say(&panic.to_string()))));
}

/// A descriptor of the program's stderr, if it has one. A file that the program opened itself, and
/// that became descriptor 2, is not a stderr. Such a file is closed on exec. A stderr is never
/// closed on exec, because it was inherited over one. A database is a file with a name, open for
/// reading and writing.
fn stderr() -> Option<OwnedFd> {
    // SAFETY: a closed descriptor is an error here. All later calls use a copy.
    let standard = unsafe { BorrowedFd::borrow_raw(2) };
    if rustix::io::fcntl_getfd(standard).ok()?.contains(FdFlags::CLOEXEC) {
        return None;
    }
    let copy = rustix::io::fcntl_dupfd_cloexec(standard, 3).ok()?;
    let access = rustix::fs::fcntl_getfl(&copy).ok()? & OFlags::RWMODE;
    let file = rustix::fs::fstat(&copy).ok()?;
    // A temporary file without a name is no database either. Programs that capture output use such
    // files.
    let named = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile && file.st_nlink > 0;
    let is_log = access == OFlags::WRONLY || (access == OFlags::RDWR && !named);
    is_log.then_some(copy)
}

/// Writes to the current stderr, because the program may have replaced it.
fn write(mut bytes: &[u8]) {
    let Some(stderr) = stderr() else { return };
    while !bytes.is_empty() {
        match rustix::io::write(&stderr, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Someone has made the terminal or pipe non-blocking: wait until it takes bytes.
            Err(Errno::AGAIN) => {
                let mut fds = [rustix::event::PollFd::new(&stderr, rustix::event::PollFlags::OUT)];
                let _ = rustix::event::poll(&mut fds, None);
            }
            // Only the log is lost.
            Err(_) => return,
        }
    }
}

fn block_signals() {
    // SAFETY: both calls get a valid set; the mask is this thread's alone.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_in_its_place() {
        let mut queue = Queue::default();
        queue.push(&vec![b'a'; MOST - 10]);
        queue.push(b"more than ten bytes");
        queue.push(b"as long again");
        queue.bytes.clear();
        queue.push(b"later");
        let text = String::from_utf8(queue.take()).unwrap();
        assert!(text.starts_with("crosslane: 32 bytes of output are missing here"), "{text}");
        assert!(text.ends_with("\nlater"), "{text}");
    }

    /// With a slow reader, output in many small pieces takes no more memory than output in one
    /// piece.
    #[test]
    fn short_lines_take_no_more_than_their_bytes() {
        let mut queue = Queue::default();
        (0..MOST).for_each(|_| queue.push(b"\n"));
        let Queue { bytes, dropped, .. } = &queue;
        assert!(bytes.capacity() <= 2 * MOST && *dropped == 0, "{} bytes", bytes.capacity());
        while !queue.take().is_empty() {}
        assert_eq!(queue.bytes.capacity(), 0);
    }
}
