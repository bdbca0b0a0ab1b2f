//! Columns as pyarrow arrays and back, through the Arrow C data interface
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>).
//!
//! Arguments are copied once, because a function may keep its arrays longer than the ring keeps the
//! batch. Some types have another form here than on the wire. HUGEINT and UHUGEINT are
//! `decimal256(39, 0)`, the only Arrow type that holds them exactly, and BIGNUM is `decimal256(76,
//! 0)`. INTERVAL counts nanoseconds. An ENUM of results is a string. TIMETZ is a struct of the time
//! and the seconds of the zone east of UTC.

mod c_data;
mod export;
mod import;
mod memory;
mod schema;

pub(crate) use export::to_pyarrow;
pub(crate) use import::{Exported, Piece, Results};
pub(crate) use schema::{Direction, pyarrow_type};
