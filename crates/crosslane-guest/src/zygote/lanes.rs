//! The lanes of a zygote: their forks and their ends.

use super::guest::Guest;
use super::load::{identity, load};
use super::log::say;
use super::sandbox::Restrictions;
use super::signals::{BELL, INTERRUPTED, Signals};
use crosslane_process::control::{ControlSocket, Report, Request};
use crosslane_process::{Source, limits, reaper};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A lane that the engine asks for.
struct Ordered {
    /// The only function that it calls, if that has own lanes.
    function: Option<u32>,
    spin: Duration,
    /// Memory, socket and log.
    descriptors: [OwnedFd; 3],
}

pub(crate) struct Zygote {
    control: ControlSocket,
    /// What each lane loads itself, if a fork would miss threads of what was loaded here.
    reloaded: Option<(Source, Option<OwnedFd>, String)>,
    restrictions: Restrictions,
    /// The numbers of the living lanes, by their process ids.
    lanes: HashMap<i32, u64>,
    pid: Pid,
    wakeup: OwnedFd,
    bell: OwnedFd,
}

impl Zygote {
    pub(crate) fn new(
        control: ControlSocket,
        reloaded: Option<(Source, Option<OwnedFd>, String)>,
        restrictions: Restrictions,
    ) -> io::Result<Self> {
        let (wakeup, bell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (lanes, pid) = (HashMap::new(), rustix::process::getpid());
        Ok(Self { control, reloaded, restrictions, lanes, pid, wakeup, bell })
    }

    /// Forks a lane per request until the engine closes the socket.
    pub(crate) fn serve<G: Guest>(mut self, guest: &mut G) -> io::Result<()> {
        guest.settle(self.bell.as_fd())?;
        BELL.store(self.bell.as_raw_fd(), Relaxed);
        let signals = Signals::take(G::SIGNALS);
        let served = loop {
            match self.turn(guest, &signals) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for pid in self.lanes.keys() {
            kill_group(*pid);
        }
        for pid in self.lanes.keys() {
            let _ = rustix::process::waitpid(Pid::from_raw(*pid), rustix::process::WaitOptions::empty());
        }
        signals.give_back();
        // The language's handlers may write to the bell as long as the process lives. So its
        // numbers must not become those of other files.
        std::mem::forget((self.wakeup, self.bell));
        served
    }

    /// Waits for a request or a signal, and handles it. Returns false when the engine has closed
    /// the socket.
    fn turn(&mut self, guest: &mut impl Guest, signals: &Signals) -> io::Result<bool> {
        let [asked, woken] = guest.wait([self.control.as_fd(), self.wakeup.as_fd()])?;
        if woken {
            let _ = rustix::io::read(&self.wakeup, &mut [0; 4096]);
            match INTERRUPTED.swap(0, Relaxed) {
                0 => {}
                at => self.control.send(&Report::Interrupted { at })?,
            }
            self.reap()?;
        }
        if !asked {
            return Ok(true);
        }
        let Some((request, descriptors)) = self.control.receive()? else { return Ok(false) };
        match request {
            Request::Fork { lane, spin_microseconds, environment, function } => {
                let made = match <[OwnedFd; 3]>::try_from(descriptors) {
                    Ok(descriptors) => {
                        let spin = Duration::from_micros(spin_microseconds);
                        self.fork(guest, signals, &environment, Ordered { function, spin, descriptors })
                    }
                    Err(_) => Err("the process has too few descriptors left".to_owned()),
                };
                match made {
                    Ok(pid) => {
                        self.lanes.insert(pid, lane);
                        self.control.send(&Report::Forked { lane })?;
                    }
                    Err(message) => self.control.send(&Report::Unforked { lane, message })?,
                }
            }
            // Its end is reported like that of any other lane.
            Request::Unfork { lane } => {
                self.lanes
                    .iter()
                    .filter(|(_, number)| **number == lane)
                    .for_each(|(pid, _)| kill_group(*pid));
            }
            Request::Load { .. } | Request::Zygote { .. } => {}
        }
        Ok(true)
    }

    /// Reports every lane that ended.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, code, signal)) = reaper::ended_child() {
            let lane = self.lanes.remove(&pid);
            if lane.is_some() {
                // Before it is reaped, no other group can have its number.
                kill_group(pid);
            }
            let _ = rustix::process::waitpid(Pid::from_raw(pid), rustix::process::WaitOptions::empty());
            if let Some(lane) = lane {
                self.control.send(&Report::Exited { lane, code, signal })?;
            }
        }
        Ok(())
    }

    fn fork<G: Guest>(
        &mut self,
        guest: &mut G,
        signals: &Signals,
        environment: &BTreeMap<String, String>,
        ordered: Ordered,
    ) -> Result<i32, String> {
        guest.flush();
        let forked = guest.fork();
        let is_fork = rustix::process::getpid() != self.pid;
        match forked {
            Ok(_) if is_fork => {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    guest.set_environment(environment)?;
                    self.run_lane(guest, signals, ordered)
                }));
                let status = match outcome {
                    Ok(Ok(status)) => status,
                    Ok(Err(error)) => guest.explain(error),
                    // The panic hook has written the reason.
                    Err(_) => 1,
                };
                let _ = catch_unwind(AssertUnwindSafe(|| guest.flush()));
                // SAFETY: this is a copy of the zygote, and must not clean up what belongs to the
                // zygote.
                unsafe { libc::_exit(status) }
            }
            Err(error) if is_fork => {
                let status = guest.explain(error);
                // SAFETY: as above.
                unsafe { libc::_exit(status) }
            }
            // A library may have replaced the language's fork.
            Ok(pid) if !is_child(pid) => {
                let fork = G::FORK;
                Err(format!("{fork} made no child, but answered {pid}"))
            }
            Ok(pid) => Ok(pid),
            Err(error) => Err(format!("fork: {error}")),
        }
    }

    /// Runs as a lane. Returns the exit code.
    fn run_lane(
        &mut self,
        guest: &mut impl Guest,
        signals: &Signals,
        Ordered { function, spin, descriptors: [memory, socket, log] }: Ordered,
    ) -> io::Result<i32> {
        rustix::process::setpgid(None, None)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(self.pid) {
            return Ok(0);
        }
        signals.give_back();
        // They are the zygote's. This process must not keep them open.
        for descriptor in [self.control.as_fd(), self.wakeup.as_fd(), self.bell.as_fd()] {
            // SAFETY: they are not used again; the process ends without dropping what owns them.
            unsafe { libc::close(descriptor.as_raw_fd()) };
        }
        rustix::stdio::dup2_stdout(&log)?;
        rustix::stdio::dup2_stderr(&log)?;
        drop(log);
        if self.restrictions.library.is_none() {
            limits::prefer_to_be_killed();
        }
        self.restrictions.enter(function)?;
        if let Some((source, pickles, loaded)) = &self.reloaded {
            // The file must load no library, as in a zygote: that library could be the file itself.
            // SAFETY: the process has one thread.
            unsafe { std::env::set_var(reaper::ZYGOTE, std::process::id().to_string()) };
            let again = load(guest, source, pickles.as_ref());
            // SAFETY: a library that has started threads is not to change the environment, from C,
            // at the same time.
            unsafe { std::env::remove_var(reaper::ZYGOTE) };
            match again {
                Ok(again) if identity(&again) == *loaded => {}
                Ok(_) => {
                    say(format_args!("{} has changed since it was loaded; load it again", source.name()));
                    return Ok(1);
                }
                Err(failure) => {
                    say(failure);
                    return Ok(1);
                }
            }
        }
        guest.begin()?;
        guest.serve(memory, socket, spin)?;
        Ok(0)
    }
}

fn is_child(pid: i32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(pid).is_some_and(|pid| {
        pid.as_raw_nonzero().get() > 0 && rustix::process::waitid(WaitId::Pid(pid), options).is_ok()
    })
}

fn kill_group(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    if rustix::process::kill_process_group(pid, Signal::KILL).is_err() {
        // The lane had no time to make its group.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
