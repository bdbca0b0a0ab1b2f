//! The loop that sends requests and receives answers.

use crate::plan::{Arrivals, Mix, Planned, plan};
use crate::priority::wake_in_time;
use anyhow::{Context, Error, Result, ensure};
use fastrand::Rng;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// When the next request is sent.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// At its planned time.
    Open {
        /// How the times of requests are chosen.
        arrivals: Arrivals,
        /// Requests per second, over all connections.
        rate: u32,
    },
    /// After the answer to an earlier request.
    Closed {
        /// How many requests each connection keeps in flight.
        outstanding: u32,
    },
}

/// The load of a run, and its times.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// When the next request is sent.
    pub work: Work,
    /// The time before the measured time, with the same load.
    pub warm_up: Duration,
    /// The measured time.
    pub time: Duration,
    /// The longest time for which the run waits for the last answers after the measured time.
    pub patience: Duration,
    /// Which requests are heavy.
    pub mix: Mix,
    /// The seed of the plan. The same seed gives the same plan.
    pub seed: u64,
}

/// A connection to the server. None of its operations waits.
pub trait Connection: AsFd {
    /// Queues a request. [`Connection::flush`] sends it.
    fn push(&mut self, number: usize, work: u32);

    /// Sends as many bytes as the server takes. Returns whether all were sent.
    ///
    /// # Errors
    /// If the connection is lost.
    fn flush(&mut self) -> Result<bool>;

    /// Reads bytes that have arrived. Returns whether more may be left that the descriptor does not
    /// report.
    ///
    /// # Errors
    /// If the connection is lost.
    fn read(&mut self) -> Result<bool>;

    /// Passes the number of each request that the read bytes answer to `answered`.
    ///
    /// # Errors
    /// The error of `answered`, or an error if the bytes are not an answer.
    fn answers(&mut self, answered: &mut dyn FnMut(usize) -> Result<()>) -> Result<()>;
}

/// Work that is done during a run.
pub trait Watch {
    /// How often [`Watch::look`] is called. `None` means never.
    const EVERY: Option<Duration> = None;

    /// Called shortly before the first measured request, with the number of answers so far.
    ///
    /// # Errors
    /// An error ends the run.
    fn begin(&mut self, _answers: usize) -> Result<()> {
        Ok(())
    }

    /// Called every [`Watch::EVERY`], with the time since the beginning of the run. If it returns
    /// false, the run ends.
    ///
    /// # Errors
    /// An error ends the run.
    fn look(&mut self, _since: Duration) -> Result<bool> {
        Ok(true)
    }

    /// Called at the end, when the run waits for no more answers. It gets the number of answers.
    ///
    /// # Errors
    /// An error ends the run.
    fn end(&mut self, _answers: usize) -> Result<()> {
        Ok(())
    }
}

/// The records of a run, in nanoseconds from its beginning.
#[derive(Debug)]
pub struct Outcome {
    /// The requests that were sent.
    pub requests: Vec<Planned>,
    /// When each request was answered.
    answered: Vec<u64>,
    /// How late each request was given to its connection. Empty in a closed loop.
    pub late: Vec<u64>,
    /// The index of the first measured request. Those of the warm-up are before it.
    pub first: usize,
    /// When the run ended.
    pub end: u64,
    /// Whether the kernel ran the generator before all ordinary threads.
    pub goes_first: bool,
    /// The error that ended the run early.
    pub error: Option<Error>,
}

impl Outcome {
    /// Returns when a request was answered, if it was.
    pub fn answered(&self, number: usize) -> Option<u64> {
        self.answered.get(number).copied().filter(|at| *at != UNANSWERED)
    }

    /// Returns the time from a request to its answer, or to the end of the run if there is no
    /// answer.
    pub fn latency(&self, number: usize) -> u64 {
        self.answered(number).unwrap_or(self.end).saturating_sub(self.requests[number].at)
    }
}

/// [`Watch::begin`] is called this many nanoseconds before the first measured request, so that the
/// request does not wait for it.
const BEFORE: u64 = 10_000_000;
/// At this many requests per second, the generator never sleeps.
const SLEEPLESS: u32 = 100_000;
/// The time of answer of a request that was not answered.
const UNANSWERED: u64 = u64::MAX;

/// Runs a load. The connections take turns.
///
/// # Errors
/// If the load is not valid, or the system has no epoll. Later errors are a part of the outcome.
pub fn run<C: Connection, W: Watch>(connections: &mut [C], load: &Load, watch: &mut W) -> Result<Outcome> {
    ensure!(!connections.is_empty(), "at least one connection is needed");
    ensure!((0.0..=1.0).contains(&load.mix.share), "the share of heavy requests is between 0 and 1");
    let may_go_first = matches!(load.work, Work::Open { rate, .. } if rate < SLEEPLESS);
    let requests = match load.work {
        Work::Open { arrivals, rate } => {
            ensure!(rate > 0, "at least one request per second is needed");
            plan(arrivals, rate, load.warm_up + load.time, load.mix, load.seed)
        }
        Work::Closed { outstanding } => {
            ensure!(outstanding > 0, "at least one request per connection must be on its way");
            Vec::with_capacity(1 << 20)
        }
    };
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (number, connection) in connections.iter().enumerate() {
        epoll::add(&epoll, connection, EventData::new_u64(number as u64), EventFlags::IN)?;
    }
    let goes_first = wake_in_time(may_go_first)?;
    let mut generator = Generator {
        epoll,
        stuck: vec![false; connections.len()],
        connections,
        answered: vec![UNANSWERED; requests.len()],
        late: Vec::with_capacity(requests.capacity()),
        requests,
        begun: Instant::now(),
        sent: 0,
        received: 0,
        random: Rng::with_seed(load.seed),
    };
    let error = generator.run(load, watch).err();
    Ok(generator.outcome(load, goes_first, error))
}

struct Generator<'a, C> {
    epoll: OwnedFd,
    connections: &'a mut [C],
    /// Which connections wait until the server takes more bytes.
    stuck: Vec<bool>,
    begun: Instant,
    /// All requests that were sent or will be, by their numbers.
    requests: Vec<Planned>,
    /// When each request was answered.
    answered: Vec<u64>,
    /// How many requests were given to their connections.
    sent: usize,
    received: usize,
    /// How late each request was given to its connection.
    late: Vec<u64>,
    random: Rng,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<C: Connection> Generator<'_, C> {
    /// Returns the nanoseconds since the beginning.
    fn now(&self) -> u64 {
        nanoseconds(self.begun.elapsed())
    }

    fn run<W: Watch>(&mut self, load: &Load, watch: &mut W) -> Result<()> {
        let mut begin = Some(nanoseconds(load.warm_up).saturating_sub(BEFORE));
        let end = nanoseconds(load.warm_up + load.time);
        let give_up = end + nanoseconds(load.patience);
        let tick = W::EVERY.map(nanoseconds);
        let mut look = tick;
        let mut events = Vec::with_capacity(64);
        self.begun = Instant::now();
        if let Work::Closed { outstanding } = load.work {
            for connection in 0..self.connections.len() {
                self.follow(connection, outstanding as usize, load.mix);
                self.flush(connection)?;
            }
        }
        loop {
            self.send_due(load)?;
            let now = self.now();
            if begin.take_if(|begin| now >= *begin).is_some() {
                watch.begin(self.received)?;
                continue;
            }
            let over = now >= end && self.received == self.sent || now >= give_up;
            let stopped = match (look, tick) {
                (Some(at), Some(tick)) if now >= at => {
                    look = Some(now + tick);
                    !watch.look(Duration::from_nanos(now))?
                }
                _ => false,
            };
            if over || stopped {
                ensure!(begin.is_none() || stopped, "the measured time is too short");
                return watch.end(self.received);
            }
            let due = self.requests.get(self.sent).map_or(give_up, |request| request.at);
            let next_end = Some(end).filter(|end| now < *end);
            let due = [begin, next_end, look].into_iter().flatten().fold(due, u64::min);
            self.wait(due.saturating_sub(now), &mut events)?;
            for event in &events {
                let connection = event.u64 as usize;
                let flags = EventFlags::from_bits_retain(event.events);
                if flags.contains(EventFlags::OUT) {
                    self.flush(connection)?;
                }
                if flags.intersects(!EventFlags::OUT) {
                    let answers = self.receive(connection)?;
                    if matches!(load.work, Work::Closed { .. }) && self.now() < end {
                        self.follow(connection, answers, load.mix);
                    }
                    self.flush(connection)?;
                    self.send_due(load)?;
                }
            }
        }
    }

    /// Waits at most this many nanoseconds for events. `epoll_wait` takes only milliseconds.
    fn wait(&self, nanoseconds: u64, events: &mut Vec<libc::epoll_event>) -> Result<()> {
        events.clear();
        let time = libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as _,
            tv_nsec: (nanoseconds % 1_000_000_000) as _,
        };
        let (epoll, room) = (self.epoll.as_raw_fd(), events.capacity());
        let signals = std::ptr::null::<libc::sigset_t>();
        // SAFETY: `events` has room for this many events, and the time is valid during the call.
        // The signal mask is null, so it is not read.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.as_mut_ptr(),
                room,
                &raw const time,
                signals,
                0,
            )
        };
        match usize::try_from(count) {
            // SAFETY: the kernel has written this many events.
            Ok(count) => unsafe { events.set_len(count) },
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error).context("epoll_pwait2, which Linux has since 5.11");
                }
            }
        }
        Ok(())
    }

    /// Sends the requests whose planned time has come.
    fn send_due(&mut self, load: &Load) -> Result<()> {
        if matches!(load.work, Work::Closed { .. }) {
            return Ok(());
        }
        let (now, count) = (self.now(), self.connections.len());
        let first = self.sent;
        while let Some(request) = self.requests.get(self.sent).filter(|request| request.at <= now) {
            self.late.push(now - request.at);
            self.connections[self.sent % count].push(self.sent, request.work);
            self.sent += 1;
        }
        for number in (first..self.sent).take(count) {
            self.flush(number % count)?;
        }
        Ok(())
    }

    /// Makes one new request for each answer.
    fn follow(&mut self, connection: usize, count: usize, mix: Mix) {
        let at = self.now();
        for _ in 0..count {
            let work = mix.next(&mut self.random);
            self.requests.push(Planned { at, work });
            self.answered.push(UNANSWERED);
            self.connections[connection].push(self.sent, work);
            self.sent += 1;
        }
    }

    /// Sends as many bytes of a connection's requests as the server takes.
    fn flush(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let stuck = !connection.flush()?;
        if stuck != self.stuck[number] {
            self.stuck[number] = stuck;
            let flags = if stuck { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &*connection, EventData::new_u64(number as u64), flags)?;
        }
        Ok(())
    }

    /// Records the answers that have arrived, and returns their number.
    fn receive(&mut self, number: usize) -> Result<usize> {
        let before = self.received;
        loop {
            let more = self.connections[number].read()?;
            let now = self.now();
            let (requests, answered, received) = (self.sent, &mut self.answered, &mut self.received);
            self.connections[number].answers(&mut |number| {
                let place = answered.get_mut(number).filter(|_| number < requests);
                let place =
                    place.with_context(|| format!("an answer to request {number}, which was not sent"))?;
                ensure!(*place == UNANSWERED, "a second answer to request {number}");
                *place = now;
                *received += 1;
                Ok(())
            })?;
            if !more {
                return Ok(self.received - before);
            }
        }
    }

    fn outcome(mut self, load: &Load, goes_first: bool, error: Option<Error>) -> Outcome {
        let end = self.now();
        self.requests.truncate(self.sent);
        let first = self.requests.partition_point(|request| request.at < nanoseconds(load.warm_up));
        let Self { requests, answered, late, .. } = self;
        Outcome { requests, answered, late, first, end, goes_first, error }
    }
}
