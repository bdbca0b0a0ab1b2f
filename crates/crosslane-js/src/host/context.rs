//! The process of one context of a program ([`crate::embed::process`]).
//!
//! | thread | work |
//! |---|---|
//! | `crosslane-context` | answers requests, and runs V8 |
//! | main | ends requests for the program, and the process for its memory and with the program |
//!
//! The process has two sockets: its standard input for requests, and its standard output for signals. It has
//! no system call for files, sockets or programs once its context has booted.

use crate::embed::wire::{self, FromHost, Signal, ToHost, Way};
use crate::embed::{Context, Refused, Script};
use crate::host::attention::Attention;
use crate::isolate::{self, Handle, Host, Reason, Snapshot, Thrown};
use crosslane::{lock, shortened};
use crosslane_process::guest::keep_counts;
use crosslane_process::limits::own_size;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use std::cell::OnceCell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Instant;

/// The stack of the thread that runs V8: the stack of JavaScript, and 4 MiB for V8 and this program.
const STACK: usize = isolate::STACK + (4 << 20);
/// How often the memory of a running request is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// What the process may have beyond its limit: memory that V8 takes for itself.
const SLACK: usize = 128 << 20;
/// The score for the kernel's out-of-memory killer: the program is to live longer.
const OOM_SCORE: &str = "800";

/// What both threads know.
struct Shared {
    running: Mutex<Running>,
    handle: OnceLock<Arc<Handle>>,
    /// Whether the main thread looks at what runs. A request wakes it by the descriptor.
    attention: Attention,
    wake: OwnedFd,
}

/// What runs now.
#[derive(Default)]
struct Running {
    /// The number of the outermost request, from 1.
    request: u64,
    /// How many requests are in each other.
    depth: usize,
    /// The request that must end at V8's next check, and why. It may begin later: a signal can be faster
    /// than its request.
    ends: Option<(u64, Reason)>,
    /// The resident bytes above which the process ends. `None` before there is a limit.
    most: Option<usize>,
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, Running> {
        lock(&self.running)
    }

    /// From now on, signals end what the isolate of this handle runs.
    fn begin(&self, handle: &Arc<Handle>) {
        let _ = self.handle.set(Arc::clone(handle));
        self.ask(&self.running());
    }

    /// Asks V8 to end the running request at its next check, if it must end. V8 forgets what it was asked
    /// before a request begins, so this asks again until the check has come.
    fn ask(&self, running: &Running) {
        if let (Some((request, reason)), Some(handle)) = (running.ends, self.handle.get())
            && running.depth > 0
            && running.request == request
        {
            handle.end(reason, true);
        }
    }
}

/// Runs a context for the program with this process id, until the program closes it.
///
/// # Errors
/// If the system has no descriptors or threads for it.
pub(super) fn run(program: &str) -> io::Result<()> {
    // Only the program ends this process. A terminal sends Ctrl-C to both.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no other thread runs, and no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: nothing has opened a descriptor that it needs: these are the program's.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let Some(parent) = getppid().filter(|parent| parent.as_raw_nonzero().to_string() == program) else {
        // The program has ended meanwhile, or is no parent of Node's program.
        let _ = writeln!(io::stdout(), "the process of the context is no child of the program {program}");
        return Ok(());
    };
    let program = pidfd_open(parent, PidfdFlags::empty())?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let sockets = (socket(io::stdin().as_fd())?, socket(io::stdout().as_fd())?);
    // What prints to the standard output would be taken for signals.
    rustix::stdio::dup2_stdout(io::stderr())?;
    let (requests, signals) = sockets;
    // They cannot be opened later.
    keep_counts();
    let (wake, attention) = (eventfd(0, EventfdFlags::CLOEXEC)?, Attention::new());
    let (running, handle) = (Mutex::default(), OnceLock::new());
    let shared = Arc::new(Shared { running, handle, attention, wake });
    let of_thread = Arc::clone(&shared);
    let serve = move || {
        // A panic must not leave the program waiting.
        let _ = panic::catch_unwind(|| {
            let client = Client { requests, shared: of_thread, context: OnceCell::new() };
            CLIENT.with(|this| this.get_or_init(|| client).serve_all());
            leave()
        });
        // SAFETY: nothing needs to be cleaned up.
        unsafe { libc::_exit(1) }
    };
    thread::Builder::new().name("crosslane-context".into()).stack_size(STACK).spawn(serve)?;
    watch(&signals, &program, &shared)
}

fn socket(descriptor: impl AsFd) -> io::Result<UnixStream> {
    Ok(descriptor.as_fd().try_clone_to_owned()?.into())
}

/// Ends the process, with threads of V8 at work.
fn leave() -> ! {
    // SAFETY: nothing needs to be cleaned up.
    unsafe { libc::_exit(0) }
}

/// The bytes of this process that are in memory and that it shares with no other.
fn resident() -> usize {
    own_size().map_or(0, |bytes| bytes as usize)
}

/// Waits for signals, and for the end of the program.
fn watch(signals: &UnixStream, program: &OwnedFd, shared: &Shared) -> io::Result<()> {
    let mut last = Instant::now();
    loop {
        let mut sources = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(program.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN),
        ];
        let is_due = shared.attention.is_due(&mut last, || shared.running().depth > 0);
        match poll(&mut sources, is_due.then_some(&LOOK)) {
            Err(Errno::INTR) => continue,
            polled => _ = polled?,
        }
        if !sources[2].revents().is_empty() {
            rustix::io::read(&shared.wake, &mut [0; 8])?;
        }
        if !sources[1].revents().is_empty() {
            leave();
        }
        if !sources[0].revents().is_empty() {
            let mut bytes = [0; Signal::SIZE];
            if (&*signals).read_exact(&mut bytes).is_err() {
                // The program has closed the context.
                leave();
            }
            obey(Signal::of(bytes), shared);
        }
        let running = shared.running();
        shared.ask(&running);
        if running.depth > 0 && running.most.is_some_and(|most| resident() > most) {
            // These are the last words, which say why.
            let _ = writeln!(&*signals, "!{}", Reason::Memory as u32);
            leave();
        }
    }
}

fn obey(Signal { request, reason, way }: Signal, shared: &Shared) {
    let mut running = shared.running();
    let (reason, is_here) = (Reason::of(u32::from(reason)), running.request == request);
    let is_done = running.request > request || is_here && running.depth == 0;
    match (way, shared.handle.get()) {
        _ if is_done => {}
        (Way::AtOnce, Some(handle)) if is_here => handle.end(reason, false),
        _ => {
            running.ends = Some((request, reason));
            shared.ask(&running);
        }
    }
}

/// The program, as the context sees it.
struct Client {
    requests: UnixStream,
    shared: Arc<Shared>,
    context: OnceCell<Context>,
}

thread_local! {
    /// That of the thread that runs V8.
    static CLIENT: OnceCell<Client> = const { OnceCell::new() };
}

impl Client {
    /// Answers requests until the program closes the socket, or breaks the protocol.
    fn serve_all(&self) {
        while let Ok((message, bytes)) = wire::receive(Requests(&self.requests), u64::MAX) {
            self.serve(message, bytes);
        }
    }

    /// Answers a request.
    fn serve(&self, message: ToHost, bytes: Vec<u8>) {
        let mut running = self.shared.running();
        running.depth += 1;
        let is_outermost = running.depth == 1;
        running.request += u64::from(is_outermost);
        drop(running);
        if is_outermost && self.shared.attention.begin() {
            let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        }
        let answer = self.answer(message, &bytes);
        drop(bytes);
        let mut running = self.shared.running();
        running.depth -= 1;
        if running.depth == 0 {
            running.ends = None;
        }
        drop(running);
        match answer {
            Ok(value) => self.send(&FromHost::Done, &value),
            Err(Refused::Thrown(Thrown::Exception(failure))) => {
                self.send(&FromHost::Raised(failure.bounded()), &[])
            }
            Err(Refused::Thrown(Thrown::Ended(reason, stack))) => {
                self.send(&FromHost::Ended { reason: reason as u32, stack: shortened(stack) }, &[]);
            }
            Err(refused) => self.send(&FromHost::Refused { why: shortened(refused.to_string()) }, &[]),
        }
    }

    fn answer(&self, message: ToHost, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        if matches!(message, ToHost::Boot { .. } | ToHost::Build { .. }) {
            confine();
        }
        let stack = stack_left();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match message {
            ToHost::Boot { memory } => {
                let snapshot = match bytes {
                    [] => None,
                    bytes => Some(Arc::new(Snapshot::load(bytes)?)),
                };
                let program = Arc::new(ToProgram);
                let context = Context::boot(snapshot, program, memory, stack)?;
                self.shared.begin(context.handle());
                let _ = self.context.set(context);
                self.shared.running().most = Some(resident() + memory + memory / 2 + SLACK);
                Ok(Vec::new())
            }
            ToHost::Build { cold, name } => {
                let (cold, source) =
                    bytes.split_at_checked(cold).ok_or(Refused::Invalid("a snapshot is cut"))?;
                let program = Arc::new(ToProgram);
                let source = text(source);
                let script = Script { source: &source, name: &name, stack };
                let started = |handle: &Arc<Handle>| self.shared.begin(handle);
                self.shared.running().most = Some(resident() + isolate::LARGEST_OBJECTS);
                let made = match cold {
                    [] => Snapshot::of_script(script, program, started)?,
                    cold => Snapshot::load(cold)?.warmed_up(script, program, started)?,
                };
                made.dump()
            }
            message => {
                let Some(context) = self.context.get() else {
                    return Err(Refused::Invalid("the context has not been booted"));
                };
                Ok(match message {
                    ToHost::Eval { name } => {
                        context.eval(Script { source: &text(bytes), name: &name, stack })?
                    }
                    ToHost::Invoke { path } => context.invoke(&path, bytes, stack)?,
                    ToHost::Attach { path, number } => {
                        context.attach(&path, number, stack)?;
                        Vec::new()
                    }
                    ToHost::Collect => {
                        context.collect(stack)?;
                        Vec::new()
                    }
                    ToHost::HeapStats => context.heap_stats(stack)?,
                    ToHost::Memory => (context.memory() as u64).to_le_bytes().to_vec(),
                    _ => return Err(Refused::Invalid("an answer to nothing")),
                })
            }
        }
    }

    /// Sends a message. Without the program, there is nothing left to do.
    fn send(&self, message: &FromHost, bytes: &[u8]) {
        if wire::send(&self.requests, message, &[bytes]).is_err() {
            leave();
        }
    }

    /// Waits for the answer of a function of the program. Ends the script if the program says so. Returns
    /// whether the function failed, and its answer.
    fn answered(&self) -> (bool, Vec<u8>) {
        let (ToHost::Answer { failed, over }, answer) = self.wait() else { leave() };
        if let Some(handle) = self.shared.handle.get().filter(|_| over) {
            handle.end(Reason::Closed, false);
        }
        (failed, answer)
    }

    /// Waits for an answer of the program. Answers the requests that come before it.
    fn wait(&self) -> (ToHost, Vec<u8>) {
        loop {
            let Ok((message, bytes)) = wire::receive(Requests(&self.requests), u64::MAX) else { leave() };
            match message {
                ToHost::Answer { .. } | ToHost::Confirmed { .. } => return (message, bytes),
                message => self.serve(message, bytes),
            }
        }
    }
}

/// The socket of requests, read by a thread that looks for a while before it sleeps.
struct Requests<'a>(&'a UnixStream);

impl Read for Requests<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        while since.elapsed() < wire::SPIN {
            match recv(self.0, &mut *bytes, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                done => return Ok(done?.0),
            }
        }
        self.0.read(bytes)
    }
}

/// Calls the program for V8, on the thread that runs V8.
struct ToProgram;

impl ToProgram {
    fn with<T>(work: impl FnOnce(&Client) -> T) -> T {
        CLIENT.with(|client| match client.get() {
            Some(client) => work(client),
            None => leave(),
        })
    }
}

impl Host for ToProgram {
    fn print(&self, error: bool, text: &str) {
        Self::with(|client| {
            client.send(&FromHost::Print { error }, text.as_bytes());
            client.answered();
        });
    }

    fn confirm(&self, reason: Reason) -> bool {
        if reason != Reason::Closed {
            return true;
        }
        Self::with(|client| {
            client.shared.running().ends = None;
            client.send(&FromHost::Confirm { reason: reason as u32 }, &[]);
            matches!(client.wait(), (ToHost::Confirmed { over: true }, _))
        })
    }

    fn fatal(&self, reason: Reason, what: &str) {
        Self::with(|client| {
            client.send(&FromHost::Fatal { reason: reason as u32, what: what.into() }, &[]);
        });
        leave()
    }

    fn call(&self, number: u32, arguments: &[u8]) -> Result<Vec<u8>, String> {
        Self::with(|client| {
            client.send(&FromHost::Call { number }, arguments);
            let (failed, answer) = client.answered();
            if failed { Err(String::from_utf8_lossy(&answer).into_owned()) } else { Ok(answer) }
        })
    }
}

/// Restricts the process to the descriptors that it has, before V8 boots. Older kernels cannot. V8 has no
/// files anyway.
fn confine() {
    isolate::know_time_zone();
    let _ = crosslane_sandbox::keep_to_descriptors(false);
}

/// The bytes of this thread's stack that JavaScript may use from here on.
fn stack_left() -> usize {
    thread_local! {
        /// Where the first request began.
        static START: usize = {
            let marker = 0u8;
            (&raw const marker).addr()
        };
    }
    let marker = 0u8;
    let used = START.with(|start| start.saturating_sub((&raw const marker).addr()));
    isolate::STACK.saturating_sub(used)
}
