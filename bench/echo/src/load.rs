//! The load generator of echo servers: frames over TCP.

use crate::frame::{self, Request};
use crate::percentiles;
use crate::usage::Usage;
use anyhow::{Context, Result, bail, ensure};
use crosslane_load::{Connection, Planned, Watch};
pub use crosslane_load::{Load, Work};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

const CLOSED: &str = "the server closed a connection";

/// The results of a measurement.
#[derive(Debug)]
pub struct Measured {
    /// The number of requests that were sent, with those of the warm-up.
    pub requests: Vec<Planned>,
    /// The number of requests that were not answered in time, with those of the warm-up.
    pub lost: usize,
    /// Latencies, the server's use of the machine, and more, as JSON.
    pub report: Value,
}

/// Measures a server over some connections. A heavy request says how many microseconds it keeps the
/// server busy.
pub fn run(address: SocketAddr, pid: u32, connections: usize, load: &Load) -> Result<Measured> {
    let connected = (0..connections).map(|_| Frames::connect(address));
    let mut connected = connected.collect::<Result<Vec<_>>>()?;
    let mut using = Using { pid, usage: None, used: Value::Null };
    let outcome = crosslane_load::run(&mut connected, load, &mut using)?;
    if let Some(error) = outcome.error {
        return Err(error);
    }
    let (mut light, mut heavy) = (Vec::new(), Vec::new());
    for (number, request) in outcome.requests.iter().enumerate().skip(outcome.first) {
        let samples = if request.work == 0 { &mut light } else { &mut heavy };
        samples.push(outcome.latency(number));
    }
    let count = outcome.requests.len();
    let is_lost = |number: &usize| outcome.answered(*number).is_none();
    let lost_later = (outcome.first..count).filter(is_lost).count();
    let answers = light.len() + heavy.len() - lost_later;
    ensure!(answers > 0, "no request of the measured time was answered");
    let last = (outcome.first..count).filter_map(|number| outcome.answered(number)).max().unwrap_or_default();
    let taken = (last - outcome.requests[outcome.first].at) as f64 / 1e9;
    let late = percentiles::report(outcome.late.get(outcome.first..).unwrap_or_default().to_vec());
    let (work, amount) = match load.work {
        Work::Open { arrivals, rate } => (arrivals.name(), json!(rate)),
        Work::Closed { outstanding } => ("closed", json!(outstanding)),
    };
    let mut all = light.clone();
    all.extend_from_slice(&heavy);
    let report = json!({
        "work": work,
        "rate_or_outstanding": amount,
        "connections": connections,
        "seconds": load.time.as_secs_f64(),
        "qps": answers as f64 / taken,
        "lost": lost_later,
        "latency": percentiles::report(all),
        "light": percentiles::report(light),
        "heavy": percentiles::report(heavy),
        "late": late,
        "goes_first": outcome.goes_first,
        "used": using.used,
    });
    let lost = (0..count).filter(is_lost).count();
    Ok(Measured { requests: outcome.requests, lost, report })
}

/// Measures what the server uses for its answers.
struct Using {
    pid: u32,
    /// The number of answers before the measurement.
    usage: Option<(usize, Usage)>,
    used: Value,
}

impl Watch for Using {
    fn begin(&mut self, answers: usize) -> Result<()> {
        self.usage = Some((answers, Usage::begin(self.pid)?));
        Ok(())
    }

    fn end(&mut self, answers: usize) -> Result<()> {
        if let Some((before, usage)) = self.usage.take() {
            self.used = usage.report((answers - before) as u64)?;
        }
        Ok(())
    }
}

/// A connection that carries frames.
struct Frames {
    stream: TcpStream,
    /// The bytes to send, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    filled: usize,
}

impl Frames {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("the server cannot be reached")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let incoming = vec![0; 256 * frame::SIZE];
        Ok(Self { stream, outgoing: Vec::with_capacity(incoming.len()), sent: 0, incoming, filled: 0 })
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection for Frames {
    fn push(&mut self, number: usize, work: u32) {
        let frame = Request { number: number as u64, spin: work }.encode();
        self.outgoing.extend_from_slice(&frame);
    }

    fn flush(&mut self) -> Result<bool> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context(CLOSED),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }

    fn read(&mut self) -> Result<bool> {
        match self.stream.read(&mut self.incoming[self.filled..]) {
            Ok(0) => bail!(CLOSED),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context(CLOSED),
        }
        Ok(false)
    }

    fn answers(&mut self, answered: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let answers = frame::whole(&self.incoming[..self.filled]);
        for answer in answers {
            let request = Request::decode(answer);
            let number = request.number;
            ensure!(*answer == request.encode(), "the answer to request {number} is not its frame");
            answered(usize::try_from(number).unwrap_or(usize::MAX))?;
        }
        let handled = answers.len() * frame::SIZE;
        self.incoming.copy_within(handled..self.filled, 0);
        self.filled -= handled;
        Ok(())
    }
}
