//! Functions as DuckDB's aggregates: what all adapters do alike.
//!
//! DuckDB's C API gives an aggregate's callbacks the states and the columns, and no more. Two things are missing. It does not
//! say which query a callback is for. And it passes a vector of states as if there was one for each row; but ORDER BY inside
//! of the call, and windows over a whole partition, use a vector that has one for all rows, and what lies behind that is
//! anything. So DuckDB's own callbacks, which are C++, are put behind others that see more ([`replace`]). They are pointers in the
//! object that DuckDB makes for a new aggregate, one behind the other, and are looked for there. A DuckDB in which they do not lie as
//! in the known ones gets no aggregates.
//!
//! The query is known by its bind data: DuckDB makes an object for each call of an aggregate in a query, and copies of it for its
//! operators and threads. All these are one use of the aggregate. DuckDB makes the first of them for a client's context, from which
//! the use knows its connection. The object's table of virtual functions is replaced by a
//! copy of it which says when an object is copied and destroyed ([`watch`]). When the last is destroyed the use has ended, and so the
//! states: of a query that failed, and of some windows, DuckDB forgets them, and calls no destructor.

use crate::guard::{drop_box, error_text, guard};
use crate::input::Arguments;
use crate::interrupt::Client;
use crate::output::Results;
use crate::types::LogicalType;
use crosslane::batch::Column;
use crosslane::call::Output;
use crosslane::states::{Accumulates, State, States, destroy};
use crosslane::{Entry, Error, Function};
use libduckdb_sys as ffi;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What an adapter knows of a registered aggregate.
pub trait Aggregate: Send + Sync + 'static {
    /// A query of a client, which lives as long as queries of its connection run, begins to use it. If the last use of the same place has `failed`, this may be
    /// another thread of that query, which is to fail with the same.
    ///
    /// # Errors
    /// If there is nothing that could.
    fn begin(&self, client: Client, failed: Option<Error>) -> Result<Arc<dyn Accumulates>, Error>;

    /// Whether a query that begins to use it now would use this function.
    fn is_current(&self, function: &Function) -> bool;
}

/// What a registered aggregate carries.
struct Registered {
    function: Function,
    aggregate: Box<dyn Aggregate>,
}

/// Makes a function callable as an aggregate on all connections of the database, from the next statement on.
///
/// # Errors
/// [`Error::Engine`] if it is no aggregate, or DuckDB refuses it, or this DuckDB is not known.
///
/// # Safety
/// The connection must be open.
pub unsafe fn register_aggregate(
    connection: ffi::duckdb_connection,
    function: &Function,
    aggregate: impl Aggregate,
) -> Result<(), Error> {
    function.entry(Entry::Update)?;
    let signature = &function.signature;
    let name = CString::new(function.name()).map_err(|error| Error::Engine(error.to_string()))?;
    let returns = LogicalType::new(&signature.returns)?;
    let parameters = signature.parameters.iter().map(|parameter| LogicalType::new(&parameter.data_type));
    let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
    let sees_null = function.admits_null();
    let declared = Function::new(function.index, function.spec.clone())?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through `drop_box`.
    unsafe {
        let mut raw = ffi::duckdb_create_aggregate_function();
        if let Err(error) = replace(raw) {
            ffi::duckdb_destroy_aggregate_function(&raw mut raw);
            return Err(error);
        }
        ffi::duckdb_aggregate_function_set_name(raw, name.as_ptr());
        parameters
            .iter()
            .for_each(|parameter| ffi::duckdb_aggregate_function_add_parameter(raw, parameter.raw()));
        ffi::duckdb_aggregate_function_set_return_type(raw, returns.raw());
        if sees_null {
            ffi::duckdb_aggregate_function_set_special_handling(raw);
        }
        let registered = Registered { function: declared, aggregate: Box::new(aggregate) };
        let registered = Box::into_raw(Box::new(registered)).cast();
        ffi::duckdb_aggregate_function_set_extra_info(raw, registered, Some(drop_box::<Registered>));
        ffi::duckdb_aggregate_function_set_functions(
            raw,
            Some(CALLBACKS.size),
            Some(CALLBACKS.init),
            Some(CALLBACKS.update),
            Some(CALLBACKS.combine),
            Some(CALLBACKS.finalize),
        );
        ffi::duckdb_aggregate_function_set_destructor(raw, Some(destroyed));
        let state = ffi::duckdb_register_aggregate_function(connection, raw);
        ffi::duckdb_destroy_aggregate_function(&raw mut raw);
        if state != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine(format!(
                "DuckDB refused {signature}; a built-in function may have this name",
            )));
        }
    }
    Ok(())
}

unsafe extern "C" fn size(_info: ffi::duckdb_function_info) -> ffi::idx_t {
    size_of::<State>() as ffi::idx_t
}

unsafe extern "C" fn init(_info: ffi::duckdb_function_info, state: ffi::duckdb_aggregate_state) {
    // SAFETY: DuckDB gives each state the bytes that `size` asks for.
    unsafe { state.cast::<State>().write_unaligned(State::default()) };
}

/// Our callbacks, in the order in which DuckDB's object for our aggregates has them. They are told from those of others by their
/// addresses, and a function may have another one wherever it is named: here it has one.
struct Callbacks {
    size: unsafe extern "C" fn(ffi::duckdb_function_info) -> ffi::idx_t,
    init: unsafe extern "C" fn(ffi::duckdb_function_info, ffi::duckdb_aggregate_state),
    update: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        ffi::duckdb_data_chunk,
        *mut ffi::duckdb_aggregate_state,
    ),
    combine: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        *mut ffi::duckdb_aggregate_state,
        *mut ffi::duckdb_aggregate_state,
        ffi::idx_t,
    ),
    finalize: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        *mut ffi::duckdb_aggregate_state,
        ffi::duckdb_vector,
        ffi::idx_t,
        ffi::idx_t,
    ),
}

static CALLBACKS: Callbacks = Callbacks { size, init, update, combine, finalize };

impl Callbacks {
    fn addresses(&self) -> [usize; 5] {
        let Self { size, init, update, combine, finalize } = *self;
        [size as usize, init as usize, update as usize, combine as usize, finalize as usize]
    }
}

/// # Safety
/// There must be so many states, which nobody else uses meanwhile.
unsafe fn states<'a>(first: *mut ffi::duckdb_aggregate_state, count: usize) -> States<'a> {
    if count == 0 {
        // SAFETY: there are none.
        return unsafe { States::new(&[]) };
    }
    // SAFETY: as the caller says; a handle is the address of the state's memory.
    unsafe { States::new(std::slice::from_raw_parts(first.cast::<*mut State>(), count)) }
}

/// Runs a callback's body with the aggregate, and with its use in this query.
///
/// A callback that only adds to states may leave its error to the one that gives results ([`is_deferred`]).
///
/// # Safety
/// `info` must be DuckDB's, for one of our aggregates.
unsafe fn with(
    info: ffi::duckdb_function_info,
    adds: bool,
    body: impl FnOnce(&Function, &dyn Accumulates, Seen) -> Result<(), Error>,
) {
    // SAFETY: as the caller says; DuckDB copies the text.
    unsafe {
        let registered = &*ffi::duckdb_aggregate_function_get_extra_info(info).cast::<Registered>();
        let outcome = guard(|| {
            let seen = SEEN.get().ok_or_else(|| unknown("its callbacks' data"))?;
            body(&registered.function, &*seen.accumulation(registered, adds)?, seen)
        });
        if let Err(error) = outcome {
            if adds && is_deferred() {
                return;
            }
            ffi::duckdb_aggregate_function_set_error(info, error_text(&error).as_ptr());
        }
    }
}

unsafe extern "C" fn update(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    places: *mut ffi::duckdb_aggregate_state,
) {
    // SAFETY: DuckDB passes a chunk of the declared types, and, as its callback was replaced, a state for each of its rows.
    unsafe {
        with(info, true, |function, accumulation, seen| {
            // A chunk without columns says that it has no rows.
            let arguments = Arguments::of(input, function).with_rows(seen.rows);
            accumulation.update(&states(places, seen.rows), &arguments)
        });
    }
}

unsafe extern "C" fn combine(
    info: ffi::duckdb_function_info,
    sources: *mut ffi::duckdb_aggregate_state,
    targets: *mut ffi::duckdb_aggregate_state,
    count: ffi::idx_t,
) {
    // SAFETY: DuckDB passes so many states of each.
    unsafe {
        with(info, true, |_, accumulation, seen| {
            let (targets, sources) = (states(targets, count as usize), states(sources, count as usize));
            accumulation.combine(&targets, &sources, seen.keeps)
        });
    }
}

unsafe extern "C" fn finalize(
    info: ffi::duckdb_function_info,
    sources: *mut ffi::duckdb_aggregate_state,
    result: ffi::duckdb_vector,
    count: ffi::idx_t,
    offset: ffi::idx_t,
) {
    let (rows, first) = (count as usize, offset as usize);
    // SAFETY: DuckDB passes so many states, and a vector of the declared type with room for their results.
    unsafe {
        with(info, false, |function, accumulation, _| {
            let returns = &function.signature.returns;
            let in_order = states(sources, rows);
            let lanes: Vec<u64> = in_order.lanes().collect();
            if lanes.is_sorted() {
                let results = Results::new(result, returns, first + rows);
                return accumulation.finish(&in_order, &mut Behind(first, results));
            }
            // Each lane is asked once, and the results are put into their places afterwards.
            let mut order: Vec<usize> = (0..rows).collect();
            order.sort_by_key(|row| lanes[*row]);
            let places = std::slice::from_raw_parts(sources.cast::<*mut State>(), rows);
            let places: Vec<*mut State> = order.iter().map(|row| places[*row]).collect();
            let logical = LogicalType::new(returns)?;
            let sorted = Scratch::new(logical.raw(), count);
            accumulation.finish(&States::new(&places), &mut Results::new(sorted.vector, returns, rows))?;
            let where_from = sorted.selection();
            (0..).zip(&order).for_each(|(at, row)| where_from[*row] = at);
            ffi::duckdb_vector_copy_sel(sorted.vector, result, sorted.all, count, 0, offset);
            Ok(())
        });
    }
}

unsafe extern "C" fn destroyed(ended: *mut ffi::duckdb_aggregate_state, count: ffi::idx_t) {
    let _ = guard(|| {
        // SAFETY: DuckDB passes so many states.
        destroy(&unsafe { states(ended, count as usize) });
        Ok(())
    });
}

/// Results from a place in a vector on.
struct Behind<'a>(usize, Results<'a>);

impl Output for Behind<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.1.accept(self.0 + first, results)
    }
    fn null(&mut self, row: usize) {
        self.1.null(self.0 + row);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(what: &str) -> Error {
    // SAFETY: the text is DuckDB's own and lasts.
    let version = unsafe { CStr::from_ptr(ffi::duckdb_library_version()) }.to_string_lossy();
    Error::Engine(format!(
        "this DuckDB ({version}) has no aggregates that crosslane knows ({what} are not where they were); \
         use a version that crosslane was made for, such as 1.5.6 or 2.0.0"
    ))
}

/// What a callback of DuckDB's was called with, and its own do not see.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The address of the bind data.
    bound: usize,
    /// Whether the sources of a combine stay.
    keeps: bool,
    /// How many rows it adds.
    rows: usize,
}

thread_local! {
    /// Of the callback that this thread is in.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
}

/// Ends what [`SEEN`] says, also if DuckDB's exception passes: a function may run a query of its own.
struct Within(Option<Seen>);

impl Within {
    /// # Safety
    /// The data must be what DuckDB passes to a callback of one of our aggregates.
    unsafe fn new(data: *const usize, rows: ffi::idx_t) -> Self {
        // SAFETY: as the caller says.
        let seen = unsafe {
            let bound = data.add(bind_data());
            let keeps = *bound.add(2).cast::<u8>() != DESTRUCTIVE;
            is_ours(*bound as *const usize).then_some(Seen { bound: *bound, keeps, rows: rows as usize })
        };
        Self(SEEN.replace(seen))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        SEEN.set(self.0);
    }
}

/// DuckDB's `AggregateCombineType::ALLOW_DESTRUCTIVE`: the sources are not used again.
const DESTRUCTIVE: u8 = 2;

/// Where in its callbacks' data DuckDB has the bind data. Behind it there are the allocator, and how to combine.
fn bind_data() -> usize {
    static PLACE: OnceLock<usize> = OnceLock::new();
    // SAFETY: the text is DuckDB's own and lasts.
    *PLACE.get_or_init(|| usize::from(unsafe { !is_version(b"v1.") }))
}

/// Whether an error of rows and combines waits until results are asked for. DuckDB 1.5's threads that make the tree of a window
/// together wait for ever for one that has failed.
fn is_deferred() -> bool {
    static DEFERRED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the adapter's callbacks are called by DuckDB.
    *DEFERRED.get_or_init(|| unsafe { is_version(b"v1.") })
}

/// # Safety
/// DuckDB's functions must have been found.
unsafe fn is_version(beginning: &[u8]) -> bool {
    // SAFETY: the text is DuckDB's own and lasts.
    unsafe { CStr::from_ptr(ffi::duckdb_library_version()) }.to_bytes().starts_with(beginning)
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

/// What it takes differs, and goes through. All of it is in registers; the first is where the new bind data goes.
type OwnBind = unsafe extern "C-unwind" fn(*mut *mut usize, usize, usize, usize) -> *mut *mut usize;

static OWN: OnceLock<Own> = OnceLock::new();

/// How many words of DuckDB's object are looked at: it has more.
const WORDS: usize = 40;

/// Puts DuckDB's callbacks behind ours.
///
/// # Errors
/// If they are not found.
///
/// # Safety
/// The function must be new.
unsafe fn replace(function: ffi::duckdb_aggregate_function) -> Result<(), Error> {
    // SAFETY: the text is DuckDB's own.
    if unsafe { !is_version(b"v1.") && !is_version(b"v2.") } {
        return Err(unknown("the parts"));
    }
    // SAFETY: the handle is the object, which is longer, and begins with its table of functions.
    unsafe {
        let words = function.cast::<usize>();
        let looked = std::slice::from_raw_parts(words, WORDS);
        let code = Code::around(looked[0])?;
        // Parts of other words may be of what was there before, and look like addresses; functions begin at multiples of 16.
        let is_code = |at: usize| code.has(looked[at]) && looked[at].is_multiple_of(16);
        let place = (1..WORDS - 5).find(|at| (*at..*at + 5).all(is_code));
        let place = place.filter(|at| !is_code(*at - 1) && !is_code(*at + 5));
        let place = place.ok_or_else(|| unknown("the callbacks"))?;
        // Between them there are those that the C API does not have.
        let bind = place + if is_version(b"v1.") { 8 } else { 10 };
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

/// Takes the place of DuckDB's callback: the columns, its data, how many columns; a vector of states, and how many rows.
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
    // SAFETY: DuckDB passes what its own callback takes, which makes bind data. What is wrong with that is said when it is used.
    unsafe {
        let bound = (own.bind)(bound, a, b, c);
        let _ = guard(|| {
            if !is_ours(*bound) {
                return Ok(());
            }
            let client = Client::of_bind(a).ok_or_else(|| unknown("the clients"))?;
            join(*bound as usize, Arc::new(Use { client, current: Mutex::default() }))
        });
        bound
    }
}

/// Whether this is bind data of our aggregates.
///
/// # Safety
/// It must be bind data of an aggregate of the C API: an object of two words at least, its table of functions and what the
/// aggregate was made with. That begins with a table, too, and has the callbacks behind it.
unsafe fn is_ours(bound: *const usize) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let info = *bound.cast::<*const usize>().add(1);
        std::slice::from_raw_parts(info.add(1), 5) == CALLBACKS.addresses()
    }
}

/// A vector, and a selection of as many of its rows.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) vector: ffi::duckdb_vector,
    pub(crate) all: ffi::duckdb_selection_vector,
    capacity: ffi::idx_t,
}

// SAFETY: nobody else uses the vector, and which thread does makes no difference to DuckDB.
unsafe impl Send for Scratch {}

impl Scratch {
    /// # Safety
    /// The type must be one.
    pub(crate) unsafe fn new(logical: ffi::duckdb_logical_type, capacity: ffi::idx_t) -> Self {
        // SAFETY: as the caller says; both are destroyed once.
        unsafe {
            let vector = ffi::duckdb_create_vector(logical, capacity);
            let all = ffi::duckdb_create_selection_vector(capacity);
            let scratch = Self { vector, all, capacity };
            (0..).zip(scratch.selection()).for_each(|(row, place)| *place = row);
            scratch
        }
    }

    /// For states, which are addresses.
    fn of_states(capacity: ffi::idx_t) -> Self {
        // SAFETY: the type's handle lives across the call. A pointer is as wide as the type.
        unsafe {
            let mut pointer = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_UBIGINT);
            let scratch = Self::new(pointer, capacity);
            ffi::duckdb_destroy_logical_type(&raw mut pointer);
            scratch
        }
    }

    #[expect(clippy::mut_from_ref, reason = "the places are not in this structure")]
    fn selection(&self) -> &mut [ffi::sel_t] {
        // SAFETY: the selection has so many places, and is used by nobody else.
        unsafe {
            let places = ffi::duckdb_selection_vector_get_data_ptr(self.all);
            std::slice::from_raw_parts_mut(places, self.capacity as usize)
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe {
            ffi::duckdb_destroy_vector(&raw mut self.vector);
            ffi::duckdb_destroy_selection_vector(self.all);
        }
    }
}

thread_local! {
    /// This thread's, between two calls.
    static FLAT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// A vector of as many states as rows, lent by the thread: a function may run a query whose aggregates need another.
struct Each(Option<Scratch>);

impl Each {
    /// # Safety
    /// The vector must be one of states, for so many rows.
    unsafe fn new(states: ffi::duckdb_vector, rows: ffi::idx_t) -> Self {
        let kept = FLAT.take().filter(|flat| flat.capacity >= rows);
        // SAFETY: it takes nothing.
        let flat = kept.unwrap_or_else(|| Scratch::of_states(rows.max(unsafe { ffi::duckdb_vector_size() })));
        // SAFETY: all handles live, and have so many rows.
        unsafe { ffi::duckdb_vector_copy_sel(states, flat.vector, flat.all, rows, 0, 0) };
        Self(Some(flat))
    }

    fn states(&self) -> ffi::duckdb_vector {
        self.0.as_ref().map_or(ptr::null_mut(), |flat| flat.vector)
    }
}

impl Drop for Each {
    fn drop(&mut self) {
        // Where the thread is about to end, it is destroyed.
        let _ = FLAT.try_with(|kept| kept.set(self.0.take()));
    }
}

/// The memory of a program or library, and where its code is.
struct Code {
    all: Vec<(usize, usize)>,
    code: Vec<(usize, usize)>,
}

impl Code {
    /// That of the file that this address is in.
    fn around(address: usize) -> Result<Self, Error> {
        let maps = fs::read_to_string("/proc/self/maps").map_err(|error| Error::Engine(error.to_string()))?;
        let parsed = maps.lines().filter_map(|line| {
            let mut parts = line.split_ascii_whitespace();
            let (range, mode) = (parts.next()?, parts.next()?);
            let (from, to) = range.split_once('-')?;
            let range = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
            // Behind them: the offset, the device, the file's number and its name.
            Some((range, mode.contains('x'), parts.nth(2)?, parts.next()?))
        });
        let parsed: Vec<_> = parsed.collect();
        let within = |(from, to): (usize, usize)| (from..to).contains(&address);
        let own = parsed.iter().find(|(range, ..)| within(*range)).ok_or_else(|| unknown("the tables"))?;
        let same: Vec<_> = parsed.iter().filter(|other| (other.2, other.3) == (own.2, own.3)).collect();
        let all = same.iter().map(|(range, ..)| *range).collect();
        let code = same.iter().filter(|(_, code, ..)| *code).map(|(range, ..)| *range).collect();
        Ok(Self { all, code })
    }

    fn has(&self, address: usize) -> bool {
        self.code.iter().any(|(from, to)| (*from..*to).contains(&address))
    }

    /// Whether so many words from an address on can be read.
    fn holds(&self, address: usize, words: usize) -> bool {
        let end = address + words * size_of::<usize>();
        self.all.iter().any(|(from, to)| *from <= address && end <= *to)
    }
}

/// How many virtual functions of bind data are copied: it has fewer.
const VIRTUAL: usize = 12;
/// What a table has before its functions: the place of the object in a larger one, and its type.
const BEFORE: usize = 2;

/// The copy of a table of virtual functions. The first two are the destructors: of the object, and of it and its memory. The third
/// makes a copy of the object.
#[repr(C)]
struct Table {
    /// The address of the functions that it is a copy of.
    original: usize,
    before: [usize; BEFORE],
    functions: [usize; VIRTUAL],
}

type Destructor = unsafe extern "C-unwind" fn(*mut usize);
type Copy = unsafe extern "C-unwind" fn(*mut *mut usize, *const usize) -> *mut *mut usize;

/// A use of an aggregate, which all copies of a bind data share.
struct Use {
    /// Whose query it is.
    client: Client,
    /// None before its first row.
    current: Mutex<Option<Arc<dyn Accumulates>>>,
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(ended) = lock(&self.current).take() {
            ended.end();
        }
    }
}

/// The uses of aggregates, by the addresses of bind data.
static USES: Mutex<Option<HashMap<usize, Arc<Use>>>> = Mutex::new(None);

fn use_of(bound: usize) -> Option<Arc<Use>> {
    lock(&USES).as_ref()?.get(&bound).map(Arc::clone)
}

/// Makes bind data one of a use.
fn join(bound: usize, shared: Arc<Use>) -> Result<(), Error> {
    watch(bound)?;
    let before = lock(&USES).get_or_insert_default().insert(bound, shared);
    drop(before);
    Ok(())
}

impl Seen {
    /// This use of the aggregate.
    fn accumulation(self, registered: &Registered, adds: bool) -> Result<Arc<dyn Accumulates>, Error> {
        let shared = use_of(self.bound).ok_or_else(|| unknown("the bind data"))?;
        let mut current = lock(&shared.current);
        // Where no state lives, the rows may be those of another run of a prepared statement.
        let is_idle = |known: &mut Arc<dyn Accumulates>| Arc::strong_count(known) == 1 && known.is_idle();
        if let Some(known) = current.take_if(|known| adds && is_idle(known) && known.failure().is_none()) {
            if registered.aggregate.is_current(known.function()) {
                known.renew();
                *current = Some(known);
            } else {
                known.end();
            }
        }
        let failure = current.as_ref().and_then(|known| known.failure());
        match (&*current, &failure) {
            (Some(known), None) => return Ok(Arc::clone(known)),
            (_, Some(failure)) if is_deferred() => {
                let failure = failure.clone();
                if !adds {
                    // It has been told. Other threads of the query may still come with its states.
                    *current = registered.aggregate.begin(shared.client, Some(failure.clone())).ok();
                }
                return Err(failure);
            }
            _ => {}
        }
        let new = registered.aggregate.begin(shared.client, failure)?;
        *current = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// Gives back lanes without states of uses that may last for long, as those of prepared statements do. To be called from time to time.
pub fn sweep() {
    let uses: Vec<_> = lock(&USES).iter().flatten().map(|(_, shared)| Arc::clone(shared)).collect();
    for shared in uses {
        let mut current = lock(&shared.current);
        // A callback that is at work has it, too. Without lanes there are no states, and the next rows may find another version
        // of the function.
        let idle = |known: &Arc<dyn Accumulates>| Arc::strong_count(known) == 1 && known.failure().is_none();
        if current.as_ref().is_some_and(|known| idle(known) && known.sweep()) {
            *current = None;
        }
    }
}

/// Has the end of bind data ended the use of the aggregate.
fn watch(bound: usize) -> Result<(), Error> {
    static TABLES: Mutex<Vec<&'static Table>> = Mutex::new(Vec::new());
    // SAFETY: bind data is an object with a table of virtual functions, as `Within` has looked. Other threads may call one
    // meanwhile, and find the original or the copy.
    let place = unsafe { std::sync::atomic::AtomicUsize::from_ptr(bound as *mut usize) };
    let original = place.load(Relaxed);
    let mut tables = lock(&TABLES);
    let known = tables.iter().find(|table| table.original == original);
    let table = match known {
        Some(known) => *known,
        None => {
            let code = Code::around(original)?;
            let first = original - BEFORE * size_of::<usize>();
            if !code.holds(first, BEFORE + VIRTUAL) {
                return Err(unknown("the tables"));
            }
            // SAFETY: as was just looked.
            let words = unsafe { std::slice::from_raw_parts(first as *const usize, BEFORE + VIRTUAL) };
            let mut table = Table { original, before: [words[0], words[1]], functions: [0; VIRTUAL] };
            table.functions.copy_from_slice(&words[BEFORE..]);
            if !table.functions[..3].iter().all(|function| code.has(*function)) {
                return Err(unknown("the functions"));
            }
            table.functions[0] = end_object as *const () as usize;
            table.functions[1] = end_memory as *const () as usize;
            table.functions[2] = copy as *const () as usize;
            let table: &'static Table = Box::leak(Box::new(table));
            tables.push(table);
            table
        }
    };
    place.store((&raw const table.functions) as usize, Relaxed);
    Ok(())
}

/// DuckDB's own virtual function of this number.
///
/// # Safety
/// The bind data must be one that is watched.
unsafe fn original(bound: *const usize, number: usize) -> *const usize {
    // SAFETY: as the caller says: its table is the part of ours behind `before`.
    unsafe {
        let original = *((*bound) as *const usize).sub(BEFORE + 1);
        (original as *const usize).add(number)
    }
}

/// The end of bind data. Returns DuckDB's own destructor of this number.
///
/// # Safety
/// As [`original`].
unsafe fn end(bound: *mut usize, number: usize) -> Destructor {
    let _ = guard(|| {
        // The last one of a use ends that, without the lock.
        let ended = lock(&USES).as_mut().and_then(|uses| uses.remove(&(bound as usize)));
        drop(ended);
        Ok(())
    });
    // SAFETY: as the caller says.
    unsafe { *original(bound, number).cast::<Destructor>() }
}

unsafe extern "C-unwind" fn copy(copied: *mut *mut usize, bound: *const usize) -> *mut *mut usize {
    // SAFETY: DuckDB calls it for bind data that is watched, and gets what its own function makes: bind data.
    unsafe {
        let copied = (*original(bound, 2).cast::<Copy>())(copied, bound);
        let _ = guard(|| use_of(bound as usize).map_or(Ok(()), |shared| join(*copied as usize, shared)));
        copied
    }
}

unsafe extern "C-unwind" fn end_object(bound: *mut usize) {
    // SAFETY: DuckDB calls it for bind data that is watched, once.
    unsafe { end(bound, 0)(bound) };
}

unsafe extern "C-unwind" fn end_memory(bound: *mut usize) {
    // SAFETY: as above.
    unsafe { end(bound, 1)(bound) };
}
