//! The program's blocks as table functions.
//!
//! They work like tables of guests, in host lanes ([`crosslane_vectors::Table`]), with two
//! differences:
//!
//! - Ruby may decide the columns when a statement is planned.
//! - Partitions are objects that stay in the program.
//!
//! So the engine passes up to two more parameters than SQL: the decided columns as a text, and the
//! number of the query. Ruby keeps the partitions under this number.

use crate::engine::connection::connection::Connection;
use crate::engine::connection::session::{Session, Sessions, failure, lock};
use crate::engine::functions::host::{self, Block};
use crate::engine::functions::scalar;
use crosslane::batch::Column;
use crosslane::call::{CallGroup, Caller, Output, Row, call};
use crosslane::{ColumnBuilder, DataType, Error, Function, Library};
use crosslane_gvl::{Stand, stand};
use crosslane_process::Zygote;
use crosslane_vectors::{Bound, Context, Query, Table, register_table};
use magnus::value::ReprValue;
use magnus::{RHash, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The running queries.
static RUNNING: Mutex<Running> = Mutex::new(Running { next: 1, numbers: BTreeSet::new() });

struct Running {
    next: i64,
    numbers: BTreeSet<i64>,
}

/// The number of a running query.
struct Number(i64);

impl Number {
    fn new() -> Self {
        let mut running = lock(&RUNNING);
        let number = running.next;
        running.next += 1;
        running.numbers.insert(number);
        Self(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&RUNNING).numbers.remove(&self.0);
    }
}

/// Removes the partitions of ended queries from Ruby's list. With the GVL. This is Rust because
/// Ruby code could be interrupted during the removal.
pub(crate) fn forget_ended(partitions: RHash) -> Result<(), magnus::Error> {
    let numbers: Vec<i64> = partitions.funcall("keys", ())?;
    let ended: Vec<i64> = {
        let running = lock(&RUNNING);
        numbers.into_iter().filter(|number| !running.numbers.contains(number)).collect()
    };
    ended.into_iter().try_for_each(|number| partitions.delete::<_, Value>(number).map(drop))
}

/// The data of a registered table function.
struct Registered {
    block: Block,
    /// Returns the columns of one use in a signature's syntax, if the signature itself leaves them
    /// open.
    deciding: Option<Block>,
    sessions: Arc<Sessions>,
}

/// A function's number and its declaration.
type Declared = (u32, String);

/// Registers a table function that Ruby has added to the host's list. `deciding` decides its
/// columns if the signature leaves them open.
pub(crate) fn register(
    connection: &Connection,
    function: Declared,
    deciding: Option<Declared>,
) -> Result<(), magnus::Error> {
    let block = |(number, declared): Declared| Block::new(number, &declared);
    let (block, deciding) = (block(function), deciding.map(block).transpose());
    let (block, deciding) = (block?, deciding?);
    let link = connection.link()?;
    let function = Arc::clone(&block.function);
    let registered = Registered { block, deciding, sessions: Arc::clone(&link.database.sessions) };
    // SAFETY: the connection is open.
    unsafe { register_table(link.raw, &function, registered) }
        .map_err(|error| failure(None, &error.to_string()))
}

impl Table for Registered {
    type Zygote = Zygote;
    type Query = Scanned;

    fn function(&self) -> Result<Arc<Function>, Error> {
        Ok(Arc::clone(&self.block.function))
    }

    fn bind(&self, function: &Function, arguments: Row, context: Context) -> Result<Bound, Error> {
        let Some(deciding) = &self.deciding else {
            return Ok(Bound { arguments, rows: function.signature.returns.clone(), context });
        };
        let columns = self.decide(&deciding.function, &arguments, context.client.connection)?;
        let rows = format!("STRUCT{columns}").parse().map_err(|error| Error::Engine(format!("{error}")))?;
        let mut text = ColumnBuilder::new(&DataType::Varchar);
        text.bytes(columns.as_bytes()).map_err(|error| Error::Engine(error.to_string()))?;
        Ok(Bound { arguments: arguments.with(&DataType::Varchar, &text)?, rows, context })
    }

    fn begin(&self, context: Context) -> Result<Scanned, Error> {
        Ok(Scanned {
            function: Arc::clone(&self.block.function),
            number: Number::new(),
            session: self.sessions.of(context.client.connection),
            host: host::current()?,
        })
    }
}

impl Registered {
    /// Asks Ruby for the columns of one use. The query's own thread plans the query and may hold
    /// the GVL. So this thread calls the block itself.
    fn decide(&self, function: &Function, arguments: &Row, connection: u64) -> Result<String, Error> {
        let session = self.sessions.of(connection);
        let mut text = Text(String::new());
        let decided = match stand() {
            Stand::Foreign => {
                let host = host::current()?;
                call(&host, function, Caller::new(&session.group, 1), arguments, &mut text)
            }
            stand => scalar::call_here(function, None, &session, stand, arguments, &mut text),
        };
        session.settle(decided)?;
        Ok(text.0)
    }
}

/// The columns that Ruby has decided, as a text.
struct Text(String);

impl Output for Text {
    fn accept(&mut self, _first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.0 = String::from_utf8_lossy(results.bytes(0)).into_owned();
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

/// A table function in a running query.
struct Scanned {
    function: Arc<Function>,
    number: Number,
    session: Arc<Session>,
    host: Arc<Library<Zygote>>,
}

impl Query<Zygote> for Scanned {
    fn library(&self) -> &Arc<Library<Zygote>> {
        &self.host
    }

    fn function(&self) -> &Arc<Function> {
        &self.function
    }

    fn group(&self) -> &CallGroup {
        &self.session.group
    }

    fn arguments(&self, bound: &Row) -> Result<Row, Error> {
        let mut number = ColumnBuilder::new(&DataType::BigInt);
        number.fixed(self.number.0);
        bound.with(&DataType::BigInt, &number)
    }

    fn settle<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        self.session.settle(outcome)
    }
}
