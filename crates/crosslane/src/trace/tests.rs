//! Tests of the buffers. The tests of the calls that fill them are in `python/tests`.

use super::event::{Event, EventKind};
use super::recording::{MOST_EVENTS, MOST_TEXTS, PORTION, Trace};
use super::slowest::{SLOWEST, Slowest};
use super::tracer::{Tracer, event};
use crate::stats::{FunctionStats, now};
use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::thread;

fn begun() -> Event<()> {
    let now = now();
    event(EventKind::Wait, None, (now, now), 0)
}

#[test]
fn a_trace_that_is_off_records_nothing() {
    let trace = Arc::new(Trace::default());
    let tracer = Tracer::new(&trace, "a.py");
    tracer.ended(EventKind::Load, now(), None);
    assert!(trace.events().is_empty());
    assert!(trace.start() && !trace.start(), "only one trace runs");
    tracer.ended(EventKind::Load, now(), None);
    trace.stop();
    tracer.ended(EventKind::Load, now(), None);
    let events = trace.events();
    assert_eq!((events.len(), &*events[0].subject.library, &events[0].subject.function), (1, "a.py", &None));
}

#[test]
fn threads_share_the_room_and_count_what_has_none() {
    const THREADS: usize = 4;
    let room = 2 * THREADS * PORTION;
    let trace = Trace::with_room(room);
    assert!(trace.start());
    let (library, all) = ("a.py".into(), Barrier::new(THREADS));
    let stats: Vec<_> = (0..THREADS).map(|_| Arc::new(FunctionStats::default())).collect();
    thread::scope(|scope| {
        for (at, stats) in stats.iter().enumerate() {
            let (trace, library, all) = (&trace, &library, &all);
            scope.spawn(move || {
                let name = format!("f{at}");
                all.wait();
                (0..room).for_each(|_| trace.add(library, Some((&name, stats)), [begun()]));
            });
        }
    });
    let status = trace.status();
    assert_eq!((status.events, status.dropped), (room, (THREADS * room - room) as u64));
    let events = trace.events();
    assert!(events.is_sorted_by_key(|event| event.start));
    let threads: HashSet<_> =
        events.iter().map(|event| (event.thread, event.subject.function.clone())).collect();
    let of_threads: HashSet<_> = events.iter().map(|event| event.thread).collect();
    assert_eq!(threads.len(), of_threads.len(), "each thread has events of its own function only");
}

#[test]
fn all_events_take_16_mebibytes() {
    assert_eq!(MOST_EVENTS * size_of::<Event<u32>>(), 16 << 20);
}

#[test]
fn a_trace_keeps_a_bounded_number_of_texts() {
    let trace = Trace::default();
    let library = "a.py".into();
    for _ in 0..2 {
        assert!(trace.start());
        let events = || (0..=MOST_TEXTS).map(|_| Event { detail: Some("a: b".into()), ..begun() });
        trace.add(&library, None, events());
        let events = trace.events();
        assert_eq!(events.len(), MOST_TEXTS + 1);
        assert_eq!(events.iter().filter(|event| event.detail.is_some()).count(), MOST_TEXTS);
        trace.stop();
    }
}

#[test]
fn a_start_forgets_what_was_before() {
    let trace = Trace::with_room(PORTION);
    let library = "a.py".into();
    assert!(trace.start());
    let early = begun();
    (0..=PORTION).for_each(|_| trace.add(&library, None, [begun()]));
    assert_eq!((trace.status().events, trace.status().dropped), (PORTION, 1));
    trace.stop();
    assert!(trace.start());
    // A thread was late with an event of the trace before.
    trace.add(&library, None, [early]);
    assert_eq!((trace.status().events, trace.status().dropped), (0, 0));
    trace.add(&library, None, [begun()]);
    assert_eq!((trace.status().events, trace.status().dropped), (1, 0));
}

#[test]
fn the_slowest_calls_are_known_when_they_end() {
    let slowest = Slowest::default();
    assert!((1..=SLOWEST as u64).all(|duration| slowest.admits(10 * duration)));
    assert!(!slowest.admits(10), "as slow as the fastest of them");
    assert!(slowest.admits(11));
    assert!(!slowest.admits(11) && slowest.admits(21));
    slowest.clear();
    assert!(slowest.admits(1));
}
