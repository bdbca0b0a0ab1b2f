//! Tests of valid signatures and of texts that are not signatures.

use crate::types::signature::types_text;
use crate::types::*;

#[test]
fn a_database_has_types_of_its_own() {
    let mood: DataType = "ENUM('sad', 'ok')".parse().unwrap();
    let price: DataType = "DECIMAL(10,2)".parse().unwrap();
    let names =
        [("mood", &mood), ("shop.price", &price), ("Shop.MOOD", &price), ("my type", &mood), ("date", &mood)];
    let names: TypeNames = names.map(|(name, of)| (name.to_owned(), of.clone())).into_iter().collect();
    names.within(|| {
        for (text, of) in [
            ("Mood", "ENUM('sad', 'ok')"),
            ("mood[3]", "ENUM('sad', 'ok')[3]"),
            ("MAP(mood, shop.price)", "MAP(ENUM('sad', 'ok'), DECIMAL(10,2))"),
            ("SHOP.mood ARRAY", "DECIMAL(10,2)[]"),
            ("\"shop\".\"Price\"", "DECIMAL(10,2)"),
            ("\"my type\"", "ENUM('sad', 'ok')"),
            // A name of the database does not replace a built-in type of DuckDB.
            ("DATE", "DATE"),
            ("\"date\"", "ENUM('sad', 'ok')"),
        ] {
            assert_eq!(text.parse::<DataType>().unwrap().to_string(), of, "{text}");
        }
        let rows = "f(rows TABLE(a mood)) -> TABLE(b shop.price)".parse::<Signature>().unwrap();
        assert_eq!(rows.to_string(), "f(rows TABLE(a ENUM('sad', 'ok'))) -> TABLE(b DECIMAL(10,2))");
        let wrong = "f(x shop.mod) -> INT".parse::<Signature>().unwrap_err();
        assert_eq!(wrong.column, 5);
        assert!(
            wrong.what.ends_with("types of this database are date, mood, my type, shop.mood, shop.price")
        );
    });
    let unknown = "f(x mood) -> INT".parse::<Signature>().unwrap_err();
    assert_eq!(unknown.what, "expected a SQL type");
    let text = serde_json::to_string(&names).unwrap();
    assert_eq!(serde_json::from_str::<TypeNames>(&text).unwrap(), names);
}

#[test]
fn every_type_survives_its_own_text() {
    for text in [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "HUGEINT",
        "UHUGEINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(38,10)",
        "VARCHAR",
        "BLOB",
        "JSON",
        "BIT",
        "BIGNUM",
        "GEOMETRY",
        "DATE",
        "TIME",
        "TIME_NS",
        "TIMETZ",
        "UNION(num INTEGER, \"a tag\" VARCHAR[])",
        "TIMESTAMP_S",
        "TIMESTAMP_MS",
        "TIMESTAMP",
        "TIMESTAMP_NS",
        "TIMESTAMPTZ",
        "INTERVAL",
        "UUID",
        "ENUM('a', 'it''s')",
        "INTEGER[]",
        "INTEGER[3]",
        "INTEGER[][2][]",
        "MAP(VARCHAR, INTEGER[])",
        "STRUCT(a INTEGER, \"b c\" STRUCT(\"d\"\"e\" MAP(INTEGER, BLOB)[2]))",
    ] {
        assert_eq!(text.parse::<DataType>().unwrap().to_string(), text);
    }
}

#[test]
fn aliases_and_spacing() {
    let text = " f( a int ,b  timestamp with time zone , c numeric ( 5 , 2 ) [ ] )->double precision ";
    let parsed: Signature = text.parse().unwrap();
    assert_eq!(parsed.to_string(), "f(a INTEGER, b TIMESTAMPTZ, c DECIMAL(5,2)[]) -> DOUBLE");
    assert_eq!("f() -> INT".parse::<Signature>().unwrap().parameters, []);
}

#[test]
fn the_last_parameter_may_stand_for_any_number_of_arguments() {
    let parsed: Signature = "f( a int , * rest text [] ) -> int".parse().unwrap();
    assert_eq!(parsed.to_string(), "f(a INTEGER, *rest VARCHAR[]) -> INTEGER");
    assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
    assert_eq!(parsed.fixed(), &parsed.parameters[..1]);
    assert_eq!(parsed.rest(), Some(&"VARCHAR[]".parse().unwrap()));
    assert_eq!(parsed.parameters[1].data_type, "VARCHAR[][]".parse().unwrap());
    let pairs = [("a", "INTEGER"), ("rest", "VARCHAR[]")];
    assert_eq!(parsed.pairs(), pairs.map(|(name, data_type)| (name.to_owned(), data_type.to_owned())));
    let fixed: Signature = "f(a INT[]) -> INT".parse().unwrap();
    assert_eq!((fixed.rest(), fixed.fixed().len()), (None, 1));
    let most = "[]".repeat(MOST_LEVELS - 1);
    assert!(format!("f(*rest INT{most}) -> INT").parse::<Signature>().is_ok());
    for (text, what) in [
        ("f(*a INT, b INT) -> INT".to_owned(), "no parameter behind the one with a star"),
        ("f(*a INT, *b INT) -> INT".to_owned(), "no parameter behind the one with a star"),
        (format!("f(*rest INT{most}[]) -> INT"), "at most 64 levels"),
    ] {
        assert!(text.parse::<Signature>().unwrap_err().what.contains(what), "{text}");
    }
}

#[test]
fn a_result_may_be_a_table() {
    let parsed: Signature = "f( n int ) -> table ( i int , \"a b\" text [] )".parse().unwrap();
    assert_eq!(parsed.to_string(), "f(n INTEGER) -> TABLE(i INTEGER, \"a b\" VARCHAR[])");
    assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
    assert!(parsed.table);
    assert_eq!(parsed.returns.to_string(), "STRUCT(i INTEGER, \"a b\" VARCHAR[])");
    assert!(!"f() -> STRUCT(i INTEGER)".parse::<Signature>().unwrap().table);
    for (text, what) in [
        ("f() -> TABLE()", "a name"),
        ("f() -> TABLE(i INT, I INT)", "different names"),
        ("f() -> TABLE(i INT)[]", "the end"),
        ("f(x TABLE(i INT)) -> INT", "TABLE"),
    ] {
        let error = text.parse::<Signature>().unwrap_err();
        assert!(error.what.contains(what), "{text}: {error:?}");
    }
}

#[test]
fn a_parameter_may_take_any_type() {
    let parsed: Signature = "f( any any , x int, * rest Any ) -> int".parse().unwrap();
    assert_eq!(parsed.to_string(), "f(any ANY, x INTEGER, *rest ANY) -> INTEGER");
    assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
    assert!(parsed.takes_any());
    for (text, takes_any) in [
        ("f(x ANY) -> INT", true),
        ("f(x INT, *rest ANY) -> INT", true),
        ("f(x INT[], *rest INT) -> INT", false),
        ("f() -> INT", false),
    ] {
        assert_eq!(text.parse::<Signature>().unwrap().takes_any(), takes_any, "{text}");
    }
    for (types, called) in [
        ("(DATE, INTEGER)", "f(any DATE, x INTEGER) -> INTEGER"),
        (
            "(INTEGER[], INTEGER, BIGINT, ENUM('a)', 'b'))",
            r#"f(any INTEGER[], x INTEGER, "rest[0]" BIGINT, "rest[1]" ENUM('a)', 'b')) -> INTEGER"#,
        ),
    ] {
        let concrete = parsed.for_types(types).unwrap();
        assert_eq!((concrete.to_string().as_str(), concrete.takes_any()), (called, false));
        let types: Vec<_> = concrete.parameters.iter().map(|field| field.data_type.clone()).collect();
        assert_eq!(parsed.for_types(&types_text(&types)), Ok(concrete));
    }
    let any_number: Signature = "f(*rest ANY) -> INT".parse().unwrap();
    assert_eq!(any_number.for_types("()").unwrap().to_string(), "f() -> INTEGER");
    for types in ["()", "(DATE)", "(DATE, BIGINT)", "(DATE, ANY)", "DATE, INTEGER", "(DATE, INTEGER) ->"] {
        assert!(parsed.for_types(types).is_err(), "{types}");
    }
    assert!("f(x ANY) -> INT".parse::<Signature>().unwrap().for_types("(INT, INT)").is_err());
}

#[test]
fn other_names_of_types() {
    for (text, name) in [
        ("ROW(a INT32, b DEC(5, 1))", "STRUCT(a INTEGER, b DECIMAL(5,1))"),
        ("int array", "INTEGER[]"),
        ("INT4 ARRAY [2]", "INTEGER[2]"),
        ("INT[] ARRAY[]", "INTEGER[][]"),
        ("character varying (10)", "VARCHAR"),
        ("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP"),
        ("TIME WITHOUT TIME ZONE[]", "TIME[]"),
        ("time with time zone[]", "TIMETZ[]"),
        ("union ( a bitstring, b varint )", "UNION(a BIT, b BIGNUM)"),
        ("TIMESTAMP(3)", "TIMESTAMP_MS"),
        ("FLOAT(53)", "DOUBLE"),
    ] {
        assert_eq!(text.parse::<DataType>().unwrap().to_string(), name);
    }
    for (text, advice) in [
        ("f(x VARIANT[]) -> INT", "declare JSON"),
        ("f(x TIMESTAMPTZ_NS) -> INT", "declare TIMESTAMPTZ"),
        ("f(x UNION(a INT, A TEXT)) -> INT", "of different names"),
        ("f(x INT) -> MAP(INT, union(a VARIANT))", "than VARIANT, which functions cannot have"),
    ] {
        let error = text.parse::<Signature>().unwrap_err();
        assert!(error.what.contains(advice), "{text}: {error:?}");
    }
    assert!("f(x INT ARRAYS) -> INT".parse::<Signature>().is_err());
}

#[test]
fn a_stream_takes_a_table() {
    for (text, rows, returns) in [
        ("f(rows TABLE) -> TABLE", "ANY", "ANY"),
        ("f(rows TABLE(a BIGINT, \"b c\" VARCHAR)) -> TABLE(x DATE)", "STRUCT", "STRUCT"),
        ("f(\"all rows\" TABLE) -> TABLE", "ANY", "ANY"),
    ] {
        let signature: Signature = text.parse().unwrap();
        assert!(signature.stream && signature.table);
        assert!(signature.parameters[0].data_type.to_string().starts_with(rows), "{text}");
        assert!(signature.returns.to_string().starts_with(returns), "{text}");
        assert_eq!(signature.to_string(), text);
    }
    assert!(!"f(n BIGINT) -> TABLE(x DATE)".parse::<Signature>().unwrap().stream);
    for (text, what) in [
        ("f(n BIGINT) -> TABLE", "TABLE(column TYPE, ...) as "),
        ("f(rows TABLE(a INT)) -> INT", "TABLE"),
        ("f(rows TABLE, n BIGINT) -> TABLE", "no parameter beside a TABLE"),
        ("f(rows TABLE(a INT), n BIGINT) -> TABLE(a INT)", "no parameter beside a TABLE"),
        ("f(n INT, rows TABLE) -> TABLE", "as a function's only parameter"),
        ("f(n INT, rows TABLE(a INT)) -> TABLE(a INT)", "as a function's only parameter"),
        ("f(*rows TABLE(a INT)) -> TABLE(a INT)", "as a function's only parameter"),
        ("f(x TABLE[]) -> TABLE", "as a function's only parameter"),
        ("f(x STRUCT(a TABLE(b INT))) -> INT", "as a function's only parameter"),
        ("f(x TABLE()) -> TABLE(a INT)", "a name"),
    ] {
        let error = text.parse::<Signature>().unwrap_err();
        assert!(error.what.contains(what), "{text}: {error:?}");
    }
}

#[test]
fn types_nest_to_a_limit_in_no_time() {
    let nested = |levels: usize, open: &str, close: &str| {
        format!("f(x {}INTEGER{}) -> INTEGER", open.repeat(levels), close.repeat(levels))
    };
    for (open, close) in [
        ("", "[]"),
        ("", "[2]"),
        ("STRUCT(a ", ")"),
        ("MAP(INTEGER, ", ")"),
        ("STRUCT(a MAP(INTEGER, ", "[]))"),
    ] {
        let each = (open.matches('(').count() + close.matches('[').count()).max(1);
        let most = MOST_LEVELS / each;
        let deepest: Signature = nested(most, open, close).parse().unwrap();
        assert_eq!(deepest.parameters[0].data_type.levels(), most * each);
        assert_eq!(deepest.to_string().parse(), Ok(deepest));
        for levels in [most + 1, 8_000, 200_000] {
            let error = nested(levels, open, close).parse::<Signature>().unwrap_err();
            assert!(error.what.contains("at most 64 levels"), "{}", error.what);
        }
    }
    let error = nested(200_000, "", "[]").parse::<Signature>().unwrap_err().to_string();
    assert!(error.len() < 300, "{error}");
    let error = "f(x INT[0]) -> INT".parse::<Signature>().unwrap_err().to_string();
    assert!(error.ends_with("at column 11:\n  f(x INT[0]) -> INT\n            ^"), "{error}");
    assert!("f(x VARCHAR) -> ENUM('((((')".parse::<Signature>().is_ok());
}

#[test]
fn errors_point_at_the_place() {
    for (text, column, what) in [
        ("f(x BIGNIT) -> INT", 5, "SQL type"),
        ("f(x ANY) -> ANY", 13, "ANY is for parameters"),
        ("f(x ANY[]) -> INT", 5, "ANY is for parameters"),
        ("f(x ANY array) -> INT", 5, "ANY is for parameters"),
        ("f(x STRUCT(a ANY)) -> INT", 14, "ANY is for parameters"),
        ("f(x INT) INT", 10, "->"),
        ("f(x INT -> INT", 9, ")"),
        ("(x INT) -> INT", 1, "function name"),
        ("f(x DECIMAL(39,1)) -> INT", 18, "precision"),
        ("f(x INT[0]) -> INT", 11, "at least 1"),
        ("f(x STRUCT(a INT, A INT)) -> INT", 25, "fields (or columns) of different names"),
        ("f(x INT) -> INT extra", 17, "the end"),
    ] {
        let error = text.parse::<Signature>().unwrap_err();
        assert!(error.what.contains(what) && error.column == column, "{text}: {error:?}");
    }
}
