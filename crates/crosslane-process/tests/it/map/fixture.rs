//! Streams over lanes of a pool, whose guests are threads of this process. The tests check which lane
//! gets a batch, the order of the results, and batches whose lane is lost.

use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, Map, MapInput, MapOptions, MapStep, map_types};
use crosslane::pool::Pool;
use crosslane::{ColumnBuilder, DataType, Error, Function, FunctionSpec, Library};
use crosslane_process::guest::{Call, Emitted, GuestLane, Room, RowCounts};
use crosslane_process::testing::Guests;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// A column of numbers in the form of a table's batch, with its types.
pub(super) struct Numbers(pub(super) ColumnBuilder, pub(super) Arc<str>);

pub(super) fn numbers(values: &[i64], name: &str) -> Numbers {
    let table: DataType = format!("STRUCT({name} BIGINT)").parse().unwrap();
    let mut column = ColumnBuilder::new(&table);
    values.iter().for_each(|value| {
        column.children[0].fixed(*value);
        column.nested().unwrap();
    });
    let text = map_types(&table);
    Numbers(column, text.into())
}

impl Encode for Numbers {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.1);
        self.0.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.0.write(body);
    }
}

pub(super) struct Fixture {
    pub(super) map: Map<Guests>,
    pub(super) library: Arc<Library<Guests>>,
    pub(super) group: CallGroup,
    /// The number of batches that the map got so far.
    pub(super) put: i64,
    /// The number of all batches.
    pub(super) all: i64,
}

pub(super) fn fixture(
    options: &str,
    (lanes, depth, ordered): (usize, usize, bool),
    all: i64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    fixture_of("f(rows TABLE) -> TABLE", options, (lanes, depth, ordered), all, guest)
}

pub(super) fn function(signature: &str, options: &str) -> Arc<Function> {
    let spec = format!(r#"{{"signature": "{signature}", "kind": "stream", "admits_null": [true]{options}}}"#);
    let spec: FunctionSpec = serde_json::from_str(&spec).unwrap();
    Arc::new(Function::new(0, spec).unwrap())
}

pub(super) fn pool(
    lanes: usize,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Pool<Guests> {
    Guests::new(4096, guest).pool(lanes)
}

pub(super) fn fixture_of(
    signature: &str,
    options: &str,
    (lanes, depth, ordered): (usize, usize, bool),
    all: i64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    let pool = pool(lanes, guest);
    let functions = vec![function(signature, options)];
    let function = Arc::clone(&functions[0]);
    let library = Arc::new(Library { name: "fake".into(), version: 1, functions, pool });
    let map = Map::new(Arc::clone(&library), function, MapOptions { lanes, depth, ordered }).unwrap();
    Fixture { map, library, group: CallGroup::default(), put: 0, all }
}

impl Fixture {
    /// Waits until this number of lanes are booted. A stream that has a lane does not wait for others.
    pub(super) fn wait_for_lanes(&self, lanes: usize) {
        while self.library.pool.stats().idle < lanes {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next results. Batch n of the input is the number n.
    pub(super) fn next(&mut self) -> Result<Option<Vec<i64>>, Error> {
        loop {
            match self.map.next(Caller::new(&self.group, 1))? {
                MapStep::Done => return Ok(None),
                MapStep::Output(column, first) => {
                    return Ok(Some((first..column.rows).map(|row| column.children[0].value(row)).collect()));
                }
                MapStep::Wants => {}
            }
            if self.put == self.all {
                self.map.end();
            } else {
                self.put += 1;
                self.map.put(MapInput { rows: 1, content: Box::new(numbers(&[self.put], "n")) });
            }
        }
    }

    pub(super) fn rest(&mut self) -> (Vec<i64>, Option<Error>) {
        let mut rows = Vec::new();
        loop {
            match self.next() {
                Ok(Some(more)) => rows.extend(more),
                Ok(None) => return (rows, None),
                Err(error) => return (rows, Some(error)),
            }
        }
    }
}

pub(super) fn read(lane: &GuestLane, call: &Call) -> i64 {
    let types = lane.types(call).unwrap().unwrap();
    let table = crosslane::call::table_of(types).unwrap();
    let columns = lane.columns(std::iter::once(&table)).unwrap();
    let column: &Column<'_> = &columns[0].children[0];
    column.value(0)
}

pub(super) fn emit(lane: &mut GuestLane, call: &Call, values: &[i64]) -> bool {
    matches!(lane.emit(call, values.len(), &numbers(values, "m"), || false), Ok(Emitted::Sent))
}

pub(super) fn last(lane: &mut GuestLane, call: Call, values: &[i64]) -> bool {
    lane.succeed(call.with_rows(values.len()), &numbers(values, "m"), RowCounts::default()).is_ok()
}

/// Waits until the engine has taken all results. So the engine takes them before it sees the end of the
/// lane.
pub(super) fn taken(lane: &mut GuestLane, call: &Call) {
    assert!(matches!(lane.await_room(call, Room::All, || false), Ok(Emitted::Sent)));
}

/// Answers a batch without rows.
pub(super) fn none(lane: &mut GuestLane, call: Call) -> bool {
    lane.succeed(call.with_rows(0), &(), RowCounts::default()).is_ok()
}

pub(super) fn column_type() -> DataType {
    "STRUCT(m BIGINT)".parse().unwrap()
}

/// A guest whose rows are a 1, a NULL, and the given text. The text is a 3 or no valid text.
pub(super) fn with_a_null(lane: &mut GuestLane, call: Call, text: &[u8]) -> bool {
    let mut column = ColumnBuilder::new(&"STRUCT(m VARCHAR)".parse().unwrap());
    column.children[0].bytes(b"1").unwrap();
    column.nested().unwrap();
    column.null();
    column.children[0].bytes(text).unwrap();
    column.nested().unwrap();
    let row_counts = RowCounts { errors: 1, ..RowCounts::default() };
    lane.succeed(call.with_rows(3), &column, row_counts).is_ok()
}

pub(super) fn fixture_null() -> Fixture {
    fixture(r#", "on_error": "null""#, (2, 2, true), 20, dies_at(5, 2))
}

/// At the first try of a batch, the guest ends its thread after some rows, and so its lane. The guest of
/// the next try goes on.
pub(super) fn dies_at(at: i64, after: usize) -> impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync {
    let tries = AtomicU64::new(0);
    move |_, lane, call| {
        let n = read(lane, &call);
        let rows = [10 * n, 10 * n + 1, 10 * n + 2];
        if n == at && tries.fetch_add(1, Relaxed) == 0 {
            rows[..after].iter().all(|row| emit(lane, &call, &[*row]));
            taken(lane, &call);
            return false;
        }
        // The rows come in other batches than at the first try.
        last(lane, call, &rows)
    }
}
