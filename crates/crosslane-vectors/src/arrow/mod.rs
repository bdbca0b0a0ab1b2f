//! Arrow arrays of the C data interface as columns.
//!
//! DuckDB's C API reads such arrays too. But it takes the wrong rows of STRUCTs in STRUCTs and of
//! UNIONs if an array is longer than a vector or begins with an offset, and it cannot read
//! dictionaries and run lengths inside of lists. Here each value is found by its row, down to the
//! last child. Each array adds its own `offset` to the row that its parent asks for.
//!
//! Lengths, offsets, indices and the number of buffers are checked before they are used. The
//! interface does not tell the length of a buffer, so a buffer that is too short cannot be found
//! out.
//!
//! | Arrow | here |
//! |---|---|
//! | null | VARCHAR, which can be cast to every type |
//! | utf8, binary, large ones and views | VARCHAR, BLOB |
//! | dates, times, timestamps, durations | the type of the same unit; INTERVAL for durations. A unit that SQL does not have is converted, if nothing is lost |
//! | lists, large ones, views, lists of a fixed size | LIST, ARRAY |
//! | dictionaries, run lengths | their values |
//! | dense and sparse unions | UNION. Only members can be NULL in Arrow: DuckDB writes a NULL of the first member for a NULL of the UNION, so that becomes NULL |
//! | extensions: `arrow.uuid`, `arrow.json`, `arrow.bool8`, `geoarrow.wkb`, `arrow.opaque` of DuckDB | their types; others are what they are stored as |

mod batch;
mod buffer;
mod refusal;
mod schema;
#[cfg(test)]
mod tests;
mod values;

pub use batch::Batch;
pub use refusal::Refusal;
pub use schema::Schema;
