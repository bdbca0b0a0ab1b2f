//! The page that shows a trace. Its parts are those of the Python package, which makes the same page
//! of a database's trace (`crosslane._engines.tracing.page`).

use super::Recording;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hash::Hash;
use std::time::UNIX_EPOCH;

macro_rules! part {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/crosslane/_engines/tracing/", $name))
    };
}

const PAGE: &str = part!("page.html");
const STYLE: &str = part!("page.css");
const SCRIPT: &str = concat!(
    part!("model.js"),
    part!("timeline.js"),
    part!("gestures.js"),
    part!("page.js"),
    part!("profile.js"),
);

/// What the page's scripts read (`read` in `model.js`).
#[derive(Serialize)]
struct Data<'a> {
    title: &'static str,
    host: &'static str,
    process: u32,
    /// In milliseconds since 1970.
    ended: u128,
    dropped: u64,
    kinds: Vec<&'static str>,
    functions: Vec<&'a str>,
    libraries: Vec<&'a str>,
    /// A library, a worker, its process, and a connection; 0 is none.
    places: Vec<(usize, u64, i32, i32)>,
    events: Columns,
    /// The numbers of events, and their details.
    details: Vec<(usize, &'a str)>,
}

/// The events, column by column. Times are in nanoseconds.
#[derive(Default, Serialize)]
struct Columns {
    place: Vec<usize>,
    kind: Vec<usize>,
    /// -1 is no function.
    function: Vec<i64>,
    /// Each start is the distance from the one before.
    start: Vec<u64>,
    duration: Vec<u64>,
    rows: Vec<u32>,
}

/// Numbers for values, in the order in which they come.
struct Numbers<T>(HashMap<T, usize>, Vec<T>);

impl<T: Hash + Eq + Copy> Numbers<T> {
    fn new() -> Self {
        Self(HashMap::new(), Vec::new())
    }

    fn of(&mut self, value: T) -> usize {
        let Self(numbers, values) = self;
        *numbers.entry(value).or_insert_with(|| {
            values.push(value);
            values.len() - 1
        })
    }
}

/// A recording as a page of HTML, with its data, its style and its scripts inside.
pub(super) fn text(recording: &Recording) -> String {
    let policy =
        format!("default-src 'none'; img-src data:; style-src {}; script-src {}", hash(STYLE), hash(SCRIPT));
    let data = data(recording);
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    // The odd pieces are names of parts.
    for (number, piece) in PAGE.split('@').enumerate() {
        page.push_str(match piece {
            "policy" if number % 2 == 1 => &policy,
            "style" if number % 2 == 1 => STYLE,
            "data" if number % 2 == 1 => &data,
            "script" if number % 2 == 1 => SCRIPT,
            _ => piece,
        });
    }
    page
}

/// The source expression of a policy that allows this text.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

fn data(recording: &Recording) -> String {
    let (mut kinds, mut functions, mut libraries) = (Numbers::new(), Numbers::new(), Numbers::new());
    let (mut places, mut columns) = (Numbers::new(), Columns::default());
    let mut before = 0;
    for event in &recording.events {
        let start = recording.start(event);
        let library = libraries.of(&*event.subject.library);
        columns.place.push(places.of((library, event.lane, event.process, event.thread)));
        columns.kind.push(kinds.of(event.kind.name()));
        let function = event.subject.function.as_deref();
        columns.function.push(function.map_or(-1, |name| functions.of(name) as i64));
        columns.start.push(start - before);
        columns.duration.push(event.end - event.start);
        columns.rows.push(event.rows);
        before = start;
    }
    let details = recording.events.iter().enumerate();
    let details = details.filter_map(|(number, event)| Some((number, event.detail.as_deref()?)));
    let data = Data {
        title: "",
        host: "server",
        process: std::process::id(),
        ended: recording.ended.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
        dropped: recording.dropped,
        kinds: kinds.1,
        functions: functions.1,
        libraries: libraries.1,
        places: places.1,
        events: columns,
        details: details.collect(),
    };
    // No text may end the element that holds the data.
    serde_json::to_string(&data).unwrap_or_default().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_its_parts() {
        let marks: Vec<_> = PAGE.split('@').skip(1).step_by(2).collect();
        assert_eq!(marks, ["policy", "style", "data", "script"]);
        assert_eq!(PAGE.matches('@').count(), 8);
    }
}
