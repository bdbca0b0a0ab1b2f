//! Arguments and results of the loop over rows.

use super::{evaluate, python};
use crate::loops::{Argument, ResultWriter, ReusedObjects};
use crate::values::{FastPath, layout, reader};
use crosslane::{ColumnBuilder, DataType};
use pyo3::prelude::*;

/// The objects that a loop gets for the values of a column, their addresses, and whether they
/// become the same values again.
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
    // These are the results when no other code keeps the objects. The loop itself has two: the object of
    // the row, and the object of the row before.
    let mut reused = ReusedObjects::new(known);
    let mut copies = ColumnBuilder::new(&data_type);
    let fast_path = ResultWriter::new(py, &data_type, None).expect("a writer").fast_path();
    let mut places = Vec::new();
    let mut before = None;
    for row in 0..column.rows {
        // SAFETY: the reference is new.
        let value = unsafe { Bound::from_owned_ptr(py, reused.get(py, &argument, row)) };
        places.push(value.as_ptr() as usize);
        // SAFETY: the interpreter's lock is held.
        assert!(unsafe { fast_path.add(known, value.as_ptr(), &mut copies) });
        before = Some(value);
    }
    drop(before);
    let copied = copies.column(&data_type);
    let equal = copied.rows == column.rows && copied.data == column.data && copied.offsets == column.offsets;
    // In this case, other code keeps all of the objects.
    let mut reused = ReusedObjects::new(known);
    let all = (0..column.rows).map(|row| {
        // SAFETY: as above.
        unsafe { Bound::from_owned_ptr(py, reused.get(py, &argument, row)) }
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
            // The loop uses two objects in turns.
            assert!(places[0] != places[1] && places.windows(3).all(|three| three[0] == three[2]));
        }
    });
}

#[test]
fn other_values_are_left_to_the_writer() {
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
        for (fast_path, data_type, objects) in cases {
            let mut column = ColumnBuilder::new(&data_type.parse().expect("a type"));
            for object in objects {
                let object = evaluate(py, names, object);
                for known in [None, layout::known()] {
                    // SAFETY: the interpreter's lock is held.
                    let added = unsafe { fast_path.add(known, object.as_ptr(), &mut column) };
                    assert!(!added, "{data_type}: {object}");
                }
            }
            assert_eq!(column.rows(), 0);
            assert!(PyErr::take(py).is_none());
        }
    });
}
