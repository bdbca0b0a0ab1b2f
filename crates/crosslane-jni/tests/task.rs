//! The work of a task over lanes of a pool: calls and chains of calls, table functions, and the ends of
//! waits. The guests are threads of this process.

use crosslane::batch::Column;
use crosslane::{ColumnBuilder, DataType, Failure, Function, FunctionSpec, Library};
use crosslane_jni::columns::write_table;
use crosslane_jni::task::{Argument, Program, Step, Task};
use crosslane_process::guest::{Call, Emitted, GuestLane, Next, RowCounts};
use crosslane_process::testing::Guests;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const NUMBER: DataType = DataType::BigInt;
const NOW: Duration = Duration::ZERO;
/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(60);

fn column(values: &[i64]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&NUMBER);
    column.fixed_all(values);
    column
}

fn values(column: &Column<'_>) -> Vec<i64> {
    (0..column.rows).map(|row| column.value(row)).collect()
}

/// A library whose only function is served by this guest.
fn library(
    signature: &str,
    kind: &str,
    guest: impl Fn(&mut GuestLane, Call) + Send + Sync + 'static,
) -> Arc<Library<Guests>> {
    let text = format!(r#"{{"signature": "{signature}", "kind": "{kind}", "admits_null": [false]}}"#);
    let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
    let guests = Guests::new(1 << 14, move |_, lane, call| {
        guest(lane, call);
        true
    });
    let pool = guests.pool(1);
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    Arc::new(Library { name: "fake".into(), version: 1, functions, pool })
}

fn arguments(lane: &GuestLane) -> Vec<i64> {
    values(&lane.columns([&NUMBER].into_iter()).unwrap()[0])
}

/// Adds one.
fn increment(lane: &mut GuestLane, call: Call) {
    let results: Vec<_> = arguments(lane).iter().map(|value| value + 1).collect();
    lane.succeed(call, &column(&results), RowCounts::default()).unwrap();
}

/// Fails for 13.
fn unlucky(lane: &mut GuestLane, call: Call) {
    if arguments(lane).contains(&13) {
        let failure = Failure { class: "Unlucky".into(), ..Failure::default() };
        lane.fail(call, &failure, Some(0)).unwrap();
    } else {
        increment(lane, call);
    }
}

fn step(library: &Arc<Library<Guests>>, argument: Argument) -> Step<Guests> {
    let function = Arc::clone(&library.functions[0]);
    Step { library: Arc::clone(library), function, arguments: vec![argument], aligned: false, spent: None }
}

fn task(steps: Vec<Step<Guests>>) -> Task {
    Task::begin(Program::new(1, steps, 2).unwrap()).unwrap()
}

/// Submits a batch. The batch must live until its last answer.
fn submit(task: &mut Task, batch: &ColumnBuilder) {
    let mut table = Vec::new();
    write_table(&batch.column(&NUMBER), &mut table);
    // SAFETY: each test keeps its batches until the test ends.
    unsafe { task.submit(batch.rows(), table) };
}

#[test]
fn calls_are_answered_in_order_and_chained() {
    let library = library("f(x BIGINT) -> BIGINT", "scalar", increment);
    let mut task = task(vec![step(&library, Argument::Input(0)), step(&library, Argument::Result(0))]);
    let batches: Vec<_> = (0..5i64).map(|first| column(&[first * 10, first * 10 + 1])).collect();
    // At most two batches are in progress.
    submit(&mut task, &batches[0]);
    for next in 1..=batches.len() {
        if let Some(batch) = batches.get(next) {
            submit(&mut task, batch);
        }
        let first = (next as i64 - 1) * 10;
        let answer = task.take(LONG).unwrap().unwrap().unwrap();
        assert!(answer.last && answer.row.is_none());
        let results: Vec<_> = answer.results.iter().map(|results| values(&results.column())).collect();
        assert_eq!(results, [[first + 1, first + 2], [first + 2, first + 3]]);
    }
    assert!(task.take(NOW).unwrap().is_none(), "nothing is in progress");
    task.finish();
    assert!(task.take(LONG).unwrap().unwrap().is_none(), "the end");
    assert_eq!(library.functions[0].stats.totals().rows.get(), 20);
}

#[test]
fn a_failure_is_the_last_that_comes() {
    let library = library("f(x BIGINT) -> BIGINT", "scalar", unlucky);
    let mut task = task(vec![step(&library, Argument::Input(0))]);
    let batches = [column(&[1]), column(&[13]), column(&[2])];
    batches.iter().for_each(|batch| submit(&mut task, batch));
    assert!(task.take(LONG).unwrap().unwrap().is_some());
    let error = task.take(LONG).unwrap_err().to_string();
    assert!(error.contains("Unlucky") && error.contains("x = 13"), "{error}");
    assert!(task.take(LONG).is_err());
    submit(&mut task, &batches[0]);
    drop(task);
    assert_eq!(library.pool.stats().busy, 0, "the lane is given back");
}

#[test]
fn ending_a_task_waits_for_no_guest() {
    // The guest never answers.
    let library = library("f(x BIGINT) -> BIGINT", "scalar", |_, _| {
        loop {
            thread::park();
        }
    });
    let mut task = task(vec![step(&library, Argument::Input(0))]);
    let batch = column(&[1, 2, 3]);
    submit(&mut task, &batch);
    assert!(task.take(Duration::from_millis(50)).unwrap().is_none());
    // The test hangs here if nothing ends the wait for the guest.
    drop(task);
}

/// The thread may not have reached its first call yet.
#[test]
fn a_task_that_is_ended_at_once_ends() {
    let library = library("f(x BIGINT) -> BIGINT", "scalar", |_, _| {
        loop {
            thread::park();
        }
    });
    let batch = column(&[1, 2, 3]);
    for _ in 0..20 {
        let mut task = task(vec![step(&library, Argument::Input(0))]);
        submit(&mut task, &batch);
        drop(task);
    }
}

/// A table of one column.
fn table(values: &[i64]) -> ColumnBuilder {
    let mut table = ColumnBuilder::new(&"STRUCT(y BIGINT)".parse().unwrap());
    for value in values {
        table.children[0].fixed(*value);
        table.nested().unwrap();
    }
    table
}

/// Emits batches of one row. The argument says how many.
fn count(lane: &mut GuestLane, call: Call) {
    let types: Vec<DataType> =
        ["BLOB", "INTEGER[]", "BIGINT"].iter().map(|one| one.parse().unwrap()).collect();
    let rows: i64 = lane.columns(types.iter()).unwrap()[2].value(0);
    for row in 0..rows {
        if !matches!(lane.emit(&call, 1, &table(&[row]), || false), Ok(Emitted::Sent)) {
            break;
        }
    }
    let _ = lane.succeed(call.with_rows(0), &table(&[]), RowCounts::default());
}

#[test]
fn tables_come_row_by_row_of_the_arguments() {
    let library = library("f(x BIGINT) -> TABLE(y BIGINT)", "table", count);
    let mut task = task(vec![step(&library, Argument::Input(0))]);
    let batch = column(&[2, 0, 3]);
    submit(&mut task, &batch);
    task.finish();
    let mut seen = Vec::new();
    while let Some(answer) = task.take(LONG).unwrap().unwrap() {
        let columns = answer.results[0].column();
        seen.extend(values(&columns.children[0]).into_iter().map(|value| (answer.row, Some(value))));
        if answer.last {
            seen.push((answer.row, None));
        }
    }
    let row = |row, value| (Some(row), Some(value));
    assert_eq!(seen, [row(0, 0), row(0, 1), row(2, 0), row(2, 1), row(2, 2), (None, None)]);
}

#[test]
fn a_table_that_is_not_read_to_its_end_is_ended() {
    let library = library("f(x BIGINT) -> TABLE(y BIGINT)", "table", count);
    let mut task = task(vec![step(&library, Argument::Input(0))]);
    let batch = column(&[i64::MAX]);
    submit(&mut task, &batch);
    for _ in 0..10 {
        assert!(task.take(LONG).unwrap().unwrap().is_some());
    }
    // The thread waits for room for its next answer.
    drop(task);
    assert_eq!(library.pool.stats().discarded, 0, "the guest goes on to the next");
}

/// Gives the numbers of two batches at a time.
fn in_twos(lane: &mut GuestLane, mut call: Call) {
    let table_type: DataType = "STRUCT(y BIGINT)".parse().unwrap();
    let mut held = Vec::new();
    let mut batches = 0;
    while let Ok(Next::Call(next)) = lane.more(&call, || false) {
        call = next;
        if call.is_last() {
            break;
        }
        held.extend(values(&lane.columns([&table_type].into_iter()).unwrap()[0].children[0]));
        batches += 1;
        if batches % 2 == 0
            && !matches!(lane.emit(&call, held.len(), &table(&held), || false), Ok(Emitted::Sent))
        {
            break;
        }
        if batches % 2 == 0 {
            held.clear();
        }
    }
    let _ = lane.emit(&call, held.len(), &table(&held), || false);
    let _ = lane.succeed(call.with_rows(0), &(), RowCounts::default());
}

/// A task with a function that sees all batches. With `aligned`, it gives one result for each row.
fn iterating(library: &Arc<Library<Guests>>, aligned: bool, depth: usize) -> Task {
    let step = Step { aligned, ..step(library, Argument::Input(0)) };
    Task::begin(Program::new(1, vec![step], depth).unwrap()).unwrap()
}

const ITERATES: &str = "f(rows TABLE(y BIGINT)) -> TABLE(y BIGINT)";

#[test]
fn results_that_belong_to_rows_come_batch_by_batch() {
    let library = library(ITERATES, r#"stream", "iterates": true, "file": ""#, in_twos);
    for depth in [1, 2, 3] {
        let mut task = iterating(&library, true, depth);
        let batches: Vec<_> = (0..5i64).map(|n| table(&vec![n; n as usize + 1])).collect();
        let (mut next, mut seen, mut room) = (0, Vec::new(), depth);
        loop {
            while next < batches.len() && room > 0 {
                let mut told = Vec::new();
                write_table(&batches[next].column(&"STRUCT(y BIGINT)".parse().unwrap()), &mut told);
                // SAFETY: the batches live as long as the task.
                unsafe { task.submit(batches[next].rows(), told) };
                (next, room) = (next + 1, room - 1);
            }
            if next == batches.len() {
                task.finish();
            }
            let Some(answer) = task.take(LONG).unwrap().unwrap() else { break };
            // With a depth of one, the first batch gets no results unless the function gets another
            // batch.
            room += usize::from(answer.wants) + usize::from(answer.last);
            if answer.last {
                seen.push(values(&answer.results[0].column().children[0]));
            }
        }
        let expected: Vec<_> = (0..5i64).map(|n| vec![n; n as usize + 1]).collect();
        assert_eq!(seen, expected, "with a depth of {depth}");
    }
}

#[test]
fn results_that_belong_to_no_rows_come_as_they_are() {
    let library = library(ITERATES, r#"stream", "iterates": true, "file": ""#, in_twos);
    let mut task = iterating(&library, false, 2);
    let batches: Vec<_> = (0..3i64).map(|n| table(&[n, n])).collect();
    let (mut seen, mut done) = (Vec::new(), 0);
    for batch in &batches {
        let mut told = Vec::new();
        write_table(&batch.column(&"STRUCT(y BIGINT)".parse().unwrap()), &mut told);
        // SAFETY: the batches live as long as the task.
        unsafe { task.submit(batch.rows(), told) };
    }
    task.finish();
    while let Some(answer) = task.take(LONG).unwrap().unwrap() {
        done += usize::from(answer.last);
        seen.extend(values(&answer.results[0].column().children[0]));
    }
    assert_eq!((seen, done), (vec![0, 0, 1, 1, 2, 2], 3));
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let library = library("f(x BIGINT) -> VARCHAR", "scalar", increment);
    for (inputs, steps) in [
        (1, vec![step(&library, Argument::Input(1))]),
        (2, vec![step(&library, Argument::Input(0))]),
        (1, vec![step(&library, Argument::Input(0)), step(&library, Argument::Result(0))]),
        (1, vec![step(&library, Argument::Result(0))]),
    ] {
        assert!(Program::new(inputs, steps, 2).is_err());
    }
}
