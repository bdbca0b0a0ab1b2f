//! Traces in the format of Chrome, which Perfetto and other viewers read too. It is that of
//! `crosslane._engines.tracing.chrome`, with connections in the place of threads.

use super::{Recording, is_of_worker};
use crosslane::trace::{Event, EventKind, Subject};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A recording as JSON; times are in microseconds. Each worker is a thread of its process, and each
/// connection one of the server's process.
pub(super) fn text(recording: &Recording) -> String {
    let server = std::process::id() as i32;
    let mut names = BTreeMap::from([(("process_name", server, 0), "server".to_owned())]);
    let mut text = String::from("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n");
    for event in &recording.events {
        let (process, thread) = if is_of_worker(event) {
            let (process, worker) = (event.process, event.lane);
            let workers = || format!("workers of {}", short(&event.subject.library));
            names.entry(("process_name", process, 0)).or_insert_with(workers);
            names.entry(("thread_name", process, worker)).or_insert_with(|| format!("worker {worker}"));
            (process, worker)
        } else {
            let connection = u64::from(event.thread.unsigned_abs());
            let name = || if connection == 0 { "loads".into() } else { format!("connection {connection}") };
            names.entry(("thread_name", server, connection)).or_insert_with(name);
            (server, connection)
        };
        add(&mut text, &one(recording, event, process, thread));
    }
    for ((kind, process, thread), name) in names {
        let named =
            json!({ "ph": "M", "name": kind, "pid": process, "tid": thread, "args": { "name": name } });
        add(&mut text, &named);
    }
    text.truncate(text.trim_end_matches([',', '\n']).len());
    text.push_str("\n]}\n");
    text
}

fn add(text: &mut String, one: &Value) {
    text.push_str(&one.to_string());
    text.push_str(",\n");
}

/// The name of a library, without the folder of a file.
fn short(library: &str) -> &str {
    Path::new(library).file_name().and_then(|name| name.to_str()).unwrap_or(library)
}

fn one(recording: &Recording, event: &Event<Subject>, process: i32, thread: u64) -> Value {
    let function = event.subject.function.as_deref();
    let name = function.filter(|_| event.kind == EventKind::Function).unwrap_or(event.kind.name());
    let mut details = json!({ "library": &*event.subject.library, "rows": event.rows });
    if let Some(function) = function {
        details["function"] = function.into();
    }
    if event.lane != 0 {
        details["worker"] = event.lane.into();
    }
    if let Some(detail) = &event.detail {
        details["detail"] = (&**detail).into();
    }
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let mut one = json!({
        "name": name,
        "cat": event.kind.name(),
        "pid": process,
        "tid": thread,
        "ts": micros(recording.start(event)),
        "args": details,
    });
    if matches!(event.kind, EventKind::Retry | EventKind::Exception | EventKind::LaneLost) {
        one["ph"] = "i".into();
        one["s"] = "t".into();
    } else {
        one["ph"] = "X".into();
        one["dur"] = micros(event.end - event.start).into();
    }
    one
}
