//! A library whose guests are threads of the test, and clients of a server with that library.

#![allow(dead_code, missing_docs, missing_debug_implementations, unreachable_pub)]

pub mod garbage;
pub mod raw;

use crosslane::batch::{Column, Encode};
use crosslane::call::{self, CallGroup, Caller, Input, Output, Scan};
use crosslane::lane::Stuck;
use crosslane::pool::{Common, Pool, PoolOptions};
use crosslane::trace::{Trace, Tracer};
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Library, Settings};
use crosslane_process::control::{ControlSocket, Report, Request};
use crosslane_process::guest::{Call, Emitted, GuestLane, Next, RowCounts};
use crosslane_process::{Files, Origin, Source, Zygote, ZygoteOptions};
use crosslane_server::server::ServedLibrary;
use crosslane_server::{Address, LaneOptions, Options, Remote, RemoteZygote, Server};
use serde_json::json;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

pub const DOUBLE: u32 = 0;
pub const WAIT: u32 = 1;
/// The arguments of all calls of `wait` that have begun in this process, in milliseconds.
pub static BEGUN: Mutex<Vec<i64>> = Mutex::new(Vec::new());
pub const NUMBERS: u32 = 2;
pub const END: u32 = 3;
pub const FAIL: u32 = 4;
pub const LARGE: u32 = 5;
/// A stream function that fails at once.
pub const ENDS: u32 = 6;
/// A function that may be called once in an hour.
pub const RARE: u32 = 7;
/// `double` that keeps its results. It fails with [`BAD`].
pub const KEPT: u32 = 8;
/// The same, once in an hour.
pub const RARELY_KEPT: u32 = 9;
/// A function that keeps texts. A text is not valid if the argument is [`BAD`]. If it is [`WORSE`], the
/// reply has a row too few. Texts of arguments from [`LONG`] on have as many bytes.
pub const TEXTS: u32 = 10;
/// `double` of texts that keeps its results.
pub const LENGTHS: u32 = 11;
/// What functions do not like.
pub const BAD: i64 = -1;
/// What they like even less.
pub const WORSE: i64 = -2;
/// See [`TEXTS`].
pub const LONG: i64 = 20_000;
/// The arguments of calls of functions that keep results, in this process.
pub static CALLED: Mutex<Vec<i64>> = Mutex::new(Vec::new());

fn functions() -> serde_json::Value {
    let scalar = |signature: &str| json!({ "signature": signature, "admits_null": [false] });
    json!([
        scalar("double(x BIGINT) -> BIGINT"),
        scalar("wait(milliseconds BIGINT) -> BIGINT"),
        { "signature": "numbers(n BIGINT) -> TABLE(i BIGINT)", "kind": "table", "admits_null": [false] },
        scalar("end(x BIGINT) -> BIGINT"),
        scalar("fail(x BIGINT) -> BIGINT"),
        scalar("large(x BIGINT) -> VARCHAR"),
        { "signature": "ends(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", "kind": "stream", "iterates": true, "admits_null": [false] },
        { "signature": "rare(x BIGINT) -> BIGINT", "admits_null": [false], "rate": "1/h" },
        { "signature": "kept(x BIGINT) -> BIGINT", "admits_null": [false], "memoize": 1 << 20 },
        { "signature": "rarely_kept(x BIGINT) -> BIGINT", "admits_null": [false], "memoize": 1 << 20, "rate": "1/h" },
        { "signature": "texts(x BIGINT) -> VARCHAR", "admits_null": [false], "memoize": 1 << 20, "on_error": "null" },
        { "signature": "lengths(x VARCHAR) -> BIGINT", "admits_null": [false], "memoize": 1 << 20 },
    ])
}

/// The zygote, on its own thread. It counts the guests that exist.
fn zygote(socket: UnixStream, guests: &Arc<AtomicUsize>) {
    let control = ControlSocket::new(socket);
    while let Ok(Some((request, fds))) = control.receive() {
        let report = match request {
            Request::Load { .. } => Report::Loaded {
                functions: functions(),
                runtime: "Test 1".into(),
                files: Some(Files::of([(&b"the test's"[..], &b""[..])])),
                reloads: false,
                sandboxed: false,
            },
            Request::Fork { lane, .. } => {
                let [memory, socket, _log] = <[OwnedFd; 3]>::try_from(fds).expect("three descriptors");
                // SAFETY: these descriptors were received once.
                let opened = unsafe { GuestLane::open(memory, socket, Duration::ZERO) }.expect("a lane");
                let guests = Arc::clone(guests);
                guests.fetch_add(1, Relaxed);
                thread::spawn(move || {
                    guest(opened);
                    guests.fetch_sub(1, Relaxed);
                });
                Report::Forked { lane }
            }
            Request::Unfork { .. } | Request::Zygote { .. } => continue,
        };
        if control.send(&report).is_err() {
            break;
        }
    }
}

fn guest(mut lane: GuestLane) {
    while let Ok(next) = lane.next_call_or(|| false) {
        match next {
            Next::Call(call) => {
                if call.header.function == END || answer(&mut lane, call).is_err() {
                    return;
                }
            }
            Next::Cancelled => {}
            Next::Closed | Next::Stopped => return,
        }
    }
}

fn answer(lane: &mut GuestLane, call: Call) -> std::io::Result<()> {
    let scans = call.entry() == Some(Entry::Scan);
    if call.header.function == ENDS {
        return fail(lane, call);
    }
    let (places, big) = (places(), DataType::BigInt);
    let types = if scans { vec![&DataType::Blob, &places, &big] } else { vec![&big] };
    let columns = lane.columns(types.into_iter())?;
    let values = columns.last().and_then(|column| column.values::<i64>()).unwrap_or_default().to_vec();
    drop(columns);
    match call.header.function {
        DOUBLE | RARE => {
            lane.succeed(call, &integers(values.iter().map(|value| value * 2)), RowCounts::default())
        }
        KEPT | RARELY_KEPT => {
            CALLED.lock().unwrap().extend(&values);
            match values.iter().position(|value| *value == BAD) {
                Some(row) => {
                    let failure = Failure { class: "Oops".into(), ..Failure::default() };
                    lane.fail(call, &failure, Some(row))
                }
                None => {
                    lane.succeed(call, &integers(values.iter().map(|value| value * 2)), RowCounts::default())
                }
            }
        }
        TEXTS => {
            CALLED.lock().unwrap().extend(&values);
            let mut column = ColumnBuilder::new(&DataType::Varchar);
            for value in &values {
                let text = if *value < LONG { value.to_string() } else { "x".repeat(*value as usize) };
                let text = if *value == BAD { &[0xFF][..] } else { text.as_bytes() };
                column.bytes(text).expect("room");
            }
            if values.contains(&WORSE) {
                column.truncate(values.len() - 1);
                return lane.succeed(call.with_rows(values.len() - 1), &column, RowCounts::default());
            }
            lane.succeed(call, &column, RowCounts::default())
        }
        WAIT => {
            BEGUN.lock().unwrap().extend(&values);
            let progress = lane.progress().clone();
            for (row, value) in values.iter().enumerate() {
                progress.set(call.header.exchange as u32, row as u32);
                thread::sleep(Duration::from_millis(*value as u64));
            }
            lane.succeed(call, &integers(values), RowCounts::default())
        }
        NUMBERS => {
            let mut sent = 0;
            let count = values.first().copied().unwrap_or_default();
            while sent < count {
                let end = (sent + 100).min(count);
                let rows = (end - sent) as usize;
                match lane.emit(&call, rows, &table(sent..end), || false)? {
                    Emitted::Sent => sent = end,
                    _ => break,
                }
            }
            lane.succeed(call.with_rows(0), &table(0..0), RowCounts::default())
        }
        LARGE => {
            let mut column = ColumnBuilder::new(&DataType::Varchar);
            let longest = values.first().map_or(0, |value| (*value).clamp(0, 16 << 20));
            let text = vec![b'x'; longest as usize];
            values.iter().for_each(|_| column.bytes(&text).expect("room"));
            lane.succeed(call, &column, RowCounts::default())
        }
        _ => fail(lane, call),
    }
}

fn fail(lane: &mut GuestLane, call: Call) -> std::io::Result<()> {
    let failure = Failure { class: "Oops".into(), message: "it fails".into(), ..Failure::default() };
    lane.fail(call, &failure, Some(0))
}

fn table(values: Range<i64>) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&row_type());
    for value in values {
        column.children[0].fixed(value);
        column.nested().expect("room");
    }
    column
}

fn row_type() -> DataType {
    "STRUCT(i BIGINT)".parse().expect("a type")
}

fn places() -> DataType {
    "INTEGER[]".parse().expect("a type")
}

pub fn integers(values: impl IntoIterator<Item = i64>) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    values.into_iter().for_each(|value| column.fixed(value));
    column
}

const POOL: PoolOptions = PoolOptions { warm: 0, idle_timeout: Duration::from_secs(60) };

fn library(origin: Origin, name: &str, trace: &Arc<Trace>) -> Result<ServedLibrary, Error> {
    let options = ZygoteOptions {
        load_timeout: Duration::from_secs(20),
        ring_size: 1 << 16,
        largest_batch: 64 << 20,
        spin: Duration::ZERO,
        ..ZygoteOptions::new(origin, Source::Thread { name: name.into() }, &Settings::default())
    };
    let common = Common { tracer: Tracer::new(trace, name), ..Common::default() };
    let (pool, loaded) =
        Pool::start_unless(POOL, common, || false, move |stop| Zygote::start(options, stop))?;
    let library = Arc::new(Library { name: name.into(), version: 1, functions: loaded.functions, pool });
    Ok(ServedLibrary { library, text: loaded.files.map(|files| files.hash()) })
}

/// The address of a new Unix socket.
pub fn unix() -> Address {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("crosslane-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    Address::Unix(std::env::temp_dir().join(name))
}

pub fn options(listen: &[Address]) -> Options {
    Options {
        listen: listen.to_vec(),
        token: None,
        tls: None,
        workers: 2,
        threads: 2,
        connections: 100,
        largest: 16 << 20,
        reloads: false,
        waiting: 1 << 30,
        slow: Duration::from_secs(5),
        spin: Duration::from_micros(50),
        spans: None,
    }
}

pub fn start(options: Options) -> Result<Server, Error> {
    start_counted(options).map(|(server, _)| server)
}

/// A server, and the number of its guests.
pub fn start_counted(options: Options) -> Result<(Server, Arc<AtomicUsize>), Error> {
    let (served, guests) = served("test")?;
    Ok((Server::start(options, vec![served])?, guests))
}

/// A library, and the number of its guests.
pub fn served(name: &str) -> Result<(ServedLibrary, Arc<AtomicUsize>), Error> {
    traced(name, &Arc::default())
}

/// A library that records what happens, and the number of its guests.
pub fn traced(name: &str, trace: &Arc<Trace>) -> Result<(ServedLibrary, Arc<AtomicUsize>), Error> {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let guests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&guests);
    thread::spawn(move || zygote(theirs, &counted));
    Ok((library(Origin::thread(ours), name, trace)?, guests))
}

/// A server at a Unix socket.
pub fn server() -> (Server, Address) {
    let address = unix();
    (start(options(std::slice::from_ref(&address))).expect("a server"), address)
}

/// An engine that has attached a server.
pub struct Client {
    pub library: Arc<Library<RemoteZygote>>,
    group: CallGroup,
}

impl Client {
    pub fn attach(address: &Address, token: Option<&str>) -> Result<Self, Error> {
        let remote = Remote { addresses: vec![address.clone()], token: token.map(str::to_owned) };
        Self::of(remote)
    }

    pub fn of(remote: Remote) -> Result<Self, Error> {
        let options = LaneOptions { largest: 64 << 20, stuck: Stuck::default() };
        let (pool, functions) = Pool::start(POOL, move |stop| RemoteZygote::attach(remote, options, stop))?;
        let library = Library { name: "remote".into(), version: 1, functions, pool };
        Ok(Self { library: Arc::new(library), group: CallGroup::default() })
    }

    pub fn new(address: &Address) -> Self {
        Self::attach(address, None).expect("a server")
    }

    pub fn call(&self, function: u32, values: &[i64]) -> Result<Vec<i64>, Error> {
        let function = &self.library.functions[function as usize];
        let mut results = Results(vec![0; values.len()]);
        call::call(&self.library, function, Caller::new(&self.group, 1), &Values(values), &mut results)?;
        Ok(results.0)
    }

    /// Ends all waiting calls of this client.
    pub fn cancel(&self) {
        self.group.cancel();
    }

    /// The first rows of a table. There are at least `at_least` rows if the table has as many.
    pub fn scan(&self, rows: i64, at_least: usize) -> Result<Vec<i64>, Error> {
        self.scan_and(rows, at_least, || {})
    }

    /// Does the same, and calls `body` after each batch.
    pub fn scan_and(&self, rows: i64, at_least: usize, body: impl Fn()) -> Result<Vec<i64>, Error> {
        let function = Arc::clone(&self.library.functions[NUMBERS as usize]);
        let caller = Caller::new(&self.group, 1);
        let mut scan = Scan::open(Arc::clone(&self.library), function, caller, row_type(), One(rows))?;
        let mut got = Vec::new();
        while got.len() < at_least {
            let Some(batch) = scan.next(caller)? else { break };
            got.extend_from_slice(batch.children[0].values::<i64>().expect("integers"));
            body();
        }
        Ok(got)
    }
}

pub struct Values<'a>(pub &'a [i64]);

impl Input for Values<'_> {
    fn rows(&self) -> usize {
        self.0.len()
    }
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&integers(self.0[rows].iter().copied()));
        Ok(())
    }
}

struct One(i64);

impl Input for One {
    fn rows(&self) -> usize {
        1
    }
    fn slice(&self, _: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut partition = ColumnBuilder::new(&DataType::Blob);
        let mut wanted = ColumnBuilder::new(&places());
        partition.null();
        wanted.null();
        take(&vec![partition, wanted, integers([self.0])]);
        Ok(())
    }
}

struct Results(Vec<i64>);

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        for row in 0..results.rows {
            // The result of a text is its length.
            let is_text = *results.data_type == DataType::Varchar;
            self.0[first + row] = if is_text { results.bytes(row).len() as i64 } else { results.value(row) };
        }
        Ok(())
    }
    fn null(&mut self, row: usize) {
        self.0[row] = -1;
    }
}

/// Waits until a condition is true.
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}
