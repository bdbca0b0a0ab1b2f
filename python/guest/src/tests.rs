//! Values on their way through a column: what Python gives and gets, without an engine.

use crate::loops::Argument;
use crate::loops::ResultWriter;
use crate::loops::ReusedObjects;
use crate::serve;
use crate::values::FastPath;
use crate::values::layout;
use crate::values::{Vm, reader};
use crosslane::lane::Lane;
use crosslane::{Address, ColumnBuilder, DataType};
use crosslane_process::testing::{both_ends, fill};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

fn python<T>(run: impl FnOnce(Python<'_>, &Bound<'_, PyDict>) -> T) -> T {
    Python::initialize();
    Python::attach(|py| {
        // The guest calls on the package's own modules, which this interpreter need not have
        // installed.
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        py.import("sys")
            .and_then(|sys| sys.getattr("path")?.call_method1("append", (package,)))
            .expect("sys.path");
        let names = PyDict::new(py);
        let imports = c"import datetime, decimal, uuid";
        py.run(imports, Some(&names), None).expect("Python's own modules");
        run(py, &names)
    })
}

fn evaluate<'py>(py: Python<'py>, names: &Bound<'py, PyDict>, text: &str) -> Bound<'py, PyAny> {
    let text = CString::new(text).expect("no zero bytes");
    py.eval(&text, Some(names), None).expect("an expression")
}

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
            // What failed half-way is gone from the children too.
            column.null();
            let column = column.column(&data_type);
            assert!(column.rows == 2 && !column.is_valid(0) && !column.is_valid(1));
            assert!(column.children.iter().all(|child| child.rows <= 2 * 2), "{data_type}, {refused}");
        }
    });
}

/// The objects that a loop gets for the values of a column, and what they become.
fn looped<'py>(
    py: Python<'py>,
    known: Option<layout::Layout>,
    data_type: &str,
    fill: impl Fn(&mut ColumnBuilder),
) -> (Vec<Bound<'py, PyAny>>, Vec<usize>, bool) {
    let data_type: DataType = data_type.parse().expect("a type");
    let reader = reader(py, &data_type, None).expect("a reader");
    let mut column = ColumnBuilder::new(&data_type);
    fill(&mut column);
    let column = column.column(&data_type);
    let argument = Argument::new(&reader, &column, false);
    // Once nobody keeps them, except for the two that a loop has: that of the row, and that of the
    // row before.
    let mut kept = ReusedObjects::new(known);
    let mut copies = ColumnBuilder::new(&data_type);
    let plain = ResultWriter::new(py, &data_type, None).expect("a writer").fast_path();
    let mut places = Vec::new();
    let mut before = None;
    for row in 0..column.rows {
        // SAFETY: the reference is new.
        let value = unsafe { Bound::from_owned_ptr(py, kept.get(py, &argument, row)) };
        places.push(value.as_ptr() as usize);
        // SAFETY: the interpreter's lock is held.
        assert!(unsafe { plain.add(known, value.as_ptr(), &mut copies) });
        before = Some(value);
    }
    drop(before);
    let copied = copies.column(&data_type);
    let equal = copied.rows == column.rows && copied.data == column.data && copied.offsets == column.offsets;
    // And once somebody keeps all of them.
    let mut kept = ReusedObjects::new(known);
    let all = (0..column.rows).map(|row| {
        // SAFETY: as above.
        unsafe { Bound::from_owned_ptr(py, kept.get(py, &argument, row)) }
    });
    (all.collect(), places, equal)
}

#[test]
fn arguments_are_used_again_and_results_are_read_in_place() {
    python(|py, names| {
        layout::find(py).expect("a look at some objects");
        let version = py.version_info();
        assert_eq!(
            layout::known().is_some(),
            (3, 11) <= (version.major, version.minor) && version.minor < 14
        );
        let ints: Vec<i64> = (0..63)
            .flat_map(|bits| [(1i64 << bits) - 1, 1 << bits, -(1 << bits), 1 - (1 << bits)])
            .chain([i64::MAX, i64::MIN, 256, 257, -5, -6])
            .collect();
        let mut column = ColumnBuilder::new(&DataType::Double);
        for int in ["2**53 + 1", "-2**63", "2**63 - 513", "0"].map(|int| evaluate(py, names, int)) {
            // SAFETY: the interpreter's lock is held.
            assert!(unsafe { FastPath::Double.add(layout::known(), int.as_ptr(), &mut column) });
        }
        let rounded: [f64; 4] = [(1u64 << 53) as f64, -(2f64.powi(63)), 9_223_372_036_854_774_784.0, 0.0];
        assert_eq!(column.column(&DataType::Double).values::<f64>(), Some(&rounded[..]));
        let floats = [0.0, -0.0, 1.5, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX];
        let texts: Vec<String> = (0..600).map(|length| "x".repeat(length * 7 % 600)).collect();
        for known in [None, layout::known()] {
            let (all, _, equal) = looped(py, known, "BIGINT", |column| column.fixed_all(&ints));
            assert!(equal);
            let read: Vec<i64> = all.iter().map(|int| int.extract().expect("an int")).collect();
            assert_eq!(read, ints);
            let narrow: Vec<i32> = ints.iter().filter_map(|int| i32::try_from(*int).ok()).collect();
            let (all, _, equal) = looped(py, known, "INTEGER", |column| column.fixed_all(&narrow));
            assert!(equal);
            let read: Vec<i32> = all.iter().map(|int| int.extract().expect("an int")).collect();
            assert_eq!(read, narrow);
            let (all, _, equal) = looped(py, known, "DOUBLE", |column| column.fixed_all(&floats));
            assert!(equal);
            let read: Vec<f64> = all.iter().map(|float| float.extract().expect("a float")).collect();
            assert_eq!(read, floats);
            let fill = |column: &mut ColumnBuilder| {
                texts.iter().for_each(|text| column.bytes(text.as_bytes()).expect("room"))
            };
            let (all, _, equal) = looped(py, known, "VARCHAR", fill);
            assert!(equal);
            let read: Vec<String> = all.iter().map(|text| text.extract().expect("a str")).collect();
            assert_eq!(read, texts);
        }
        if layout::known().is_some() {
            let large: Vec<i64> = (1000..1100).collect();
            let (all, places, _) = looped(py, layout::known(), "BIGINT", |column| column.fixed_all(&large));
            assert_eq!(all.len(), 100);
            // Two objects in turns.
            assert!(places[0] != places[1] && places.windows(3).all(|three| three[0] == three[2]));
        }
    });
}

#[test]
fn what_is_no_plain_value_is_left_to_the_writer() {
    python(|py, names| {
        layout::find(py).expect("a look at some objects");
        let cases = [
            (FastPath::Int64, "BIGINT", ["2**63", "True", "1.0", "'1'"]),
            (FastPath::Int32, "INTEGER", ["2**31", "-2**31 - 1", "2**70", "False"]),
            (FastPath::Double, "DOUBLE", ["2**63", "True", "'1'", "[]"]),
            (FastPath::Boolean, "BOOLEAN", ["0", "1", "'True'", "()"]),
            (FastPath::Text, "VARCHAR", ["'\\ud800'", "b'a'", "1", "type('Text', (str,), {})('a')"]),
            (FastPath::None, "BIGINT", ["1", "None", "2", "3"]),
        ];
        for (plain, data_type, objects) in cases {
            let mut column = ColumnBuilder::new(&data_type.parse().expect("a type"));
            for object in objects {
                let object = evaluate(py, names, object);
                for known in [None, layout::known()] {
                    // SAFETY: the interpreter's lock is held.
                    let added = unsafe { plain.add(known, object.as_ptr(), &mut column) };
                    assert!(!added, "{data_type}: {object}");
                }
            }
            assert_eq!(column.rows(), 0);
            assert!(PyErr::take(py).is_none());
        }
    });
}

/// A lane whose engine takes no replies holds up itself alone, whatever it answers.
#[test]
fn other_threads_run_while_a_lane_waits_for_room() {
    static CALLED: AtomicBool = AtomicBool::new(false);
    const FUNCTION: &str = "__import__('types').SimpleNamespace(signature='f() -> BIGINT', shapes=[], \
        result_shape=None, kind='row', callable=WHAT, on_error='raise', admits_null=[], retries=0, \
        memory_limit=None)";
    // A result, a failed call, and a function that cannot be prepared.
    let functions = [
        FUNCTION.replace("WHAT", "lambda: called(1)"),
        FUNCTION.replace("WHAT", "lambda: 1 / 0"),
        FUNCTION.replace("WHAT", "None").replace("BIGINT", "NOTHING"),
    ];
    for text in functions {
        let (mut engine, mut guest) = both_ends(4096);
        fill(&mut engine, &mut guest);
        engine.submit(Address::call(0), 1, &()).expect("a lane").expect("room");
        CALLED.store(false, Relaxed);
        let engine = thread::spawn(move || {
            while !CALLED.load(Relaxed) {
                thread::yield_now();
            }
            // The guest has the interpreter's lock, and is about to answer.
            Python::attach(|_| ());
            while engine.in_flight() > 0 {
                engine.try_collect().expect("a sound reply");
            }
        });
        python(|py, names| {
            // The lock is given up in waits alone.
            py.run(c"import sys; sys.setswitchinterval(1000)", None, None).expect("an interval");
            let called = PyCFunction::new_closure(py, None, None, |arguments, _| {
                CALLED.store(true, Relaxed);
                arguments.get_item(0).map(Bound::unbind)
            });
            names.set_item("called", called.expect("a function")).expect("room");
            // What is done last before a failure is told.
            py.run(c"describe = lambda error: called(('', '', ''))", Some(names), None).expect("a function");
            let errors = py.import("crosslane._errors").expect("the package");
            let described = errors.getattr("describe").expect("a function");
            errors.setattr("describe", names.get_item("describe").expect("a name")).expect("a module");
            let served = serve::answer_all(py, &mut guest, vec![evaluate(py, names, &text)]);
            errors.setattr("describe", described).expect("a module");
            served.expect("the end of the engine");
        });
        engine.join().expect("an engine");
    }
}
