//! Calls make no allocation per batch: many workers share the allocator.

use crate::duckdb::Chunk;
use crosslane::call::{CallGroup, Caller, Input, call};
use crosslane::pool::{Pool, PoolOptions, Zygote};
use crosslane::{ColumnBuilder, DataType, Error, Function, FunctionSpec, Layout, Library};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{GuestLane, RowCounts};
use crosslane_process::testing::both_ends;
use crosslane_vectors::Arguments;
use libduckdb_sys as ffi;
use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

const ROWS: usize = 2048;
/// After this many batches, all memory for reuse is allocated.
const FIRST: usize = 20;
const BATCHES: usize = 100;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

// SAFETY: it passes each call to the system's allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller says.
        unsafe { System.alloc(memory) }
    }
    unsafe fn dealloc(&self, at: *mut u8, memory: Memory) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(at, memory) }
    }
    unsafe fn realloc(&self, at: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller says.
        unsafe { System.realloc(at, memory, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes lanes to threads that return their argument.
struct Threads(DataType);

impl Zygote for Threads {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        let (lane, guest) = both_ends(1 << 20);
        let data_type = self.0.clone();
        std::thread::spawn(move || echo(guest, &data_type));
        Ok(lane)
    }
}

fn echo(mut guest: GuestLane, data_type: &DataType) {
    let mut out = ColumnBuilder::new(data_type);
    while let Some(call) = guest.next_call().unwrap() {
        let columns = guest.columns(std::iter::once(data_type)).unwrap();
        let column = &columns[0];
        out.clear();
        for row in 0..column.rows {
            match data_type.layout() {
                _ if !column.is_valid(row) => out.null(),
                Layout::Bytes { .. } => out.bytes(column.bytes(row)).unwrap(),
                Layout::Bits => out.boolean(crosslane::batch::bit(column.data, row)),
                Layout::Fixed(8) => out.fixed(column.value::<u64>(row)),
                _ => out.fixed(column.value::<u128>(row)),
            }
        }
        guest.succeed(call, &out, RowCounts::default()).unwrap();
    }
}

/// A chunk of texts, or of zeros of `width` bytes, in which each `nth` row is NULL.
fn filled(data_type: &str, width: usize, nth: usize) -> Chunk {
    let chunk = Chunk::new(data_type);
    // SAFETY: the vector has the rows, and each has `width` bytes or is a string; DuckDB copies the bytes.
    unsafe {
        let vector = chunk.vector();
        ffi::duckdb_data_chunk_set_size(chunk.raw, ROWS as ffi::idx_t);
        ffi::duckdb_vector_get_data(vector).cast::<u8>().write_bytes(0, ROWS * width);
        ffi::duckdb_vector_ensure_validity_writable(vector);
        let mask = ffi::duckdb_vector_get_validity(vector);
        for row in 0..ROWS {
            if chunk.data_type == DataType::Varchar {
                let text = format!("row number {row:014}");
                let (bytes, length) = (text.as_ptr().cast(), text.len() as ffi::idx_t);
                ffi::duckdb_unsafe_vector_assign_string_element_len(vector, row as ffi::idx_t, bytes, length);
            }
            if row % nth == nth - 1 {
                ffi::duckdb_validity_set_row_invalid(mask, row as ffi::idx_t);
            }
        }
    }
    chunk
}

#[test]
fn a_call_allocates_nothing() {
    let types = [("BIGINT", 8), ("VARCHAR", 16), ("BOOLEAN", 1), ("UUID", 16), ("DECIMAL(9,2)", 4)];
    for (data_type, width) in types {
        for nth in [7, usize::MAX] {
            let (arguments, results) = (filled(data_type, width, nth), Chunk::new(data_type));
            let text =
                format!(r#"{{"signature": "f(x {data_type}) -> {data_type}", "admits_null": [true]}}"#);
            let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
            let function = Arc::new(Function::new(0, spec).unwrap());
            let options = PoolOptions { warm: 1, idle_timeout: Duration::from_secs(60) };
            let zygote = Threads(arguments.data_type.clone());
            let (pool, ()) = Pool::start(options, move |_| Ok((zygote, ()))).unwrap();
            let functions = vec![Arc::clone(&function)];
            let library = Library { name: "echo".into(), version: 1, functions, pool };
            let group = CallGroup::default();
            let mut before = 0;
            for batch in 0..FIRST + BATCHES {
                // SAFETY: the chunk lives.
                unsafe { ffi::duckdb_data_chunk_reset(results.raw) };
                if batch == FIRST {
                    before = ALLOCATIONS.get();
                }
                // SAFETY: the chunk lives, and has the function's only parameter.
                let input = unsafe { Arguments::of(arguments.raw, &function) };
                assert_eq!(input.rows(), ROWS);
                call(&library, &function, Caller::new(&group, 1), &input, &mut results.results(ROWS))
                    .unwrap();
            }
            let allocations = ALLOCATIONS.get() - before;
            assert_eq!(allocations, 0, "in {BATCHES} batches of {data_type}");
        }
    }
}
