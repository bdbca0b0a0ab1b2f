//! Where the idle workers of a group sleep: one epoll for its sockets, its timers and its wakes.
//!
//! All idle workers wait on the same epoll. The kernel wakes one of them per event, the one that began to
//! wait last, so that the worker with warm caches goes on while the others sleep. While that one runs a handler,
//! the next event wakes the next worker: nobody in user space has to see to it.
//!
//! Everything is registered edge-triggered, so each event reaches one worker, once. An event that comes while
//! nobody waits is kept for the next one who does.

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
/// A worker takes at most so many events at a time; the kernel wakes the next worker for the rest.
const AT_ONCE: usize = 64;

/// What a worker brought from the kernel.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    /// Readiness of sockets: the dispatcher's number and the source's, and the flags.
    pub(crate) events: Vec<(Token, EventFlags)>,
    /// Somebody added work.
    pub(crate) woken: bool,
    /// Timers are due.
    pub(crate) timers: bool,
}

/// Which source of which dispatcher an event is for.
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

impl Harvest {
    /// Whether there is something to do.
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

    /// Reports what happens to the socket, in both directions, until it is removed.
    pub(crate) fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, token.data(), flags)?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Wakes one worker that waits, or the next one that will.
    pub(crate) fn wake(&self) {
        // The counter is never read. It overflows after 2^64 wakes, and an edge is one whatever the count was.
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            debug_assert_eq!(error, Errno::AGAIN);
        }
    }

    /// Lets the timer's event come at `at`; in the past: at once.
    pub(crate) fn set_timer(&self, at: Instant) -> io::Result<()> {
        // Zero would switch the timer off.
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: never_again, it_value: wait };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        Ok(())
    }

    /// Waits until something happened, or only looks.
    pub(crate) fn harvest(&self, wait: bool, harvest: &mut Harvest) {
        let look = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::<Event>::uninit(); AT_ONCE];
        harvest.woken = false;
        harvest.timers = false;
        let events = match epoll::wait(&self.epoll, &mut events, (!wait).then_some(&look)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            // The descriptor is ours and open, and the buffer is there.
            Err(error) => unreachable!("epoll_wait: {error}"),
        };
        for event in &*events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                WAKE => harvest.woken = true,
                TIMER => harvest.timers = true,
                _ => {
                    let token = Token { dispatcher: (data >> 32) as u32, source: data as u32 };
                    harvest.events.push((token, flags));
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
        let mut harvest = Harvest::default();
        poller.harvest(true, &mut harvest);
        assert_eq!(harvest.events, [(token, EventFlags::OUT)]);
        harvest.events.clear();
        poller.harvest(false, &mut harvest);
        assert_eq!(harvest.events, []);
        rustix::io::write(&theirs, b"x").unwrap();
        poller.harvest(true, &mut harvest);
        assert_eq!(harvest.events, [(token, EventFlags::IN | EventFlags::OUT)]);
    }

    #[test]
    fn a_wake_is_kept_until_somebody_comes() {
        let poller = Poller::new().unwrap();
        poller.wake();
        poller.wake();
        let mut harvest = Harvest::default();
        poller.harvest(true, &mut harvest);
        assert!(harvest.woken && !harvest.timers);
        poller.harvest(false, &mut harvest);
        assert!(!harvest.woken);
        poller.wake();
        poller.harvest(true, &mut harvest);
        assert!(harvest.woken);
    }

    #[test]
    fn a_timer_of_the_past_is_due_at_once() {
        let poller = Poller::new().unwrap();
        poller.set_timer(Instant::now() - Duration::from_secs(1)).unwrap();
        let mut harvest = Harvest::default();
        poller.harvest(true, &mut harvest);
        assert!(harvest.timers && !harvest.woken);
    }
}
