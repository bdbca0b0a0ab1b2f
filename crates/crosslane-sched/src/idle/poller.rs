//! The epoll of a group. Idle workers wait on it for the group's sockets, timers and wakes.
//!
//! All of them wait on the same epoll. For each event, the kernel wakes the worker that began to
//! wait last. So the worker with warm caches goes on while the others sleep. While that worker runs
//! a handler, the kernel wakes the next worker for the next event, without help from the scheduler.
//!
//! All descriptors are registered edge-triggered, so each event reaches one worker, once. The
//! kernel keeps an event that comes while no worker waits.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
/// The most events that a worker takes at a time. The kernel wakes the next worker for the rest.
const AT_ONCE: usize = 64;

/// The kernel's report to a worker.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// The sockets that are ready, and how.
    pub(crate) events: Vec<(Token, EventFlags)>,
    /// A thread added work.
    pub(crate) woken: bool,
    /// Timers are due.
    pub(crate) timers: bool,
}

/// The source of an event, and the source's dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) dispatcher: u32,
    pub(crate) source: u32,
}

impl Token {
    fn data(self) -> EventData {
        EventData::new_u64(u64::from(self.dispatcher) << 32 | u64::from(self.source))
    }
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
    timer: OwnedFd,
}

impl Ready {
    /// Returns whether there is work to do.
    pub(crate) fn has_any(&self) -> bool {
        self.woken || self.timers || !self.events.is_empty()
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let poller = Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
        };
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&poller.epoll, &poller.wake, EventData::new_u64(WAKE), edge)?;
        epoll::add(&poller.epoll, &poller.timer, EventData::new_u64(TIMER), edge)?;
        Ok(poller)
    }

    /// Reports the readiness of the socket, in both directions, until it is removed.
    pub(crate) fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, token.data(), flags)?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Wakes one worker that waits, or the next worker that begins to wait.
    pub(crate) fn wake(&self) {
        // No thread reads the counter. It overflows after 2^64 wakes. Each write causes an edge,
        // and the count does not matter.
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            debug_assert_eq!(error, Errno::AGAIN);
        }
    }

    /// Sets the timer to `at`. A time in the past is due at once.
    pub(crate) fn set_timer(&self, at: Instant) -> io::Result<()> {
        // Zero would switch the timer off.
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: never_again, it_value: wait };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        Ok(())
    }

    /// Asks the kernel for events. With `wait`, it waits until there is one.
    pub(crate) fn poll(&self, wait: bool, ready: &mut Ready) {
        let look = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::<Event>::uninit(); AT_ONCE];
        ready.woken = false;
        ready.timers = false;
        let events = match epoll::wait(&self.epoll, &mut events, (!wait).then_some(&look)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            // The descriptor is ours and open, and the buffer is there.
            Err(error) => unreachable!("epoll_wait: {error}"),
        };
        for event in &*events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => ready.woken = true,
                TIMER => ready.timers = true,
                _ => {
                    let token = Token { dispatcher: (data >> 32) as u32, source: data as u32 };
                    ready.events.push((token, flags));
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_event_reaches_one_worker_once() {
        let poller = Poller::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let token = Token { dispatcher: 7, source: 9 };
        poller.add(&ours, token).unwrap();
        let mut ready = Ready::default();
        poller.poll(true, &mut ready);
        assert_eq!(ready.events, [(token, EventFlags::OUT)]);
        ready.events.clear();
        poller.poll(false, &mut ready);
        assert_eq!(ready.events, []);
        rustix::io::write(&theirs, b"x").unwrap();
        poller.poll(true, &mut ready);
        assert_eq!(ready.events, [(token, EventFlags::IN | EventFlags::OUT)]);
    }

    #[test]
    fn a_wake_is_kept_until_a_worker_polls() {
        let poller = Poller::new().unwrap();
        poller.wake();
        poller.wake();
        let mut ready = Ready::default();
        poller.poll(true, &mut ready);
        assert!(ready.woken && !ready.timers);
        poller.poll(false, &mut ready);
        assert!(!ready.woken);
        poller.wake();
        poller.poll(true, &mut ready);
        assert!(ready.woken);
    }

    #[test]
    fn a_timer_of_the_past_is_due_at_once() {
        let poller = Poller::new().unwrap();
        poller.set_timer(Instant::now() - Duration::from_secs(1)).unwrap();
        let mut ready = Ready::default();
        poller.poll(true, &mut ready);
        assert!(ready.timers && !ready.woken);
    }
}
