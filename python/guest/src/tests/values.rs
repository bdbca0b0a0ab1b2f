//! Values on their way through a column.

use super::{evaluate, python};
use crate::loops::ResultWriter;
use crate::values::{Vm, reader};
use crosslane::{ColumnBuilder, DataType};
use pyo3::prelude::*;

/// For each type, values that survive.
const SURVIVE: [(&str, &[&str]); 20] = [
    ("BOOLEAN", &["True", "False"]),
    ("TINYINT", &["-128", "127"]),
    ("SMALLINT", &["-2**15", "2**15 - 1"]),
    ("INTEGER", &["-2**31", "2**31 - 1"]),
    ("BIGINT", &["-2**63", "2**63 - 1", "0"]),
    ("UTINYINT", &["0", "255"]),
    ("UBIGINT", &["0", "2**64 - 1"]),
    ("HUGEINT", &["-2**127", "2**127 - 1"]),
    ("UHUGEINT", &["0", "2**128 - 1"]),
    ("FLOAT", &["0.5", "float('inf')"]),
    ("DOUBLE", &["0.1", "-0.0", "1e308"]),
    ("DECIMAL(38, 4)", &["decimal.Decimal('-1234567890123456789012345678901234.5678')"]),
    ("VARCHAR", &["''", "'a'", "'\u{1F980} ä'", "'\\0'", "'x' * 100_000"]),
    ("BLOB", &["b''", "bytes(range(256))"]),
    ("DATE", &["datetime.date.min", "datetime.date(1970, 1, 1)", "datetime.date.max"]),
    ("TIME", &["datetime.time.min", "datetime.time.max"]),
    ("TIMESTAMP", &["datetime.datetime.min", "datetime.datetime.max"]),
    ("UUID", &["uuid.UUID(int=0)", "uuid.UUID(int=2**128 - 1)"]),
    ("BIGINT[]", &["[]", "[1, None, 3]"]),
    ("STRUCT(a VARCHAR, b BIGINT[])", &["{'a': None, 'b': [1]}", "{'a': 'x', 'b': None}"]),
];

#[test]
fn every_value_survives_its_column() {
    python(|py, names| {
        for (data_type, values) in SURVIVE {
            let data_type: DataType = data_type.parse().expect("a type");
            let writer = ResultWriter::new(py, &data_type, None).expect("a writer");
            let reader = reader(py, &data_type, None).expect("a reader");
            let mut column = ColumnBuilder::new(&data_type);
            let values: Vec<_> =
                values.iter().chain(&["None"]).map(|text| evaluate(py, names, text)).collect();
            for value in &values {
                writer.write(value, &mut column).expect("a value of the type");
            }
            assert_eq!(column.rows(), values.len());
            for (row, value) in values.iter().enumerate() {
                let read = reader.read(&Vm::new(py), &column.column(&data_type), row).expect("a value");
                assert!(read.eq(value).expect("comparable"), "{data_type}: {read} instead of {value}");
            }
        }
    });
}

/// For each type, objects that are no value of it, and the exception's class.
const REFUSED: [(&str, &str, &str); 16] = [
    ("BOOLEAN", "'yes'", "TypeError"),
    ("TINYINT", "128", "OverflowError"),
    ("BIGINT", "2**63", "OverflowError"),
    ("BIGINT", "'1'", "TypeError"),
    ("UBIGINT", "-1", "OverflowError"),
    ("HUGEINT", "2**127", "OverflowError"),
    ("UHUGEINT", "2**128", "OverflowError"),
    ("DOUBLE", "'0.1'", "TypeError"),
    ("DECIMAL(4, 2)", "decimal.Decimal('100')", "OverflowError"),
    ("VARCHAR", "b'bytes'", "TypeError"),
    ("VARCHAR", "'\\ud800'", "ValueError"),
    ("ENUM('a', 'b')", "'c'", "ValueError"),
    ("UUID", "'no uuid'", "TypeError"),
    ("BIGINT[]", "[1, 'two']", "TypeError"),
    ("INTEGER[2]", "[1, 2, 3]", "ValueError"),
    ("STRUCT(a VARCHAR, b BIGINT)", "{'a': 'x', 'b': 'y'}", "TypeError"),
];

#[test]
fn what_is_no_value_is_an_exception_and_leaves_no_trace() {
    python(|py, names| {
        for (data_type, refused, class) in REFUSED {
            let data_type: DataType = data_type.parse().expect("a type");
            let writer = ResultWriter::new(py, &data_type, None).expect("a writer");
            let mut column = ColumnBuilder::new(&data_type);
            column.null();
            let error = writer.write(&evaluate(py, names, refused), &mut column).expect_err(refused);
            assert_eq!(error.get_type(py).name().expect("a name"), class, "{data_type}, {refused}: {error}");
            column.truncate(1);
            // A value that failed half-way leaves nothing in the children.
            column.null();
            let column = column.column(&data_type);
            assert!(column.rows == 2 && !column.is_valid(0) && !column.is_valid(1));
            assert!(column.children.iter().all(|child| child.rows <= 2 * 2), "{data_type}, {refused}");
        }
    });
}
