//! The JavaScript host process: a zygote whose lanes are threads.
//!
//! The main thread loads the library. Then it waits for requests of the engine and for the lanes'
//! sockets. A lane ends when its socket closes. At each tick, the main thread ends calls that take
//! too long. Each lane boots its isolate on its own thread. If a lane does not end within
//! [`LONGEST_CLOSE`], the process ends. Then the engine makes the calls of the other lanes again in
//! another process. See `docs/protocol.md` for the messages.

use super::lane::Lane;
use super::waker::Waker;
use super::watch::{LastLook, Watched};
use crate::host::attention::Attention;
use crate::host::{confine, loader};
use crate::isolate;
use crate::library::Library;
use crosslane::{Failure, FunctionSpec};
use crosslane_process::Source;
use crosslane_process::control::{ControlSocket, Report, Request};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use std::io::{self};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the load of a file may take in `check`.
const CHECK: Duration = Duration::from_secs(120);
/// How long a call may go on after its engine closed the lane.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);
/// The stack of a lane's thread: the stack of JavaScript, and 4 MiB for V8 and this program.
const STACK: usize = isolate::STACK + (4 << 20);
/// The score for the kernel's out-of-memory killer. It is high, so the kernel kills this process
/// before the database.
const OOM_SCORE: &str = "800";

/// The main thread's state of a lane.
struct Thread {
    /// Shows that the engine has closed the lane.
    socket: OwnedFd,
    watched: Arc<Watched>,
    last_look: LastLook,
    closed: Option<Instant>,
}

/// Runs the host until the engine closes the control socket, descriptor 3. Returns whether the
/// library was loaded.
///
/// # Errors
/// If the engine breaks the protocol.
pub(super) fn run() -> io::Result<bool> {
    // SAFETY: the engine starts this program with this socket as descriptor 3, and no other code
    // has used it.
    let control = unsafe { ControlSocket::inherited()? };
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // If the kernel refuses this, the watch counts too little memory.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // A panic ends the process. If only the lane's thread ended, the engine would wait for ever.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    // This blocks SIGINT before any other thread starts. So all threads inherit the block.
    let interrupts = interrupts()?;
    let Some((Request::Load { source, seconds, types, sandbox }, descriptors)) = control.receive()? else {
        return Ok(true);
    };
    types.know();
    let connections = descriptors.into_iter().next();
    let entered = confine::before_load(sandbox, &source, connections);
    let loaded =
        entered.and_then(|sandboxed| Ok((load(&source, Duration::from_secs_f64(seconds))?, sandboxed)));
    let (library, sandboxed) = match loaded {
        Ok((library, sandboxed)) => (Arc::new(library), sandboxed),
        Err(failure) => {
            control.send(&Report::Failed { failure })?;
            return Ok(false);
        }
    };
    confine::after_load(sandboxed)?;
    let runtime = format!("V8 {}", isolate::version());
    control.send(&Report::Loaded {
        functions: declarations(&library),
        runtime,
        files: Some(library.files.clone()),
        reloads: false,
        sandboxed,
    })?;
    serve(&control, &interrupts, &library)?;
    Ok(true)
}

/// Loads a file and prints JSON to stdout. `functions` has the file's declarations. If the load
/// fails, `failure` has the reason. Returns whether the file was loaded.
pub(super) fn check(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or(path.to_owned());
    let outcome = match loader::load(&path, CHECK) {
        Ok(library) => json!({ "functions": declarations(&library) }),
        Err(failure) => json!({ "failure": failure }),
    };
    println!("{outcome}");
    outcome.get("failure").is_none()
}

fn load(source: &Source, time: Duration) -> Result<Library, Failure> {
    match source {
        Source::File { path } => loader::load(path, time),
        Source::Thread { .. } | Source::Pickle { .. } => Err(Failure {
            class: "Error".into(),
            message: "JavaScript functions come from files".into(),
            ..Failure::default()
        }),
    }
}

fn declarations(library: &Library) -> Value {
    let time = library.time.as_secs_f64();
    let specs = library.functions.iter().map(|function| {
        let set_up_timeout = function.spec.set_up.then_some(time);
        json!(FunctionSpec { set_up_timeout, ..function.spec.clone() })
    });
    specs.collect()
}

/// Makes a descriptor that receives Ctrl-C of the terminal.
fn interrupts() -> io::Result<OwnedFd> {
    // SAFETY: a signal set is plain memory that sigemptyset initialises; the calls touch nothing else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Returns the time between two checks of the lanes for calls that take too much time or memory.
fn tick(library: &Library) -> Duration {
    let timeouts = library.functions.iter().filter_map(|function| function.spec.timeout);
    let shortest = timeouts.fold(f64::INFINITY, f64::min);
    // A call can fill gigabytes of memory in a second.
    let longest = if library.functions.iter().any(|function| function.spec.memory_limit.is_some()) {
        0.01
    } else {
        0.05
    };
    Duration::from_secs_f64((shortest / 8.0).clamp(0.001, longest))
}

fn serve(control: &ControlSocket, interrupts: &OwnedFd, library: &Arc<Library>) -> io::Result<()> {
    let tick = tick(library);
    let mut threads: Vec<Thread> = Vec::new();
    // Lanes that have booted come through this channel. The waker wakes this thread for each.
    let (booted, boots) = mpsc::channel();
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let waker = Arc::new(Waker { attention: Attention::new(), event });
    let mut last_call = Instant::now();
    loop {
        let at_work = || threads.iter().any(|thread| thread.watched.is_at_work());
        let wait = if threads.iter().any(|thread| thread.closed.is_some()) {
            Some(Duration::from_millis(10))
        } else {
            waker.attention.is_due(&mut last_call, at_work).then_some(tick)
        };
        let mut fds = vec![
            PollFd::new(control, PollFlags::IN),
            PollFd::new(interrupts, PollFlags::IN),
            PollFd::new(&waker.event, PollFlags::IN),
        ];
        let open: Vec<usize> = (0..threads.len()).filter(|index| threads[*index].closed.is_none()).collect();
        fds.extend(open.iter().map(|index| PollFd::new(&threads[*index].socket, PollFlags::empty())));
        let wait = wait.map(|wait| Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 });
        match rustix::event::poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (index, _) in open.iter().zip(&ready[3..]).filter(|(_, gone)| **gone) {
            threads[*index].watched.close();
            threads[*index].closed = Some(Instant::now());
        }
        threads.retain(|thread| !thread.watched.ended.load(std::sync::atomic::Ordering::Relaxed));
        for thread in &mut threads {
            match thread.closed {
                None => thread.watched.look(&mut thread.last_look),
                Some(since) if since.elapsed() > LONGEST_CLOSE && thread.watched.is_at_work() => {
                    eprintln!("crosslane: a call that cannot be ended; its process ends");
                    std::process::abort();
                }
                // The call may have been between two calls into V8.
                Some(_) => thread.watched.close(),
            }
        }
        if ready[1] {
            let _ = rustix::io::read(interrupts, &mut [0; 128]);
            control.send(&Report::Interrupted { at: crosslane::stats::now() })?;
        }
        if ready[2] {
            let _ = rustix::io::read(&waker.event, &mut [0; 8]);
            threads.extend(boots.try_iter());
        }
        if ready[0] {
            match control.receive()? {
                Some((Request::Fork { lane, spin_microseconds, .. }, fds)) => {
                    let spin = Duration::from_micros(spin_microseconds);
                    let shared = (booted.clone(), Arc::clone(&waker));
                    fork(control, library, lane, fds, spin, shared)?;
                }
                // The closed socket of a lane ends its thread.
                Some((Request::Unfork { .. }, _)) => {}
                // The process ends, so this does not free the isolates one by one.
                _ => return Ok(()),
            }
        }
    }
}

/// Starts a lane's thread. The thread itself reports whether it has booted.
fn fork(
    control: &ControlSocket,
    library: &Arc<Library>,
    lane: u64,
    fds: Vec<OwnedFd>,
    spin: Duration,
    (booted, waker): (mpsc::Sender<Thread>, Arc<Waker>),
) -> io::Result<()> {
    let unforked = |message: String| Report::Unforked { lane, message };
    let Ok([memory, socket, log]) = <[OwnedFd; 3]>::try_from(fds) else {
        return control.send(&unforked("three descriptors belong to a fork".into()));
    };
    let reports = control.try_clone()?;
    let library = Arc::clone(library);
    let body = move || {
        let made = socket.try_clone().and_then(|watched| {
            Ok((watched, Lane::boot(&library, memory, socket, log, spin, Arc::clone(&waker))?))
        });
        let (socket, made) = match made {
            Ok(made) => made,
            Err(error) => return reports.send(&Report::Unforked { lane, message: error.to_string() }),
        };
        let watched = Arc::clone(&made.watched);
        let thread =
            Thread { socket, watched: Arc::clone(&watched), last_look: LastLook::default(), closed: None };
        let _ = booted.send(thread);
        waker.wake()?;
        reports.send(&Report::Forked { lane })?;
        let served = made.serve();
        if let Err(error) = &served {
            eprintln!("crosslane: a lane ended: {error}");
        }
        watched.ended.store(true, std::sync::atomic::Ordering::Relaxed);
        waker.wake()?;
        reports.send(&Report::Exited { lane, code: Some(i32::from(served.is_err())), signal: None })
    };
    let name = format!("lane-{lane}");
    match std::thread::Builder::new().name(name).stack_size(STACK).spawn(body) {
        Ok(_) => Ok(()),
        Err(error) => control.send(&unforked(format!("thread: {error}"))),
    }
}
