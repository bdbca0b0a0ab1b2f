//! Loads a library into a guest of this process, and calls its functions with batches.

use crosslane::batch::{self, Encode, Header, Plan};
use crosslane::{ColumnBuilder, DataType, Failure};
use crosslane_js::guest::{Answer, Guest};
use crosslane_js::isolate::{Host, Reason};
use crosslane_js::library::Library;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Locked by each test, because isolates of different snapshots cannot live in one process at once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone)]
pub(crate) struct Log(pub(crate) mpsc::Sender<String>);

impl Host for Log {
    fn print(&self, _: bool, text: &str) {
        let _ = self.0.send(text.to_owned());
    }
    fn fatal(&self, _: Reason, what: &str) {
        eprintln!("{what}");
    }
}

pub(crate) struct Fixture {
    pub(crate) guest: Guest,
    pub(crate) library: Arc<Library>,
    pub(crate) log: mpsc::Receiver<String>,
    _one: MutexGuard<'static, ()>,
}

pub(crate) fn load(text: &str) -> Result<Fixture, Failure> {
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join(format!("crosslane-guest-{}.js", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let (sender, log) = mpsc::channel();
    let host = Log(sender);
    let library = Arc::new(Library::load(&path, Duration::from_secs(10), host.clone())?);
    let guest = Guest::boot(&library, Box::new(host)).unwrap();
    Ok(Fixture { guest, library, log, _one: one })
}

/// Encodes columns as a frame, at an address that is a multiple of 8.
pub(crate) fn frame(columns: &[&dyn Encode], rows: usize) -> Vec<u64> {
    let mut plan = Plan::default();
    columns.iter().for_each(|column| column.plan(&mut plan));
    let mut words = vec![0u64; plan.size().div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
    let mut body = plan.start(bytes, Header { rows: rows as u32, ..Header::default() });
    columns.iter().for_each(|column| column.write(&mut body));
    words
}

pub(crate) fn integers(values: &[Option<i64>]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    for value in values {
        match value {
            Some(value) => column.fixed(*value),
            None => column.null(),
        }
    }
    column
}

/// Calls a function of one BIGINT. Returns its results, or the failure's text and row.
pub(crate) fn call(
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

pub(crate) fn texts(values: &[Option<&str>]) -> ColumnBuilder {
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

/// Calls a function of one VARCHAR. Returns its results, or the failure's text.
pub(crate) fn call_with_texts(
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
