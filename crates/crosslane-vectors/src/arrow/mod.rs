//! Arrow arrays of the C data interface as columns.
//!
//! DuckDB's C API reads such arrays too, but takes the wrong rows of STRUCTs in STRUCTs and of UNIONs if an array is longer
//! than a vector or begins later, and cannot read what is encoded inside of lists. Here each value is found by its row,
//! down to the last child: `offset` counts in each array for itself, on top of where its parent looks.
//!
//! What an array says of itself (lengths, offsets, indices, which buffers there are) is checked before it is used. How
//! long a buffer is the interface does not say, so an array that lies about that cannot be told from others.
//!
//! | Arrow | here |
//! |---|---|
//! | null | VARCHAR, of which every type can be cast |
//! | utf8, binary, large ones and views | VARCHAR, BLOB |
//! | dates, times, moments, durations | the type of the same unit; INTERVAL for durations. A unit that SQL has not is converted, if nothing is lost |
//! | lists, large ones, views, lists of a fixed size | LIST, ARRAY |
//! | dictionaries, run lengths | their values |
//! | dense and sparse unions | UNION. Arrow has no NULL beside those of the members; DuckDB writes a NULL of the first for it, which becomes NULL |
//! | extensions: `arrow.uuid`, `arrow.json`, `arrow.bool8`, `geoarrow.wkb`, `arrow.opaque` of DuckDB | their types; others are what they are stored as |

mod array;
mod schema;
#[cfg(test)]
mod tests;

pub use array::{Batch, Refusal};
pub use schema::Schema;
