//! The guest in this process: batches in, results or failures out. (`python/tests` has it behind an engine.)

use crosslane::batch::{self, Encode, Header, Plan};
use crosslane::{ColumnBuilder, DataType, Entry, Failure};
use crosslane_js::guest::{Answer, Guest, News, Step};
use crosslane_js::isolate::{Host, Reason};
use crosslane_js::library::Library;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Isolates of different snapshots cannot live in one process at once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone)]
struct Log(mpsc::Sender<String>);

impl Host for Log {
    fn print(&mut self, _: bool, text: &str) {
        let _ = self.0.send(text.to_owned());
    }
    fn fatal(&mut self, _: Reason, what: &str) {
        eprintln!("{what}");
    }
}

struct Fixture {
    guest: Guest,
    library: Arc<Library>,
    log: mpsc::Receiver<String>,
    _one: MutexGuard<'static, ()>,
}

fn load(text: &str) -> Result<Fixture, Failure> {
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join(format!("crosslane-guest-{}.js", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let (sender, log) = mpsc::channel();
    let host = Log(sender);
    let library = Arc::new(Library::load(&path, Duration::from_secs(10), host.clone())?);
    let guest = Guest::boot(&library, Box::new(host)).unwrap();
    Ok(Fixture { guest, library, log, _one: one })
}

/// A frame of columns at an address that is a multiple of 8.
fn frame(columns: &[&dyn Encode], rows: usize) -> Vec<u64> {
    let mut plan = Plan::default();
    columns.iter().for_each(|column| column.plan(&mut plan));
    let mut words = vec![0u64; plan.size().div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
    let mut body = plan.start(bytes, Header { rows: rows as u32, ..Header::default() });
    columns.iter().for_each(|column| column.write(&mut body));
    words
}

fn integers(values: &[Option<i64>]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    for value in values {
        match value {
            Some(value) => column.fixed(*value),
            None => column.null(),
        }
    }
    column
}

/// Calls a function of one BIGINT; its results, or the failure's text and row.
fn call(
    guest: &mut Guest,
    function: usize,
    values: &[Option<i64>],
) -> Result<Vec<Option<i64>>, (String, Option<usize>)> {
    let request = frame(&[&integers(values)], values.len());
    let types = [DataType::BigInt];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let progress = AtomicU64::new(0);
    match guest.answer(function, &columns, values.len(), &progress) {
        Answer::Done(results, _) => {
            let reply = frame(&[&results], values.len());
            let columns = batch::columns(bytemuck::cast_slice(&reply), types.iter()).unwrap();
            Ok((0..values.len()).map(|row| columns[0].is_valid(row).then(|| columns[0].value(row))).collect())
        }
        Answer::Failed(failure, row) => Err((failure.to_string(), row)),
        Answer::Closed => Err(("closed".into(), None)),
        Answer::Nothing(_) => Ok(Vec::new()),
    }
}

fn texts(values: &[Option<&str>]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::Varchar);
    column.reserve(values.len()).unwrap();
    for value in values {
        match value {
            Some(value) => column.bytes(value.as_bytes()).unwrap(),
            None => column.null(),
        }
    }
    column
}

/// Calls a function of one VARCHAR; its results, or the failure's text.
fn call_with_texts(
    guest: &mut Guest,
    function: usize,
    values: &[Option<&str>],
) -> Result<Vec<Option<String>>, String> {
    let request = frame(&[&texts(values)], values.len());
    let types = [DataType::Varchar];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    match guest.answer(function, &columns, values.len(), &AtomicU64::new(0)) {
        Answer::Done(results, _) => {
            let reply = frame(&[&results], values.len());
            let column = batch::column(bytemuck::cast_slice(&reply), &types[0]).unwrap();
            let text = |row| String::from_utf8(column.bytes(row).to_vec()).unwrap();
            Ok((0..values.len()).map(|row| column.is_valid(row).then(|| text(row))).collect())
        }
        Answer::Failed(failure, _) => Err(failure.to_string()),
        Answer::Closed => Err("closed".into()),
        Answer::Nothing(_) => Ok(Vec::new()),
    }
}

#[test]
fn texts_of_all_lengths_come_back() {
    let text = "udf('f(x VARCHAR) -> VARCHAR', (x) => x);
        udf('v(x VARCHAR) -> VARCHAR', { vectorized: true }, (x) => x);
        udf('u(x VARCHAR) -> VARCHAR', (x) => x + x.length);";
    let mut fixture = load(text).unwrap();
    let long = "0123456789abc".repeat(100);
    let short = [Some(""), Some("a"), None, Some("ab"), Some("0123456789ab")];
    for function in 0..2 {
        for values in [
            &short[..],
            // Mostly long ones; none; and what is no ASCII, or no Latin-1.
            &[Some("0123456789abc"), None, Some(&long), Some("a")],
            &[Some("a"), Some("b"), Some(&long), Some("0123456789abc"), Some("c"), Some(&long), Some("d")],
            &[],
            &[None],
            &[Some("a"), Some("\u{fc}"), Some("c")],
            &[Some("a"), Some("\u{20ac}\u{1f600}"), Some("\u{fc}"), Some("d")],
        ] {
            let expected: Vec<_> = values.iter().map(|value| value.map(String::from)).collect();
            assert_eq!(call_with_texts(&mut fixture.guest, function, values).unwrap(), expected);
        }
    }
    let lengths = call_with_texts(&mut fixture.guest, 2, &short).unwrap();
    assert_eq!(lengths[3..], [Some("ab2".into()), Some("0123456789ab12".into())]);
}

#[test]
fn a_text_that_is_kept_keeps_no_batch() {
    let text = "const kept = [];
        udf('keep(x VARCHAR) -> VARCHAR', { memory_limit: '20 MB' }, (x) => {
          if (x < '01') kept.push(x);
          return x;
        });";
    let mut fixture = load(text).unwrap();
    for kept in ["000000000000", "0000000000000"] {
        let mut values = [Some("111111111111"); 2048];
        values[0] = Some(kept);
        // The texts of all batches together have 37 MB.
        for _ in 0..1500 {
            call_with_texts(&mut fixture.guest, 0, &values).unwrap();
        }
    }
}

#[test]
fn integers_of_all_sizes_and_nulls_come_back() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', { bigint: true }, (x) => x);").unwrap();
    let values =
        [Some(0), Some(-1), None, Some(i64::MIN), Some(i64::MAX), Some(1 << 53), Some(-(1 << 31) - 1)];
    assert_eq!(call(&mut fixture.guest, 0, &values).unwrap(), values);
    assert_eq!(call(&mut fixture.guest, 0, &[]).unwrap(), []);
    assert_eq!(call(&mut fixture.guest, 0, &[None; 3]).unwrap(), [None; 3]);
}

#[test]
fn numbers_are_exact_or_refused() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x + 1);").unwrap();
    let most = (1 << 53) - 2;
    for x in [0, -1, -2, 1 << 31, (1 << 31) - 1, -(1 << 31) - 1, 1 << 32, -(1 << 32), most, -most] {
        assert_eq!(call(&mut fixture.guest, 0, &[Some(x)]).unwrap(), [Some(x + 1)]);
    }
    let (message, row) = call(&mut fixture.guest, 0, &[Some(1), Some(1 << 60)]).unwrap_err();
    assert!(message.contains("beyond 2^53"), "{message}");
    assert_eq!(row, Some(1));
}

#[test]
fn a_call_ends_from_another_thread_and_the_isolate_goes_on() {
    let text = "udf('f(x BIGINT) -> BIGINT', (x) => { while (x === 3) {} return x; });";
    let mut fixture = load(text).unwrap();
    let handle = Arc::clone(fixture.guest.handle());
    for reason in [Reason::Timeout, Reason::Closed] {
        let (handle, over) = (Arc::clone(&handle), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&over);
        let ender = std::thread::spawn(move || {
            // What comes before the call has begun ends nothing.
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                handle.end(reason, true);
            }
        });
        let (message, _) = call(&mut fixture.guest, 0, &[Some(1), Some(3)]).unwrap_err();
        over.store(true, Relaxed);
        assert!(
            message.contains(if reason == Reason::Timeout { "TimeoutError" } else { "closed" }),
            "{message}"
        );
        ender.join().unwrap();
        assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    }
    // What comes when nothing runs ends nothing.
    handle.end(Reason::Timeout, true);
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
}

#[test]
fn memory_of_a_vectorized_call_is_taken_away() {
    let text = "let kept = [];
        udf('keep(x BIGINT) -> BIGINT', { vectorized: true, bigint: true }, (x) => (kept.push(x), x));
        udf('kept(x BIGINT) -> BIGINT', (x) => kept[Number(x)].length + kept.length);";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(7), Some(8)]).unwrap(), [Some(7), Some(8)]);
    assert_eq!(call(&mut fixture.guest, 1, &[Some(0)]).unwrap(), [Some(1)]);
}

#[test]
fn garbage_of_a_set_up_gives_no_call_more_memory() {
    let text = "udf('f(x BIGINT) -> BIGINT', class {
          constructor() { for (const all = []; all.length < 30;) all.push(new Array(1.2e6).fill(0.5)); }
          call(x) { return x; }
        });
        udf('g(x BIGINT) -> BIGINT', { memory_limit: '50 MB' }, (x) => {
          const all = [];
          while (all.length < x) all.push(new Array(1.25e5).fill(0.5));
          return x;
        });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    guest.set_up(0).unwrap();
    assert_eq!(call(guest, 1, &[Some(30)]), Ok(vec![Some(30)]));
    let (failure, _) = call(guest, 1, &[Some(100)]).unwrap_err();
    assert!(failure.contains("the function's memory_limit"), "{failure}");
}

#[test]
fn memory_that_was_refused_and_not_missed_is_not_why_a_call_fails() {
    let text = "udf('f(x BIGINT) -> BIGINT', (x) => {
        try {
          if (x !== 2) new ArrayBuffer(2 ** 30);
        } catch (error) {
          if (x === 3) throw error;
        }
        if (x > 1) throw new RangeError('mine');
        return x;
      });";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    // In a later call, and in the same one.
    for rows in [&[Some(2)][..], &[Some(1), Some(2)]] {
        let (message, _) = call(&mut fixture.guest, 0, rows).unwrap_err();
        assert!(message.starts_with("RangeError: mine"), "{message}");
        assert!(!fixture.guest.is_spent());
    }
    let (message, _) = call(&mut fixture.guest, 0, &[Some(3)]).unwrap_err();
    assert!(message.contains("more than 537 MB were used"), "{message}");
}

#[test]
fn warming_up_changes_nothing_but_the_code() {
    let text = "let calls = 0;
        udf('calls(x BIGINT) -> BIGINT', { warmup: [[5], [6]] }, (x) => { console.log('called'); return ++calls; });";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    assert_eq!(fixture.log.try_iter().collect::<Vec<_>>(), ["called\n"]);
    let mut other = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
    assert_eq!(call(&mut other, 0, &[Some(1)]).unwrap(), [Some(1)]);
}

#[test]
fn isolates_of_two_snapshots_are_refused() {
    let fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x);").unwrap();
    let bytes: &'static [u8] = fixture.library.snapshot.bytes().to_vec().leak();
    // SAFETY: they are a copy of a snapshot of this build.
    let copy = unsafe { crosslane_js::snapshot::Snapshot::from_bytes(bytes) };
    let second = Arc::new(Library {
        snapshot: Arc::new(copy),
        functions: fixture.library.functions.clone(),
        text: String::new(),
        time: fixture.library.time,
    });
    let boot = || Guest::boot(&second, Box::new(Log(mpsc::channel().0)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(boot)).is_err());
    drop(fixture.guest);
    boot().unwrap();
}

#[test]
fn an_isolate_that_finds_no_room_is_an_error() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x);").unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let held = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = held.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: the calls read and write the limit alone.
    let boot = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
        // V8 reserves 128 MB for the code of an isolate.
        let least = libc::rlimit { rlim_cur: pages * 4096 + (100 << 20), ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &least), 0);
        let boot = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0)));
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        boot
    };
    let message = boot.err().unwrap().to_string();
    assert_eq!(message, "V8 found no memory for its heap: the system gives the process no more");
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
}

#[test]
fn a_file_that_cannot_be_loaded_says_where() {
    let failure = load("const a = 1;\nnull.x;").err().unwrap();
    assert_eq!(failure.class, "TypeError");
    assert!(failure.traceback.contains(":2:6"), "{failure}");
    assert!(load("udf('f(x BIGINT) -> BIGINT', (x) => x);").is_ok());
}

/// Opens a scan of a table function of one BIGINT, of the columns at these places.
fn open(guest: &mut Guest, function: usize, wanted: Option<&[i32]>, n: i64) -> Result<(), String> {
    let list = DataType::List(Arc::new(DataType::Integer));
    let mut places = ColumnBuilder::new(&list);
    match wanted {
        Some(wanted) => {
            wanted.iter().for_each(|place| places.children[0].fixed(*place));
            places.nested().unwrap();
        }
        None => places.null(),
    }
    let request = frame(&[&texts(&[None]), &places, &integers(&[Some(n)])], 1);
    let types = [DataType::Varchar, list, DataType::BigInt];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    match guest.open(function, Entry::Scan, &columns, &AtomicU64::new(0)) {
        Step::Done => Ok(()),
        Step::Failed(failure) => Err(failure.to_string()),
        step => panic!("{step:?}"),
    }
}

/// Columns of BIGINTs, how many rows failed, and whether there are no more.
type Rows = (Vec<Vec<Option<i64>>>, u32, bool);

/// The next batch of a scan.
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
fn a_row_that_fails_is_the_end_or_null() {
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

/// Has a stream function make something of a batch of BIGINTs and DOUBLEs.
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

/// A batch of two rows, with a NULL.
fn two(guest: &mut Guest, function: usize) -> Result<Rows, String> {
    map(guest, function, &[Some(1), None], &[2.5, 3.5])?;
    rows(guest, 100, 1)
}

#[test]
fn a_stream_function_gets_a_batch_and_gives_rows() {
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
    // Without a NULL it is an array of numbers.
    assert_eq!(rows(guest, 100, 1).unwrap(), (some(&[1, 2, 1, 0]), 0, true));
    assert_eq!(two(guest, 8).unwrap(), (some(&[5, 7]), 0, true));
    assert_eq!(two(guest, 10).unwrap(), (vec![vec![Some(1), None, None]], 2, false));
    assert!(rows(guest, 100, 1).unwrap_err().contains("over"));
    // What comes behind a scan that came to its end is none.
    assert_eq!(two(guest, 4).unwrap(), (vec![vec![Some(1), None]], 0, true));
    assert_eq!(call(guest, 11, &[Some(1)]).unwrap(), [Some(2)]);
    // An empty batch is one.
    map(guest, 0, &[], &[]).unwrap();
    assert_eq!(rows(guest, 100, 1).unwrap(), (some(&[0]), 0, true));
}

#[test]
fn a_stream_function_makes_batches_as_they_are_wanted() {
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

/// What one scan has left is not for the next.
#[test]
fn a_scan_that_does_not_begin_has_no_rows() {
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
fn what_makes_no_sense_of_a_stream_function_is_an_error_where_it_is_declared() {
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

/// What a constructor begins may be awaited by any batch, and what a batch has left running is cleared.
#[test]
fn the_timers_of_a_set_up_stay() {
    let text = "const later = (time, value) => new Promise((done) => setTimeout(done, time, value));
        class Ready {
          ready = later(30, 5);
          // Starts its timer when the constructor has ended.
          begun = this.begin();
          ticks = 0;
          constructor() { setInterval(() => { this.ticks++; }, 5); }
          async begin() { await null; return await later(20, 2); }
        }
        udf('f(x BIGINT) -> BIGINT', class extends Ready {
          async call(x) { return x + await this.ready + await this.begun; }
        });
        udf('g(x BIGINT) -> BIGINT', { vectorized: true }, class extends Ready {
          async call(x) { const more = await this.ready; return x.map((one) => one + more); }
        });
        let left = 0;
        udf('leaves(x BIGINT) -> BIGINT', { concurrency: 2 }, async (x) => {
          setTimeout(() => { left++; }, 1);
          return await null ?? x;
        });
        udf('left(x BIGINT) -> BIGINT', async () => (await later(30), left));
        udf('ticks(x BIGINT) -> BIGINT', class extends Ready {
          async call(x) { const before = this.ticks; await later(40); return this.ticks > before ? 1 : 0; }
        });
        udf('fails(x BIGINT) -> BIGINT', class {
          constructor() { setTimeout(() => { left += 1000; }, 1); throw new Error('no'); }
          call(x) { return x; }
        });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    for function in [0, 1, 4] {
        guest.set_up(function).unwrap();
    }
    guest.set_up(5).unwrap_err();
    // Batches of others come between.
    for _ in 0..2 {
        assert_eq!(call(guest, 2, &[Some(1)]), Ok(vec![Some(1)]));
        assert_eq!(call(guest, 3, &[Some(1)]), Ok(vec![Some(0)]));
    }
    for _ in 0..2 {
        assert_eq!(call(guest, 0, &[Some(1), Some(2)]), Ok(vec![Some(8), Some(9)]));
        assert_eq!(call(guest, 1, &[Some(1), Some(2)]), Ok(vec![Some(6), Some(7)]));
        assert_eq!(call(guest, 4, &[Some(1)]), Ok(vec![Some(1)]));
    }
}

#[test]
fn a_tear_down_that_fails_says_of_which_function() {
    let text = "udf('f(x BIGINT) -> BIGINT', class {\n call(x) { return x; }\n close() { throw new RangeError('no'); } });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    // There is nothing to end.
    guest.tear_down(0).unwrap();
    guest.set_up(0).unwrap();
    let failure = guest.tear_down(0).unwrap_err().unwrap().to_string();
    assert!(failure.starts_with("RangeError: no\n  in the tear-down of f, declared at /"), "{failure}");
    assert!(failure.contains(".js:1\n    at ") && failure.contains(".js:3:"), "{failure}");
    assert!(guest.needs_set_up(0));
}

/// What a file gives to all objects is nothing that a function has.
#[test]
fn what_all_objects_have_declares_nothing() {
    let text =
        "Object.prototype.call = Object.prototype.close = () => { throw new Error('of all objects'); };
        Object.prototype.instance = { call: () => 99 };
        Object.prototype.stateful = true;
        udf('f(x BIGINT) -> BIGINT', (x) => x + 1);
        udf('g(x BIGINT) -> BIGINT', function (x) { return x + 2; });
        class Base { call(x) { return x + this.added; } }
        udf('h(x BIGINT) -> BIGINT', class extends Base { static length = 3; added = 3; });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    guest.set_up(2).unwrap();
    for (function, added) in [(0, 1), (1, 2), (2, 3)] {
        assert!(!guest.needs_set_up(function));
        assert_eq!(call(guest, function, &[Some(10)]), Ok(vec![Some(10 + added)]));
    }
    guest.tear_down(2).unwrap();
    drop(fixture);
    for (declares, message) in [
        ("udf('f(x BIGINT) -> BIGINT', class Model {})", "Model has no method call"),
        (
            "udaf('f(x BIGINT) -> BIGINT', class Total { update() {} finish() {} })",
            "Total has no method merge",
        ),
    ] {
        let error =
            load(&format!("Object.prototype.call = Object.prototype.merge = () => 1;\n{declares};")).err();
        assert!(error.unwrap().message.contains(message));
    }
}

/// Does an entry of an aggregate with columns; its results as integers, or the failure's text.
fn enter(guest: &mut Guest, entry: Entry, columns: &[Vec<i64>]) -> Result<(Vec<Option<i64>>, u32), String> {
    let rows = columns[0].len();
    let built: Vec<ColumnBuilder> = columns
        .iter()
        .map(|column| integers(&column.iter().copied().map(Some).collect::<Vec<_>>()))
        .collect();
    let built: Vec<&dyn Encode> = built.iter().map(|column| column as &dyn Encode).collect();
    let request = frame(&built, rows);
    let types = vec![DataType::BigInt; columns.len()];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    match guest.enter(0, entry, &columns, rows, &AtomicU64::new(0)) {
        Answer::Done(results, mishaps) => {
            let reply = frame(&[&results], rows);
            let columns = batch::columns(bytemuck::cast_slice(&reply), types[..1].iter()).unwrap();
            let value = |row| columns[0].is_valid(row).then(|| columns[0].value(row));
            Ok(((0..rows).map(value).collect(), mishaps.errors))
        }
        Answer::Nothing(mishaps) => Ok((Vec::new(), mishaps.errors)),
        Answer::Failed(failure, _) => Err(failure.to_string()),
        Answer::Closed => Err("closed".into()),
    }
}

/// Combines two states.
fn combine(guest: &mut Guest, target: i64, source: i64, keep: bool) {
    let mut flag = ColumnBuilder::new(&DataType::Boolean);
    flag.boolean(keep);
    let request = frame(&[&integers(&[Some(target)]), &integers(&[Some(source)]), &flag], 1);
    let types = [DataType::BigInt, DataType::BigInt, DataType::Boolean];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let done = guest.enter(0, Entry::Combine, &columns, 1, &AtomicU64::new(0));
    assert!(matches!(done, Answer::Nothing(_)), "{done:?}");
}

const TOTALS: [&str; 3] = [
    "class Total { sum = [0]; update(x) { if (x < 0) throw new Error('below'); this.sum[0] += x; }
       merge(other) { this.sum[0] += other.sum[0]; } finish() { return this.sum[0]; } }
     udaf('total(x BIGINT) -> BIGINT', { on_error: 'null' }, Total);",
    "udaf('total(x BIGINT) -> BIGINT', { on_error: 'null' }, { start: () => 0,
       update(s, x) { if (x < 0) throw new Error('below'); return s + x; }, merge: (a, b) => a + b, finish: (s) => s });",
    "class Total { sum = 0n; update(x) { for (const one of x) if (one < 0) throw new Error('below');
         x.forEach((one) => { this.sum += BigInt(one); }); }
       merge(other) { this.sum += other.sum; } finish() { return this.sum; } }
     udaf('total(x BIGINT) -> BIGINT', { vectorized: true, on_error: 'null' }, Total);",
];

#[test]
fn states_are_updated_combined_and_finished() {
    for text in TOTALS {
        let mut fixture = load(text).unwrap();
        let guest = &mut fixture.guest;
        assert_eq!(enter(guest, Entry::Update, &[vec![0, 1, 0, 2], vec![1, 10, 2, 100]]).unwrap().1, 0);
        assert_eq!(
            enter(guest, Entry::Finish, &[vec![0, 1, 2, 7]]).unwrap().0,
            [Some(3), Some(10), Some(100), Some(0)]
        );
        // A source that is kept is another value from then on.
        combine(guest, 3, 1, true);
        enter(guest, Entry::Update, &[vec![3], vec![5]]).unwrap();
        combine(guest, 0, 2, false);
        assert_eq!(
            enter(guest, Entry::Finish, &[vec![0, 1, 2, 3, 0]]).unwrap().0,
            [Some(103), Some(10), Some(0), Some(15), Some(103)]
        );
        enter(guest, Entry::Forget, &[vec![0, 1, 3]]).unwrap();
        assert_eq!(enter(guest, Entry::Finish, &[vec![0, 3]]).unwrap().0, [Some(0), Some(0)]);
        // A row that fails is left out.
        let mut errors = enter(guest, Entry::Update, &[vec![4, 5], vec![-1, 6]]).unwrap().1;
        let (sums, late) = enter(guest, Entry::Finish, &[vec![4, 5]]).unwrap();
        errors += late;
        assert_eq!((sums, errors), (vec![Some(0), Some(6)], 1));
    }
}

/// What a state is as text.
fn saved(guest: &mut Guest, state: i64) -> Option<String> {
    let request = frame(&[&integers(&[Some(state)])], 1);
    let types = [DataType::BigInt];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let Answer::Done(saved, _) = guest.enter(0, Entry::Save, &columns, 1, &AtomicU64::new(0)) else {
        panic!("no states");
    };
    let saved = frame(&[&saved], 1);
    let saved = batch::column(bytemuck::cast_slice(&saved), &DataType::Varchar).unwrap();
    saved.is_valid(0).then(|| String::from_utf8(saved.bytes(0).to_vec()).unwrap())
}

/// Adds a state that was saved to another.
fn load_state(guest: &mut Guest, state: i64, text: &str) {
    let request = frame(&[&integers(&[Some(state)]), &texts(&[Some(text)])], 1);
    let types = [DataType::BigInt, DataType::Varchar];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let done = guest.enter(0, Entry::Load, &columns, 1, &AtomicU64::new(0));
    assert!(matches!(done, Answer::Nothing(_)), "{done:?}");
}

#[test]
fn states_travel_as_text() {
    for text in TOTALS {
        let mut fixture = load(text).unwrap();
        let mut other = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
        let guest = &mut fixture.guest;
        enter(guest, Entry::Update, &[vec![1, 1], vec![4, 5]]).unwrap();
        assert_eq!(saved(guest, 0), None);
        let text = saved(guest, 1).unwrap();
        for expected in [9, 18] {
            load_state(&mut other, 0, &text);
            assert_eq!(enter(&mut other, Entry::Finish, &[vec![0]]).unwrap().0, [Some(expected)]);
        }
    }
}

/// A counter in an object without a prototype has no methods for words that it has not seen.
#[test]
fn states_without_a_prototype_stay_so() {
    for (start, words) in [("Object.create(null)", "s"), ("({ words: Object.create(null) })", "s.words")] {
        let mut fixture = load(&format!(
            "udaf('words(x BIGINT) -> BIGINT', {{
               start: () => {start},
               update(s, x) {{ if (x > 0) {words}.constructor = ({words}.constructor ?? 0) + x; }},
               merge() {{}},
               finish: (s) => {words}.constructor ?? (Object.getPrototypeOf({words}) === null ? -1 : -2),
             }});"
        ))
        .unwrap();
        let guest = &mut fixture.guest;
        let update = |guest: &mut Guest, state, x| {
            enter(guest, Entry::Update, &[vec![state], vec![x]]).unwrap();
        };
        // Of an empty state, and of one with a word.
        for (state, x, before, after) in [(0, 0, -1, 5), (10, 7, 7, 12)] {
            update(guest, state, x);
            combine(guest, state + 1, state, true);
            let text = saved(guest, state).unwrap();
            load_state(guest, state + 2, &text);
            for copy in [state + 1, state + 2] {
                assert_eq!(enter(guest, Entry::Finish, &[vec![copy]]).unwrap().0, [Some(before)], "{start}");
                update(guest, copy, 5);
                assert_eq!(enter(guest, Entry::Finish, &[vec![copy]]).unwrap().0, [Some(after)], "{start}");
            }
        }
    }
}

#[test]
fn rows_of_a_large_batch_wait_for_their_columns() {
    let mut fixture = load(TOTALS[2]).unwrap();
    let guest = &mut fixture.guest;
    let rows = 50_000;
    for _ in 0..2 {
        enter(guest, Entry::Update, &[vec![3; rows], vec![1; rows]]).unwrap();
    }
    assert_eq!(enter(guest, Entry::Finish, &[vec![3]]).unwrap().0, [Some(2 * rows as i64)]);
}

#[test]
fn a_guest_has_states_until_all_are_forgotten() {
    for text in TOTALS {
        let greedy = "udf('greedy(x BIGINT) -> BIGINT', { on_error: 'null', memory_limit: '30 MB' }, (x) => {
            for (const all = []; x === 2;) all.push(new Array(1000).fill(0.5));
            return x; });";
        let mut fixture = load(&format!("{text}{greedy}")).unwrap();
        let guest = &mut fixture.guest;
        assert!(!guest.has_states());
        enter(guest, Entry::Update, &[vec![0, 1], vec![1, 10]]).unwrap();
        enter(guest, Entry::Forget, &[vec![1]]).unwrap();
        assert!(guest.has_states());
        enter(guest, Entry::Forget, &[vec![0]]).unwrap();
        assert!(!guest.has_states());
        enter(guest, Entry::Update, &[vec![2], vec![100]]).unwrap();
        assert!(guest.has_states());
        // What a row of another function uses up is its own error.
        assert_eq!(call(guest, 1, &[Some(1), Some(2), Some(3)]), Ok(vec![Some(1), None, Some(3)]));
        assert!(guest.is_spent() && guest.has_states());
    }
}
