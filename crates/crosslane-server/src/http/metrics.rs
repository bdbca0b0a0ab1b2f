//! What a server shows of itself, for Prometheus.

use super::monitor::{SeenFunction, SeenLibrary, Snapshot, seconds};
use crate::server::SpanCounts;
use histogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The text's media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The bounds of the latencies' buckets, in seconds.
const BOUNDS: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
];

/// The text that Prometheus reads.
///
/// # Errors
/// Never: a string takes all that is written to it.
pub(crate) fn text(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshots(snapshot)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshots(Snapshot);

impl Collector for Snapshots {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Self(snapshot) = self;
        let mut to = Metrics(&mut encoder);
        let info = ConstGauge::new(1_i64);
        to.family("crosslane_build_info", "The version that runs.", info.metric_type(), |each| {
            each(&[("version", snapshot.version)], &info)
        })?;
        to.gauge(
            "crosslane_start_time_seconds",
            "When it was started, in seconds since 1970.",
            snapshot.started,
        )?;
        let ready = f64::from(u8::from(snapshot.unready.is_none()));
        to.gauge("crosslane_ready", "1 if all files are loaded and calls are taken, else 0.", ready)?;
        let connections = &snapshot.connections;
        to.gauge("crosslane_connections", "Connections that are open.", connections.open as f64)?;
        to.gauge("crosslane_connections_limit", "Connections at most.", connections.most as f64)?;
        to.counter("crosslane_connections_taken", "Connections that were taken.", connections.taken)?;
        let refused =
            "Connections that were refused, because there were too many or the server was shutting down.";
        to.counter("crosslane_connections_refused", refused, connections.refused)?;
        let violations = "Connections that were ended because of what the client did.";
        to.counter("crosslane_connections_violations", violations, connections.violations)?;
        let (used, most) = self.0.bytes;
        let bytes = "Bytes of messages that wait in the server, for a worker or for their client.";
        to.gauge("crosslane_waiting_bytes", bytes, used as f64)?;
        to.gauge("crosslane_waiting_bytes_limit", "Such bytes at most.", most as f64)?;
        let SpanCounts { made, exported, failed } = self.0.spans;
        to.counter("crosslane_spans", "Spans of calls.", made)?;
        to.counter("crosslane_spans_exported", "Spans that the collector has taken.", exported)?;
        to.counter("crosslane_spans_failed", "Spans that could not be sent.", failed)?;
        self.libraries(&mut to)?;
        self.functions(&mut to)
    }
}

impl Snapshots {
    fn libraries(&self, to: &mut Metrics<'_, '_>) -> fmt::Result {
        let libraries = &self.0.libraries;
        to.family("crosslane_workers", "Worker processes, by what they do.", MetricType::Gauge, |each| {
            for SeenLibrary { name, language, workers, .. } in libraries {
                let states = [
                    ("free", workers.free),
                    ("working", workers.working),
                    ("held", workers.held),
                    ("booting", workers.booting),
                ];
                for (state, count) in states {
                    let labels = [("library", name.as_str()), ("language", language), ("state", state)];
                    each(&labels, &ConstGauge::new(count as i64))?;
                }
            }
            Ok(())
        })?;
        let mut each_library = |name, help, metric_type, value: &dyn Fn(&SeenLibrary) -> u64| {
            to.family(name, help, metric_type, |each| {
                libraries.iter().try_for_each(|library| {
                    let labels = [("library", library.name.as_str()), ("language", &library.language)];
                    number(each, &labels, metric_type, value(library))
                })
            })
        };
        use MetricType::{Counter, Gauge};
        let version = "How often the file was loaded.";
        each_library("crosslane_library_version", version, Gauge, &|library| u64::from(library.version))?;
        let limit = "Worker processes at most, beside those that are held.";
        each_library("crosslane_workers_limit", limit, Gauge, &|library| library.workers.most as u64)?;
        let line = "Lanes of clients that wait for a worker.";
        each_library("crosslane_lanes_waiting", line, Gauge, &|library| library.workers.line as u64)?;
        each_library("crosslane_workers_booted", "Workers that were started.", Counter, &|library| {
            library.booted
        })?;
        let ended = "Workers that failed or were ended.";
        each_library("crosslane_workers_ended", ended, Counter, &|library| library.ended)
    }

    fn functions(&self, to: &mut Metrics<'_, '_>) -> fmt::Result {
        let functions = &self.0.functions;
        let mut each_function = |name, help, metric_type, value: &dyn Fn(&SeenFunction) -> u64| {
            to.family(name, help, metric_type, |each| {
                functions
                    .iter()
                    .try_for_each(|function| number(each, &labels(function), metric_type, value(function)))
            })
        };
        use MetricType::{Counter, Gauge};
        let calls = "Calls that have ended. A call is one batch, or one scan of a table.";
        each_function("crosslane_function_calls", calls, Counter, &|function| function.calls)?;
        let failures = "Calls that ended with an error, or with their worker.";
        each_function("crosslane_function_errors", failures, Counter, &|function| function.failures)?;
        each_function("crosslane_function_rows", "Rows of calls.", Counter, &|function| function.rows)?;
        let reused = "Rows without a call, because their result was known.";
        each_function("crosslane_function_reused_rows", reused, Counter, &|function| function.reused)?;
        let nulls = "Rows that became NULL because of on_error = null.";
        each_function("crosslane_function_null_rows", nulls, Counter, &|function| function.nulls)?;
        let retries = "Calls for rows that were tried again by the worker.";
        each_function("crosslane_function_retries", retries, Counter, &|function| function.retries)?;
        let deaths = "Workers that were lost during a call.";
        each_function("crosslane_function_worker_deaths", deaths, Counter, &|function| function.deaths)?;
        let received = "Bytes that workers were given.";
        each_function("crosslane_function_received_bytes", received, Counter, &|function| function.received)?;
        let sent = "Bytes that workers have answered.";
        each_function("crosslane_function_sent_bytes", sent, Counter, &|function| function.sent)?;
        let flying = "Calls that workers have.";
        each_function("crosslane_function_in_flight", flying, Gauge, &|function| {
            u64::from(function.in_flight)
        })?;
        let waiting = "Calls that wait in the server.";
        each_function("crosslane_function_waiting", waiting, Gauge, &|function| u64::from(function.waiting))?;
        let worked = "Seconds that the function itself took.";
        to.family("crosslane_function_worked_seconds", worked, Counter, |each| {
            functions
                .iter()
                .try_for_each(|function| each(&labels(function), &ConstCounter::new(function.worked)))
        })?;
        let latency = "Seconds from the coming of a call to the server to its end there.";
        to.family("crosslane_function_latency_seconds", latency, MetricType::Histogram, |each| {
            functions.iter().try_for_each(|function| each(&labels(function), &Latencies::of(function)))
        })
    }
}

fn labels(function: &SeenFunction) -> [(&str, &str); 3] {
    [("function", &function.name), ("library", &function.library), ("language", &function.language)]
}

/// Takes each metric of a family with its labels.
type Each<'a> = &'a mut dyn FnMut(&[(&str, &str)], &dyn EncodeMetric) -> fmt::Result;

fn number(each: Each<'_>, labels: &[(&str, &str)], metric_type: MetricType, value: u64) -> fmt::Result {
    match metric_type {
        MetricType::Counter => each(labels, &ConstCounter::new(value)),
        _ => each(labels, &ConstGauge::new(value as i64)),
    }
}

/// Where metrics go.
struct Metrics<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Metrics<'_, '_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        metric_type: MetricType,
        body: impl FnOnce(Each<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, metric_type)?;
        body(&mut |labels, metric| metric.encode(encoder.encode_family(&labels)?))
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }
}

/// The latencies of a function, in the buckets of Prometheus.
struct Latencies {
    sum: f64,
    /// Upper bounds, and how many lie between each and the one before.
    buckets: Vec<(f64, u64)>,
}

impl Latencies {
    fn of(function: &SeenFunction) -> Self {
        Self { sum: function.took, buckets: buckets(function.latencies.as_ref()) }
    }
}

impl EncodeMetric for Latencies {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn buckets(histogram: Option<&Histogram>) -> Vec<(f64, u64)> {
    let mut buckets: Vec<_> = BOUNDS.into_iter().chain([f64::INFINITY]).map(|bound| (bound, 0)).collect();
    for bucket in histogram.into_iter().flatten().filter(|bucket| bucket.count() > 0) {
        let at = buckets.partition_point(|(bound, _)| *bound < seconds(bucket.end()));
        buckets[at].1 += bucket.count();
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_lie_in_the_bucket_that_ends_above_them() {
        let mut histogram = Histogram::new(5, 40).unwrap();
        for (nanoseconds, count) in [(90_000, 3), (1_500_000, 2), (40_000_000_000, 1)] {
            histogram.add(nanoseconds, count).unwrap();
        }
        let found: Vec<_> = buckets(Some(&histogram)).into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(found, [(0.0001, 3), (0.0025, 2), (f64::INFINITY, 1)]);
        assert!(buckets(None).iter().all(|(_, count)| *count == 0));
    }
}
