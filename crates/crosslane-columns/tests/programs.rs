//! Programs of a few operations, and the rows that leave them.

use crosslane::batch::Column;
use crosslane::{ColumnBuilder, DataType};
use crosslane_columns::{Evaluator, Source, Unsupported, compile};
use serde_json::{Value, json};

/// An expression in line 1.
fn of(node: Value) -> Value {
    json!([1, node])
}

fn variable(name: &str) -> Value {
    of(json!({ "variable": name }))
}

fn int(value: i64) -> Value {
    of(json!({ "int": value }))
}

fn text(value: &str) -> Value {
    of(json!({ "text": value }))
}

fn binary(operator: &str, left: Value, right: Value) -> Value {
    of(json!({ "binary": [operator, left, right] }))
}

fn call(name: &str, arguments: &[Value]) -> Value {
    of(json!({ "call": [name, arguments] }))
}

fn method(name: &str, object: Value, arguments: &[Value]) -> Value {
    of(json!({ "method": [name, object, arguments] }))
}

fn less(left: Value, right: Value) -> Value {
    of(json!({ "compare": [left, [["<", right]]] }))
}

fn give_back(value: Value) -> Value {
    json!({ "return": value })
}

fn source(parameters: &[&str], body: &[Value]) -> Source {
    serde_json::from_value(json!({ "parameters": parameters, "body": body })).unwrap()
}

/// A cell of a column.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Null,
    /// The row has left the program.
    Left,
    Bool(bool),
    Int(i64),
    Float(u64),
    Text(String),
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Cell::Int(value)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Cell::Float(value.to_bits())
    }
}

impl From<&str> for Cell {
    fn from(value: &str) -> Self {
        Cell::Text(value.to_owned())
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Cell::Bool(value)
    }
}

fn column(data_type: &DataType, cells: &[Cell]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(data_type);
    for cell in cells {
        match (cell, data_type) {
            (Cell::Int(value), DataType::Integer | DataType::Date) => column.fixed(*value as i32),
            (Cell::Int(value), _) => column.fixed(*value),
            (Cell::Float(bits), _) => column.fixed(*bits),
            (Cell::Text(value), _) => column.bytes(value.as_bytes()).unwrap(),
            (Cell::Bool(value), _) => column.boolean(*value),
            (Cell::Null | Cell::Left, _) => column.null(),
        }
    }
    column
}

fn cell(column: &Column<'_>, row: usize) -> Cell {
    match column.data_type {
        _ if !column.is_valid(row) => Cell::Null,
        DataType::Boolean => Cell::Bool(crosslane::batch::bit(column.data, row)),
        DataType::Integer | DataType::Date => Cell::Int(column.value::<i32>(row).into()),
        DataType::BigInt => Cell::Int(column.value(row)),
        DataType::Double => Cell::Float(column.value(row)),
        DataType::Float => f64::from(column.value::<f32>(row)).into(),
        _ => Cell::Text(String::from_utf8(column.bytes(row).to_vec()).unwrap()),
    }
}

/// The results of a function for columns. A parameter whose name begins with `n` may be NULL.
#[track_caller]
fn run(source: &Source, columns: &[(DataType, Vec<Cell>)], returns: DataType) -> Vec<Cell> {
    let parameters = columns.iter().zip(&source.parameters);
    let parameters: Vec<_> =
        parameters.map(|((data_type, _), name)| (data_type.clone(), name.starts_with('n'))).collect();
    let mut evaluator = Evaluator::new(compile(source, &parameters, &returns, false).unwrap());
    let built: Vec<_> = columns.iter().map(|(data_type, cells)| column(data_type, cells)).collect();
    let views: Vec<_> = built.iter().zip(columns).map(|(built, (of, _))| built.column(of)).collect();
    let rows = columns[0].1.len();
    let mut left = vec![0; rows.div_ceil(8)];
    let mut out = ColumnBuilder::new(&returns);
    let mut active = vec![0; rows.div_ceil(8)];
    for row in 0..rows {
        let mut seen = views.iter().zip(&parameters);
        let is_active = seen.all(|(view, (_, admits_null))| *admits_null || view.is_valid(row));
        active[row / 8] |= u8::from(is_active) << (row % 8);
    }
    let count = evaluator.run(&views, 0..rows, Some(&active), &mut left, &mut out).unwrap();
    let results = out.column(&returns);
    let is_left = |row| crosslane::batch::bit(&left, row);
    assert_eq!(count, (0..rows).filter(|row| is_left(*row)).count());
    (0..rows).map(|row| if is_left(row) { Cell::Left } else { cell(&results, row) }).collect()
}

/// The results of an expression of `a` and `b`.
#[track_caller]
fn of_two<T: Into<Cell> + Copy>(
    expression: Value,
    data_type: DataType,
    rows: &[(T, T)],
    returns: DataType,
) -> Vec<Cell> {
    let a = rows.iter().map(|(a, _)| (*a).into()).collect();
    let b = rows.iter().map(|(_, b)| (*b).into()).collect();
    run(&source(&["a", "b"], &[give_back(expression)]), &[(data_type.clone(), a), (data_type, b)], returns)
}

#[track_caller]
fn ints(operator: &str, rows: &[(i64, i64)]) -> Vec<Cell> {
    of_two(binary(operator, variable("a"), variable("b")), DataType::BigInt, rows, DataType::BigInt)
}

#[track_caller]
fn floats(operator: &str, rows: &[(f64, f64)]) -> Vec<Cell> {
    of_two(binary(operator, variable("a"), variable("b")), DataType::Double, rows, DataType::Double)
}

/// The results of an expression of the text `a`.
#[track_caller]
fn of_text(expression: Value, rows: &[&str], returns: DataType) -> Vec<Cell> {
    let cells = rows.iter().map(|text| (*text).into()).collect();
    run(&source(&["a"], &[give_back(expression)]), &[(DataType::Varchar, cells)], returns)
}

const LEFT: Cell = Cell::Left;
const NULL: Cell = Cell::Null;

#[test]
fn ints_leave_where_64_bits_end() {
    let most = i64::MAX;
    assert_eq!(ints("+", &[(1, 2), (most, 1), (-1, i64::MIN)]), [3.into(), LEFT, LEFT]);
    assert_eq!(ints("*", &[(-3, 4), (1 << 32, 1 << 32)]), [(-12).into(), LEFT]);
    assert_eq!(
        ints("//", &[(7, 2), (-7, 2), (7, -2), (1, 0), (i64::MIN, -1)]),
        [3.into(), (-4).into(), (-4).into(), LEFT, LEFT]
    );
    assert_eq!(
        ints("%", &[(7, 3), (-7, 3), (7, -3), (1, 0), (i64::MIN, -1)]),
        [1.into(), 2.into(), (-2).into(), LEFT, 0.into()]
    );
    assert_eq!(
        ints("<<", &[(1, 62), (1, 63), (1, -1), (0, 1000)]),
        [(1i64 << 62).into(), LEFT, LEFT, 0.into()]
    );
    assert_eq!(ints(">>", &[(-8, 1), (-8, 100), (1, -1)]), [(-4).into(), (-1).into(), LEFT]);
}

#[test]
fn division_of_ints_is_exact_or_leaves() {
    let rows = [(1, 3), ((1 << 53) + 1, 3), (1, 0)];
    let results =
        of_two(binary("/", variable("a"), variable("b")), DataType::BigInt, &rows, DataType::Double);
    assert_eq!(results, [(1.0 / 3.0).into(), LEFT, LEFT]);
}

#[test]
fn floats_are_those_of_python() {
    assert_eq!(floats("/", &[(1.0, 4.0), (1.0, -0.0)]), [0.25.into(), LEFT]);
    // The sign is the sign of the divisor. This holds for a zero, too.
    assert_eq!(floats("%", &[(5.5, -2.0), (4.0, -2.0), (1.0, 0.0)]), [(-0.5).into(), (-0.0).into(), LEFT]);
    assert_eq!(floats("//", &[(-7.0, 2.0), (1.0, -0.1)]), [(-4.0).into(), (-10.0).into()]);
    assert_eq!(
        floats("**", &[(-2.0, 3.0), (2.0, 0.5), (-2.0, 0.5), (10.0, 400.0), (0.0, 2.0)]),
        [(-8.0).into(), 2f64.sqrt().into(), LEFT, LEFT, LEFT]
    );
}

#[test]
fn rounding_is_that_of_the_decimal_number() {
    let round = |rows: &[f64], digits| {
        let rows: Vec<_> = rows.iter().map(|x| (*x, 0.0)).collect();
        of_two(call("round", &[variable("a"), int(digits)]), DataType::Double, &rows, DataType::Double)
    };
    // The numbers 2.675 and 1.005 are less than they look. The numbers 0.125 and 2.5 are ties.
    let rows = [2.675, 1.005, 0.125, 0.375, -0.001, 1e300, f64::INFINITY];
    let expected = [2.67, 1.0, 0.12, 0.38, -0.0, 1e300, f64::INFINITY];
    assert_eq!(round(&rows, 2), expected.map(Cell::from));
    assert_eq!(round(&[2.5, 3.5, -0.5], 0), [2.0, 4.0, -0.0].map(Cell::from));
    // The result is no int at this point, and it is too large for the calculation.
    assert_eq!(round(&[4_503_599_627_370_495.5], 1), [LEFT]);
}

#[test]
fn functions_leave_where_python_raises() {
    let of = |name: &str, rows: &[f64], returns| {
        let rows: Vec<_> = rows.iter().map(|x| (*x, 0.0)).collect();
        of_two(call(name, &[variable("a")]), DataType::Double, &rows, returns)
    };
    assert_eq!(of("math.sqrt", &[4.0, -1.0], DataType::Double), [2.0.into(), LEFT]);
    assert_eq!(of("math.log", &[1.0, 0.0, -1.0], DataType::Double), [0.0.into(), LEFT, LEFT]);
    assert_eq!(
        of("math.exp", &[0.0, 1000.0, f64::INFINITY], DataType::Double),
        [1.0.into(), LEFT, f64::INFINITY.into()]
    );
    assert_eq!(of("int", &[-2.9, 1e19, f64::NAN], DataType::BigInt), [(-2).into(), LEFT, LEFT]);
    assert_eq!(of("round", &[2.5, 3.5], DataType::BigInt), [2.into(), 4.into()]);
}

#[test]
fn texts_that_are_not_ascii_leave_where_characters_count() {
    let a = || variable("a");
    let rows = [" Ab ", "É", "", "\x1c x"];
    assert_eq!(
        of_text(method("lower", a(), &[]), &rows, DataType::Varchar),
        [" ab ".into(), LEFT, "".into(), "\x1c x".into()]
    );
    assert_eq!(
        of_text(method("strip", a(), &[]), &rows, DataType::Varchar),
        ["Ab".into(), LEFT, "".into(), "x".into()]
    );
    let replaced = method("replace", a(), &[text("é"), text("ee")]);
    assert_eq!(of_text(replaced, &["né", "ab"], DataType::Varchar), ["nee".into(), "ab".into()]);
    assert_eq!(
        of_text(call("len", &[a()]), &["né", "ab", ""], DataType::BigInt),
        [2.into(), 2.into(), 0.into()]
    );
    let part = of(json!({ "index": [method("split", a(), &[text("-")]), int(1)] }));
    assert_eq!(of_text(part, &["a-b-c", "a-", "a"], DataType::Varchar), ["b".into(), "".into(), LEFT]);
    let words = method("join", text("-"), &[method("split", a(), &[])]);
    assert_eq!(
        of_text(words, &["  Ab  c\t", "", "é a"], DataType::Varchar),
        ["Ab-c".into(), "".into(), LEFT]
    );
    let slice = of(json!({ "slice": [a(), int(-3), int(-1)] }));
    assert_eq!(of_text(slice, &["abcd", "ab", "é"], DataType::Varchar), ["bc".into(), "a".into(), LEFT]);
    assert_eq!(
        of_text(call("int", &[a()]), &["-12", "+7", " 1", "1_0", ""], DataType::BigInt),
        [(-12).into(), 7.into(), LEFT, LEFT, LEFT]
    );
    let label = of(json!({ "format": [a(), text("-"), int(-5)] }));
    assert_eq!(of_text(label, &["é"], DataType::Varchar), ["é--5".into()]);
}

#[test]
fn texts_that_would_fill_the_memory_leave() {
    let long = binary("*", variable("a"), int(1 << 40));
    assert_eq!(of_text(long, &["ab", ""], DataType::Varchar), [LEFT, "".into()]);
}

#[test]
fn branches_are_masks() {
    // if a < 0: a = -a; elif a < 10: return None
    // return 100 // a
    let a = || variable("a");
    let body = [
        json!({ "if": [less(a(), int(0)), [{ "assign": ["a", of(json!({ "unary": ["-", a()] }))] }],
            [{ "if": [less(a(), int(10)), [give_back(of(json!("none")))], []] }]] }),
        give_back(binary("//", int(100), a())),
    ];
    let rows = vec![(-7).into(), 0.into(), 25.into(), i64::MIN.into()];
    let results = run(&source(&["a"], &body), &[(DataType::BigInt, rows)], DataType::BigInt);
    // A division by 0 is an error only in the rows that divide.
    assert_eq!(results, [14.into(), NULL, 4.into(), LEFT]);
}

#[test]
fn a_row_leaves_before_a_statement_that_only_python_runs() {
    let body =
        [json!({ "if": [less(variable("a"), int(0)), [{ "leave": 2 }], []] }), give_back(variable("a"))];
    let results =
        run(&source(&["a"], &body), &[(DataType::BigInt, vec![1.into(), (-1).into()])], DataType::BigInt);
    assert_eq!(results, [1.into(), LEFT]);
}

#[test]
fn none_leaves_where_it_is_an_operand() {
    // 0 if n is None else n + 1, and n + 1
    let plus = || binary("+", variable("n"), int(1));
    let is_none = of(json!({ "compare": [variable("n"), [["is", of(json!("none"))]]] }));
    let rows = || vec![(DataType::BigInt, vec![1.into(), NULL])];
    let chosen = of(json!({ "if": [is_none, int(0), plus()] }));
    let results = run(&source(&["n"], &[give_back(chosen)]), &rows(), DataType::BigInt);
    assert_eq!(results, [2.into(), 0.into()]);
    assert_eq!(run(&source(&["n"], &[give_back(plus())]), &rows(), DataType::BigInt), [2.into(), LEFT]);
    assert_eq!(
        run(&source(&["n"], &[give_back(variable("n"))]), &rows(), DataType::BigInt),
        [1.into(), NULL]
    );
    // Rows with a NULL that the function does not want are not evaluated.
    let body = [give_back(binary("+", variable("a"), int(1)))];
    assert_eq!(run(&source(&["a"], &body), &rows(), DataType::BigInt), [2.into(), NULL]);
}

#[test]
fn results_must_fit_their_type() {
    let rows = vec![(DataType::BigInt, vec![1.into(), (1i64 << 31).into()])];
    let results = run(&source(&["a"], &[give_back(variable("a"))]), &rows, DataType::Integer);
    assert_eq!(results, [1.into(), LEFT]);
}

#[test]
fn operands_of_and_and_or_are_results() {
    let rows: Vec<_> = [(0, 5), (3, 5)].into();
    for (operator, expected) in [("and", [0.into(), 5.into()]), ("or", [5.into(), 3.into()])] {
        let expression = of(json!({ operator: [variable("a"), variable("b")] }));
        assert_eq!(of_two(expression, DataType::BigInt, &rows, DataType::BigInt), expected);
    }
}

#[test]
fn more_rows_than_a_chunk_keep_their_numbers() {
    let cells: Vec<Cell> = (0..100).map(|n| Cell::Int(if n == 90 { i64::MAX } else { n })).collect();
    let plus = source(&["a"], &[give_back(binary("+", variable("a"), int(1)))]);
    let built = column(&DataType::BigInt, &cells);
    let view = [built.column(&DataType::BigInt)];
    let mut evaluator =
        Evaluator::new(compile(&plus, &[(DataType::BigInt, false)], &DataType::BigInt, false).unwrap());
    let (mut left, mut out) = (vec![0; 13], ColumnBuilder::new(&DataType::BigInt));
    for rows in [0..64, 64..100] {
        evaluator.run(&view, rows, None, &mut left, &mut out).unwrap();
    }
    assert_eq!(left[90 / 8], 1 << (90 % 8));
    assert_eq!(cell(&out.column(&DataType::BigInt), 99), Cell::Int(100));
}

#[test]
fn reasons_have_lines() {
    let refused = |body: &[Value], returns| {
        let types = [(DataType::BigInt, false)];
        let Unsupported { line, reason } =
            compile(&source(&["a"], body), &types, &returns, false).unwrap_err();
        (line, reason)
    };
    let types =
        [json!({ "if": [less(variable("a"), int(0)), [give_back(text(""))], []] }), give_back(variable("a"))];
    assert_eq!(refused(&types, DataType::BigInt).1, "it returns values of several types");
    let unbound = [
        json!({ "if": [less(variable("a"), int(0)), [{ "assign": ["c", int(1)] }], []] }),
        give_back(json!([7, { "variable": "c" }])),
    ];
    let (line, reason) = refused(&unbound, DataType::BigInt);
    assert_eq!((line, &reason[..]), (7, "the variable c: only one branch of a condition assigns it"));
    assert_eq!(
        refused(&[give_back(variable("a"))], DataType::Varchar).1,
        "its results are not of type VARCHAR"
    );
    assert_eq!(refused(&[json!({ "leave": 3 })], DataType::BigInt).0, 3);
}

#[test]
fn texts_without_room_leave_in_all_functions() {
    let large = "x".repeat(9 << 20);
    let rows = [&large[..], &large[..], "a"];
    // Two of these texts together are too large.
    assert_eq!(of_text(method("upper", variable("a"), &[]), &rows, DataType::Varchar), [LEFT; 3]);
    let twice = binary("+", variable("a"), variable("a"));
    assert_eq!(of_text(twice, &rows, DataType::Varchar), [LEFT, LEFT, "aa".into()]);
}

/// The results of an expression of the days `a`.
#[track_caller]
fn of_days(expression: Value, rows: &[i64], returns: DataType) -> Vec<Cell> {
    let cells = rows.iter().map(|days| Cell::Int(*days)).collect();
    run(&source(&["a"], &[give_back(expression)]), &[(DataType::Date, cells)], returns)
}

#[test]
fn dates_leave_beyond_python_s_years() {
    let year = || of(json!({ "attribute": ["year", variable("a")] }));
    let rows = [0, -1, -719_162, 2_932_896, -719_163, 2_932_897, i64::from(i32::MAX)];
    assert_eq!(
        of_days(year(), &rows, DataType::BigInt),
        [1970.into(), 1969.into(), 1.into(), 9999.into(), LEFT, LEFT, LEFT]
    );
    let next = binary("+", variable("a"), of(json!({ "timedelta": 86_400_000_000_i64 * 2 - 1 })));
    assert_eq!(of_days(next, &[0, 2_932_896], DataType::Date), [1.into(), LEFT]);
    let leap_day = of(json!({ "replaced": [variable("a"), [["month", int(2)], ["day", int(29)]]] }));
    assert_eq!(of_days(leap_day, &[11_000, 0], DataType::Date), [11_016.into(), LEFT]);
    let weekday = method("weekday", variable("a"), &[]);
    assert_eq!(of_days(weekday, &[0, 4, -4], DataType::BigInt), [3.into(), 0.into(), 6.into()]);
}

#[test]
fn texts_of_dates_are_read_if_they_are_written_in_full() {
    let read = |format: &str, rows: &[&str]| {
        let parsed = call("datetime.strptime", &[variable("a"), text(format)]);
        of_text(method("strftime", parsed, &[text("%d.%m.%Y %H:%M")]), rows, DataType::Varchar)
    };
    assert_eq!(
        read("%Y%m%d", &["20240229", "20230229", "2024229", "20240229 "]),
        ["29.02.2024 00:00".into(), LEFT, LEFT, LEFT]
    );
    assert_eq!(read("%Y-%m-%d %H", &["0999-01-01 23", "1999-01-01 24"]), [LEFT, LEFT]);
    let days = || method("toordinal", call("date.fromisoformat", &[variable("a")]), &[]);
    assert_eq!(of_text(days(), &["0001-01-02", "2024-W01-1"], DataType::BigInt), [2.into(), LEFT]);
}

#[test]
fn look_ups_leave_where_python_raises() {
    let dict = || of(json!({ "dict": [[text("a"), text("é")], [int(1), of(json!("none"))]] }));
    let item = of(json!({ "index": [dict(), variable("a")] }));
    assert_eq!(of_text(item, &["a", "é", "b"], DataType::BigInt), [1.into(), NULL, LEFT]);
    let item = method("get", dict(), &[variable("a"), int(-1)]);
    assert_eq!(of_text(item, &["a", "é", "b"], DataType::BigInt), [1.into(), NULL, (-1).into()]);
    let tuple = of(json!({ "tuple": [text("x"), text("y")] }));
    let element = of(json!({ "index": [tuple, variable("a")] }));
    let rows = [(0, 0), (-1, 0), (2, 0), (-3, 0), (i64::MIN, 0)];
    assert_eq!(
        of_two(element, DataType::BigInt, &rows, DataType::Varchar),
        ["x".into(), "y".into(), LEFT, LEFT, LEFT]
    );
}

#[test]
fn formats_are_those_of_python() {
    let float = |format: &str, rows: &[f64]| {
        let rows: Vec<_> = rows.iter().map(|x| (*x, 0.0)).collect();
        let formatted = call("format", &[variable("a"), text(format)]);
        of_two(formatted, DataType::Double, &rows, DataType::Varchar)
    };
    assert_eq!(float(".2f", &[2.675, -0.0, f64::NAN]), ["2.67".into(), "-0.00".into(), LEFT]);
    assert_eq!(float(",.1f", &[1_234_567.25, 999.95]), ["1,234,567.2".into(), "1,000.0".into()]);
    assert_eq!(float("08.1f", &[-3.25]), ["-00003.2".into()]);
    assert_eq!(float("+.0%", &[0.125, 1e307]), ["+12%".into(), LEFT]);
    assert_eq!(float("", &[0.1, 1e16, 1e-5, 100.0]), ["0.1".into(), LEFT, LEFT, "100.0".into()]);
    // This number lies between two texts of 16 digits.
    assert_eq!(float("", &[91_925_538_395_648.0 + 0.125]), ["91925538395648.12".into()]);
    let centered = call("format", &[variable("a"), text("*^5")]);
    assert_eq!(of_text(centered, &["ab", "é"], DataType::Varchar), ["*ab**".into(), LEFT]);
}

#[test]
fn ints_that_are_returned_become_floats() {
    let rows = [(1, 0), (i64::MAX, 0)];
    assert_eq!(
        of_two(variable("a"), DataType::BigInt, &rows, DataType::Double),
        [1.0.into(), 9_223_372_036_854_775_808.0.into()]
    );
    let (types, plain) = ([(DataType::BigInt, false)], source(&["a"], &[give_back(variable("a"))]));
    let Unsupported { reason, .. } = compile(&plain, &types, &DataType::Double, true).unwrap_err();
    assert_eq!(reason, "its results are not of type DOUBLE");
    let rows = vec![(DataType::Double, vec![1.5.into(), 1e300.into(), f64::INFINITY.into()])];
    let narrow = run(&source(&["a"], &[give_back(variable("a"))]), &rows, DataType::Float);
    assert_eq!(narrow, [1.5.into(), LEFT, f64::INFINITY.into()]);
}
