//! Arrays in forms that no engine in the tests makes, and invalid arrays.

use super::{Batch, Schema};
use crosslane::ColumnBuilder;
use crosslane::display::value;
use libduckdb_sys as ffi;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// An array, its schema, and all that they point to.
#[derive(Default)]
struct Made {
    format: CString,
    name: CString,
    metadata: Vec<u8>,
    length: i64,
    offset: i64,
    nulls: i64,
    buffers: Vec<Option<Vec<u8>>>,
    children: Vec<Made>,
    dictionary: Option<Box<Made>>,
    pointers: Vec<*const c_void>,
    schemas: Vec<ffi::ArrowSchema>,
    arrays: Vec<ffi::ArrowArray>,
    schema_places: Vec<*mut ffi::ArrowSchema>,
    array_places: Vec<*mut ffi::ArrowArray>,
}

fn made(format: &str, length: i64, buffers: Vec<Option<Vec<u8>>>) -> Made {
    Made { format: CString::new(format).unwrap(), length, buffers, ..Made::default() }
}

fn bytes<T: bytemuck::Pod>(values: &[T]) -> Option<Vec<u8>> {
    Some(bytemuck::cast_slice(values).to_vec())
}

fn texts(values: &[&str]) -> Made {
    let mut ends = vec![0i32];
    values.iter().for_each(|value| ends.push(ends[ends.len() - 1] + value.len() as i32));
    made("u", values.len() as i64, vec![None, bytes(&ends), Some(values.concat().into_bytes())])
}

fn longs(values: &[i64]) -> Made {
    made("l", values.len() as i64, vec![None, bytes(values)])
}

impl Made {
    fn of(mut self, children: Vec<Made>) -> Self {
        self.children = children;
        self
    }

    fn named(mut self, name: &str) -> Self {
        self.name = CString::new(name).unwrap();
        self
    }

    fn nulls(mut self, bitmap: &[u8]) -> Self {
        self.buffers[0] = Some(bitmap.to_vec());
        self.nulls = -1;
        self
    }

    /// The array without its first rows, and with this number of rows.
    fn cut(mut self, offset: i64, length: i64) -> Self {
        (self.offset, self.length) = (offset, length);
        self
    }

    fn extension(mut self, name: &str, metadata: &str) -> Self {
        self.metadata = 2i32.to_ne_bytes().to_vec();
        for text in ["ARROW:extension:name", name, "ARROW:extension:metadata", metadata] {
            self.metadata.extend((text.len() as i32).to_ne_bytes());
            self.metadata.extend(text.as_bytes());
        }
        self
    }

    fn dictionary(mut self, values: Made) -> Self {
        self.dictionary = Some(Box::new(values));
        self
    }

    fn raw(&mut self) -> (ffi::ArrowSchema, ffi::ArrowArray) {
        let parts = self.children.iter_mut().chain(self.dictionary.as_deref_mut());
        (self.schemas, self.arrays) = parts.map(Made::raw).unzip();
        self.schema_places = self.schemas.iter_mut().map(|schema| &raw mut *schema).collect();
        self.array_places = self.arrays.iter_mut().map(|array| &raw mut *array).collect();
        let dictionary = self.dictionary.as_ref().map(|_| self.children.len());
        self.pointers = self
            .buffers
            .iter()
            .map(|buffer| buffer.as_ref().map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast()))
            .collect();
        let schema = ffi::ArrowSchema {
            format: self.format.as_ptr(),
            name: self.name.as_ptr(),
            metadata: if self.metadata.is_empty() { std::ptr::null() } else { self.metadata.as_ptr().cast() },
            n_children: self.children.len() as i64,
            children: self.schema_places.as_mut_ptr(),
            dictionary: dictionary.map_or(null_mut(), |at| self.schema_places[at]),
            ..ffi::ArrowSchema::empty()
        };
        let array = ffi::ArrowArray {
            length: self.length,
            null_count: self.nulls,
            offset: self.offset,
            n_buffers: self.buffers.len() as i64,
            n_children: self.children.len() as i64,
            buffers: self.pointers.as_mut_ptr(),
            children: self.array_places.as_mut_ptr(),
            dictionary: dictionary.map_or(null_mut(), |at| self.array_places[at]),
            ..ffi::ArrowArray::empty()
        };
        (schema, array)
    }
}

/// The type and the values of a column, or the reason why it is refused.
fn read(column: Made) -> Result<(String, Vec<String>), String> {
    let length = column.length;
    read_rows(made("+s", length, vec![None]).of(vec![column.named("x")]))
}

fn read_rows(mut rows: Made) -> Result<(String, Vec<String>), String> {
    let (schema, array) = rows.raw();
    // SAFETY: both are whole, and live until the end.
    unsafe {
        let schema = Schema::new(&schema)?;
        let data_type = schema.columns().next().map(|(_, data_type)| data_type.clone()).unwrap();
        let mut out = ColumnBuilder::new(&data_type);
        let batch = Batch::new(&schema, &array)?;
        // The batch is read in two parts.
        let half = batch.rows() / 2;
        for part in [0..half, half..batch.rows()] {
            batch.append(0, part, &mut out).map_err(|why| why.to_string())?;
        }
        let column = out.column(&data_type);
        assert_eq!(column.rows, batch.rows());
        Ok((data_type.to_string(), (0..column.rows).map(|row| value(&column, row)).collect()))
    }
}

#[track_caller]
fn reads(column: Made, data_type: &str, values: &[&str]) {
    let (known, found) = read(column).unwrap();
    assert_eq!(
        (&known[..], found.iter().map(|value| &value[..]).collect::<Vec<_>>()),
        (data_type, values.to_vec())
    );
}

#[track_caller]
fn refuses(column: Made, part: &str) {
    let refused = read(column).unwrap_err();
    assert!(refused.contains(part), "{refused}");
}

#[test]
fn plain_values_and_slices() {
    reads(longs(&[1, 2, 3]), "BIGINT", &["1", "2", "3"]);
    reads(longs(&[1, 2, 3, 4]).nulls(&[0b1011]).cut(1, 3), "BIGINT", &["2", "NULL", "4"]);
    reads(texts(&["a", "", "äb"]).nulls(&[0b101]).cut(1, 2), "VARCHAR", &["NULL", "'äb'"]);
    reads(
        made("b", 9, vec![None, Some(vec![0b10, 1])]).cut(1, 8),
        "BOOLEAN",
        &["true", "false", "false", "false", "false", "false", "false", "true"],
    );
    reads(
        made("e", 6, vec![None, bytes(&[0x3C00u16, 0xC100, 0x0001, 0x7C00, 0x7BFF, 0x8000])]),
        "FLOAT",
        &["1.0", "-2.5", "5.9604645e-8", "inf", "65504.0", "-0.0"],
    );
    reads(made("n", 2, vec![]), "VARCHAR", &["NULL", "NULL"]);
    let large = made("U", 2, vec![None, bytes(&[1i64, 3, 4]), Some(b"xaby".to_vec())]);
    reads(large, "VARCHAR", &["'ab'", "'y'"]);
    reads(
        made("w:2", 3, vec![None, Some(b"aabbcc".to_vec())]).cut(1, 2),
        "BLOB",
        &["BLOB '\\x62\\x62'", "BLOB '\\x63\\x63'"],
    );
    // Texts without bytes need no buffer. An array without rows needs no buffer at all.
    reads(made("u", 2, vec![None, bytes(&[0i32, 0, 0]), None]), "VARCHAR", &["''", "''"]);
    reads(made("u", 0, vec![None, None, None]), "VARCHAR", &[]);
}

#[test]
fn views() {
    let view = |length: i32, rest: &[u8]| {
        let mut view = length.to_ne_bytes().to_vec();
        view.extend(rest);
        view.resize(16, 0);
        view
    };
    let outside = |length: i32, buffer: i32, offset: i32| {
        view(
            length,
            &[b"abcd".to_vec(), buffer.to_ne_bytes().to_vec(), offset.to_ne_bytes().to_vec()].concat(),
        )
    };
    let of = |views: Vec<Vec<u8>>| {
        let buffers = [b"thirteen chars".to_vec(), b"..another text here".to_vec()];
        let sizes = bytes(&[14i64, 19]);
        let [first, second] = buffers.map(Some);
        made("vu", views.len() as i64, vec![None, Some(views.concat()), first, second, sizes])
    };
    let views =
        vec![view(3, b"abc"), outside(14, 0, 0), outside(17, 1, 2), view(0, b""), view(12, b"twelve chars")];
    let due = ["'thirteen chars'", "'another text here'", "''", "'twelve chars'"];
    reads(of(views).cut(1, 4), "VARCHAR", &due);
    refuses(of(vec![outside(14, 2, 0)]), "a view of 14 bytes of buffer 2 from 0 on");
    refuses(of(vec![outside(15, 0, 0)]), "a view of 15 bytes of buffer 0");
    refuses(of(vec![outside(14, 0, -1)]), "from -1 on");
    refuses(of(vec![outside(-1, 0, 0)]), "a view of -1 bytes");
}

#[test]
fn units() {
    let of = |format: &str, values: &[i64]| made(format, values.len() as i64, vec![None, bytes(values)]);
    let short = |format: &str, values: &[i32]| made(format, values.len() as i64, vec![None, bytes(values)]);
    reads(short("tdD", &[0, 19_782]), "DATE", &["DATE 1970-01-01", "DATE 2024-02-29"]);
    reads(of("tdm", &[-86_400_000]), "DATE", &["DATE 1969-12-31"]);
    refuses(of("tdm", &[1]), "no multiple of 86400000");
    reads(short("tts", &[3661]), "TIME", &["TIME 01:01:01.000000"]);
    reads(short("ttm", &[1500]), "TIME", &["TIME 00:00:01.500000"]);
    reads(of("ttn", &[1_000_000_001]), "TIME_NS", &["TIME_NS 00:00:01.000000001"]);
    let moment = ["2024-02-29 12:00:00"];
    for (format, unit) in [("tss:", 1), ("tsm:", 1_000), ("tsu:", 1_000_000), ("tsn:", 1_000_000_000)] {
        let value = 1_709_208_000 * unit;
        let (known, found) = read(of(format, &[value])).unwrap();
        assert!(known.starts_with("TIMESTAMP") && found[0].contains(moment[0]), "{known} {found:?}");
        let zoned = read(of(&format!("{format}Europe/Berlin"), &[value])).unwrap();
        assert!(zoned.0 == "TIMESTAMPTZ" && zoned.1[0].contains(moment[0]), "{zoned:?}");
    }
    refuses(of("tsn:UTC", &[1_000_000_001]), "no multiple of 1000: the unit is finer than SQL's");
    refuses(of("tss:UTC", &[i64::MAX]), "does not fit 64 bits");
    let found = |column| read(column).unwrap().1.concat();
    assert_eq!(found(of("tDs", &[2])), found(of("tDm", &[2_000])));
    assert_eq!(found(of("tDu", &[2_000_000])), found(of("tDn", &[2_000_000_000])));
    let parts: Vec<u8> =
        [bytes(&[1i32, 2]), bytes(&[3_000_000_000i64])].into_iter().flatten().flatten().collect();
    let nanos = found(made("tin", 2, vec![None, Some(parts.repeat(2))]).cut(1, 1));
    assert!(nanos.contains('1') && nanos.contains('2') && nanos.contains('3'), "{nanos}");
    assert_eq!(found(short("tiM", &[7])), found(made("tin", 1, vec![None, bytes(&[7i64, 0])])));
    assert_eq!(
        found(short("tiD", &[2, 3]).cut(0, 1)),
        found(made("tin", 1, vec![None, bytes(&[2i64 << 32, 3_000_000])]))
    );
}

#[test]
fn decimals_of_every_width() {
    reads(made("d:4,1,32", 2, vec![None, bytes(&[15i32, -9999])]), "DECIMAL(4,1)", &["1.5", "-999.9"]);
    reads(made("d:18,2,64", 1, vec![None, bytes(&[-5i64])]), "DECIMAL(18,2)", &["-0.05"]);
    reads(made("d:38,0", 1, vec![None, bytes(&[-7i128])]), "DECIMAL(38,0)", &["-7"]);
    reads(made("d:38,1,256", 2, vec![None, bytes(&[-7i128, -1, 8, 0])]), "DECIMAL(38,1)", &["-0.7", "0.8"]);
    refuses(made("d:38,1,256", 1, vec![None, bytes(&[7i128, 1])]), "more than 38 digits");
    refuses(
        made("d:76,1,256", 1, vec![None, bytes(&[7i128, 0])]),
        "a decimal of 76 digits, 1 of them behind",
    );
    refuses(made("d:3,-2", 1, vec![None, bytes(&[7i128])]), "cast it");
}

#[test]
fn dictionaries_and_runs() {
    let words = || texts(&["zero", "one", "two", "three"]).nulls(&[0b1011]).cut(1, 3);
    for (format, codes) in [
        ("c", bytes(&[9i8, 0, 1, 2])),
        ("C", bytes(&[9u8, 0, 1, 2])),
        ("S", bytes(&[9u16, 0, 1, 2])),
        ("i", bytes(&[9i32, 0, 1, 2])),
        ("L", bytes(&[9u64, 0, 1, 2])),
    ] {
        let column = made(format, 4, vec![None, codes]).cut(1, 3).dictionary(words());
        reads(column, "VARCHAR", &["'one'", "NULL", "'three'"]);
    }
    let wrong = |codes: &[i8]| made("c", 1, vec![None, bytes(codes)]).dictionary(words());
    refuses(wrong(&[3]), "index 3 of a dictionary of 3 values");
    refuses(wrong(&[-1]), "index -1 of a dictionary");
    refuses(made("C", 1, vec![None, bytes(&[255u8])]).dictionary(words()), "index 255 of");
    // The dictionary is inside of lists, and its values are lists.
    let codes = made("c", 5, vec![None, bytes(&[2i8, 0, 1, 0, 2])]).nulls(&[0b10111]).dictionary(words());
    let lists = made("+l", 3, vec![None, bytes(&[0i32, 1, 3, 5])]).of(vec![codes]);
    reads(lists.cut(1, 2), "VARCHAR[]", &["['one', NULL]", "[NULL, 'three']"]);
    let numbers = made("+l", 2, vec![None, bytes(&[0i32, 2, 3])]).of(vec![longs(&[1, 2, 3])]);
    reads(
        made("c", 3, vec![None, bytes(&[1i8, 0, 1])]).dictionary(numbers),
        "BIGINT[]",
        &["[3]", "[1, 2]", "[3]"],
    );

    let runs = |ends: &[i32]| {
        let ends = made("i", ends.len() as i64, vec![None, bytes(ends)]).named("run_ends");
        made("+r", 5, vec![]).of(vec![ends, longs(&[7, 8, 9]).nulls(&[0b101]).named("values")])
    };
    reads(runs(&[1, 3, 6]), "BIGINT", &["7", "NULL", "NULL", "9", "9"]);
    reads(runs(&[1, 3, 6]).cut(2, 3), "BIGINT", &["NULL", "9", "9"]);
    refuses(runs(&[1, 3, 4]), "3 runs, which end before row 4");
}

#[test]
fn parts_begin_where_each_array_says() {
    // Each level has its own rows before the rows that count.
    let inner = || {
        let numbers = longs(&[90, 91, 92, 0, 1, 2, 3]).nulls(&[0b110_1111]).cut(2, 5).named("n");
        let words = texts(&["x", "y", "z", "a", "b", "c"]).cut(1, 5).named("w");
        made("+s", 5, vec![None]).nulls(&[0b11011]).of(vec![numbers, words]).cut(1, 4)
    };
    reads(
        inner(),
        "STRUCT(n BIGINT, w VARCHAR)",
        &["{n = 0, w = 'z'}", "NULL", "{n = 2, w = 'b'}", "{n = 3, w = 'c'}"],
    );
    let outer = || made("+s", 4, vec![None]).of(vec![inner().named("s")]).cut(1, 3);
    reads(
        outer(),
        "STRUCT(s STRUCT(n BIGINT, w VARCHAR))",
        &["{s = NULL}", "{s = {n = 2, w = 'b'}}", "{s = {n = 3, w = 'c'}}"],
    );
    // The rows of the stream begin at their own offset, too.
    let rows = made("+s", 2, vec![None]).of(vec![outer()]).cut(1, 2);
    assert_eq!(read_rows(rows).unwrap().1, ["{s = {n = 2, w = 'b'}}", "{s = {n = 3, w = 'c'}}"]);
    let rows = made("+s", 3, vec![None]).nulls(&[0b101]).of(vec![longs(&[1, 2, 3])]);
    assert_eq!(read_rows(rows).unwrap().1, ["1", "NULL", "3"]);
    let pairs = made("+w:2", 3, vec![None]).of(vec![longs(&[9, 0, 1, 2, 3, 4, 5]).cut(1, 6)]);
    reads(pairs.cut(1, 2).nulls(&[0b101]), "BIGINT[2]", &["NULL", "[4, 5]"]);
}

#[test]
fn lists_of_every_kind() {
    let large =
        made("+L", 2, vec![None, bytes(&[1i64, 2, 4])]).of(vec![longs(&[9, 0, 1, 2]).nulls(&[0b1011])]);
    reads(large, "BIGINT[]", &["[0]", "[NULL, 2]"]);
    for (format, places, sizes) in [
        ("+vl", bytes(&[2i32, 0, 0]), bytes(&[2i32, 3, 0])),
        ("+vL", bytes(&[2i64, 0, 0]), bytes(&[2i64, 3, 0])),
    ] {
        let views = made(format, 3, vec![None, places, sizes]).of(vec![longs(&[9, 0, 1, 2, 3]).cut(1, 4)]);
        reads(views, "BIGINT[]", &["[2, 3]", "[0, 1, 2]", "[]"]);
    }
    let entries = made("+s", 3, vec![None])
        .of(vec![texts(&["a", "b", "c"]).named("key"), longs(&[1, 2, 3]).named("value")]);
    let maps = made("+m", 2, vec![None, bytes(&[0i32, 1, 3])]).of(vec![entries.named("entries")]);
    assert_eq!(read(maps).unwrap().0, "MAP(VARCHAR, BIGINT)");
    let none = made("+w:0", 2, vec![None]).of(vec![longs(&[])]);
    reads(none, "BIGINT[]", &["[]", "[]"]);
    let list = |ends: &[i32]| made("+l", 1, vec![None, bytes(ends)]).of(vec![longs(&[1, 2])]);
    refuses(list(&[0, 3]), "a list of elements 0 to 3 out of 2");
    refuses(list(&[2, 1]), "a list of elements 2 to 1");
    refuses(list(&[-1, 1]), "a list of elements -1 to 1");
    refuses(made("u", 1, vec![None, bytes(&[2i32, 1]), Some(b"ab".to_vec())]), "bytes from 2 to 1");
}

#[test]
fn unions() {
    let members = || {
        vec![
            longs(&[10, 11, 12, 13]).nulls(&[0b1110]).named("n"),
            texts(&["a", "b", "c", "d"]).nulls(&[0b1011]).named("w"),
        ]
    };
    let sparse = made("+us:5,2", 4, vec![bytes(&[5i8, 5, 2, 2])]).of(members());
    reads(sparse, "UNION(n BIGINT, w VARCHAR)", &["NULL", "n := 11", "w := NULL", "w := 'd'"]);
    let sparse = made("+us:5,2", 4, vec![bytes(&[5i8, 5, 2, 2])]).of(members()).cut(1, 3);
    reads(sparse, "UNION(n BIGINT, w VARCHAR)", &["n := 11", "w := NULL", "w := 'd'"]);
    let dense = |ids: &[i8], places: &[i32]| {
        made("+ud:0,1", ids.len() as i64, vec![bytes(ids), bytes(places)]).of(members())
    };
    reads(
        dense(&[0, 1, 1, 0], &[1, 0, 3, 3]).cut(1, 3),
        "UNION(n BIGINT, w VARCHAR)",
        &["w := 'a'", "w := 'd'", "n := 13"],
    );
    refuses(dense(&[7], &[0]), "a union's type 7, which its schema does not have");
    refuses(dense(&[0], &[4]), "an array of 4 rows, which is asked for row 4");
    refuses(dense(&[0], &[-1]), "a union's row -1");
}

#[test]
fn extensions() {
    let opaque = |name: &str| format!("{{\"type_name\":\"{name}\",\"vendor_name\":\"DuckDB\"}}");
    let wide = || made("w:16", 1, vec![None, bytes(&[7u128])]);
    reads(wide().extension("arrow.opaque", &opaque("hugeint")), "HUGEINT", &["7"]);
    reads(wide().extension("arrow.opaque", &opaque("uhugeint")), "UHUGEINT", &["7"]);
    assert_eq!(
        read(wide().extension("arrow.opaque", "{\"type_name\":\"hugeint\",\"vendor_name\":\"X\"}"))
            .unwrap()
            .0,
        "BLOB"
    );
    assert_eq!(read(wide().extension("arrow.uuid", "")).unwrap().0, "UUID");
    assert_eq!(read(wide().extension("some.other", "")).unwrap().0, "BLOB");
    reads(
        made("c", 2, vec![None, bytes(&[0i8, 5])]).extension("arrow.bool8", ""),
        "BOOLEAN",
        &["false", "true"],
    );
    reads(texts(&["[1]"]).extension("arrow.json", ""), "JSON", &["'[1]'"]);
    let bit = made("z", 1, vec![None, bytes(&[0i32, 2]), Some(vec![3, 0b1111_0110])]);
    reads(bit.extension("arrow.opaque", &opaque("bit")), "BIT", &["'10110'"]);
    // For a dictionary and for runs, the extension type applies to the values.
    let runs =
        |values: Made| made("+r", 2, vec![]).of(vec![made("i", 1, vec![None, bytes(&[2i32])]), values]);
    let dictionary = |values: Made| made("c", 2, vec![None, bytes(&[0i8, 0])]).dictionary(values);
    let nested = |values: Made| dictionary(runs(values));
    let blob = |value: &[u8]| made("z", 1, vec![None, bytes(&[0, value.len() as i32]), bytes(value)]);
    let long = || made("w:8", 1, vec![None, bytes(&[82_799_000_000_000_u64])]);
    let encoded: [&dyn Fn(Made) -> Made; 3] = [&runs, &dictionary, &nested];
    for encode in encoded {
        let twice = |values: Made, (name, metadata): (&str, &str), data_type, value| {
            reads(encode(values).extension(name, metadata), data_type, &[value, value]);
        };
        let duckdb = |values: Made, name: &str, data_type, value| {
            twice(values, ("arrow.opaque", &opaque(name)), data_type, value);
        };
        duckdb(wide(), "hugeint", "HUGEINT", "7");
        duckdb(wide(), "uhugeint", "UHUGEINT", "7");
        duckdb(blob(&[3, 0b1111_0110]), "bit", "BIT", "'10110'");
        duckdb(blob(&[0x80, 0, 1, 5]), "bignum", "BIGNUM", r"BLOB '\x05\x00'");
        assert_eq!(read(encode(long()).extension("arrow.opaque", &opaque("time_tz"))).unwrap().0, "TIMETZ");
        assert_eq!(read(encode(wide()).extension("arrow.uuid", "")).unwrap().0, "UUID");
        assert_eq!(read(encode(blob(b"a")).extension("geoarrow.wkb", "")).unwrap().0, "GEOMETRY");
        twice(made("c", 1, vec![None, bytes(&[5i8])]), ("arrow.bool8", ""), "BOOLEAN", "true");
        twice(texts(&["[1]"]), ("arrow.json", ""), "JSON", "'[1]'");
        twice(texts(&["[1]"]).extension("arrow.json", ""), ("arrow.json", ""), "JSON", "'[1]'");
        twice(texts(&["a"]), ("some.other", ""), "VARCHAR", "'a'");
    }
}

#[test]
fn types_without_counterpart_are_named() {
    refuses(made("+s", 1, vec![None]), "column 1 (x): a STRUCT without fields has no counterpart");
    let fields = |one: &str, other: &str| {
        made("+s", 1, vec![None]).of(vec![longs(&[1]).named(one), longs(&[1]).named(other)])
    };
    refuses(fields("a", "A"), "column 1 (x): a STRUCT has two fields named A");
    refuses(fields("a", ""), "a field has no name");
    refuses(made("what", 1, vec![]), "column 1 (x): Arrow's type what has no counterpart");
    refuses(
        made("+l", 1, vec![None, None]).of(vec![made("?", 0, vec![]).named("item")]),
        "column 1 (x): in item: Arrow's type ?",
    );
    refuses(made("w:x", 1, vec![]), "Arrow's type w:x has no counterpart");
    refuses(made("+us:0,0", 1, vec![]).of(vec![longs(&[1]).named("a"), longs(&[1]).named("b")]), "+us:0,0");
    let deep = (0..70).fold(longs(&[]), |list, _| made("+l", 0, vec![None, None]).of(vec![list]));
    refuses(deep, "a type of more than 64 levels has no counterpart");
    let mut plain = longs(&[1]);
    let (schema, _) = plain.raw();
    // SAFETY: the schema is whole.
    assert!(unsafe { Schema::new(&schema) }.unwrap_err().contains("the stream is not one of rows"));
}

#[test]
fn invalid_arrays_are_refused() {
    refuses(made("l", 1, vec![None]), "an array of 1 buffers, where 2 are due");
    refuses(made("l", 1, vec![None, None]), "without one of its buffers");
    refuses(made("u", 1, vec![None, bytes(&[0i32, 1]), None]), "without one of its buffers");
    refuses(longs(&[1]).cut(-1, 1), "an array of 1 rows from -1 on");
    let mut nulls = longs(&[1]);
    nulls.nulls = 1;
    refuses(nulls, "an array with 1 NULLs and no validity");
    refuses(made("+s", 2, vec![None]).of(vec![longs(&[1]).named("a")]), "a child of 1 rows, where 2 belong");
    refuses(made("+w:2", 2, vec![None]).of(vec![longs(&[1, 2, 3])]), "a child of 3 rows, where 4 belong");
    let huge = made("+w:99999", i64::MAX, vec![None]).of(vec![longs(&[1])]);
    refuses(huge, "lists of 99999 elements");
    let mut rows = made("+s", 3, vec![None]).of(vec![longs(&[1, 2]).named("x")]);
    assert!(read_rows(std::mem::take(&mut rows)).unwrap_err().contains("a child of 2 rows, where 3 belong"));
    // There are more buffers than a list of them could have.
    let mut long = made("+s", 1, vec![None]).of(vec![longs(&[1]).named("x")]);
    let (schema, array) = long.raw();
    // SAFETY: both are valid except for one number, and the check finds that.
    unsafe { (**array.children).n_buffers = i64::MAX };
    // SAFETY: as above.
    let refused = unsafe { Batch::new(&Schema::new(&schema).unwrap(), &array).unwrap_err() };
    assert_eq!(refused, format!("column x: an array of {} buffers, where 2 are due", i64::MAX));
    // This schema belongs to another array.
    let mut one = made("+s", 1, vec![None]).of(vec![longs(&[1]).named("a")]);
    let mut two = made("+s", 1, vec![None]).of(vec![longs(&[1]).named("a"), longs(&[1]).named("b")]);
    let ((schema, _), (_, array)) = (one.raw(), two.raw());
    // SAFETY: both are whole.
    let refused = unsafe { Batch::new(&Schema::new(&schema).unwrap(), &array).unwrap_err() };
    assert!(refused.contains("an array of 2 columns, where the stream's schema has 1"), "{refused}");
}
