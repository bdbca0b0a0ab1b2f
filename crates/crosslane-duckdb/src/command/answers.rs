//! The rows with which the commands answer.

use super::table_function::Cell;
use crate::database::library::AnyLibrary;
use crate::database::{Database, Kept, Reloaded, Restored};
use crosslane::stats::{Counter, LaneStats};
use crosslane::trace::{Event, Subject, Trace};
use crosslane::{Calling, Function, Kind, OnError};
use crosslane_process::guests::language_of;
use std::path::Path;
use std::sync::Arc;

pub(super) fn each_function(
    database: &Arc<Database>,
    row: impl Fn(&AnyLibrary, &Function) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let libraries = database.catalog.libraries();
    let functions =
        libraries.iter().flat_map(|library| library.functions.iter().map(move |it| (library, it)));
    // Other functions were dropped or replaced.
    let current = functions.filter(|(library, function)| database.catalog.is_current(library, function));
    current.map(|(library, function)| row(library, function)).collect()
}

pub(super) fn integer(value: u64) -> Cell {
    Cell::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn basics(function: &Function) -> Vec<Cell> {
    let name = function.name().to_owned();
    let texts = [name, function.signature.to_string(), kind(function), options(function)];
    texts.into_iter().map(Cell::Text).collect()
}

/// The kind of a function, and how it is called unless row by row.
fn kind(function: &Function) -> String {
    let calling = function.spec.calling;
    match function.spec.kind {
        Kind::Scalar => calling.name().to_owned(),
        kind if calling == Calling::Row => kind.name().to_owned(),
        kind => format!("{}, {}", kind.name(), calling.name()),
    }
}

pub(super) fn loaded(library: &AnyLibrary) -> Vec<Vec<Cell>> {
    library.functions.iter().map(|function| loaded_row(library, function)).collect()
}

pub(super) fn loaded_row(library: &AnyLibrary, function: &Function) -> Vec<Cell> {
    let mut row = basics(function);
    row.push(integer(library.version.into()));
    row
}

pub(super) fn reloaded_row(Reloaded { library, outcome }: Reloaded) -> Vec<Cell> {
    let outcome = match outcome {
        Ok(library) => [integer(library.version.into()), Cell::Null],
        Err(error) => [Cell::Null, Cell::Text(error.to_string())],
    };
    [Cell::Text(library)].into_iter().chain(outcome).collect()
}

pub(super) fn definition_row(kept: &Kept) -> Vec<Cell> {
    let error = kept.error().map_or(Cell::Null, |error| Cell::Text(error.to_string()));
    vec![Cell::Text(kept.function.clone()), Cell::Text(kept.text.clone()), error]
}

pub(super) fn restored_row(restored: &Restored) -> Vec<Cell> {
    let error = restored.error.as_ref().map_or(Cell::Null, |error| Cell::Text(error.to_string()));
    definition_row(&restored.kept).into_iter().take(2).chain([error]).collect()
}

pub(super) fn describe(library: &AnyLibrary, function: &Function) -> Vec<Cell> {
    let description = &function.spec.description;
    let mut row = basics(function);
    row.extend([
        Cell::Text(library.name.clone()),
        integer(library.version.into()),
        Cell::Text(function.spec.file.clone()),
        integer(function.spec.line.into()),
        Cell::Text(language_of(Path::new(&function.spec.file))),
        Cell::Text(function.signature.declared()),
        Cell::Text(function.signature.result()),
        if description.is_empty() { Cell::Null } else { Cell::Text(description.clone()) },
    ]);
    row
}

/// The options that differ from their defaults, as the user writes them.
fn options(function: &Function) -> String {
    let spec = &function.spec;
    let mut options = Vec::new();
    if function.admits_null() && spec.admits_null.iter().all(|admits| *admits) {
        options.push("nulls=call".to_owned());
    }
    if !spec.deterministic {
        options.push("deterministic=false".to_owned());
    }
    if spec.calling == Calling::Async {
        options.push(format!("concurrency={}", spec.concurrency));
    }
    options.extend(spec.timeout.map(|seconds| format!("timeout={seconds}")));
    options.extend(spec.memory_limit.map(|bytes| format!("memory_limit={bytes}")));
    options.extend(spec.memoize.map(|bytes| format!("memoize={bytes}")));
    let file = |file: &String| if file.is_empty() { "true".to_owned() } else { file.clone() };
    options.extend(spec.cache.as_ref().map(|cache| format!("cache={}", file(cache))));
    options.extend(spec.ttl.map(|seconds| format!("ttl={seconds}")));
    options.extend(spec.workers.map(|count| format!("workers={count}")));
    options.extend(spec.gpus.map(|count| format!("gpus={count}")));
    options.extend(spec.batch.map(|rows| format!("batch={rows}")));
    options.extend(spec.rate.as_ref().map(|rate| format!("rate={rate}")));
    options.extend(spec.budget.map(|calls| format!("budget={calls}")));
    let sandbox = spec.own_sandbox.as_ref().or(spec.sandbox.as_deref());
    options.extend(sandbox.iter().flat_map(|sandbox| sandbox.words()));
    if spec.on_error == OnError::Null {
        options.push("on_error=null".to_owned());
    }
    if spec.retries > 0 {
        options.push(format!("retries={}", spec.retries));
    }
    if spec.overload {
        options.push("overload=true".to_owned());
    }
    if spec.set_up {
        options.push("set_up=true".to_owned());
    }
    let named = function.signature.parameters.iter().zip(&spec.named).filter(|(_, named)| **named);
    let named: Vec<_> = named.map(|(parameter, _)| parameter.name.as_str()).collect();
    if !named.is_empty() {
        options.push(format!("named={}", named.join(" ")));
    }
    if spec.partitions {
        options.push("partitions=true".to_owned());
    }
    options.extend(spec.cardinality.map(|rows| format!("cardinality={rows}")));
    options.join(", ")
}

pub(super) fn statistics(function: &Function) -> Vec<Cell> {
    let stats = function.stats.totals();
    let calls = stats.calls.get();
    let mean = |counter: &Counter| match calls {
        0 => Cell::Null,
        _ => Cell::Double(counter.get() as f64 / calls as f64 / 1e3),
    };
    let per_row = match stats.rows.get() {
        0 => Cell::Null,
        rows => Cell::Double(stats.guest.get() as f64 / rows as f64),
    };
    vec![
        Cell::Text(function.name().into()),
        integer(calls),
        integer(stats.rows.get()),
        integer(stats.by_columns.get()),
        integer(stats.reused.get()),
        integer(stats.errors.get()),
        integer(stats.retries.get()),
        integer(stats.deaths.get()),
        integer(stats.fanned_out.get()),
        Cell::Double(stats.guest.get() as f64 / 1e9),
        per_row,
        mean(&stats.copy_in),
        mean(&stats.travel),
        mean(&stats.copy_out),
        Cell::Double(stats.bytes_out.get() as f64 / 1e6),
    ]
}

pub(super) fn lanes(library: &AnyLibrary) -> Vec<Vec<Cell>> {
    let row = |stats: &Arc<LaneStats>| {
        vec![
            Cell::Text(library.name.clone()),
            integer(stats.id),
            Cell::Integer(stats.process.into()),
            Cell::Boolean(stats.is_busy()),
            integer(stats.calls.get()),
            integer(stats.rows.get()),
            Cell::Double(stats.guest.get() as f64 / 1e9),
            Cell::Double(stats.waited.get() as f64 / 1e9),
        ]
    };
    library.pool.lanes().iter().map(row).collect()
}

pub(super) fn pool(library: &AnyLibrary) -> Vec<Cell> {
    let stats = library.pool.stats();
    vec![
        Cell::Text(library.name.clone()),
        integer(stats.idle as u64),
        integer(stats.busy as u64),
        integer(stats.booted),
        integer(stats.discarded),
        integer(stats.waited),
    ]
}

/// The events of a trace, with times from its start on.
pub(super) fn events(trace: &Trace) -> Vec<Vec<Cell>> {
    let started = trace.started();
    let micros = |nanos: u64| Cell::Double(nanos as f64 / 1e3);
    let known = |number: u64| if number == 0 { Cell::Null } else { integer(number) };
    let row = |event: Event<Subject>| {
        let Subject { library, function } = event.subject;
        vec![
            Cell::Text(event.kind.name().into()),
            function.map_or(Cell::Null, Cell::Shared),
            Cell::Shared(library),
            known(event.lane),
            known(event.process.unsigned_abs().into()),
            Cell::Integer(event.thread.into()),
            micros(event.start.saturating_sub(started)),
            micros(event.end - event.start),
            integer(event.rows.into()),
            event.detail.map_or(Cell::Null, |detail| Cell::Text(detail.into())),
        ]
    };
    trace.events().into_iter().map(row).collect()
}
