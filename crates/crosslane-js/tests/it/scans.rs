//! Table functions and stream functions.

use crate::support::{call, frame, integers, load, texts};
use crosslane::{ColumnBuilder, DataType, Entry, batch};
use crosslane_js::guest::{Guest, News, Step};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Opens a scan of a table function of one BIGINT, for the columns with these indices.
fn open(guest: &mut Guest, function: usize, wanted: Option<&[i32]>, n: i64) -> Result<(), String> {
    open_partition(guest, function, None, wanted, n)
}

/// Opens a scan of a partition.
fn open_partition(
    guest: &mut Guest,
    function: usize,
    partition: Option<&str>,
    wanted: Option<&[i32]>,
    n: i64,
) -> Result<(), String> {
    let list = DataType::List(Arc::new(DataType::Integer));
    let mut places = ColumnBuilder::new(&list);
    match wanted {
        Some(wanted) => {
            wanted.iter().for_each(|place| places.children[0].fixed(*place));
            places.nested().unwrap();
        }
        None => places.null(),
    }
    let request = frame(&[&texts(&[partition]), &places, &integers(&[Some(n)])], 1);
    let types = [DataType::Varchar, list, DataType::BigInt];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    match guest.open(function, Entry::Scan, &columns, &AtomicU64::new(0)) {
        Step::Done => Ok(()),
        Step::Failed(failure) => Err(failure.to_string()),
        step => panic!("{step:?}"),
    }
}

/// Columns of BIGINTs, how many rows failed, and whether this is the last batch.
type Rows = (Vec<Vec<Option<i64>>>, u32, bool);

/// Takes the next batch of a scan.
fn rows(guest: &mut Guest, most: usize, columns: usize) -> Result<Rows, String> {
    let progress = AtomicU64::new(0);
    match guest.rows(most, &progress, News(&AtomicU64::new(0), 0)) {
        Step::Rows { results, rows, errors, last } => {
            let field = |at: usize| crosslane::Field { name: format!("c{at}"), data_type: DataType::BigInt };
            let table = DataType::Struct((0..columns).map(field).collect());
            let reply = frame(&[&results], rows);
            let column = batch::column(bytemuck::cast_slice(&reply), &table).unwrap();
            assert_eq!(column.rows, rows);
            let of = |child: &batch::Column<'_>| {
                (0..rows).map(|row| child.is_valid(row).then(|| child.value(row))).collect()
            };
            Ok((column.children.iter().map(of).collect(), errors, last))
        }
        Step::Failed(failure) => Err(failure.to_string()),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_scan_gives_batches_until_the_end() {
    let text = "let ended = 0;
        udtf('f(n BIGINT) -> TABLE(a BIGINT, b BIGINT)', function* (n) {
          try { for (let i = 0; i < n; i++) yield i % 2 ? [i, -i] : { b: -i, a: i }; } finally { ended++; }
        });
        udf('ended(x BIGINT) -> BIGINT', () => ended);";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    open(guest, 0, None, 3).unwrap();
    assert_eq!(rows(guest, 2, 2).unwrap(), (vec![vec![Some(0), Some(1)], vec![Some(0), Some(-1)]], 0, false));
    assert_eq!(rows(guest, 2, 2).unwrap(), (vec![vec![Some(2)], vec![Some(-2)]], 0, true));
    open(guest, 0, Some(&[1]), i64::from(u32::MAX)).unwrap();
    assert_eq!(rows(guest, 2, 1).unwrap(), (vec![vec![Some(0), Some(-1)]], 0, false));
    assert!(matches!(guest.close(&AtomicU64::new(0)), Step::Done));
    open(guest, 0, Some(&[]), 5).unwrap();
    assert_eq!(rows(guest, 9, 0).unwrap(), (vec![], 0, true));
    assert_eq!(call(guest, 1, &[Some(1)]).unwrap(), [Some(3)]);
}

#[test]
fn a_row_that_fails_ends_the_scan_or_is_null() {
    for on_error in ["fail", "null"] {
        let text = format!(
            "udtf('f(n BIGINT) -> TABLE(a BIGINT, b BIGINT)', {{ on_error: '{on_error}' }}, function* (n) {{
               yield [1, 2]; yield [3, 'four']; yield new Error('mine'); yield [5]; yield [7, 8]; throw new Error('over');
             }});"
        );
        let mut fixture = load(&text).unwrap();
        let guest = &mut fixture.guest;
        open(guest, 0, None, 3).unwrap();
        let batch = rows(guest, 10, 2).unwrap();
        if on_error == "fail" {
            assert_eq!(batch, (vec![vec![Some(1)], vec![Some(2)]], 0, false));
            assert!(rows(guest, 10, 2).unwrap_err().contains("returned \"four\""));
        } else {
            let column = |first, last| vec![Some(first), None, None, None, Some(last)];
            assert_eq!(batch, (vec![column(1, 7), column(2, 8)], 3, false));
            assert!(rows(guest, 10, 2).unwrap_err().contains("over"));
        }
        assert!(matches!(guest.close(&AtomicU64::new(0)), Step::Done));
    }
}

#[test]
fn partitions_are_listed_as_text_and_scanned() {
    let text = "udtf('f(n BIGINT) -> TABLE(a BIGINT)',
        { partitions: (n) => [{ first: n }, new Map([['first', -n]])] },
        function* (partition, n) { yield partition instanceof Map ? partition.get('first') : partition.first; yield n; });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    let request = frame(&[&integers(&[Some(3)])], 1);
    let columns = batch::columns(bytemuck::cast_slice(&request), [DataType::BigInt].iter()).unwrap();
    let progress = AtomicU64::new(0);
    assert!(matches!(guest.open(0, Entry::Partitions, &columns, &progress), Step::Done));
    let listed = match guest.rows(10, &progress, News(&AtomicU64::new(0), 0)) {
        Step::Rows { results, rows, errors: 0, last: true } => frame(&[&results], rows),
        step => panic!("{step:?}"),
    };
    let listed = batch::column(bytemuck::cast_slice(&listed), &DataType::Varchar).unwrap();
    let partitions: Vec<_> =
        (0..listed.rows).map(|row| String::from_utf8(listed.bytes(row).to_vec())).collect();
    assert_eq!(partitions.len(), 2);
    for (partition, first) in partitions.into_iter().zip([3, -3]) {
        open_partition(guest, 0, Some(&partition.unwrap()), None, 3).unwrap();
        assert_eq!(rows(guest, 10, 1).unwrap(), (vec![vec![Some(first), Some(3)]], 0, true));
    }
}

/// Passes a batch of BIGINTs and DOUBLEs to a stream function.
fn map(guest: &mut Guest, function: usize, a: &[Option<i64>], b: &[f64]) -> Result<(), String> {
    let table: DataType = "STRUCT(a BIGINT, b DOUBLE)".parse().unwrap();
    let mut column = ColumnBuilder::new(&table);
    for (a, b) in a.iter().zip(b) {
        match a {
            Some(a) => column.children[0].fixed(*a),
            None => column.children[0].null(),
        }
        column.children[1].fixed(*b);
        column.nested().unwrap();
    }
    let request = frame(&[&column], a.len());
    let columns = batch::columns(bytemuck::cast_slice(&request), std::iter::once(&table)).unwrap();
    match guest.open(function, Entry::Map, &columns, &AtomicU64::new(0)) {
        Step::Done => Ok(()),
        Step::Failed(failure) => Err(failure.to_string()),
        step => panic!("{step:?}"),
    }
}

/// Passes a batch of two rows, with a NULL, and takes all resulting rows.
fn two(guest: &mut Guest, function: usize) -> Result<Rows, String> {
    map(guest, function, &[Some(1), None], &[2.5, 3.5])?;
    rows(guest, 100, 1)
}

#[test]
fn a_stream_function_takes_a_batch_and_yields_rows() {
    let declared = |options: &str, function: &str| {
        format!("udtf('f(t TABLE(a BIGINT, b DOUBLE)) -> TABLE(c BIGINT)', {options}, {function});\n")
    };
    let text = [
        declared(
            "{}",
            "function* (t) { for (const { a, b } of t) { yield a; yield [b * 2]; } yield t.length; }",
        ),
        declared("{}", "(t) => t.filter((row) => row.a === null).map((row) => ({ c: row.b + 0.5 }))"),
        declared("{}", "() => {}"),
        declared("{}", "async () => null"),
        declared("{}", "async function* (t) { await null; for (const { a } of t) yield a; }"),
        declared("{}", "async (t) => [t.length]"),
        declared("{}", "() => 5"),
        declared(
            "{ vectorized: true }",
            "function* ({ a, b }) { yield [a]; yield { c: [b.constructor === Float64Array ? 1 : 0, a.constructor === Array ? 1 : 0] }; }",
        ),
        declared("{ vectorized: true }", "({ b }) => ({ c: b.map((x) => x * 2) })"),
        declared("{ vectorized: true }", "() => undefined"),
        declared(
            "{ on_error: 'null' }",
            "function* () { yield 1; yield new Error('mine'); yield 'x'; throw new Error('over'); }",
        ),
        "udf('slow(x BIGINT) -> BIGINT', async (x) => { await null; return x + 1; });".to_owned(),
    ];
    let mut fixture = load(&text.concat()).unwrap();
    let guest = &mut fixture.guest;
    let some = |values: &[i64]| vec![values.iter().map(|value| Some(*value)).collect::<Vec<_>>()];
    assert_eq!(two(guest, 0).unwrap(), (vec![vec![Some(1), Some(5), None, Some(7), Some(2)]], 0, true));
    assert_eq!(two(guest, 1).unwrap(), (some(&[4]), 0, true));
    for nothing in [2, 3, 9] {
        assert_eq!(two(guest, nothing).unwrap(), (vec![vec![]], 0, true));
    }
    assert_eq!(two(guest, 4).unwrap(), (vec![vec![Some(1), None]], 0, true));
    assert_eq!(two(guest, 5).unwrap(), (some(&[2]), 0, true));
    assert!(two(guest, 6).unwrap_err().contains("returned 5 where rows are due"));
    assert_eq!(two(guest, 7).unwrap(), (vec![vec![Some(1), None, Some(1), Some(1)]], 0, true));
    map(guest, 7, &[Some(1), Some(2)], &[0.0; 2]).unwrap();
    // A column without a NULL is a typed array.
    assert_eq!(rows(guest, 100, 1).unwrap(), (some(&[1, 2, 1, 0]), 0, true));
    assert_eq!(two(guest, 8).unwrap(), (some(&[5, 7]), 0, true));
    assert_eq!(two(guest, 10).unwrap(), (vec![vec![Some(1), None, None]], 2, false));
    assert!(rows(guest, 100, 1).unwrap_err().contains("over"));
    // A stream function works after another scan has ended.
    assert_eq!(two(guest, 4).unwrap(), (vec![vec![Some(1), None]], 0, true));
    assert_eq!(call(guest, 11, &[Some(1)]).unwrap(), [Some(2)]);
    // A batch may be empty.
    map(guest, 0, &[], &[]).unwrap();
    assert_eq!(rows(guest, 100, 1).unwrap(), (some(&[0]), 0, true));
}

#[test]
fn a_stream_function_makes_batches_on_demand() {
    let text = "let ended = 0;
        udtf('f(t TABLE(a BIGINT, b DOUBLE)) -> TABLE(c BIGINT)', function* (t) {
          try { for (let i = 0; ; i++) yield i; } finally { ended++; }
        });
        udf('ended(x BIGINT) -> BIGINT', () => ended);";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    map(guest, 0, &[Some(1)], &[1.0]).unwrap();
    for batch in 0..3 {
        let expected: Vec<_> = (0..100).map(|row| Some(100 * batch + row)).collect();
        assert_eq!(rows(guest, 100, 1).unwrap(), (vec![expected], 0, false));
    }
    assert!(matches!(guest.close(&AtomicU64::new(0)), Step::Done));
    assert_eq!(call(guest, 1, &[Some(1)]).unwrap(), [Some(1)]);
}

/// A scan has no rows of the scan before it.
#[test]
fn a_scan_that_failed_to_begin_has_no_rows() {
    let text = "let made = 0;
        udtf('f(n BIGINT) -> TABLE(a BIGINT)', function* (n) { yield n; yield n; });
        udtf('g(t TABLE(a BIGINT, b DOUBLE)) -> TABLE(c BIGINT)', class {
          batches = 0;
          constructor() { if (++made === 1) throw new Error('not yet'); }
          *call(t) { yield ++this.batches; yield made; }
        });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    for _ in 0..2 {
        open(guest, 0, None, 3).unwrap();
        assert_eq!(rows(guest, 10, 1).unwrap(), (vec![vec![Some(3), Some(3)]], 0, true));
        assert!(open(guest, 0, None, 1 << 60).unwrap_err().contains("beyond 2^53"));
        assert!(!matches!(guest.rest(), Step::Rows { .. }), "the rows of another scan");
    }
    open(guest, 0, None, 3).unwrap();
    assert_eq!(rows(guest, 10, 1).unwrap(), (vec![vec![Some(3), Some(3)]], 0, true));
    let failure = guest.set_up(1).unwrap_err().unwrap();
    assert!(failure.set_up && failure.message.contains("not yet"), "{failure}");
    assert!(!matches!(guest.rest(), Step::Rows { .. }), "the rows of another function");
    assert!(guest.needs_set_up(1));
    guest.set_up(1).unwrap();
    assert!(!guest.needs_set_up(1));
    for batch in 1..4 {
        assert_eq!(two(guest, 1).unwrap(), (vec![vec![Some(batch), Some(2)]], 0, true));
    }
}

#[test]
fn wrong_declarations_of_stream_functions_are_errors_with_a_place() {
    let refused = |signature: &str, options: &str| {
        let error = load(&format!("udtf('{signature}', {{ {options} }}, function* (t) {{}});")).err();
        let error = error.unwrap_or_else(|| panic!("{signature}, {options}"));
        assert!(error.traceback.contains(".js:1"), "{error}");
        error.message
    };
    let stream = "f(t TABLE(a BIGINT)) -> TABLE(c BIGINT)";
    for option in ["partitions: () => [1]", "projection: true", "cardinality: 5", "nulls: \"call\""] {
        let message = refused(stream, option);
        let name = option.split(':').next().unwrap();
        assert!(message.contains(&format!("a function of a TABLE has no option {name}")), "{message}");
    }
    for (signature, what) in [
        ("f(t TABLE(a BIGINT), x BIGINT) -> TABLE(c BIGINT)", "no parameter beside a TABLE"),
        ("f(t TABLE(a BIGINT)) -> BIGINT", "TABLE"),
        ("f(t TABLE) -> TABLE(c BIGINT)", "the columns of both tables are declared"),
        ("f(t TABLE(a BIGINT)) -> TABLE", "the columns of both tables are declared"),
    ] {
        let message = refused(signature, "");
        assert!(message.contains(what), "{message}");
    }
    for (declares, function) in
        [("udf", "(t) => t"), ("udaf", "class { update() {} merge() {} finish() {} }")]
    {
        let message = load(&format!("{declares}('{stream}', {function});"));
        assert!(message.err().unwrap().message.contains("TABLE"));
    }
}
