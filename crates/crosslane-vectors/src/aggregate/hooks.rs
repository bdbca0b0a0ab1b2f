//! The C++ callbacks that replace DuckDB's own and call them.

use super::bind_data::{Use, join};
use super::callbacks::CALLBACKS;
use super::current_call::{CURRENT_CALL, CurrentCall};
use super::memory_map::MemoryMap;
use super::version::unknown;
use crate::function::callback::guard;
use crate::function::{Client, is_version};
use crate::vector::Scratch;
use crosslane::Error;
use libduckdb_sys as ffi;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// Sets [`CURRENT_CALL`], and restores it when dropped, also when a C++ exception unwinds.
/// Callbacks nest, because a function may run a query of its own.
struct Within(Option<CurrentCall>);

impl Within {
    /// # Safety
    /// The data must be that of a callback of one of our aggregates.
    unsafe fn new(data: *const usize, rows: ffi::idx_t) -> Self {
        // SAFETY: as the caller says.
        let call = unsafe {
            let bound = data.add(bind_data());
            let keeps = *bound.add(2).cast::<u8>() != DESTRUCTIVE;
            is_ours(*bound as *const usize).then_some(CurrentCall {
                bound: *bound,
                keeps,
                rows: rows as usize,
            })
        };
        Self(CURRENT_CALL.replace(call))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        CURRENT_CALL.set(self.0);
    }
}

/// DuckDB's `AggregateCombineType::ALLOW_DESTRUCTIVE`: the sources are not used after a combine.
const DESTRUCTIVE: u8 = 2;

/// The index of the bind data in the data of DuckDB's callbacks. After it come the allocator and
/// the kind of combine.
fn bind_data() -> usize {
    static PLACE: OnceLock<usize> = OnceLock::new();
    *PLACE.get_or_init(|| usize::from(!is_version("v1.")))
}

type OwnUpdate =
    unsafe extern "C-unwind" fn(*mut c_void, *mut usize, ffi::idx_t, ffi::duckdb_vector, ffi::idx_t);
type OwnCombine = unsafe extern "C-unwind" fn(ffi::duckdb_vector, ffi::duckdb_vector, *mut usize, ffi::idx_t);
type OwnFinalize =
    unsafe extern "C-unwind" fn(ffi::duckdb_vector, *mut usize, ffi::duckdb_vector, ffi::idx_t, ffi::idx_t);

/// DuckDB's own callbacks.
#[derive(Debug, Clone, Copy)]
struct Own {
    update: OwnUpdate,
    combine: OwnCombine,
    finalize: OwnFinalize,
    bind: OwnBind,
}

/// DuckDB's versions pass different arguments, and all of them are passed on. They are in
/// registers; the first is the address for the new bind data.
type OwnBind = unsafe extern "C-unwind" fn(*mut *mut usize, usize, usize, usize) -> *mut *mut usize;

static OWN: OnceLock<Own> = OnceLock::new();

/// How many words of DuckDB's object are searched; the object is longer.
const WORDS: usize = 40;

/// Replaces DuckDB's callbacks by ours.
///
/// # Errors
/// If they are not found.
///
/// # Safety
/// The function must be new.
pub(super) unsafe fn replace(function: ffi::duckdb_aggregate_function) -> Result<(), Error> {
    if !is_version("v1.") && !is_version("v2.") {
        return Err(unknown("the parts"));
    }
    // SAFETY: the handle is the object. It is longer than this, and begins with its table of
    // virtual functions.
    unsafe {
        let words = function.cast::<usize>();
        let looked = std::slice::from_raw_parts(words, WORDS);
        let code = MemoryMap::around(looked[0])?;
        // Padding may hold parts of old addresses. Functions begin at multiples of 16.
        let is_code = |at: usize| code.has_code(looked[at]) && looked[at].is_multiple_of(16);
        let place = (1..WORDS - 5).find(|at| (*at..*at + 5).all(is_code));
        let place = place.filter(|at| !is_code(*at - 1) && !is_code(*at + 5));
        let place = place.ok_or_else(|| unknown("the callbacks"))?;
        // Between them are callbacks that the C API does not have.
        let bind = place + if is_version("v1.") { 8 } else { 10 };
        if (place + 5..WORDS).find(|at| looked[*at] != 0) != Some(bind) || !is_code(bind) {
            return Err(unknown("the callbacks"));
        }
        let own = OWN.get_or_init(|| Own {
            bind: std::mem::transmute::<usize, OwnBind>(looked[bind]),
            update: std::mem::transmute::<usize, OwnUpdate>(looked[place + 2]),
            combine: std::mem::transmute::<usize, OwnCombine>(looked[place + 3]),
            finalize: std::mem::transmute::<usize, OwnFinalize>(looked[place + 4]),
        });
        if own.update as usize != looked[place + 2] {
            // Another DuckDB in the same process.
            return Err(unknown("the callbacks"));
        }
        words.add(place + 2).write(own_update as *const () as usize);
        words.add(place + 3).write(own_combine as *const () as usize);
        words.add(place + 4).write(own_finalize as *const () as usize);
        words.add(bind).write(own_bind as *const () as usize);
    }
    Ok(())
}

/// Replaces DuckDB's callback, whose arguments are the columns, its data, the number of columns, a
/// vector of states, and the number of rows.
unsafe extern "C-unwind" fn own_update(
    columns: *mut c_void,
    data: *mut usize,
    count: ffi::idx_t,
    states: ffi::duckdb_vector,
    rows: ffi::idx_t,
) {
    let Some(own) = OWN.get() else { return };
    // SAFETY: DuckDB passes what its own callback takes.
    unsafe {
        let _within = Within::new(data, rows);
        if rows > 1 {
            let each = Each::new(states, rows);
            (own.update)(columns, data, count, each.states(), rows);
        } else {
            (own.update)(columns, data, count, states, rows);
        }
    }
}

unsafe extern "C-unwind" fn own_combine(
    sources: ffi::duckdb_vector,
    targets: ffi::duckdb_vector,
    data: *mut usize,
    count: ffi::idx_t,
) {
    let Some(own) = OWN.get() else { return };
    // SAFETY: as above.
    unsafe {
        let _within = Within::new(data, 0);
        (own.combine)(sources, targets, data, count);
    }
}

unsafe extern "C-unwind" fn own_finalize(
    states: ffi::duckdb_vector,
    data: *mut usize,
    result: ffi::duckdb_vector,
    count: ffi::idx_t,
    offset: ffi::idx_t,
) {
    let Some(own) = OWN.get() else { return };
    // SAFETY: as above.
    unsafe {
        let _within = Within::new(data, 0);
        (own.finalize)(states, data, result, count, offset);
    }
}

unsafe extern "C-unwind" fn own_bind(
    bound: *mut *mut usize,
    a: usize,
    b: usize,
    c: usize,
) -> *mut *mut usize {
    let Some(own) = OWN.get() else { return bound };
    // SAFETY: DuckDB passes the arguments of its own callback, which makes the bind data. An error
    // of ours is reported when the bind data is used.
    unsafe {
        let bound = (own.bind)(bound, a, b, c);
        let _ = guard(|| {
            if !is_ours(*bound) {
                return Ok(());
            }
            let client = Client::of_bind(a).ok_or_else(|| unknown("the clients"))?;
            join(*bound as usize, Arc::new(Use::new(client)))
        });
        bound
    }
}

/// Whether this is bind data of our aggregates.
///
/// # Safety
/// It must be bind data of an aggregate of the C API: an object whose first two words are its table
/// of virtual functions and the address of the aggregate's info. The info begins with a table too,
/// followed by the callbacks.
unsafe fn is_ours(bound: *const usize) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let info = *bound.cast::<*const usize>().add(1);
        std::slice::from_raw_parts(info.add(1), 5) == CALLBACKS.addresses()
    }
}

thread_local! {
    /// The vector of this thread, between two calls.
    static FLAT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// A vector with a state for each row. The thread lends it, because a function may run a query
/// whose aggregates need another one.
struct Each(Option<Scratch>);

impl Each {
    /// # Safety
    /// The vector must be one of states, and have the rows.
    unsafe fn new(states: ffi::duckdb_vector, rows: ffi::idx_t) -> Self {
        let kept = FLAT.take().filter(|flat| flat.capacity >= rows);
        // SAFETY: it takes nothing.
        let flat = kept.unwrap_or_else(|| Scratch::of_states(rows.max(unsafe { ffi::duckdb_vector_size() })));
        // SAFETY: all handles live, and have the rows.
        unsafe { ffi::duckdb_vector_copy_sel(states, flat.vector, flat.all, rows, 0, 0) };
        Self(Some(flat))
    }

    fn states(&self) -> ffi::duckdb_vector {
        self.0.as_ref().map_or(ptr::null_mut(), |flat| flat.vector)
    }
}

impl Drop for Each {
    fn drop(&mut self) {
        // If the thread is about to end, the vector is destroyed.
        let _ = FLAT.try_with(|kept| kept.set(self.0.take()));
    }
}
