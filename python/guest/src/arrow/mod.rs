//! Columns as pyarrow arrays and back, through the Arrow C data interface
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>).

mod import;

pub(crate) use import::{Direction, Exported, Part, Results, pyarrow_type, to_pyarrow};
