//! OpenTelemetry: a span for each call, which goes to a collector by OTLP.
//!
//! The variables of OpenTelemetry say where spans go, which calls are sampled, and what the service is
//! called. Without an endpoint there are no spans. The SDK has a queue of a bounded length and a thread
//! of its own for the collector. If the collector is slow or gone, later spans are dropped. So no call
//! waits for it. At its end, the server waits [`LAST`] for the collector.

use crate::http::HttpRuntime;
use crate::server::{Call, Outcome, SpanCounts, Spans, are_spans_wanted, variable};
use crosslane::Error;
use crosslane_remote::context::TraceContext;
use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// How long the server waits for the collector when it ends.
const LAST: Duration = Duration::from_secs(2);
/// The name of the service, unless the environment has one.
const SERVICE: &str = "crosslane";

/// Makes a span of each call.
pub struct Exporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counts: Arc<Counts>,
    _runtime: HttpRuntime,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("counts", &self.counts).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counts {
    made: AtomicU64,
    exported: AtomicU64,
    failed: AtomicU64,
}

impl Exporter {
    /// The exporter that the environment asks for; `None` if it names no endpoint, or says that there
    /// are to be no spans.
    ///
    /// # Errors
    /// [`Error::Setting`] if the environment asks for what is not possible, and [`Error::Engine`] if the
    /// system has no thread.
    pub fn from_environment() -> Result<Option<Arc<Self>>, Error> {
        if !are_spans_wanted() {
            return Ok(None);
        }
        let protocol = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let protocol = protocol.into_iter().find_map(variable).unwrap_or_else(|| "grpc".into());
        if protocol != "grpc" {
            return Err(Error::Setting(format!(
                "spans go to a collector by OTLP over gRPC, not by {protocol}: set OTEL_EXPORTER_OTLP_PROTOCOL to grpc"
            )));
        }
        Self::start(|| SpanExporter::builder().with_tonic().build()).map(Some)
    }

    /// An exporter to the collector at this URL, whatever the environment says of it.
    ///
    /// # Errors
    /// [`Error::Setting`] if it is no URL, and [`Error::Engine`] if the system has no thread.
    pub fn to(url: &str) -> Result<Arc<Self>, Error> {
        Self::start(|| SpanExporter::builder().with_tonic().with_endpoint(url).build())
    }

    fn start(build: impl FnOnce() -> Result<SpanExporter, ExporterBuildError>) -> Result<Arc<Self>, Error> {
        let runtime = HttpRuntime::start();
        let runtime = runtime.map_err(|error| Error::Engine(format!("no thread for spans: {error}")))?;
        let inner = runtime.within(build);
        let inner = inner.map_err(|error| Error::Setting(format!("no spans can be sent: {error}")))?;
        let counts = Arc::<Counts>::default();
        let counted = Counted { inner, counts: Arc::clone(&counts) };
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(counted).build();
        let tracer = provider.tracer(SERVICE);
        Ok(Arc::new(Self { provider, tracer, counts, _runtime: runtime }))
    }

    /// Sends what waits, for [`LAST`] at most.
    pub fn end(&self) {
        // The SDK logs what it could not send.
        let _ = self.provider.shutdown_with_timeout(LAST);
    }
}

/// What the spans say about this process.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&Key::from_static_str("service.name"));
    let is_unknown = name.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    if is_unknown { Resource::builder().with_service_name(SERVICE).build() } else { resource }
}

impl Spans for Exporter {
    fn ended(&self, call: &Call<'_>) {
        let ended = SystemTime::now();
        let parent = call
            .context
            .and_then(remote)
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let mut span = self
            .tracer
            .span_builder(call.function.to_owned())
            .with_kind(SpanKind::Server)
            .with_start_time(ended.checked_sub(call.took).unwrap_or(ended))
            .start_with_context(&self.tracer, &parent);
        if !span.is_recording() {
            return;
        }
        span.set_attributes(attributes(call));
        if let Outcome::Failed { message, .. } = &call.outcome {
            span.set_status(Status::error(message.clone()));
        }
        self.counts.made.fetch_add(1, Relaxed);
        span.end_with_timestamp(ended);
    }

    fn counts(&self) -> SpanCounts {
        let Counts { made, exported, failed } = &*self.counts;
        let [made, exported, failed] = [made, exported, failed].map(|count| count.load(Relaxed));
        SpanCounts { made, exported, failed }
    }
}

/// The span of a client that a context names.
fn remote(context: &TraceContext) -> Option<SpanContext> {
    let [_, trace, span, flags] = *context.parent().split('-').collect::<Vec<_>>() else { return None };
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let state = TraceState::from_str(context.state()).unwrap_or_default();
    Some(SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags),
        true,
        state,
    ))
}

fn attributes(call: &Call<'_>) -> Vec<KeyValue> {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut attributes = vec![
        KeyValue::new("rpc.system", "crosslane"),
        KeyValue::new("rpc.method", call.function.to_owned()),
        KeyValue::new("crosslane.file", call.library.to_owned()),
        KeyValue::new("crosslane.client", call.client),
        KeyValue::new("crosslane.rows", number(call.rows)),
        KeyValue::new("crosslane.received_bytes", number(call.received)),
        KeyValue::new("crosslane.sent_bytes", number(call.sent)),
        KeyValue::new("crosslane.waited_seconds", call.waited.as_secs_f64()),
        KeyValue::new("crosslane.retries", number(call.retries)),
        KeyValue::new("crosslane.null_rows", number(call.nulls)),
    ];
    match &call.outcome {
        Outcome::Answered => {}
        Outcome::Cancelled => attributes.push(KeyValue::new("crosslane.cancelled", true)),
        Outcome::Failed { class, .. } => attributes.push(KeyValue::new("error.type", class.clone())),
    }
    attributes
}

/// An exporter that counts.
#[derive(Debug)]
struct Counted {
    inner: SpanExporter,
    counts: Arc<Counts>,
}

impl opentelemetry_sdk::trace::SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let result = self.inner.export(batch).await;
        let Counts { exported, failed, .. } = &*self.counts;
        if result.is_ok() { exported } else { failed }.fetch_add(count, Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
