//! Rows outside of a vector are refused, in both directions, and so are inconsistent columns.

use crate::duckdb::Chunk;
use crosslane::batch::{self, Column};
use crosslane::call::{Input, Output};
use crosslane::{Borrowed, ColumnBuilder, DataType, Error};
use crosslane_vectors::Arguments;
use libduckdb_sys as ffi;
use std::cell::Cell;

/// The numbers of a chunk of BIGINTs.
fn numbers_of(chunk: &Chunk) -> &[Cell<i64>] {
    // SAFETY: the vector has 2048 BIGINTs.
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
fn results_fit_the_rows_of_the_vector() {
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

/// Columns with too few or too many bytes, offsets or children.
type Spoil = fn(&mut Column<'_>);

#[test]
fn inconsistent_columns_are_refused() {
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

/// Shortens a column of BIGINTs to `rows` rows.
fn shorten(column: &mut Column<'_>, rows: usize) {
    column.rows = rows;
    column.data = &column.data[..rows * 8];
}

/// A guest changes its results right after they were checked.
#[test]
fn results_that_change_later_keep_their_checked_values() {
    let told = "What was checked: twelve bytes and more".as_bytes();
    let offsets: Vec<i32> = vec![0, 4, 30, told.len() as i32];
    let chunk = Chunk::new("VARCHAR");
    let mut guests = told.to_vec();
    let text = DataType::Varchar;
    let column = Column { offsets: &offsets, validity: Some(&[0b110]), ..nothing(&text, 3) };
    assert!(taken(&chunk, 1, &column, &mut guests, told));
    // SAFETY: the vector has strings.
    let strings = unsafe { ffi::duckdb_vector_get_data(chunk.vector()).cast::<ffi::duckdb_string_t>() };
    let text_of = |row: usize| {
        // SAFETY: the row was written; its string holds its bytes or points into the vector's heap.
        unsafe {
            let string = strings.add(row);
            let length = (*string).value.inlined.length as usize;
            let in_place = length <= 12;
            let start = if in_place {
                (&raw const (*string).value.inlined.inlined).cast()
            } else {
                (*string).value.pointer.ptr
            };
            std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec()
        }
    };
    assert_eq!([text_of(1), text_of(2), text_of(3)], [b"", &told[4..30], &told[30..]]);

    let numbers: Vec<u8> = [1i64, 2, 3].iter().flat_map(|number| number.to_le_bytes()).collect();
    let chunk = Chunk::new("BIGINT");
    assert!(taken(&chunk, 5, &nothing(&DataType::BigInt, 3), &mut numbers.clone(), &numbers));
    assert_eq!(numbers_of(&chunk)[5..8], [1, 2, 3].map(Cell::new));

    // These columns are not written: an inconsistent one, one outside of the vector, and one that DuckDB
    // encodes differently.
    let short = Column { offsets: &offsets[..3], ..column.clone() };
    let far = Column { offsets: &[0, 4, 30, 1 << 20], ..column.clone() };
    let chunk = Chunk::new("VARCHAR");
    for column in [&short, &far] {
        assert!(!taken(&chunk, 0, column, &mut told.to_vec(), told));
    }
    assert!(!taken(&chunk, 2046, &column, &mut told.to_vec(), told));
    let chunk = Chunk::new("BIGINT");
    assert!(!taken(&chunk, 0, &nothing(&DataType::BigInt, 2), &mut numbers.clone(), &numbers));
    assert!(!taken(&chunk, 0, &nothing(&DataType::Double, 3), &mut numbers.clone(), &numbers));
    assert!(!taken(&Chunk::new("UUID"), 0, &nothing(&DataType::Uuid, 3), &mut [0; 48], &[0; 48]));
}

/// A column that has rows but no data.
fn nothing(data_type: &DataType, rows: usize) -> Column<'_> {
    Column { data_type, rows, validity: None, offsets: &[], data: &[], children: Vec::new() }
}

/// Whether a chunk accepts a column whose bytes change right after the check.
fn taken(chunk: &Chunk, first: usize, column: &Column<'_>, guests: &mut [u8], told: &[u8]) -> bool {
    let (start, length) = (guests.as_mut_ptr(), guests.len());
    // SAFETY: the bytes live across the call.
    let values = unsafe { Borrowed::new(start, length) };
    let mut results = chunk.results(2048);
    let mut checked = false;
    let accepted = results.accept_borrowed(first, column, values, &mut |copied| {
        assert_eq!(copied.data, told);
        checked = true;
        // SAFETY: no code reads the bytes at this time.
        unsafe { start.write_bytes(0xFF, length) };
        Ok(())
    });
    assert_eq!(accepted.as_ref().ok(), Some(&checked));
    checked
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

/// A chunk as arguments with `rows` rows.
fn arguments(chunk: &Chunk, rows: usize) -> Arguments<'_> {
    // SAFETY: the chunk lives, and its column is of the type.
    unsafe {
        ffi::duckdb_data_chunk_set_size(chunk.raw, rows as ffi::idx_t);
        Arguments::new(chunk.raw, [&chunk.data_type])
    }
}

/// The rows in the form that a guest gets.
fn read(arguments: &Arguments<'_>, first: usize, end: usize) -> Vec<i64> {
    let frame = arguments.frame(first..end).unwrap();
    let columns = batch::columns(frame.bytes(), [&DataType::BigInt].into_iter()).unwrap();
    columns[0].values().unwrap().to_vec()
}

/// Texts of 0 to 69 bytes. Every third text is NULL, and its string has an invalid address.
#[test]
fn texts_go_to_a_guest_in_any_slice_whatever_their_nulls_hold() {
    let text = |row: usize| (row % 3 != 1).then(|| format!("{row:069}")[69 - row % 70..].to_owned());
    let chunk = Chunk::new("VARCHAR");
    for row in 0..300 {
        let text = text(row).unwrap_or_default();
        // SAFETY: the vector has 2048 strings; DuckDB copies the bytes. A string has 16 bytes.
        unsafe {
            let (vector, at) = (chunk.vector(), row as ffi::idx_t);
            let (bytes, length) = (text.as_ptr().cast(), text.len() as ffi::idx_t);
            ffi::duckdb_unsafe_vector_assign_string_element_len(vector, at, bytes, length);
            if row % 3 == 1 {
                ffi::duckdb_vector_ensure_validity_writable(vector);
                ffi::duckdb_validity_set_row_invalid(ffi::duckdb_vector_get_validity(vector), at);
                ffi::duckdb_vector_get_data(vector).cast::<[u8; 16]>().add(row).write([0xFF; 16]);
            }
        }
    }
    let arguments = arguments(&chunk, 300);
    for (first, end) in
        [(0, 300), (0, 0), (1, 2), (2, 3), (0, 64), (63, 65), (64, 128), (127, 300), (299, 300)]
    {
        let frame = arguments.frame(first..end).unwrap();
        let column = batch::columns(frame.bytes(), [&DataType::Varchar].into_iter()).unwrap().remove(0);
        let found = (0..end - first).map(|row| column.is_valid(row).then(|| column.bytes(row)));
        let expected: Vec<_> = (first..end).map(text).collect();
        let expected: Vec<_> = expected.iter().map(|text| text.as_deref().map(str::as_bytes)).collect();
        assert_eq!(found.collect::<Vec<_>>(), expected, "rows {first}..{end}");
        // A NULL takes no space.
        assert_eq!(column.data.len(), expected.iter().flatten().map(|text| text.len()).sum::<usize>());
    }
}
