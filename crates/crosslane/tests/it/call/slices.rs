//! How a batch is cut into slices, and which lanes get them.

use super::fake::*;
use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{self, CallGroup, CallGroups, Caller, Input, Output};
use crosslane::{ColumnBuilder, Error};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

#[test]
fn only_waits_ask_whether_a_call_should_end() {
    let mut fixture = fixture("", false, |_, _| Act::Double);
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    fixture.group = Arc::new(CallGroup::with_stop(move || {
        count.fetch_add(1, Relaxed);
        false
    }));
    for _ in 0..1000 {
        fixture.call(0..1).unwrap();
    }
    assert!(asked.load(Relaxed) < 1000);
}

#[test]
fn all_rows_come_back_and_so_do_the_lanes() {
    let fixture = fixture("", false, |_, _| Act::Double);
    for rows in [0, 1, 2, 2047, 2048] {
        assert_eq!(fixture.call(0..rows).unwrap(), doubled(0..rows));
    }
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.idle, stats.busy, stats.discarded), (2, 0, 0));
}

#[test]
fn a_batch_that_is_too_large_is_cut_until_it_fits() {
    let fixture = fixture("", false, |_, values| if values.len() > 3 { Act::TooLarge } else { Act::Double });
    for _ in 0..3 {
        assert_eq!(fixture.call(0..1000).unwrap(), doubled(0..1000));
    }
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn a_row_that_is_too_large_by_itself_is_an_error_with_its_row() {
    let fixture =
        fixture("", false, |_, values| if values.contains(&5) { Act::TooLarge } else { Act::Double });
    let error = fixture.call(0..10).unwrap_err().to_string();
    assert!(error.contains("too large") && error.contains("in row 6 of the batch, with x = 5"), "{error}");
}

#[test]
fn a_batch_is_cut_into_slices_that_fit_a_lane() {
    for (options, rows, slices) in [
        // A batch that fits is not cut.
        ("", 109, vec![109]),
        ("", 110, vec![37, 37, 36]),
        ("", 1000, [vec![59; 16], vec![56]].concat()),
        // Rows that wait at the same time stay in one slice.
        (r#", "concurrency": 4, "calling": "async""#, 1000, vec![1000]),
    ] {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sent);
        let fixture = sliced(options, move |_, values| {
            seen.lock().unwrap().push(values.len());
            Act::Double
        });
        assert_eq!(fixture.call(0..rows).unwrap(), doubled(0..rows));
        assert_eq!(*sent.lock().unwrap(), slices);
        assert_eq!(fixture.library.pool.stats().discarded, 0);
    }
}

/// Counts how often rows are measured.
struct Counted<'a>(Values, &'a Cell<usize>);

impl Input for Counted<'_> {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.1.set(self.1.get() + 1);
        self.0.slice(rows, take)
    }
}

#[test]
fn only_the_first_batch_is_measured_before_it_is_cut() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let fixture = sliced("", move |_, _| {
        count.fetch_add(1, Relaxed);
        Act::Double
    });
    // A frame has bytes that belong to no row. More slices have more of these bytes.
    for (slices, in_vain) in [(17, 1), (20, 0), (20, 0)] {
        let (measured, mut results) = (Cell::new(0), Results(vec![None; 1000]));
        let input = Counted(Values((0..1000).collect()), &measured);
        let caller = Caller::new(&fixture.group, 2);
        call::call(&fixture.library, &fixture.library.functions[0], caller, &input, &mut results).unwrap();
        assert_eq!(results.0, doubled(0..1000));
        assert_eq!((sent.swap(0, Relaxed), measured.get()), (slices, slices + in_vain));
    }
}

/// Rows with this number of additional bytes each.
struct Padded(Values, usize);

impl Input for Padded {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        struct Content(ColumnBuilder, Arc<str>);

        impl Encode for Content {
            fn plan(&self, plan: &mut Plan) {
                // The fake lane ignores the types.
                plan.types(&self.1);
                self.0.plan(plan);
            }

            fn write(&self, body: &mut Body<'_>) {
                self.0.write(body);
            }
        }

        let padding = "x".repeat(rows.len() * self.1).into();
        take(&Content(integers(self.0.0[rows].iter().copied()), padding));
        Ok(())
    }
}

#[test]
fn narrow_rows_behind_wide_ones_are_not_cut() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let mut fixture = narrow(20_000, "", false, move |_, values| {
        seen.lock().unwrap().push(values.len());
        Act::Double
    });
    let groups = CallGroups::default();
    groups.set_fan_out(false);
    fixture.group = groups.of(1, |_| false);
    for (width, longest) in [(92, 200), (0, 1000), (92, 200), (0, 1000)] {
        let input = Padded(Values((0..1000).collect()), width);
        let (caller, mut results) = (Caller::new(&fixture.group, 2), Results(vec![None; 1000]));
        call::call(&fixture.library, &fixture.library.functions[0], caller, &input, &mut results).unwrap();
        assert_eq!(results.0, doubled(0..1000));
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        let most = sent.iter().copied().max();
        assert!(most <= Some(longest), "{width}: {sent:?}");
        assert_eq!(sent.len() == 1, width == 0, "{sent:?}");
    }
}

#[test]
fn a_lane_gets_two_pieces_of_a_batch_before_the_first_is_awaited() {
    #[derive(Debug, PartialEq)]
    enum Event {
        Sent(i64),
        Accepted(usize),
    }

    struct Logged(Arc<Mutex<Vec<Event>>>);

    impl Output for Logged {
        fn accept(&mut self, first: usize, _: &Column<'_>) -> Result<(), Error> {
            self.0.lock().unwrap().push(Event::Accepted(first));
            Ok(())
        }

        fn null(&mut self, _: usize) {}
    }

    let log = Arc::new(Mutex::new(Vec::new()));
    let sent = Arc::clone(&log);
    let fixture = sliced("", move |_, values| {
        sent.lock().unwrap().push(Event::Sent(values[0]));
        Act::Double
    });
    let (input, caller) = (Values((0..110).collect()), Caller::new(&fixture.group, 2));
    let output = &mut Logged(Arc::clone(&log));
    call::call(&fixture.library, &fixture.library.functions[0], caller, &input, output).unwrap();
    assert_eq!(log.lock().unwrap()[..3], [Event::Sent(0), Event::Sent(37), Event::Accepted(0)]);
}

#[test]
fn lanes_that_share_a_batch_get_less_and_less_towards_its_end() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let fixture = fixture("", false, move |lane, values| {
        seen.lock().unwrap().push((lane, values.len()));
        Act::Work
    });
    // After this call the cost of a row is known.
    fixture.call(0..2048).unwrap();
    fixture.settle();
    sent.lock().unwrap().clear();
    assert_eq!(fixture.call(0..2048).unwrap(), doubled(0..2048));
    let sent = sent.lock().unwrap();
    assert_ne!(sent[0].0, sent[1].0, "{sent:?}");
    let mut rest = 2048_usize;
    for (_, rows) in sent.iter() {
        // Two slices of the remaining rows for each lane, but no slice of less than 100 us.
        assert_eq!(*rows, rest.div_ceil(4).max(100).min(rest), "{sent:?}");
        rest -= rows;
    }
}

#[test]
fn rows_of_which_none_fits_a_lane_are_sent_one_by_one() {
    let fixture = narrow(100, "", false, |_, values| {
        assert_eq!(values.len(), 1);
        Act::Double
    });
    assert_eq!(fixture.call(0..50).unwrap(), doubled(0..50));
}
