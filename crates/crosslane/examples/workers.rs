//! What a call costs the engine beside its lane and its guest, with many workers at once: `workers WORKERS CALLS`.
//!
//! Each worker makes so many calls of one row over lanes that answer at once. It prints the processor time of a call in
//! nanoseconds, all workers together: what they do to each other by locks and shared cache lines is in it.

use crosslane::batch::{BATCH, Encode, Header, LAST, Plan};
use crosslane::call::{CallGroup, Caller, Input, call};
use crosslane::lane::{Lane, LaneError, Waiter};
use crosslane::pool::{self, Pool, PoolOptions};
use crosslane::{Address, ColumnBuilder, DataType, Error, Function, FunctionSpec, Library};
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// No thread sleeps on this word, because the answers are there at once.
static NEVER: AtomicU32 = AtomicU32::new(0);

/// A lane whose guest answers every call with the same row.
struct Echo {
    id: u64,
    calls: u64,
    answered: u64,
    reply: Vec<u8>,
}

impl Lane for Echo {
    fn id(&self) -> u64 {
        self.id
    }
    fn process(&self) -> i32 {
        0
    }
    fn submit(&mut self, _: Address, _: usize, _: &dyn Encode) -> Result<Option<u64>, LaneError> {
        self.calls += 1;
        Ok(Some(self.calls))
    }
    fn cancel(&mut self) -> Result<(), LaneError> {
        Ok(())
    }
    fn is_cancelled(&self) -> bool {
        false
    }
    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        self.answered += 1;
        Ok(Some(Header { kind: BATCH, flags: LAST, exchange: self.answered, rows: 1, ..Header::default() }))
    }
    fn frame(&self) -> &[u8] {
        &self.reply
    }
    fn in_flight(&self) -> usize {
        (self.calls - self.answered) as usize
    }
    fn progress(&self) -> (u32, u32) {
        (0, 0)
    }
    fn halt(&mut self) -> bool {
        false
    }

    fn check(&mut self) -> Result<(), LaneError> {
        Ok(())
    }
    fn has_news(&self) -> bool {
        self.in_flight() > 0
    }
    fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&NEVER)
    }
}

struct Echoes(u64);

impl pool::Zygote for Echoes {
    type Lane = Echo;

    fn boot(&mut self) -> Result<Echo, Error> {
        self.0 += 1;
        let mut plan = Plan::default();
        let row = one_row();
        row.plan(&mut plan);
        let mut reply = vec![0; plan.size()];
        let header = Header { kind: BATCH, flags: LAST, rows: 1, ..Header::default() };
        row.write(&mut plan.start(&mut reply, header));
        Ok(Echo { id: self.0, calls: 0, answered: 0, reply })
    }
}

fn one_row() -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    column.fixed(1i64);
    column
}

struct Row(ColumnBuilder);

impl Input for Row {
    fn rows(&self) -> usize {
        1
    }
    fn slice(&self, _: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&self.0);
        Ok(())
    }
}

/// How much of the processors this thread has had.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let numbers: Result<Vec<usize>, _> = words[1..].iter().map(|word| word.parse()).collect();
    let Ok(&[workers, calls]) = numbers.as_deref() else {
        eprintln!("usage: workers WORKERS CALLS");
        std::process::exit(2);
    };
    let spec = r#"{"signature": "f(x BIGINT) -> BIGINT", "admits_null": [false]}"#;
    let spec: FunctionSpec = serde_json::from_str(spec).expect("a function");
    let function = Arc::new(Function::new(0, spec).expect("a function"));
    let options = PoolOptions { warm: workers, idle_timeout: Duration::from_secs(60) };
    let (pool, ()) = Pool::start(options, |_| Ok((Echoes(0), ()))).expect("a pool");
    let library = Library { name: "echo".into(), version: 1, functions: vec![function.clone()], pool };
    let (group, barrier) = (CallGroup::default(), Barrier::new(workers));
    let spent: Duration = std::thread::scope(|scope| {
        let work = || {
            let row = Row(one_row());
            let run = |calls: usize| {
                for _ in 0..calls {
                    let caller = Caller::new(&group, workers);
                    call(&library, &function, caller, &row, &mut ()).expect("an answer");
                }
            };
            // Each has its lane then.
            run(100);
            barrier.wait();
            let begun = processor_time();
            run(calls);
            processor_time() - begun
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    println!("{:.1}", spent.as_nanos() as f64 / (workers * calls) as f64);
}
