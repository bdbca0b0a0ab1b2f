//! What a server shows of itself: whether it is ready, what its functions cost, and the last
//! minutes.
//!
//! Calls update counters ([`FunctionCounters`]). The monitor reads everything else when a client
//! asks, and once a second ([`Monitor::tick`]). From these readings it makes the percentiles and
//! rates of the last minute.

use crate::server::{Census, FunctionCounters, Offer, ServedFunction, Shared, SpanCounts};
use crosslane::lock;
use crosslane::stats::Counters;
use crosslane_process::guests::language_of;
use histogram::{Histogram, SparseHistogram};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

/// How many seconds of each function are kept; percentiles are those of all of them.
const WINDOW: usize = 60;
/// How many seconds of the whole server are kept.
const HISTORY: usize = 300;
/// Of how many seconds a rate is the mean.
const RATE: usize = 5;

/// What the server does.
enum Phase {
    Loading(String),
    /// Gone when the server has ended.
    Serving(Weak<Shared>),
}

/// Looks at a server from its start to its end.
pub(crate) struct Monitor {
    since: Instant,
    started: SystemTime,
    phase: Mutex<Phase>,
    past: Mutex<Past>,
}

/// What was seen in the last minutes.
#[derive(Default)]
struct Past {
    /// The number of the offer whose functions these are.
    offer: u64,
    functions: Vec<PastFunction>,
    waiting: VecDeque<u32>,
    flying: VecDeque<u32>,
}

#[derive(Default)]
struct PastFunction {
    /// What had been counted at the last tick.
    calls: u64,
    latencies: Option<Histogram>,
    seconds: VecDeque<Second>,
}

/// What a function did in a second.
struct Second {
    calls: u64,
    latencies: Option<SparseHistogram>,
}

/// A server at a moment.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) version: &'static str,
    /// Seconds since 1970.
    pub(crate) started: f64,
    pub(crate) uptime: f64,
    /// Why it takes no calls now.
    pub(crate) unready: Option<String>,
    pub(crate) connections: Connections,
    pub(crate) waiting: u64,
    pub(crate) in_flight: u64,
    /// The same in the seconds before, the last one last.
    waiting_history: Vec<u32>,
    in_flight_history: Vec<u32>,
    /// Bytes of messages that wait in the server, and at most.
    pub(crate) bytes: (usize, usize),
    #[serde(skip)]
    pub(crate) spans: SpanCounts,
    pub(crate) libraries: Vec<SeenLibrary>,
    pub(crate) functions: Vec<SeenFunction>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Connections {
    pub(crate) open: usize,
    pub(crate) most: usize,
    pub(crate) taken: u64,
    pub(crate) refused: u64,
    pub(crate) violations: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct SeenLibrary {
    pub(crate) name: String,
    /// How often it was loaded.
    pub(crate) version: u32,
    pub(crate) language: String,
    /// What its functions may do; empty if they have no sandbox.
    pub(crate) sandbox: String,
    pub(crate) workers: Census,
    pub(crate) booted: u64,
    pub(crate) ended: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct SeenFunction {
    pub(crate) name: String,
    pub(crate) signature: String,
    pub(crate) kind: &'static str,
    pub(crate) library: String,
    pub(crate) language: String,
    pub(crate) calls: u64,
    pub(crate) rows: u64,
    /// Rows without a call, because the result was known.
    pub(crate) reused: u64,
    pub(crate) failures: u64,
    /// Rows that became NULL because of `on_error = null`.
    pub(crate) nulls: u64,
    pub(crate) retries: u64,
    pub(crate) deaths: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Seconds in workers, and those from the coming of calls to their ends.
    pub(crate) worked: f64,
    pub(crate) took: f64,
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
    /// Calls of a second, lately.
    rate: f64,
    /// Seconds, of the calls of the last minute.
    latency: Option<Percentiles>,
    /// Calls in each of the seconds before, the last one last; nothing if there were none.
    history: Vec<u64>,
    #[serde(skip)]
    pub(crate) latencies: Option<Histogram>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
}

impl Percentiles {
    /// Those of nanoseconds; `None` if there are no values.
    fn of(histogram: &Histogram) -> Option<Self> {
        let mut found = [const { None }; 4];
        histogram.quantile_buckets_into(&[0.5, 0.9, 0.99, 0.999], &mut found).ok()?;
        let [p50, p90, p99, p999] = found.map(|bucket| bucket.map(|bucket| seconds(bucket.end())));
        Some(Self { p50: p50?, p90: p90?, p99: p99?, p999: p999? })
    }
}

pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

fn push<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    if values.len() >= most {
        values.pop_front();
    }
    values.push_back(value);
}

impl PastFunction {
    /// Adds what was done since the last tick.
    fn tick(&mut self, counters: &FunctionCounters, calls: u64) {
        let fresh = calls - self.calls.min(calls);
        let mut second = Second { calls: fresh, latencies: None };
        self.calls = calls;
        if fresh > 0
            && let Some(now) = counters.latencies()
        {
            let new =
                self.latencies.as_ref().map_or_else(|| Ok(now.clone()), |before| now.wrapping_sub(before));
            second.latencies = new.ok().map(|new| SparseHistogram::from(&new));
            self.latencies = Some(now);
        }
        push(&mut self.seconds, second, WINDOW);
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let mut all: Option<Histogram> = None;
        for sparse in self.seconds.iter().filter_map(|second| second.latencies.as_ref()) {
            let all = all.get_or_insert_with(|| Histogram::with_config(&sparse.config()));
            for (index, count) in sparse.index().iter().zip(sparse.count()) {
                all.as_mut_slice()[*index as usize] += count;
            }
        }
        Percentiles::of(&all?)
    }

    fn rate(&self) -> f64 {
        let last = self.seconds.iter().rev().take(RATE);
        let (calls, seconds) = last.fold((0, 0), |(calls, count), second| (calls + second.calls, count + 1));
        calls as f64 / f64::from(seconds.max(1))
    }

    fn history(&self) -> Vec<u64> {
        let calls: Vec<u64> = self.seconds.iter().map(|second| second.calls).collect();
        if calls.iter().all(|calls| *calls == 0) { Vec::new() } else { calls }
    }
}

impl Monitor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            started: SystemTime::now(),
            phase: Mutex::new(Phase::Loading("the functions are being loaded".into())),
            past: Mutex::default(),
        })
    }

    /// Says what is being loaded.
    pub(crate) fn loading(&self, what: String) {
        *lock(&self.phase) = Phase::Loading(what);
    }

    pub(crate) fn serving(&self, shared: &Arc<Shared>) {
        *lock(&self.phase) = Phase::Serving(Arc::downgrade(shared));
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        match &*lock(&self.phase) {
            Phase::Loading(_) => None,
            Phase::Serving(shared) => shared.upgrade(),
        }
    }

    /// Why no calls are taken now.
    pub(crate) fn unready(&self) -> Option<String> {
        match &*lock(&self.phase) {
            Phase::Loading(what) => Some(what.clone()),
            Phase::Serving(shared) => {
                let is_draining = shared.upgrade().is_none_or(|shared| shared.connections.is_draining());
                is_draining.then(|| crate::server::ENDING.into())
            }
        }
    }

    /// Looks at the server. To be called once a second.
    pub(crate) fn tick(&self) {
        let Some(shared) = self.shared() else { return };
        let offer = shared.offers.newest();
        let (waiting, flying) = exchanges(&shared, &offer);
        let mut past = lock(&self.past);
        if past.offer != offer.number {
            past.offer = offer.number;
            past.functions.clear();
        }
        push(&mut past.waiting, waiting.iter().sum(), HISTORY);
        push(&mut past.flying, flying.iter().sum(), HISTORY);
        past.functions.resize_with(offer.functions.len(), PastFunction::default);
        for (served, past) in offer.functions.iter().zip(&mut past.functions) {
            past.tick(&served.counters, served.function.stats.totals().calls.get());
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let past = lock(&self.past);
        let mut snapshot = Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            started: self
                .started
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            uptime: self.since.elapsed().as_secs_f64(),
            unready: self.unready(),
            connections: Connections::default(),
            waiting: 0,
            in_flight: 0,
            bytes: (0, 0),
            spans: SpanCounts::default(),
            waiting_history: past.waiting.iter().copied().collect(),
            in_flight_history: past.flying.iter().copied().collect(),
            libraries: Vec::new(),
            functions: Vec::new(),
        };
        let Some(shared) = self.shared() else { return snapshot };
        let offer = shared.offers.newest();
        let (waiting, flying) = exchanges(&shared, &offer);
        snapshot.waiting = waiting.iter().copied().map(u64::from).sum();
        snapshot.in_flight = flying.iter().copied().map(u64::from).sum();
        snapshot.connections = Connections {
            open: shared.connections.all().len(),
            most: shared.connections.most,
            taken: shared.connections.taken(),
            refused: shared.refused.get(),
            violations: shared.violations.get(),
        };
        snapshot.spans = offer.spans.as_ref().map(|spans| spans.counts()).unwrap_or_default();
        snapshot.bytes = (shared.connections.budget.used(), shared.connections.budget.most());
        let libraries = offer.workers.iter().map(|workers| {
            let pool = workers.pool().own_stats();
            let library = &workers.library.name;
            let sandbox =
                workers.library.functions.first().and_then(|function| function.spec.sandbox.as_ref());
            SeenLibrary {
                name: workers
                    .of
                    .as_ref()
                    .map_or_else(|| library.clone(), |function| format!("{library}: {}", function.name())),
                version: workers.library.version,
                language: language_of(Path::new(&workers.library.name)),
                sandbox: sandbox
                    .map(|sandbox| sandbox.words().collect::<Vec<_>>().join(" "))
                    .unwrap_or_default(),
                workers: workers.census(),
                booted: pool.booted,
                ended: pool.discarded,
            }
        });
        snapshot.libraries = libraries.collect();
        let none = PastFunction::default();
        let is_known = past.offer == offer.number;
        let functions = offer.functions.iter().enumerate().map(|(index, served)| {
            let library = &snapshot.libraries[served.workers];
            let past = past.functions.get(index).filter(|_| is_known).unwrap_or(&none);
            SeenFunction { waiting: waiting[index], in_flight: flying[index], ..seen(served, library, past) }
        });
        snapshot.functions = functions.collect();
        snapshot
    }
}

fn seen(served: &ServedFunction, library: &SeenLibrary, past: &PastFunction) -> SeenFunction {
    let (function, counters) = (&served.function, &served.counters);
    let Counters { calls, rows, reused, errors, retries, deaths, guest, .. } = function.stats.totals();
    SeenFunction {
        name: function.name().into(),
        signature: function.signature.to_string(),
        kind: function.spec.kind.name(),
        library: library.name.clone(),
        language: library.language.clone(),
        calls: calls.get(),
        rows: rows.get(),
        reused: reused.get(),
        failures: counters.failures.get(),
        nulls: errors.get(),
        retries: retries.get(),
        deaths: deaths.get(),
        received: counters.received.get(),
        sent: counters.sent.get(),
        worked: seconds(guest.get()),
        took: seconds(counters.took.get()),
        waiting: 0,
        in_flight: 0,
        rate: past.rate(),
        latency: past.percentiles(),
        history: past.history(),
        latencies: counters.latencies(),
    }
}

/// The exchanges that wait in the server, and those that workers have, for each function of an offer.
fn exchanges(shared: &Shared, offer: &Offer) -> (Vec<u32>, Vec<u32>) {
    let (mut waiting, mut flying) = (vec![0; offer.functions.len()], vec![0; offer.functions.len()]);
    for connection in shared.connections.all() {
        connection.count(offer.number, &mut waiting, &mut flying);
    }
    (waiting, flying)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_rates_are_those_of_the_last_seconds() {
        let (counters, mut past) = (FunctionCounters::default(), PastFunction::default());
        past.tick(&counters, 0);
        assert_eq!((past.percentiles(), past.rate()), (None, 0.0));
        assert!(past.history().is_empty());
        for _ in 0..98 {
            counters.record(Duration::from_millis(1));
        }
        past.tick(&counters, 98);
        counters.record(Duration::from_millis(5));
        counters.record(Duration::from_secs(5));
        past.tick(&counters, 100);
        let found = past.percentiles().unwrap();
        for (value, due) in [(found.p50, 0.001), (found.p90, 0.001), (found.p99, 0.005), (found.p999, 5.0)] {
            assert!((due..due * 1.04).contains(&value), "{found:?}");
        }
        assert_eq!((past.history(), past.rate()), (vec![0, 98, 2], 100.0 / 3.0));
        // The slow one is forgotten with its second.
        for _ in 0..WINDOW - 1 {
            past.tick(&counters, 100);
        }
        assert!(past.percentiles().is_some());
        assert_eq!(past.rate(), 0.0);
        past.tick(&counters, 100);
        assert_eq!(past.percentiles(), None);
        assert!(past.history().is_empty());
    }
}
