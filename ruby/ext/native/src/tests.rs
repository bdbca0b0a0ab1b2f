//! Values on their way through a column: what Ruby gives and gets, without an engine.

use crate::objects::{self, Fault, Vm};
use crosslane::{ColumnBuilder, DataType};
use crosslane_guest::Class;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::ReprValue;
use magnus::{Value, eval};

fn evaluate(text: &str) -> Value {
    eval(&format!("# encoding: utf-8\n{text}")).expect("an expression")
}

/// For each type, values that survive.
const SURVIVE: [(&str, &[&str]); 18] = [
    ("BOOLEAN", &["true", "false"]),
    ("TINYINT", &["-128", "127"]),
    ("INTEGER", &["-2**31", "2**31 - 1"]),
    ("BIGINT", &["-2**63", "2**63 - 1", "0", "2**62", "-2**62 - 1"]),
    ("UBIGINT", &["0", "2**64 - 1"]),
    ("HUGEINT", &["-2**127", "2**127 - 1"]),
    ("UHUGEINT", &["0", "2**128 - 1"]),
    ("DOUBLE", &["0.1", "-0.0", "1e308", "5e-324"]),
    ("DECIMAL(38, 4)", &["BigDecimal('-1234567890123456789012345678901234.5678')"]),
    ("VARCHAR", &["''", "'a'", "'\u{1F980} ä'", "\"a\\0b\"", "'x' * 100_000"]),
    ("BLOB", &["''.b", "(0..255).to_a.pack('C*')"]),
    ("DATE", &["Date.new(1, 1, 1)", "Date.new(1970, 1, 1)", "Date.new(9999, 12, 31)"]),
    ("TIMESTAMP", &["Time.utc(1, 1, 1)", "Time.utc(9999, 12, 31, 23, 59, 59.999999r)"]),
    ("TIME", &["Crosslane::TimeOfDay.at(0)", "Crosslane::TimeOfDay.at(24)"]),
    ("INTERVAL", &["Crosslane::Interval.new(-1, 2, -3)"]),
    ("ENUM('a', 'b')", &["'a'", "'b'"]),
    ("BIGINT[]", &["[]", "[1, nil, 3]"]),
    ("MAP(VARCHAR, BIGINT[])", &["{}", "{ 'a' => [1], 'b' => nil }"]),
];

fn every_value_survives_its_column() {
    for (data_type, values) in SURVIVE {
        let data_type: DataType = data_type.parse().expect("a type");
        let writer = objects::writer(&data_type).expect("a writer");
        let reader = objects::reader(&data_type).expect("a reader");
        for text in values.iter().chain(&["nil"]) {
            let value = evaluate(text);
            let mut column = ColumnBuilder::new(&data_type);
            // SAFETY: with the GVL; an exception would end the test. The column is of this type and has the row.
            let read = unsafe {
                let vm = Vm::new();
                writer.write(&vm, &value.as_raw(), &mut column).expect("a value of the type");
                Value::from_raw(reader.read(&vm, &column.column(&data_type), 0).expect("an object"))
            };
            assert!(value.eql(read).expect("comparable"), "{data_type}: {read:?} instead of {value:?}");
        }
    }
}

/// For each type, objects that are no value of it, and the exception's class.
const REFUSED: [(&str, &str, Class); 14] = [
    ("BOOLEAN", "1", Class::Type),
    ("TINYINT", "128", Class::Range),
    ("BIGINT", "2**63", Class::Range),
    ("BIGINT", "'1'", Class::Type),
    ("UBIGINT", "-1", Class::Range),
    ("HUGEINT", "2**127", Class::Range),
    ("UHUGEINT", "2**128", Class::Range),
    ("DECIMAL(4, 2)", "BigDecimal('100')", Class::Range),
    ("VARCHAR", "1", Class::Type),
    ("VARCHAR", "\"\\xFF\".b", Class::Value),
    ("ENUM('a', 'b')", "'c'", Class::Value),
    ("BIGINT[]", "[1, 'two']", Class::Type),
    ("INTEGER[2]", "[1, 2, 3]", Class::Value),
    ("STRUCT(a VARCHAR, b BIGINT)", "{ a: 'x', b: 'y' }", Class::Type),
];

fn what_is_no_value_is_told_and_leaves_no_trace() {
    for (data_type, refused, class) in REFUSED {
        let data_type: DataType = data_type.parse().expect("a type");
        let writer = objects::writer(&data_type).expect("a writer");
        let mut column = ColumnBuilder::new(&data_type);
        column.null();
        let value = evaluate(refused);
        // SAFETY: as above.
        let fault = writer.write(&unsafe { Vm::new() }, &value.as_raw(), &mut column).expect_err(refused);
        let Fault::Refused(told, message) = fault else { panic!("{data_type}, {refused}: {fault:?}") };
        assert_eq!(told, class, "{data_type}, {refused}: {message}");
        column.truncate(1);
        // What failed half-way is gone from the children too.
        column.null();
        let column = column.column(&data_type);
        assert!(column.rows == 2 && !column.is_valid(0) && !column.is_valid(1));
        assert!(column.children.iter().all(|child| child.rows <= 2 * 2), "{data_type}, {refused}");
    }
}

/// The VM belongs to the thread that began it, so this is one test.
#[test]
fn values() {
    // SAFETY: the VM is begun once, and lives as long as this frame.
    let _vm = unsafe { magnus::embed::init() };
    let types = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lib/crosslane/types.rb");
    let _: Value = eval(&format!("%w[bigdecimal date json {types}].each {{ |name| require name }}"))
        .expect("Ruby's half of the types");
    crate::prepare().expect("the names that values need");
    every_value_survives_its_column();
    what_is_no_value_is_told_and_leaves_no_trace();
}
