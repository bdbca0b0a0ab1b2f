//! Compares the JavaScript guest with arrow-udf's QuickJS, isolates from a snapshot with isolates
//! from source, and a lane of a warm pool with a boot. Prints JSON: the seconds of both sides in
//! each round, for each comparison.
//!
//! Node's program runs it as the library that is loaded first. The arguments after the option `--crosslane` are
//! HOST LIBRARY ROUNDS: the JavaScript host program, and the file of libraries to boot with.

use anyhow::{Result, anyhow};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType as ArrowType, Field, Schema};
use arrow_udf_runtime::javascript::{FunctionOptions, Runtime};
use crosslane::batch::{self, Encode, Header, Plan};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{ColumnBuilder, DataType, Failure, TypeNames};
use crosslane_js::guest::{Answer, Guest};
use crosslane_js::isolate::{Host, Reason};
use crosslane_js::library::{self, Library};
use crosslane_process::{Origin, Program, Source, Zygote, ZygoteOptions};
use serde_json::json;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const ROWS: usize = 1024;
const TIME: Duration = Duration::from_secs(60);
/// The number of lanes in the comparison of texts.
const LANES: usize = 2;
const SLUGIFY: &str = "function slugify(text) { return text.toLowerCase().replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+|-+$/g, '').replace(/-{2,}/g, '-'); }";
const GCD: &str = "function gcd(a, b) { while (b != 0) { const t = b; b = a % b; a = t; } return a; }";

struct Quiet;

impl Host for Quiet {
    fn print(&self, _: bool, _: &str) {}
    fn fatal(&self, _: Reason, what: &str) {
        eprintln!("{what}");
    }
}

fn failed(failure: Failure) -> anyhow::Error {
    anyhow!("{failure}")
}

fn seconds<T>(body: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let value = body();
    (begun.elapsed().as_secs_f64(), value)
}

/// Pairs of integers whose greatest divisors need several steps.
fn pairs() -> (Vec<i64>, Vec<i64>) {
    (0..ROWS as i64).map(|i| (i * 7919 + 1_000_003, i * 104_729 + 500_009)).unzip()
}

/// A request in the format of a ring.
struct Columns(Vec<ColumnBuilder>);

impl Encode for Columns {
    fn plan(&self, plan: &mut Plan) {
        self.0.iter().for_each(|column| column.plan(plan));
    }
    fn write(&self, body: &mut batch::Body<'_>) {
        self.0.iter().for_each(|column| column.write(body));
    }
}

fn framed(content: &dyn Encode, frame: &mut Vec<u64>, header: Header) {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    frame.clear();
    frame.resize(plan.size().div_ceil(8), 0);
    // SAFETY: integers are plain memory, and the bytes are within them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(frame.as_mut_ptr().cast(), plan.size()) };
    content.write(&mut plan.start(bytes, header));
}

fn bytes(frame: &[u64]) -> &[u8] {
    // SAFETY: integers are plain memory.
    unsafe { std::slice::from_raw_parts(frame.as_ptr().cast(), size_of_val(frame)) }
}

/// A function in arrow-udf's QuickJS.
struct QuickJs {
    runtime: Runtime,
    name: &'static str,
}

impl QuickJs {
    fn new(name: &'static str, code: &str, returns: ArrowType) -> Result<Self> {
        futures_executor::block_on(async {
            let mut runtime = Runtime::new().await?;
            let options = FunctionOptions::default().return_null_on_null_input();
            runtime.add_function(name, returns, &format!("export {code}"), options).await?;
            Ok(Self { runtime, name })
        })
    }

    fn call(&self, input: &RecordBatch) -> Result<RecordBatch> {
        futures_executor::block_on(self.runtime.call(self.name, input))
    }
}

fn batch<const N: usize>(columns: [(&str, ArrayRef); N]) -> Result<RecordBatch> {
    let fields = columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    Ok(RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, column)| column).collect())?)
}

/// Slugs of titles: the seconds of a batch over [`LANES`] lanes at once, and of QuickJS.
fn slugify(rounds: usize, folder: &Path) -> Result<serde_json::Value> {
    const BATCHES: usize = 100;
    let titles: Vec<String> = (0..ROWS).map(|i| format!("A Title, with the number {i}: and more")).collect();
    let path = folder.join("slugify.js");
    std::fs::write(&path, format!("{SLUGIFY} udf('slugify(text VARCHAR) -> VARCHAR', slugify);"))?;
    let library = Arc::new(Library::load(&path, TIME, Quiet).map_err(failed)?);
    let mut column = ColumnBuilder::new(&DataType::Varchar);
    for title in &titles {
        column.bytes(title.as_bytes())?;
    }
    let mut request = Vec::new();
    framed(&Columns(vec![column]), &mut request, Header { rows: ROWS as u32, ..Header::default() });
    let types = [DataType::Varchar];
    let batches = |guest: &mut Guest, count: usize| -> Result<Vec<u8>> {
        let (mut reply, progress) = (Vec::new(), AtomicU64::new(0));
        for _ in 0..count {
            let columns = batch::columns(bytes(&request), types.iter())?;
            match guest.answer(0, &columns, ROWS, &progress) {
                Answer::Done(results, _) => {
                    framed(&results, &mut reply, Header { rows: ROWS as u32, ..Header::default() })
                }
                other => return Err(anyhow!("{other:?}")),
            }
        }
        Ok(batch::columns(bytes(&reply), types.iter())?[0].data.to_vec())
    };
    let quickjs = QuickJs::new("slugify", SLUGIFY, ArrowType::Utf8)?;
    let input = batch([("text", Arc::new(StringArray::from(titles)) as ArrayRef)])?;
    let output = quickjs.call(&input)?;
    let slugs =
        output.column(0).as_any().downcast_ref::<StringArray>().ok_or_else(|| anyhow!("no strings"))?;
    if batches(&mut Guest::boot(&library, Box::new(Quiet))?, 1)? != slugs.values().as_slice() {
        return Err(anyhow!("the two do not agree"));
    }
    let lanes = || -> Result<f64> {
        let ready = Barrier::new(LANES);
        let lane = || {
            let warm = || -> Result<Guest> {
                let mut guest = Guest::boot(&library, Box::new(Quiet))?;
                batches(&mut guest, 10)?;
                Ok(guest)
            };
            let warm = warm();
            ready.wait();
            let mut guest = warm?;
            let (time, done) = seconds(|| batches(&mut guest, BATCHES));
            done.map(|_| time)
        };
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
            lanes.into_iter().try_fold(0.0, |slowest: f64, lane| {
                Ok(slowest.max(lane.join().map_err(|_| anyhow!("a lane panicked"))??))
            })
        })
    };
    let mut taken = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        taken.0.push(lanes()? / (BATCHES * LANES) as f64);
        taken.1.push(seconds(|| (0..10).try_for_each(|_| quickjs.call(&input).map(drop))).0 / 10.0);
    }
    Ok(json!({ "ours": taken.0, "theirs": taken.1 }))
}

fn gcd(rounds: usize, folder: &Path) -> Result<serde_json::Value> {
    let (a, b) = pairs();
    let path = folder.join("gcd.js");
    std::fs::write(&path, format!("{GCD} udf('gcd(a BIGINT, b BIGINT) -> BIGINT', gcd);"))?;
    let library = Arc::new(Library::load(&path, TIME, Quiet).map_err(failed)?);
    let mut guest = Guest::boot(&library, Box::new(Quiet))?;
    let columns = Columns(
        [&a, &b]
            .map(|values| {
                let mut column = ColumnBuilder::new(&DataType::BigInt);
                column.fixed_all(values);
                column
            })
            .into(),
    );
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    let types = [DataType::BigInt, DataType::BigInt];
    let progress = AtomicU64::new(0);
    let mut ours = || -> Result<i64> {
        framed(&columns, &mut request, Header { rows: ROWS as u32, ..Header::default() });
        let columns = batch::columns(bytes(&request), types.iter())?;
        match guest.answer(0, &columns, ROWS, &progress) {
            Answer::Done(results, _) => {
                framed(&results, &mut reply, Header { rows: ROWS as u32, ..Header::default() })
            }
            other => return Err(anyhow!("{other:?}")),
        }
        let results = batch::columns(bytes(&reply), types[..1].iter())?;
        Ok((0..ROWS).map(|row| results[0].value::<i64>(row)).fold(0, |all, one| all ^ one))
    };

    let quickjs = QuickJs::new("gcd", GCD, ArrowType::Int64)?;
    let input =
        batch([("a", Arc::new(Int64Array::from(a)) as ArrayRef), ("b", Arc::new(Int64Array::from(b)))])?;
    let theirs = || -> Result<i64> {
        let output = quickjs.call(&input)?;
        let column =
            output.column(0).as_any().downcast_ref::<Int64Array>().ok_or_else(|| anyhow!("no integers"))?;
        Ok((0..column.len()).map(|row| column.value(row)).fold(0, |all, one| all ^ one))
    };
    if ours()? != theirs()? {
        return Err(anyhow!("the two do not agree"));
    }
    let mut taken = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Enough batches to make a round long enough to measure.
        taken.0.push(seconds(|| (0..100).try_for_each(|_| ours().map(drop))).0 / 100.0);
        taken.1.push(seconds(|| (0..20).try_for_each(|_| theirs().map(drop))).0 / 20.0);
    }
    Ok(json!({ "ours": taken.0, "theirs": taken.1 }))
}

fn boot(rounds: usize, file: &Path) -> Result<serde_json::Value> {
    let library = Arc::new(Library::load(file, TIME, Quiet).map_err(failed)?);
    let boots = |taken: &mut Vec<f64>| -> Result<()> {
        for _ in 0..rounds {
            let (time, guest) = seconds(|| Guest::boot(&library, Box::new(Quiet)));
            drop(guest?);
            taken.push(time);
        }
        Ok(())
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // One after the other, because isolates of different snapshots cannot exist at the same time.
    for _ in 0..3 {
        boots(&mut ours)?;
        for _ in 0..rounds {
            let (time, isolate) = seconds(|| library::from_source(file, TIME, Quiet));
            drop(isolate.map_err(failed)?);
            theirs.push(time);
        }
    }
    Ok(json!({ "ours": ours, "theirs": theirs, "bytes": library.snapshot.bytes().len() }))
}

fn pool(rounds: usize, host: &str, file: &Path) -> Result<serde_json::Value> {
    let options = ZygoteOptions {
        origin: Origin::Process(Program { command: vec![host.into()], environment: Vec::new(), advice: "" }),
        source: Source::File { path: file.to_owned() },
        types: TypeNames::default(),
        sandbox: None,
        stuck: Default::default(),
        load_timeout: TIME,
        ring_size: 1 << 20,
        largest_batch: 4 << 30,
        spin: Duration::from_micros(20),
        on_interrupt: Arc::new(|_| {}),
    };
    let warm = PoolOptions { warm: 1, idle_timeout: TIME };
    let (pool, _) = Pool::start(warm, move |stop| Zygote::start(options, stop))?;
    let lane =
        || pool.check_out(|| false).and_then(|lane| lane.ok_or(crosslane::Error::Boot("no lane".into())));
    drop(lane()?);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // The last lane was dropped, so this one must be booted.
        let begun = pool.stats().booted;
        let (time, booted) = seconds(lane);
        if pool.stats().booted > begun {
            theirs.push(time);
        }
        booted?.give_back();
        let (time, warm) = seconds(lane);
        ours.push(time);
        drop(warm?);
    }
    Ok(json!({ "ours": ours, "theirs": theirs }))
}

crosslane_js::main_in_node!(main);

fn main() -> c_int {
    match run() {
        // SAFETY: nothing needs to be cleaned up. Node's destructors would run while V8's threads are at work.
        Ok(()) => unsafe { libc::_exit(0) },
        Err(error) => {
            eprintln!("{error:?}");
            1
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [host, file, rounds] = &arguments[..] else {
        return Err(anyhow!("the arguments are HOST LIBRARY ROUNDS"));
    };
    let rounds: usize = rounds.parse()?;
    let file = PathBuf::from(file).canonicalize()?;
    let folder = std::env::temp_dir().join(format!("crosslane-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let pool = pool(rounds, host, &file)?;
    let gcd = gcd(rounds, &folder)?;
    let slugify = slugify(rounds, &folder)?;
    let boot = boot(rounds, &file)?;
    std::fs::remove_dir_all(folder)?;
    println!("{}", json!({ "gcd": gcd, "slugify": slugify, "boot": boot, "pool": pool }));
    Ok(())
}
