//! Functions as DuckDB's aggregates: what all adapters do alike.
//!
//! DuckDB's C API gives an aggregate's callbacks the states and the columns, and nothing else. Two
//! things are missing. It does not tell the query of a callback. And it passes a vector of states
//! as if it had one for each row; but ORDER BY in the call, and windows over a whole partition, use
//! a vector with one state for all rows. The memory after that state is undefined. So the C++
//! callbacks of DuckDB's C API are replaced by others that see more (`hooks`). They are pointers in
//! the object that DuckDB makes for a new aggregate, one after the other, and are searched there. A
//! DuckDB with another layout than the known ones gets no aggregates.
//!
//! The bind data tells the query: DuckDB makes such an object for each call of an aggregate in a
//! query, and copies of it for its operators and threads. All these are one use of the aggregate.
//! DuckDB makes the first of them for a client's context, which tells the connection. The object's
//! table of virtual functions is replaced by a copy that reports when an object is copied or
//! destroyed (`bind_data`). When the last object is destroyed, the use has ended, and so have its
//! states: DuckDB calls no destructor for the states of a query that failed, and of some windows.

mod bind_data;
mod callbacks;
mod current_call;
mod hooks;
mod memory_map;
mod register;
mod uses;
mod version;

pub use register::register_aggregate;
pub use uses::{Aggregate, sweep};
