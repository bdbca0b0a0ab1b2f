//! A connection of the load generator.
//!
//! Each call goes to a lane with nothing in flight, so all workers of the server share the calls. A
//! call waits behind another on its lane only if all lanes of the connection are in use.

use super::call::{Asked, Call};
use crate::address::Address;
use crate::client::{self, Catalog, Connected};
use crate::server::MOST_LANES;
use anyhow::{Context, Result, anyhow, bail, ensure};
use crosslane::Failure;
use crosslane::batch::{self, BATCH, FAILURE, LAST};
use crosslane::pool::Stop;
use crosslane_load::Connection;
use crosslane_remote::stream::Stream;
use crosslane_remote::wire::{self, Ask, CONTROL, Decoder, Tell, prefix};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

/// How much is read at once.
const PIECE: usize = 64 << 10;

/// Calls that have failed.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    pub(crate) numbers: Vec<usize>,
    pub(crate) first: Option<String>,
}

impl Failed {
    fn add(&mut self, number: usize, why: impl FnOnce() -> String) {
        self.numbers.push(number);
        self.first.get_or_insert_with(why);
    }
}

#[derive(Debug, Default)]
struct Lane {
    /// The last exchange that was opened, and the last that has ended.
    opened: u64,
    ended: u64,
    /// The requests in flight, in their order.
    flying: VecDeque<usize>,
}

/// A connection and its lanes.
pub(crate) struct Lanes {
    address: Address,
    stream: Stream,
    decoder: Decoder,
    piece: Box<[u8]>,
    /// What is to be sent, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// By the numbers of their work.
    calls: Vec<Call>,
    lanes: HashMap<u32, Lane>,
    /// Lanes with nothing in flight. The one that was used last is used next.
    free: Vec<u32>,
    /// The number of the next lane.
    next: u32,
    pub(crate) failed: Failed,
}

impl Lanes {
    /// Connects, and makes the calls that are asked for, of the functions that the server has.
    pub(crate) fn connect<'a>(
        address: &Address,
        token: Option<&String>,
        asked: impl Iterator<Item = &'a Asked>,
    ) -> Result<Self> {
        let greeted = client::greet(address, token, &Stop::default()).map_err(|what| anyhow!(what))?;
        let Connected { stream, catalog: Catalog { functions, takes: largest, .. }, .. } = greeted;
        let calls = asked.map(|asked| Call::new(&functions, asked)).collect::<Result<Vec<_>>>()?;
        if let Some(call) = calls.iter().find(|call| call.size() > largest) {
            bail!("a call of {} bytes, where the server takes {largest} (--largest-batch)", call.size());
        }
        Ok(Self {
            address: address.clone(),
            stream,
            decoder: Decoder::new(largest),
            piece: vec![0; PIECE].into(),
            outgoing: Vec::new(),
            sent: 0,
            calls,
            lanes: HashMap::new(),
            free: Vec::new(),
            next: 0,
            failed: Failed::default(),
        })
    }

    fn lane(&mut self) -> u32 {
        if let Some(lane) = self.free.pop() {
            return lane;
        }
        if self.lanes.len() < MOST_LANES {
            self.next += 1;
            self.lanes.insert(self.next, Lane::default());
            return self.next;
        }
        let least = self.lanes.iter().min_by_key(|(_, lane)| lane.flying.len());
        *least.expect("lanes are left").0
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.address, Address::Tcp { tls: true, .. })
    }
}

impl AsFd for Lanes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection for Lanes {
    fn push(&mut self, number: usize, work: u32) {
        let place = self.lane();
        let Self { calls, lanes, outgoing, .. } = self;
        let lane = lanes.get_mut(&place).expect("a lane that was chosen");
        let call = &calls[work as usize];
        lane.opened += 1;
        lane.flying.push_back(number);
        outgoing.extend_from_slice(&prefix(place, call.size()));
        call.write(lane.opened, outgoing);
    }

    fn flush(&mut self) -> Result<bool> {
        let closed = || format!("the connection to {}", self.address);
        loop {
            let done = match self.outgoing.get(self.sent..) {
                Some([]) | None if self.stream.is_pending() => self.stream.flush(),
                Some([]) | None => {
                    self.outgoing.clear();
                    self.sent = 0;
                    return Ok(true);
                }
                Some(rest) => self.stream.send(&[IoSlice::new(rest)]).map(|sent| self.sent += sent),
            };
            match done {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.sent >= self.outgoing.len() / 2 {
                        self.outgoing.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                // What the server has said before it went tells more, and is read next.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(true);
                }
                Err(error) => return Err(error).with_context(closed),
            }
        }
    }

    fn read(&mut self) -> Result<bool> {
        match self.stream.receive(&mut self.piece) {
            Ok(0) => bail!("the server at {} closed a connection", self.address),
            Ok(length) => self.decoder.push(&self.piece[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) => return Err(error).with_context(|| format!("the connection to {}", self.address)),
        }
        // More may be decrypted already.
        Ok(self.is_encrypted())
    }

    fn answers(&mut self, answered: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let Self { address, decoder, lanes, free, failed, outgoing, .. } = self;
        while let Some((place, bytes)) = decoder.message()? {
            if place == CONTROL {
                match serde_json::from_slice(bytes).context("a message of the server that cannot be read")? {
                    Tell::Progress { .. } => {}
                    Tell::Refused { message } => {
                        bail!("the server at {address} ended a connection: {message}")
                    }
                    Tell::Welcome { .. } => bail!("the server at {address} greeted twice"),
                    Tell::Ended { lane: place, message } => {
                        let lane = lanes.remove(&place);
                        let lane =
                            lane.with_context(|| format!("the end of lane {place}, which is not used"))?;
                        free.retain(|free| *free != place);
                        for number in lane.flying {
                            failed.add(number, || message.clone());
                            answered(number)?;
                        }
                        // Only then the server forgets it.
                        outgoing.extend_from_slice(&wire::control(&Ask::Close { lane: place })?);
                    }
                }
                continue;
            }
            let header = batch::header(bytes)?;
            let lane = lanes.get_mut(&place).with_context(|| format!("an answer on lane {place}"))?;
            ensure!(
                header.exchange == lane.ended + 1 && header.flags == LAST,
                "an answer to exchange {} of lane {place}, where {} was due",
                header.exchange,
                lane.ended + 1
            );
            let number = lane.flying.pop_front();
            let number = number.with_context(|| format!("an answer on lane {place}, which has no call"))?;
            lane.ended += 1;
            match header.kind {
                BATCH => ensure!(header.rows == 1, "an answer of {} rows to a call of one", header.rows),
                FAILURE => failed.add(number, || explain(bytes)),
                kind => bail!("an answer of kind {kind}"),
            }
            if lane.flying.is_empty() {
                free.push(place);
            }
            answered(number)?;
        }
        Ok(())
    }
}

/// The words of a failure.
fn explain(bytes: &[u8]) -> String {
    match batch::failure_text(bytes).map(serde_json::from_slice::<Failure>) {
        Ok(Ok(failure)) => failure.to_string(),
        _ => "a failure that cannot be read".into(),
    }
}
