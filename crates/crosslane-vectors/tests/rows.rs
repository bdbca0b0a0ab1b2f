//! Rows that a vector does not have are refused, both ways, and so are columns that do not have their own.

mod duckdb;

use crosslane::batch::{self, Column};
use crosslane::call::{Input, Output};
use crosslane::{ColumnBuilder, DataType, Error};
use crosslane_vectors::Arguments;
use duckdb::Chunk;
use libduckdb_sys as ffi;
use std::cell::Cell;

/// The numbers of a chunk of BIGINTs.
fn numbers_of(chunk: &Chunk) -> &[Cell<i64>] {
    // SAFETY: a vector of BIGINTs has 2048.
    unsafe { std::slice::from_raw_parts(ffi::duckdb_vector_get_data(chunk.vector()).cast(), 2048) }
}

fn numbers(numbers: &[i64]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    column.fixed_all(numbers);
    column
}

/// The message of a refusal.
#[track_caller]
fn refusal(outcome: Result<(), Error>) -> String {
    outcome.expect_err("more rows than there are").to_string()
}

#[test]
fn results_are_as_many_as_the_vector_has_rows() {
    let chunk = Chunk::new("BIGINT");
    numbers_of(&chunk).iter().for_each(|number| number.set(-1));
    let mut results = chunk.results(4);
    let seven = numbers(&[7; 5]);
    let mut column = seven.column(&DataType::BigInt);
    assert_eq!(
        refusal(results.accept(0, &column)),
        "5 rows of BIGINT from row 0 on do not fit 4 rows of BIGINT"
    );
    let two = numbers(&[7; 2]);
    column = two.column(&DataType::BigInt);
    for first in [3, 4, 5, usize::MAX] {
        refusal(results.accept(first, &column));
    }
    results.null(4);
    assert!(numbers_of(&chunk).iter().all(|number| number.get() == -1));
    // SAFETY: the vector lives.
    assert!(unsafe { ffi::duckdb_vector_get_validity(chunk.vector()) }.is_null());

    results.accept(2, &column).unwrap();
    results.null(3);
    assert_eq!(numbers_of(&chunk)[..5], [-1, -1, 7, 7, -1].map(Cell::new));
    // SAFETY: the vector has a NULL, and so a mask.
    assert_eq!(unsafe { *ffi::duckdb_vector_get_validity(chunk.vector()) } & 0b11111, 0b10111);
}

#[test]
fn results_of_another_type_are_refused() {
    let chunk = Chunk::new("BIGINT");
    let double = DataType::Double;
    let mut column = ColumnBuilder::new(&double);
    column.fixed(1.0);
    let message = refusal(chunk.results(4).accept(0, &column.column(&double)));
    assert_eq!(message, "1 rows of DOUBLE from row 0 on do not fit 4 rows of BIGINT");
}

/// What a column lacks, or has too much of.
type Spoil = fn(&mut Column<'_>);

#[test]
fn columns_that_lack_rows_of_their_own_are_refused() {
    let spoilt: [(&str, &[(&str, Spoil)]); 6] = [
        (
            "BIGINT",
            &[
                ("data", |column| column.data = &column.data[..16]),
                ("more data", |column| column.rows -= 1),
                ("validity", |column| column.validity = Some(&[])),
            ],
        ),
        ("BOOLEAN", &[("bits", |column| column.data = &[])]),
        (
            "VARCHAR",
            &[
                ("offsets", |column| column.offsets = &column.offsets[..3]),
                ("more offsets", |column| column.rows -= 1),
                ("bytes", |column| column.data = &column.data[..2]),
                ("order", |column| column.offsets = &[0, 3, 2, 3]),
                ("start", |column| column.offsets = &[-1, 0, 1, 2]),
            ],
        ),
        (
            "BIGINT[]",
            &[
                ("offsets", |column| column.offsets = &column.offsets[..3]),
                ("elements", |column| column.offsets = &[0, 1, 2, 4]),
                ("a child", |column| column.children.clear()),
                ("a child's data", |column| column.children[0].data = &[]),
            ],
        ),
        (
            "BIGINT[2]",
            &[
                ("elements", |column| shorten(&mut column.children[0], 5)),
                ("all elements but one row's", |column| shorten(&mut column.children[0], 3)),
                ("a child", |column| column.children.clear()),
            ],
        ),
        (
            "STRUCT(a BIGINT, b BIGINT)",
            &[
                ("a field", |column| column.children.truncate(1)),
                ("a field's rows", |column| shorten(&mut column.children[1], 2)),
            ],
        ),
    ];
    for (name, spoilt) in spoilt {
        let chunk = Chunk::new(name);
        let built = three(&chunk.data_type);
        let column = built.column(&chunk.data_type);
        for (what, spoil) in spoilt {
            let mut column = column.clone();
            spoil(&mut column);
            let outcome = chunk.results(2048).accept(0, &column);
            assert!(outcome.is_err(), "{name}: {what}");
        }
        chunk.results(2048).accept(2045, &column).unwrap();
    }
}

/// Three rows with a value each.
fn three(data_type: &DataType) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(data_type);
    (0..3).for_each(|_| add(&mut column, data_type));
    column
}

fn add(column: &mut ColumnBuilder, data_type: &DataType) {
    match data_type {
        DataType::BigInt => column.fixed(1i64),
        DataType::Boolean => column.boolean(true),
        DataType::Varchar => column.bytes(b"a").unwrap(),
        _ => {
            let times = if let DataType::Array(_, length) = data_type { *length } else { 1 };
            for (child, data_type) in column.children.iter_mut().zip(data_type.children()) {
                (0..times).for_each(|_| add(child, data_type));
            }
            column.nested().unwrap();
        }
    }
}

/// Leaves a column of BIGINTs that many rows.
fn shorten(column: &mut Column<'_>, rows: usize) {
    column.rows = rows;
    column.data = &column.data[..rows * 8];
}

#[test]
fn arguments_have_the_rows_of_their_chunk() {
    let chunk = Chunk::new("BIGINT");
    (1..).zip(&numbers_of(&chunk)[..5]).for_each(|(number, place)| place.set(number));
    let arguments = arguments(&chunk, 4);
    for (first, end) in [(0, 5), (4, 5), (5, 5), (3, 2), (0, usize::MAX), (usize::MAX, 0)] {
        let message = refusal(arguments.slice(first..end, &mut |_| panic!("rows that are not there")));
        assert_eq!(message, format!("rows {first}..{end} of a chunk of 4"));
    }
    assert_eq!(read(&arguments, 1, 4), [2, 3, 4]);
    assert!(read(&arguments, 4, 4).is_empty());
}

/// A chunk as arguments of so many rows.
fn arguments(chunk: &Chunk, rows: usize) -> Arguments<'_> {
    // SAFETY: the chunk lives, and its column is of the type.
    unsafe {
        ffi::duckdb_data_chunk_set_size(chunk.raw, rows as ffi::idx_t);
        Arguments::new(chunk.raw, [&chunk.data_type])
    }
}

/// Rows as they go to a guest.
fn read(arguments: &Arguments<'_>, first: usize, end: usize) -> Vec<i64> {
    let frame = arguments.frame(first..end).unwrap();
    let columns = batch::columns(frame.bytes(), [&DataType::BigInt].into_iter()).unwrap();
    columns[0].values().unwrap().to_vec()
}
