//! The load generator: one thread that sends requests at planned times, or keeps some on their way, and notes when each
//! is answered.
//!
//! What would flatter a server is avoided: all times are planned before the first request is sent and latencies count
//! from them, so that a slow answer does not delay the next request, nor hide how long that one waited; every sample is
//! kept; a server that does not read stops no other connection; and a request that was never answered counts with the
//! time that it has waited for.

use crate::frame::{self, Request};
use crate::percentiles;
use crate::plan::{Arrivals, Mix, Planned, plan};
use crate::usage::Usage;
use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// What makes the next request come.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Its planned time.
    Open {
        /// How requests follow each other.
        arrivals: Arrivals,
        /// Requests per second, over all connections.
        rate: u32,
    },
    /// The answer to another one.
    Closed {
        /// How many requests of each connection are on their way.
        outstanding: u32,
    },
}

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What makes the next request come.
    pub work: Work,
    /// Over how many connections the requests are spread, in turns.
    pub connections: usize,
    /// The time before the measured one, with the same load.
    pub warm_up: Duration,
    /// The measured time.
    pub time: Duration,
    /// How long the last answers are waited for.
    pub patience: Duration,
    /// Which requests are heavy.
    pub mix: Mix,
    /// What the plan depends on.
    pub seed: u64,
}

/// The server's process is looked at so long before the first measured request, which is not to wait for that.
const LOOKING: u64 = 10_000_000;
/// So many requests per second keep the generator busy all the time.
const SLEEPLESS: u32 = 100_000;
/// A request that has not been answered.
const UNANSWERED: u64 = u64::MAX;
const CLOSED: &str = "the server closed a connection";

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    /// The requests that were sent, with those of the warm-up.
    pub requests: Vec<Planned>,
    /// Those that were not answered in time, with those of the warm-up.
    pub lost: usize,
    /// Latencies, the server's use of the machine and more, as JSON.
    pub report: Value,
}

/// Measures a server.
pub fn run(address: SocketAddr, pid: u32, load: &Load) -> Result<Measured> {
    ensure!(load.connections > 0, "at least one connection is needed");
    ensure!((0.0..=1.0).contains(&load.mix.share), "the share of heavy requests is between 0 and 1");
    let goes_first = wake_in_time(load.work)?;
    let mut generator = Generator::connect(address, load)?;
    generator.run(pid, load)?;
    generator.measured(load, goes_first)
}

/// Asks the kernel to end this thread's sleeps on time, and to let it go first when they end. An open loop is to send
/// at its planned times, whatever the server does with the processors: as the client would on a machine of its own. So it
/// becomes a real-time thread, if that is allowed; but not for so many requests that it never sleeps, since the kernel stops
/// such real-time threads for a while. Says whether it is one.
fn wake_in_time(work: Work) -> Result<bool> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all zeros are a value of this type, which consists of integers.
    let mut ordinary: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the attributes have the size that is told.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut ordinary, size, 0) };
    ensure!(rc == 0, "sched_getattr: {}", io::Error::last_os_error());
    let set = |attributes: libc::sched_attr| {
        // SAFETY: the attributes have the size that they tell.
        let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    if matches!(work, Work::Open { rate, .. } if rate < SLEEPLESS) {
        let fifo = libc::SCHED_FIFO as u32;
        let real_time = libc::sched_attr {
            sched_policy: fifo,
            sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            sched_nice: 0,
            sched_priority: 1,
            ..ordinary
        };
        if set(real_time).is_ok() {
            return Ok(true);
        }
    }
    // The shortest slice that the scheduler grants, in nanoseconds. A kernel before 6.12 takes no notice.
    set(libc::sched_attr { sched_runtime: 100_000, ..ordinary }).context("sched_setattr")?;
    Ok(false)
}

/// A connection, whose writes and reads never wait.
struct Connection {
    stream: TcpStream,
    /// What is to be sent, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    filled: usize,
    /// The server takes nothing: the connection waits until it does.
    stuck: bool,
}

struct Generator {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    begun: Instant,
    /// All that were sent or will be, by their numbers.
    requests: Vec<Planned>,
    /// When each was answered.
    answered: Vec<u64>,
    /// How many requests were given to their connections.
    sent: usize,
    received: usize,
    /// By how much each was late when it was given to its connection.
    late: Vec<u64>,
    /// Since the use is measured: how many answers there had been before, and the use.
    usage: Option<(usize, Usage)>,
    used: Value,
    random: Rng,
}

impl Generator {
    fn connect(address: SocketAddr, load: &Load) -> Result<Generator> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for number in 0..load.connections {
            let stream = TcpStream::connect(address).context("the server cannot be reached")?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            let incoming = vec![0; 256 * frame::SIZE];
            let outgoing = Vec::with_capacity(incoming.len());
            connections.push(Connection { stream, outgoing, sent: 0, incoming, filled: 0, stuck: false });
        }
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
        Ok(Generator {
            epoll,
            connections,
            answered: vec![UNANSWERED; requests.len()],
            late: Vec::with_capacity(requests.capacity()),
            requests,
            begun: Instant::now(),
            sent: 0,
            received: 0,
            usage: None,
            used: Value::Null,
            random: Rng::with_seed(load.seed),
        })
    }

    /// Nanoseconds since the beginning.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn run(&mut self, pid: u32, load: &Load) -> Result<()> {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let look = nanoseconds(load.warm_up).saturating_sub(LOOKING);
        let end = nanoseconds(load.warm_up + load.time);
        let give_up = end + nanoseconds(load.patience);
        let mut events = Vec::with_capacity(64);
        self.begun = Instant::now();
        if let Work::Closed { outstanding } = load.work {
            for connection in 0..load.connections {
                self.follow(connection, outstanding as usize, load.mix);
                self.flush(connection)?;
            }
        }
        loop {
            self.send_due(load)?;
            let now = self.now();
            if self.usage.is_none() && now >= look {
                self.usage = Some((self.received, Usage::begin(pid)?));
                continue;
            }
            let done = now >= end && self.received == self.sent;
            if done || now >= give_up {
                let (before, usage) = self.usage.take().context("the measured time is too short")?;
                self.used = usage.report((self.received - before) as u64)?;
                return Ok(());
            }
            let due = self.requests.get(self.sent).map_or(give_up, |request| request.at);
            let due = if self.usage.is_none() {
                due.min(look)
            } else if now < end {
                due.min(end)
            } else {
                due
            };
            events.clear();
            let wait = due.saturating_sub(now);
            let wait = Timespec { tv_sec: (wait / 1_000_000_000) as _, tv_nsec: (wait % 1_000_000_000) as _ };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let connection = event.data.u64() as usize;
                let flags = event.flags;
                if flags.contains(EventFlags::OUT) {
                    self.flush(connection)?;
                }
                if flags.intersects(!EventFlags::OUT) {
                    let answers = self.receive(connection)?;
                    if matches!(load.work, Work::Closed { .. }) && self.now() < end {
                        self.follow(connection, answers, load.mix);
                        self.flush(connection)?;
                    }
                    self.send_due(load)?;
                }
            }
        }
    }

    /// Sends what is due according to the plan.
    fn send_due(&mut self, load: &Load) -> Result<()> {
        if matches!(load.work, Work::Closed { .. }) {
            return Ok(());
        }
        let now = self.now();
        let first = self.sent;
        while let Some(request) = self.requests.get(self.sent).filter(|request| request.at <= now) {
            self.late.push(now - request.at);
            self.give(self.sent % load.connections, self.sent, request.spin);
            self.sent += 1;
        }
        for connection in (first..self.sent).take(load.connections) {
            self.flush(connection % load.connections)?;
        }
        Ok(())
    }

    /// Makes new requests that follow upon answers.
    fn follow(&mut self, connection: usize, count: usize, mix: Mix) {
        let at = self.now();
        for _ in 0..count {
            let spin = mix.next(&mut self.random);
            self.requests.push(Planned { at, spin });
            self.answered.push(UNANSWERED);
            self.give(connection, self.sent, spin);
            self.sent += 1;
        }
    }

    fn give(&mut self, connection: usize, number: usize, spin: u32) {
        let frame = Request { number: number as u64, spin }.encode();
        self.connections[connection].outgoing.extend_from_slice(&frame);
    }

    /// Sends what the server takes of a connection's requests.
    fn flush(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let was_stuck = connection.stuck;
        connection.stuck = false;
        while connection.sent < connection.outgoing.len() {
            match connection.stream.write(&connection.outgoing[connection.sent..]) {
                Ok(sent) => connection.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.stuck = true;
                    break;
                }
                Err(error) => return Err(error).context(CLOSED),
            }
        }
        if !connection.stuck {
            connection.outgoing.clear();
            connection.sent = 0;
        }
        if connection.stuck != was_stuck {
            let flags = if connection.stuck { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &connection.stream, EventData::new_u64(number as u64), flags)?;
        }
        Ok(())
    }

    /// Notes the answers that came, and returns their count.
    fn receive(&mut self, number: usize) -> Result<usize> {
        let connection = &mut self.connections[number];
        match connection.stream.read(&mut connection.incoming[connection.filled..]) {
            Ok(0) => bail!(CLOSED),
            Ok(read) => connection.filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error).context(CLOSED),
        }
        let now = self.begun.elapsed().as_nanos() as u64;
        let answers = frame::whole(&connection.incoming[..connection.filled]);
        let count = answers.len();
        for answer in answers {
            let Request { number, spin } = Request::decode(answer);
            let at = usize::try_from(number).ok().filter(|at| *at < self.sent);
            let at = at.with_context(|| format!("an answer to request {number}, which was not sent"))?;
            let expected = Request { number, spin: self.requests[at].spin };
            ensure!(
                spin == expected.spin && *answer == expected.encode(),
                "the answer to request {number} is not its frame"
            );
            ensure!(self.answered[at] == UNANSWERED, "a second answer to request {number}");
            self.answered[at] = now;
        }
        self.received += count;
        let handled = count * frame::SIZE;
        connection.incoming.copy_within(handled..connection.filled, 0);
        connection.filled -= handled;
        Ok(count)
    }

    fn measured(self, load: &Load, goes_first: bool) -> Result<Measured> {
        let end = self.now();
        let first = self.requests.partition_point(|request| request.at < load.warm_up.as_nanos() as u64);
        let (mut light, mut heavy) = (Vec::new(), Vec::new());
        let mut last = 0;
        for (request, answered) in self.requests.iter().zip(&self.answered).skip(first) {
            let (samples, answered) = (if request.spin == 0 { &mut light } else { &mut heavy }, *answered);
            if answered != UNANSWERED {
                last = last.max(answered);
            }
            samples.push(answered.min(end) - request.at);
        }
        let is_lost = |answered: &&u64| **answered == UNANSWERED;
        let lost_later = self.answered.iter().skip(first).filter(is_lost).count();
        let answers = light.len() + heavy.len() - lost_later;
        ensure!(answers > 0, "no request of the measured time was answered");
        let taken = (last - self.requests[first].at) as f64 / 1e9;
        let late = percentiles::report(self.late.get(first..).unwrap_or_default().to_vec());
        let (work, amount) = match load.work {
            Work::Open { arrivals, rate } => (arrivals.name(), json!(rate)),
            Work::Closed { outstanding } => ("closed", json!(outstanding)),
        };
        let mut all = light.clone();
        all.extend_from_slice(&heavy);
        let report = json!({
            "work": work,
            "rate_or_outstanding": amount,
            "connections": load.connections,
            "seconds": load.time.as_secs_f64(),
            "qps": answers as f64 / taken,
            "lost": lost_later,
            "latency": percentiles::report(all),
            "light": percentiles::report(light),
            "heavy": percentiles::report(heavy),
            "late": late,
            "goes_first": goes_first,
            "used": self.used,
        });
        let lost = self.answered.iter().filter(is_lost).count();
        Ok(Measured { requests: self.requests, lost, report })
    }
}
