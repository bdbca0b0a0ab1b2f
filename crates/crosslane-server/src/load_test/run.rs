//! Runs a plan: a step for each rate of calls, and its report.

use super::call::Asked;
use super::lanes::Lanes;
use crate::client::Remote;
use anyhow::{Context, Result, bail, ensure};
use crosslane_load::{Arrivals, Load, Mix, Outcome, Watch, Work};
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The most calls of a step: each takes some bytes until its end.
const MOST: f64 = 5e7;
/// The longest latency that is told from a longer one, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;
/// Digits of a latency that count.
const DIGITS: u8 = 3;
/// Which percentiles are reported.
const REPORTED: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// What is to be measured.
#[derive(Debug, Clone, Deserialize)]
pub struct Plan {
    /// Where the server is; several have commas between them, and connections are spread over them.
    pub address: String,
    /// What clients must know.
    #[serde(default)]
    pub token: Option<String>,
    /// What most calls call.
    pub light: Asked,
    /// What the others call, in equal parts.
    #[serde(default)]
    pub heavy: Vec<Asked>,
    /// The share of these.
    #[serde(default)]
    pub heavy_share: f64,
    /// Calls per second, one step after the other.
    pub rates: Vec<u32>,
    /// Whether calls come independently of each other (a Poisson process), and not at equal distances.
    #[serde(default)]
    pub poisson: bool,
    /// The measured time of each step.
    pub seconds: f64,
    /// The time before it, with the same load.
    pub warm_up: f64,
    /// How long the last answers are waited for.
    pub patience: f64,
    /// Over how many connections the calls are spread, in turns.
    pub connections: usize,
    /// What the plan depends on.
    #[serde(default)]
    pub seed: u64,
}

/// What is told while it is measured, and at the end of each step.
#[derive(Debug)]
pub enum Event {
    /// How far the measurement is: the step, from 0, and the part of it that is done.
    Progress {
        /// Which step.
        step: usize,
        /// 0 to 1.
        part: f64,
    },
    /// What a step has measured, as JSON.
    Step(Value),
}

/// Measures a server. `tell` hears of each step, and an error of it ends the measurement; so does `stop`, with the step that was
/// begun told.
///
/// # Errors
/// If the server cannot be reached or refuses, has no such function, or its functions cannot be called so; and after the step is told,
/// if a connection was lost in it.
pub fn measure(
    plan: &Plan,
    stop: &AtomicBool,
    tell: &mut (dyn FnMut(Event) -> Result<()> + Send),
) -> Result<()> {
    let remote = Remote::new(&plan.address, plan.token.clone())?;
    let duration = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds).with_context(|| format!("{name}: {seconds} seconds"))
    };
    let (warm_up, time) = (duration("the warm-up", plan.warm_up)?, duration("the time", plan.seconds)?);
    let patience = duration("the patience", plan.patience)?;
    let heavy = if plan.heavy.is_empty() { 0.0 } else { plan.heavy_share };
    for rate in &plan.rates {
        let count = f64::from(*rate) * (warm_up + time).as_secs_f64();
        ensure!(
            count <= MOST,
            "{rate} calls per second for so long are {count:.1e}; {MOST:.0e} are the most"
        );
    }
    let connect =
        |address| Lanes::connect(address, plan.token.as_ref(), [&plan.light].into_iter().chain(&plan.heavy));
    for (step, rate) in plan.rates.iter().enumerate() {
        let arrivals = if plan.poisson { Arrivals::Poisson } else { Arrivals::Uniform };
        let load = Load {
            work: Work::Open { arrivals, rate: *rate },
            warm_up,
            time,
            patience,
            mix: Mix { share: heavy, heavy: (1, plan.heavy.len().max(1) as u32) },
            seed: plan.seed,
        };
        let addresses = remote.addresses.iter().cycle().take(plan.connections);
        let mut connections = addresses.map(connect).collect::<Result<Vec<_>>>()?;
        let mut looking = Looking { step, whole: warm_up + time, stop, stopped: false, tell };
        // On a thread of its own, since the generator may change its thread's priority.
        let outcome = thread::scope(|scope| {
            let body = || crosslane_load::run(&mut connections, &load, &mut looking);
            thread::Builder::new()
                .name("crosslane-load".into())
                .spawn_scoped(scope, body)?
                .join()
                .map_err(|_| std::io::Error::other("the load generator's thread panicked"))
        })??;
        let stopped = looking.stopped;
        let report = report(&outcome, &connections, *rate, stopped, time)?;
        tell(Event::Step(report))?;
        if let Some(error) = outcome.error {
            return Err(error);
        }
        if stopped {
            break;
        }
    }
    Ok(())
}

/// Tells how far a step is.
struct Looking<'a> {
    step: usize,
    whole: Duration,
    stop: &'a AtomicBool,
    stopped: bool,
    tell: &'a mut (dyn FnMut(Event) -> Result<()> + Send),
}

impl Watch for Looking<'_> {
    const EVERY: Option<Duration> = Some(Duration::from_millis(100));

    fn look(&mut self, since: Duration) -> Result<bool> {
        let part = since.as_secs_f64() / self.whole.as_secs_f64();
        (self.tell)(Event::Progress { step: self.step, part: part.min(1.0) })?;
        self.stopped = self.stop.load(Relaxed);
        Ok(!self.stopped)
    }
}

/// What a step has measured.
fn report(
    outcome: &Outcome,
    connections: &[Lanes],
    rate: u32,
    stopped: bool,
    time: Duration,
) -> Result<Value> {
    let failed: HashSet<usize> =
        connections.iter().flat_map(|connection| connection.failed.numbers.iter().copied()).collect();
    let first_failure = connections.iter().find_map(|connection| connection.failed.first.clone());
    // A measurement that was stopped does not wait for the last answers. They are not lost.
    let (waits, mut lost, mut pending, mut failures) = (!stopped && outcome.error.is_none(), 0, 0, 0);
    let (mut light, mut heavy, mut late) = (histogram()?, histogram()?, histogram()?);
    let (mut answers, mut last) = (0u64, 0);
    for (number, request) in outcome.requests.iter().enumerate().skip(outcome.first) {
        match outcome.answered(number) {
            _ if failed.contains(&number) => {
                failures += 1;
                continue;
            }
            Some(at) => {
                answers += 1;
                last = last.max(at);
            }
            None if waits => lost += 1,
            None => {
                pending += 1;
                continue;
            }
        }
        let samples = if request.work == 0 { &mut light } else { &mut heavy };
        samples.saturating_record(outcome.latency(number));
    }
    outcome.late.iter().skip(outcome.first).for_each(|late_by| late.saturating_record(*late_by));
    let begun = outcome.requests.get(outcome.first).map_or(0, |request| request.at);
    // The last answer may come long before the end if calls are rare, and behind it if they are slow.
    let ran = time.as_nanos().min(outcome.end.saturating_sub(begun).into()) as u64;
    let taken = last.saturating_sub(begun).max(ran) as f64 / 1e9;
    let mut all = light.clone();
    all.add(&heavy).context("two histograms of one kind")?;
    let distribution = all.iter_recorded();
    let distribution: Vec<_> = distribution
        .map(|step| json!([step.value_iterated_to() as f64 / 1e3, step.count_at_value()]))
        .collect();
    Ok(json!({
        "rate": rate,
        "connections": connections.len(),
        "seconds": time.as_secs_f64(),
        "stopped": stopped,
        "error": outcome.error.as_ref().map(|error| format!("{error:#}")),
        "answers": answers,
        "qps": if taken > 0.0 { answers as f64 / taken } else { 0.0 },
        "failed": failures,
        "first_failure": first_failure,
        "lost": lost,
        "pending": pending,
        "latency": summary(&all),
        "light": summary(&light),
        "heavy": summary(&heavy),
        "late": summary(&late),
        "goes_first": outcome.goes_first,
        "distribution": distribution,
    }))
}

fn histogram() -> Result<Histogram<u64>> {
    match Histogram::new_with_bounds(1, LONGEST, DIGITS) {
        Ok(histogram) => Ok(histogram),
        Err(error) => bail!("no histogram: {error}"),
    }
}

/// Count, mean, percentiles and maximum of some nanoseconds, the times in microseconds. Null if there are none.
fn summary(samples: &Histogram<u64>) -> Value {
    if samples.is_empty() {
        return Value::Null;
    }
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let mut summary = json!({
        "count": samples.len(),
        "avg_us": samples.mean() / 1e3,
        "max_us": microseconds(samples.max()),
    });
    for (name, percentile) in REPORTED {
        summary[format!("{name}_us")] = microseconds(samples.value_at_percentile(percentile)).into();
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_percentiles_of_its_samples() {
        let mut samples = histogram().unwrap();
        assert_eq!(summary(&samples), Value::Null);
        (1..=10_000).for_each(|us| samples.saturating_record(us * 1000));
        let summary = summary(&samples);
        assert_eq!(summary["count"], 10_000);
        for (name, due) in
            [("avg", 5000.5), ("p50", 5e3), ("p90", 9e3), ("p99", 9.9e3), ("p99.9", 9.99e3), ("max", 1e4)]
        {
            let got = summary[format!("{name}_us")].as_f64().unwrap();
            assert!((got / due - 1.0).abs() < 2e-3, "{name}: {got} us, and {due} are due");
        }
    }

    #[test]
    fn what_is_longer_than_an_hour_counts_as_that() {
        let mut samples = histogram().unwrap();
        samples.saturating_record(u64::MAX);
        let max = summary(&samples)["max_us"].as_f64().unwrap();
        assert!((3.6e9..3.7e9).contains(&max), "{max}");
    }
}
