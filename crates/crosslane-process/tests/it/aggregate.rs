//! The entries of aggregates over lanes of a pool, whose guests are threads of this process. The tests
//! check what each entry carries, how it fails, and how the engine treats a guest with a wrong answer.

use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, Input, Output, call_on};
use crosslane::states::{Accumulates, Accumulation, State, States};
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Kind, Library};
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_process::testing::Guests;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

const NUMBER: DataType = DataType::BigInt;
const NOTHING: [i64; 0] = [];
/// The guests say that a batch with more rows is too large.
const MOST: usize = 60_000;

fn column(values: &[i64]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&NUMBER);
    column.fixed_all(values);
    column
}

/// The columns of an exchange, with the types of the function's kind.
fn taken(lane: &GuestLane, call: &Call) -> Vec<Vec<i64>> {
    let signature = "total(x BIGINT) -> BIGINT".parse().unwrap();
    let types = Kind::Aggregate.entry(call.entry().unwrap(), &signature).unwrap();
    let columns = lane.columns(types.takes()).unwrap();
    let numbers = columns.iter().filter(|column| *column.data_type == NUMBER);
    numbers.map(|column| (0..column.rows).map(|row| column.value(row)).collect()).collect()
}

/// A guest that adds.
fn sums() -> impl Fn(&mut GuestLane, Call) + Send + Sync {
    let states = Mutex::new(HashMap::<i64, i64>::new());
    move |lane, call| {
        let columns = taken(lane, &call);
        let mut states = states.lock().unwrap();
        let done = match call.entry().unwrap() {
            Entry::Update => {
                columns[0]
                    .iter()
                    .zip(&columns[1])
                    .for_each(|(state, x)| *states.entry(*state).or_default() += x);
                lane.succeed(call.with_rows(0), &(), RowCounts::default())
            }
            Entry::Combine => {
                for (target, source) in columns[0].iter().zip(&columns[1]) {
                    let more = states.get(source).copied().unwrap_or_default();
                    *states.entry(*target).or_default() += more;
                }
                lane.succeed(call.with_rows(0), &(), RowCounts::default())
            }
            Entry::Finish => {
                let sums: Vec<i64> = columns[0].iter().map(|state| states[state]).collect();
                lane.succeed(call, &column(&sums), RowCounts::default())
            }
            entry => panic!("{entry:?}"),
        };
        done.unwrap();
    }
}

/// Columns of numbers. If the flag is set, a column of `true` follows them.
struct Numbers(Vec<Vec<i64>>, bool);

struct Columns(Vec<ColumnBuilder>);

impl Encode for Columns {
    fn plan(&self, plan: &mut Plan) {
        self.0.iter().for_each(|column| column.plan(plan));
        if self.0[0].rows() > MOST {
            plan.overflow();
        }
    }
    fn write(&self, body: &mut Body<'_>) {
        self.0.iter().for_each(|column| column.write(body));
    }
}

impl Input for Numbers {
    fn rows(&self) -> usize {
        self.0[0].len()
    }
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut columns: Vec<_> = self.0.iter().map(|values| column(&values[rows.clone()])).collect();
        if self.1 {
            let mut keep = ColumnBuilder::new(&DataType::Boolean);
            rows.for_each(|_| keep.boolean(true));
            columns.push(keep);
        }
        take(&Columns(columns));
        Ok(())
    }
}

#[derive(Default)]
struct Results(Vec<i64>);

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        assert_eq!(first, self.0.len());
        self.0.extend((0..results.rows).map(|row| results.value::<i64>(row)));
        Ok(())
    }
    fn null(&mut self, row: usize) {
        panic!("row {row} is NULL");
    }
}

struct Fixture {
    library: Library<Guests>,
    group: CallGroup,
}

fn fixture(
    kind: &str,
    options: &str,
    guest: impl Fn(u64, &mut GuestLane, Call) + Send + Sync + 'static,
) -> Fixture {
    let returns = if kind == "table" { "TABLE(y BIGINT)" } else { "BIGINT" };
    let signature = format!("total(x BIGINT) -> {returns}");
    let text =
        format!(r#"{{"signature": "{signature}", "kind": "{kind}", "admits_null": [false]{options}}}"#);
    let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
    let guests = Guests::new(1 << 16, move |number, lane, call| {
        guest(number, lane, call);
        true
    });
    let pool = guests.pool(1);
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    Fixture {
        library: Library { name: "fake".into(), version: 1, functions, pool },
        group: CallGroup::default(),
    }
}

impl Fixture {
    fn enter(&self, entry: Entry, columns: &[&[i64]]) -> Result<Vec<i64>, Error> {
        let numbers = columns.iter().map(|values| values.to_vec()).collect();
        let input = Numbers(numbers, entry == Entry::Combine);
        let mut results = Results::default();
        let (function, caller) = (&self.library.functions[0], Caller::new(&self.group, 1));
        let mut lane = self.library.pool.check_out(|| false)?;
        let outcome = call_on(&self.library, function, entry, caller, &mut lane, &input, &mut results);
        if let Some(lane) = lane {
            self.library.pool.give_back(lane);
        }
        outcome.map(|()| results.0)
    }

    /// Whether the guest's answer to these columns ends its lane as garbage.
    fn is_garbage(&self, entry: Entry, columns: &[&[i64]]) -> bool {
        let error = self.enter(entry, columns).unwrap_err();
        let garbage = matches!(error, Error::LaneDied { .. }) && error.to_string().contains("wrote garbage");
        garbage && self.library.pool.stats().discarded == 1
    }
}

#[test]
fn states_are_updated_combined_and_finished() {
    let sums = sums();
    let fixture = fixture("aggregate", "", move |_, lane, call| sums(lane, call));
    assert_eq!(fixture.enter(Entry::Update, &[&[1, 2, 1], &[10, 20, 30]]).unwrap(), NOTHING);
    assert_eq!(fixture.enter(Entry::Update, &[&[3], &[5]]).unwrap(), NOTHING);
    assert_eq!(fixture.enter(Entry::Combine, &[&[1, 2], &[3, 4]]).unwrap(), NOTHING);
    assert_eq!(fixture.enter(Entry::Finish, &[&[1, 2, 3]]).unwrap(), [45, 20, 5]);
    let stats = fixture.library.functions[0].stats.totals();
    assert_eq!((stats.calls.get(), stats.rows.get()), (4, 3 + 1 + 2 + 3));
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.booted, stats.idle, stats.discarded), (1, 1, 0));
}

/// The threads of a query do not fail at the same time. When one has failed, another may still come with
/// states.
#[test]
fn states_of_a_use_that_failed_fail_with_its_error() {
    let sums = sums();
    let fixture = fixture("aggregate", "", move |_, lane, call| match taken(lane, &call).last() {
        Some(added) if added.contains(&13) => {
            let failure = Failure { class: "Unlucky".into(), ..Failure::default() };
            lane.fail(call, &failure, None).unwrap();
        }
        // The query does not ask for states any more that it has told the guest to forget.
        _ if call.entry() == Some(Entry::Forget) => {
            lane.succeed(call.with_rows(0), &(), RowCounts::default()).unwrap();
        }
        _ => sums(lane, call),
    });
    let Fixture { library, group } = fixture;
    let (function, library, group) = (Arc::clone(&library.functions[0]), Arc::new(library), Arc::new(group));
    let new = || Accumulation::new(Arc::clone(&library), Arc::clone(&function), Arc::clone(&group));
    let mut state = State::default();
    let place = [&raw mut state];
    // SAFETY: the state outlives this, and no other code uses it.
    let states = unsafe { States::new(&place) };
    let first = new();
    first.update(&states, &Numbers(vec![vec![1]], false)).unwrap();
    let failure = first.update(&states, &Numbers(vec![vec![13]], false)).unwrap_err().to_string();
    assert!(failure.contains("Unlucky"), "{failure}");
    let late = new().after(first.failure()).finish(&states, &mut Results::default()).unwrap_err();
    assert_eq!(late.to_string(), failure);
    let other = new().finish(&states, &mut Results::default()).unwrap_err().to_string();
    assert!(other.contains("a state of a query that is over"), "{other}");
}

/// The states pass through the engine, which must hold only a few large states at a time.
#[test]
fn large_states_go_to_another_lane_in_pieces() {
    const LARGE: usize = 1 << 20;
    let saved = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&saved);
    let fixture = fixture("aggregate", "", move |_, lane, call| {
        let rows = call.header.rows as usize;
        let done = if call.entry() == Some(Entry::Save) {
            seen.lock().unwrap().push(rows);
            let mut states = ColumnBuilder::new(&DataType::Blob);
            (0..rows).for_each(|_| states.bytes(&vec![7; LARGE]).unwrap());
            lane.succeed(call, &states, RowCounts::default())
        } else {
            lane.succeed(call.with_rows(0), &(), RowCounts::default())
        };
        done.unwrap();
    });
    let Fixture { library, group } = fixture;
    let (function, library, group) = (Arc::clone(&library.functions[0]), Arc::new(library), Arc::new(group));
    let sums = Accumulation::new(library, function, group);
    let (mut ours, mut theirs) = ([State::default(); 100], [State::default(); 100]);
    let update = |states: &mut [State; 100]| {
        let places = states.each_mut().map(std::ptr::from_mut);
        // SAFETY: the states outlive this, and no other code uses them.
        sums.update(&unsafe { States::new(&places) }, &Numbers(vec![vec![1; 100]], false)).unwrap();
    };
    update(&mut ours);
    // Each thread has its own lane.
    thread::scope(|scope| scope.spawn(|| update(&mut theirs)).join().unwrap());
    let [ours, theirs] = [&mut ours, &mut theirs].map(|states| states.each_mut().map(std::ptr::from_mut));
    // SAFETY: as above.
    let (ours, theirs) = unsafe { (States::new(&ours), States::new(&theirs)) };
    sums.combine(&ours, &theirs, false).unwrap();
    let pieces = std::mem::take(&mut *saved.lock().unwrap());
    assert_eq!(pieces.iter().sum::<usize>(), 100);
    assert!(pieces.iter().all(|rows| rows * LARGE <= 16 << 20), "{pieces:?}");
}

/// A batch that is too large is cut. The guest gets the parts one after the other, because an update has
/// its lane for itself.
#[test]
fn many_rows_are_updated_once_each() {
    let sums = sums();
    let fixture = fixture("aggregate", "", move |_, lane, call| sums(lane, call));
    let rows: Vec<i64> = (0..100_000).collect();
    let states: Vec<i64> = rows.iter().map(|row| row % 7).collect();
    for _ in 0..2 {
        fixture.enter(Entry::Update, &[&states, &rows]).unwrap();
    }
    let due: Vec<i64> =
        (0..7).map(|state| 2 * rows.iter().filter(|row| *row % 7 == state).sum::<i64>()).collect();
    assert_eq!(fixture.enter(Entry::Finish, &[&[0, 1, 2, 3, 4, 5, 6]]).unwrap(), due);
}

#[test]
fn a_function_has_the_entries_of_its_kind_alone() {
    for (kind, entries) in [
        ("scalar", vec![Entry::Scan, Entry::Update, Entry::Combine, Entry::Finish, Entry::SetUp]),
        ("aggregate", vec![Entry::Call, Entry::Scan, Entry::SetUp]),
        ("table", vec![Entry::Call, Entry::Scan, Entry::Update, Entry::Combine, Entry::Finish, Entry::SetUp]),
    ] {
        let fixture = fixture(kind, "", |_, _, call| panic!("{call:?}"));
        for entry in entries {
            let error = fixture.enter(entry, &[&[1], &[2]]).unwrap_err();
            assert!(matches!(&error, Error::Engine(what) if what.starts_with("total")), "{error}");
        }
    }
}

#[test]
fn a_guest_without_the_entry_reports_that_and_keeps_running() {
    let fixture = fixture("aggregate", "", |_, lane, call| lane.fail(call, &call.refusal(), None).unwrap());
    let error = fixture.enter(Entry::Combine, &[&[1], &[2]]).unwrap_err().to_string();
    assert_eq!(error, "total: Error: this guest has no entry Combine of function 0");
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn a_failure_shows_the_columns_of_its_row() {
    let fixture = fixture("aggregate", "", |_, lane, call| {
        let failure = Failure { class: "Oops".into(), message: "no".into(), ..Failure::default() };
        lane.fail(call, &failure, Some(1)).unwrap();
    });
    for (entry, place) in [
        (Entry::Update, "state = 2, x = 40"),
        (Entry::Combine, "target = 2, source = 40, keep = true"),
        (Entry::Finish, "state = 2"),
    ] {
        let columns: &[&[i64]] = if entry == Entry::Finish { &[&[1, 2]] } else { &[&[1, 2], &[30, 40]] };
        let error = fixture.enter(entry, columns).unwrap_err().to_string();
        assert_eq!(error, format!("total: Oops: no\n  in row 2 of the batch, with {place}"));
    }
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn an_update_that_makes_no_progress_times_out() {
    let fixture = fixture("aggregate", r#", "timeout": 0.2"#, |_, lane, call| {
        lane.progress().set(call.header.exchange as u32, 1);
        loop {
            thread::park();
        }
    });
    let error = fixture.enter(Entry::Update, &[&[1, 2], &[30, 40]]).unwrap_err().to_string();
    assert!(error.starts_with("total: timed out after 0.2 s"), "{error}");
    assert!(error.ends_with("in row 2 of the batch, with state = 2, x = 40"), "{error}");
}

/// The rows of a begun update may have changed states already.
#[test]
fn an_update_that_was_begun_is_not_repeated() {
    let begun = Arc::new(Mutex::new(0));
    let count = Arc::clone(&begun);
    let fixture = fixture("aggregate", "", move |_, lane, call| {
        *count.lock().unwrap() += 1;
        lane.progress().set(call.header.exchange as u32, 0);
        lane.emit(&call, 7, &column(&[1; 7]), || false).unwrap();
    });
    assert!(fixture.is_garbage(Entry::Update, &[&[1, 2], &[3, 4]]));
    assert_eq!(*begun.lock().unwrap(), 1);
}

type Lie = fn(&mut GuestLane, Call) -> std::io::Result<()>;

fn answer(lane: &mut GuestLane, call: Call, rows: usize, results: &dyn Encode) -> std::io::Result<()> {
    lane.succeed(call.with_rows(rows), results, RowCounts::default())
}

#[test]
fn an_answer_that_is_not_the_entrys_is_garbage() {
    let updates: [(&str, Lie); 5] = [
        ("rows of results", |lane, call| answer(lane, call, 2, &column(&[1, 2]))),
        ("rows without results", |lane, call| answer(lane, call, 2, &())),
        ("results without rows", |lane, call| answer(lane, call, 0, &column(&[]))),
        // This answer is so long that its end may stay in the ring.
        ("long results that are said to have no rows", |lane, call| {
            answer(lane, call, 0, &column(&[7; 2048]))
        }),
        ("an empty batch that is not the last", |lane, call| lane.emit(&call, 0, &(), || false).map(drop)),
    ];
    let finishes: [(&str, Lie); 5] = [
        ("too few results", |lane, call| answer(lane, call, 1, &column(&[1]))),
        ("too many results", |lane, call| answer(lane, call, 3, &column(&[1, 2, 3]))),
        ("no results", |lane, call| answer(lane, call, 0, &())),
        ("fewer results than rows", |lane, call| answer(lane, call, 2, &column(&[1]))),
        ("results that are not the last", |lane, call| {
            lane.emit(&call, 2, &column(&[1, 2]), || false).map(drop)
        }),
    ];
    let two: &[&[i64]] = &[&[1, 2], &[3, 4]];
    for (entry, columns, lies) in
        [(Entry::Update, two, updates), (Entry::Combine, two, updates), (Entry::Finish, &two[..1], finishes)]
    {
        for (what, lie) in lies {
            let fixture = fixture("aggregate", "", move |_, lane, call| drop(lie(lane, call)));
            assert!(fixture.is_garbage(entry, columns), "{entry:?}: {what}");
        }
    }
}
