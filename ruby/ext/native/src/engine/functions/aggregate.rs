//! The program's classes and blocks as aggregates.
//!
//! They work like aggregates of guests whose states are in the host lanes ([`crosslane::states`]),
//! with two differences:
//!
//! - Exceptions of the program are stored for the query's thread.
//! - A state moves to another lane of the same process. So only a number is sent. Ruby keeps a copy
//!   of the state under this number (`Crosslane::HostAggregate`) until the other lane takes the
//!   copy.
//!
//! If the other lane fails, the copy is never taken. The numbers of copies increase. A copy that is
//! older than all running uses is forgotten.

use crate::engine::connection::connection::Connection;
use crate::engine::connection::session::{Session, Sessions, failure, lock};
use crate::engine::functions::host::{self, Block};
use crosslane::call::{Input, Output};
use crosslane::states::{Accumulates, Accumulation, States};
use crosslane::{Error, Function};
use crosslane_process::Zygote;
use crosslane_vectors::{Client, register_aggregate};
use magnus::value::ReprValue;
use magnus::{RHash, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The copies of this process.
static COPIES: Mutex<Copies> = Mutex::new(Copies { next: 1, running: BTreeMap::new() });

struct Copies {
    /// The number of the next copy.
    next: u64,
    /// The number of running uses that began when this was the next copy.
    running: BTreeMap<u64, usize>,
}

/// The number of a new copy.
pub(crate) fn copied() -> u64 {
    let mut copies = lock(&COPIES);
    copies.next += 1;
    copies.next - 1
}

/// Removes copies of ended uses from Ruby's list. Also gives back lanes that prepared statements do
/// not need now. It needs the GVL. This is Rust because Ruby code could be interrupted during the
/// removal.
pub(crate) fn forget_copies(known: RHash) -> Result<(), magnus::Error> {
    crosslane_vectors::sweep();
    let numbers: Vec<u64> = known.funcall("keys", ())?;
    let oldest = {
        let copies = lock(&COPIES);
        copies.running.first_key_value().map_or(copies.next, |(first, _)| *first)
    };
    let mut ended = numbers.into_iter().filter(|number| *number < oldest);
    ended.try_for_each(|number| known.delete::<_, Value>(number).map(drop))
}

/// A running use. The copies of its states have this number or larger ones.
struct Running(u64);

impl Running {
    fn new() -> Self {
        let mut copies = lock(&COPIES);
        let first = copies.next;
        *copies.running.entry(first).or_default() += 1;
        Self(first)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut copies = lock(&COPIES);
        if let Some(count) = copies.running.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                copies.running.remove(&self.0);
            }
        }
    }
}

/// The data of a registered aggregate.
struct Registered {
    block: Block,
    sessions: Arc<Sessions>,
}

/// Registers an aggregate that Ruby has added to the host's list.
pub(crate) fn register(connection: &Connection, number: u32, declared: String) -> Result<(), magnus::Error> {
    let block = Block::new(number, &declared)?;
    let link = connection.link()?;
    let function = Arc::clone(&block.function);
    let sessions = Arc::clone(&link.database.sessions);
    let registered = Registered { block, sessions };
    // SAFETY: the connection is open.
    unsafe { register_aggregate(link.raw, &function, registered) }
        .map_err(|error| failure(None, &error.to_string()))
}

impl crosslane_vectors::Aggregate for Registered {
    fn begin(&self, client: Client, failed: Option<Error>) -> Result<Arc<dyn Accumulates>, Error> {
        let session = self.sessions.of(client.connection);
        let (function, group) = (Arc::clone(&self.block.function), Arc::clone(&session.group));
        let running = Running::new();
        let states = Accumulation::new(host::current()?, function, group).after(failed);
        Ok(Arc::new(Use { states, session, _running: running }))
    }

    fn is_current(&self, _function: &Function) -> bool {
        true
    }
}

/// An aggregate in a running query.
struct Use {
    states: Accumulation<Zygote>,
    session: Arc<Session>,
    _running: Running,
}

impl Accumulates for Use {
    fn update(&self, states: &States<'_>, input: &dyn Input) -> Result<(), Error> {
        self.session.settle(self.states.update(states, input))
    }

    fn combine(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error> {
        self.session.settle(self.states.combine(targets, sources, keep))
    }

    fn finish(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error> {
        self.session.settle(self.states.finish(states, output))
    }

    fn function(&self) -> &Function {
        self.states.function()
    }

    fn is_idle(&self) -> bool {
        self.states.is_idle()
    }

    fn renew(&self) {
        self.states.renew();
    }

    fn failure(&self) -> Option<Error> {
        self.states.failure()
    }

    fn sweep(&self) -> bool {
        self.states.sweep()
    }

    fn end(&self) {
        self.states.end();
    }
}
