//! The bind data of aggregates in queries, and the use of an aggregate that each belongs to.

use super::memory_map::MemoryMap;
use super::version::unknown;
use crate::function::Client;
use crate::function::callback::guard;
use crosslane::states::Accumulates;
use crosslane::{Error, lock};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// How many virtual functions are copied; the table has fewer.
const VIRTUAL: usize = 12;
/// The words before the functions of a table: the offset of the object in a larger one, and its
/// type.
const BEFORE: usize = 2;

/// The copy of a table of virtual functions. The first destroys the object, the second also frees
/// its memory, and the third copies the object.
#[repr(C)]
struct Table {
    /// The address of the original functions.
    original: usize,
    before: [usize; BEFORE],
    functions: [usize; VIRTUAL],
}

type Destructor = unsafe extern "C-unwind" fn(*mut usize);
type Copy = unsafe extern "C-unwind" fn(*mut *mut usize, *const usize) -> *mut *mut usize;

/// A use of an aggregate in a query. All copies of its bind data share it.
pub(super) struct Use {
    /// The client whose query uses the aggregate.
    pub(super) client: Client,
    /// None before its first row.
    pub(super) current: Mutex<Option<Arc<dyn Accumulates>>>,
}

impl Use {
    pub(super) fn new(client: Client) -> Self {
        Self { client, current: Mutex::default() }
    }
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

pub(super) fn use_of(bound: usize) -> Option<Arc<Use>> {
    lock(&USES).as_ref()?.get(&bound).map(Arc::clone)
}

pub(super) fn all_uses() -> Vec<Arc<Use>> {
    lock(&USES).iter().flatten().map(|(_, shared)| Arc::clone(shared)).collect()
}

/// Adds bind data to a use.
pub(super) fn join(bound: usize, shared: Arc<Use>) -> Result<(), Error> {
    watch(bound)?;
    let before = lock(&USES).get_or_insert_default().insert(bound, shared);
    drop(before);
    Ok(())
}

/// Replaces the table of bind data, so that its copies and its end are noticed.
fn watch(bound: usize) -> Result<(), Error> {
    static TABLES: Mutex<Vec<&'static Table>> = Mutex::new(Vec::new());
    // SAFETY: bind data is an object with a table of virtual functions, as `is_ours` has checked.
    // Other threads may call one meanwhile, and find the original or the copy.
    let place = unsafe { std::sync::atomic::AtomicUsize::from_ptr(bound as *mut usize) };
    let original = place.load(Relaxed);
    let mut tables = lock(&TABLES);
    let known = tables.iter().find(|table| table.original == original);
    let table = match known {
        Some(known) => *known,
        None => {
            let code = MemoryMap::around(original)?;
            let first = original - BEFORE * size_of::<usize>();
            if !code.holds(first, BEFORE + VIRTUAL) {
                return Err(unknown("the tables"));
            }
            // SAFETY: as just checked.
            let words = unsafe { std::slice::from_raw_parts(first as *const usize, BEFORE + VIRTUAL) };
            let mut table = Table { original, before: [words[0], words[1]], functions: [0; VIRTUAL] };
            table.functions.copy_from_slice(&words[BEFORE..]);
            if !table.functions[..3].iter().all(|function| code.has_code(*function)) {
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
    // SAFETY: as the caller says: its table is the part of ours after `before`.
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
        // The last bind data of a use ends the use, without the lock.
        let ended = lock(&USES).as_mut().and_then(|uses| uses.remove(&(bound as usize)));
        drop(ended);
        Ok(())
    });
    // SAFETY: as the caller says.
    unsafe { *original(bound, number).cast::<Destructor>() }
}

unsafe extern "C-unwind" fn copy(copied: *mut *mut usize, bound: *const usize) -> *mut *mut usize {
    // SAFETY: DuckDB calls it for bind data that is watched; its own function makes bind data.
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
