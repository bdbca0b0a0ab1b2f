//! The states of aggregates: which there are, and a state for each row.
//!
//! A state is a number, under which Ruby holds what is accumulated. DuckDB says when one ends, but not of all: those
//! of a query that failed it may just forget, and some of windows whose frames exclude rows. So the numbers of states
//! rise, and no state is older than its query: what was there before the oldest query that still runs began is nobody's.

use crate::engine::api;
use crate::engine::session::lock;
use libduckdb_sys as ffi;
use magnus::{RHash, Value};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

/// The states of this process.
static STATES: Mutex<States> = Mutex::new(States {
    next: 1,
    ended: Vec::new(),
    running: BTreeMap::new(),
    living: 0,
    counted: 1,
    lost: 0,
    floor: 0,
});

struct States {
    /// The number of the next state.
    next: i64,
    /// Those that are no more, for Ruby to forget.
    ended: Vec<i64>,
    /// How many queries run that began when this was the next state.
    running: BTreeMap<i64, usize>,
    /// How many of the states from `counted` on have not ended.
    living: usize,
    counted: i64,
    /// DuckDB may have forgotten states before this one.
    lost: i64,
    /// The first that may live, as Ruby was told last.
    floor: i64,
}

/// The number of a new state.
pub(crate) fn born() -> i64 {
    let mut states = lock(&STATES);
    states.next += 1;
    states.living += 1;
    states.next - 1
}

/// These are no more.
pub(crate) fn end(numbers: Vec<i64>) {
    let mut states = lock(&STATES);
    let counted = numbers.iter().filter(|number| **number >= states.counted).count();
    states.living = states.living.saturating_sub(counted);
    states.ended.extend(numbers);
}

/// Takes the states that ended since this was asked last out of Ruby's list, for the reason of
/// [`crate::engine::host::forget_ended`]. Returns the first state that may live, if others were lost and that has risen:
/// Ruby looks through all it holds then. With the GVL.
pub(crate) fn forget_ended(values: RHash) -> Result<Option<i64>, magnus::Error> {
    let (ended, floor) = {
        let mut states = lock(&STATES);
        let oldest = states.running.first_key_value().map_or(states.next, |(first, _)| *first);
        let floor = (states.lost > 0 && oldest > states.floor).then_some(oldest);
        states.floor = floor.unwrap_or(states.floor);
        if oldest >= states.lost {
            states.lost = 0;
        }
        (std::mem::take(&mut states.ended), floor)
    };
    ended.into_iter().try_for_each(|number| values.delete::<_, Value>(number).map(drop))?;
    Ok(floor)
}

/// A query that is being run: its states live no longer than this.
#[derive(Debug)]
pub(crate) struct Running {
    first: i64,
    failed: bool,
}

impl Running {
    pub(crate) fn new() -> Self {
        let mut states = lock(&STATES);
        let first = states.next;
        *states.running.entry(first).or_default() += 1;
        Self { first, failed: true }
    }

    /// The query came to an end, and DuckDB has ended all of its states.
    pub(crate) fn succeeded(mut self) {
        self.failed = false;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut states = lock(&STATES);
        if let Some(count) = states.running.get_mut(&self.first) {
            *count -= 1;
            if *count == 0 {
                states.running.remove(&self.first);
            }
        }
        // While other queries run, the states that live may be theirs.
        let are_left = states.running.is_empty() && states.living > 0;
        if (self.failed || are_left) && states.next > self.first {
            states.lost = states.next;
        }
        if states.running.is_empty() {
            states.living = 0;
            states.counted = states.next;
        }
    }
}

/// DuckDB's own callback for rows of an aggregate: the columns, its data, how many columns; a vector of states, and how
/// many rows.
pub(crate) type Update =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, ffi::idx_t, ffi::duckdb_vector, ffi::idx_t);

/// How many words of DuckDB's object are looked at: it has more.
const WORDS: usize = 64;

/// Has an aggregate's callback get a state for each row.
///
/// DuckDB's C API passes the states of a vector as if there was one for each row. But ORDER BY inside of the
/// call, and windows over a whole partition, use a vector that has one state for all rows, and what lies behind that
/// is anything. The C API cannot tell; so DuckDB's callback is put behind one that can. False if it is
/// not found.
///
/// # Safety
/// The function must be new.
pub(crate) unsafe fn spread(function: ffi::duckdb_aggregate_function) -> bool {
    let Some(update) = api::update() else { return false };
    // SAFETY: the handle is the object, which is longer and holds pointers to its callbacks.
    unsafe {
        let words = function.cast::<usize>();
        let place = (0..WORDS).find(|at| words.add(*at).read() == update as usize);
        place.inspect(|at| words.add(*at).write(update_each as *const () as usize)).is_some()
    }
}

/// A vector for as many states as rows, and the rows' numbers.
struct Flat {
    states: ffi::duckdb_vector,
    all: ffi::duckdb_selection_vector,
    capacity: ffi::idx_t,
}

impl Flat {
    fn new(capacity: ffi::idx_t) -> Self {
        // SAFETY: all handles live across the calls, the type's is destroyed; the selection has so many places. A pointer
        // is as wide as the type.
        unsafe {
            let mut pointer = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_UBIGINT);
            let states = ffi::duckdb_create_vector(pointer, capacity);
            ffi::duckdb_destroy_logical_type(&raw mut pointer);
            let all = ffi::duckdb_create_selection_vector(capacity);
            let places = std::slice::from_raw_parts_mut(
                ffi::duckdb_selection_vector_get_data_ptr(all),
                capacity as usize,
            );
            places.iter_mut().zip(0..).for_each(|(place, row)| *place = row);
            Self { states, all, capacity }
        }
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe {
            ffi::duckdb_destroy_vector(&raw mut self.states);
            ffi::duckdb_destroy_selection_vector(self.all);
        }
    }
}

thread_local! {
    /// This thread's, between two calls.
    static FLAT: Cell<Option<Flat>> = const { Cell::new(None) };
}

/// A vector of as many states as rows, lent by the thread: a block may run a query whose aggregates need another.
struct Each(Option<Flat>);

impl Each {
    /// # Safety
    /// The vector must be one of states, for so many rows.
    unsafe fn new(states: ffi::duckdb_vector, rows: ffi::idx_t) -> Self {
        let kept = FLAT.take().filter(|flat| flat.capacity >= rows);
        // SAFETY: it takes nothing.
        let flat = kept.unwrap_or_else(|| Flat::new(rows.max(unsafe { ffi::duckdb_vector_size() })));
        // SAFETY: all handles live, and have so many rows.
        unsafe { ffi::duckdb_vector_copy_sel(states, flat.states, flat.all, rows, 0, 0) };
        Self(Some(flat))
    }

    fn states(&self) -> ffi::duckdb_vector {
        self.0.as_ref().map_or(std::ptr::null_mut(), |flat| flat.states)
    }
}

impl Drop for Each {
    fn drop(&mut self) {
        // Where the thread is about to end, it is destroyed.
        let _ = FLAT.try_with(|kept| kept.set(self.0.take()));
    }
}

/// Takes the place of DuckDB's callback. An exception of DuckDB's goes through.
unsafe extern "C-unwind" fn update_each(
    columns: *mut c_void,
    data: *mut c_void,
    count: ffi::idx_t,
    states: ffi::duckdb_vector,
    rows: ffi::idx_t,
) {
    let Some(update) = api::update() else { return };
    // SAFETY: DuckDB passes what its own callback takes.
    unsafe {
        if rows > 1 {
            let each = Each::new(states, rows);
            update(columns, data, count, each.states(), rows);
        } else {
            update(columns, data, count, states, rows);
        }
    }
}
