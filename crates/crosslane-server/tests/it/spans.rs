//! What a server tells about each call to those who make spans, and what a collector of OpenTelemetry
//! gets.

use crate::common::raw::{Raw, calls};
use crate::common::{Client, DOUBLE, END, FAIL, eventually, options, start, unix};
use crosslane_remote::context::{Calling, TraceContext, set};
use crosslane_server::server::{Call, Outcome, SpanCounts, Spans};
use crosslane_server::wire::{Ask, control};
use crosslane_server::{Address, Server};
use std::sync::{Arc, Mutex};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn context() -> TraceContext {
    TraceContext::new(PARENT, "a=1").unwrap()
}

/// What was told about calls: the function, the client, the context, the rows, and the outcome.
type Told = (String, &'static str, Option<TraceContext>, u64, Outcome);

#[derive(Debug, Default)]
pub(crate) struct Kept(pub(crate) Mutex<Vec<Told>>);

impl Spans for Kept {
    fn ended(&self, call: &Call<'_>) {
        assert!(call.library == "test" && call.received > 0 && call.waited <= call.took, "{call:?}");
        let (function, context) = (call.function.to_owned(), call.context.cloned());
        let told = (function, call.client, context, call.rows, call.outcome.clone());
        self.0.lock().unwrap().push(told);
    }

    fn counts(&self) -> SpanCounts {
        SpanCounts::default()
    }
}

pub(crate) fn open() -> (Server, Address, Arc<Kept>) {
    let kept = Arc::<Kept>::default();
    let mut options = options(&[unix()]);
    options.spans = Some(kept.clone());
    let server = start(options).unwrap();
    let address = server.addresses()[0].clone();
    (server, address, kept)
}

#[test]
fn each_call_is_told_with_its_context_and_its_outcome() {
    let (_server, address, kept) = open();
    let client = Client::new(&address);
    set(Calling::Within(Some(Arc::new(context()))));
    client.call(DOUBLE, &[1, 2, 3]).unwrap();
    client.scan(1000, usize::MAX).unwrap();
    set(Calling::Within(None));
    client.call(FAIL, &[1]).unwrap_err();
    client.call(END, &[1]).unwrap_err();
    client.scan(1_000_000_000, 250).unwrap();
    eventually("all are told", || kept.0.lock().unwrap().len() == 5);
    let mut told = kept.0.lock().unwrap().clone();
    let (name, client, _, rows, outcome) = told.pop().unwrap();
    assert_eq!((&*name, client, outcome), ("numbers", "unix", Outcome::Cancelled));
    assert!(rows >= 250);
    let failed =
        |class: &str, message: &str| Outcome::Failed { class: class.into(), message: message.into() };
    let (.., Outcome::Failed { class, message }) = told.pop().unwrap() else { panic!("an error") };
    assert!(class == "LaneLost" && !message.is_empty(), "{message}");
    assert_eq!(
        told,
        [
            ("double".into(), "unix", Some(context()), 3, Outcome::Answered),
            ("numbers".into(), "unix", Some(context()), 1000, Outcome::Answered),
            ("fail".into(), "unix", None, 1, failed("Oops", "Oops: it fails")),
        ]
    );
}

#[test]
fn a_context_that_is_not_valid_is_none() {
    let (_server, address, kept) = open();
    let mut raw = Raw::new(&address);
    let long = "a".repeat(100_000);
    for (traceparent, tracestate) in [("nonsense", ""), (&*long, &*long), ("", ""), (PARENT, &*long)] {
        let (traceparent, tracestate) = (traceparent.to_owned(), tracestate.to_owned());
        raw.send(&control(&Ask::Context { lane: 0, traceparent, tracestate }).unwrap());
        let before = kept.0.lock().unwrap().len();
        raw.message(0, &calls(DOUBLE, before as u64 + 1, 1));
        eventually("it is told", || kept.0.lock().unwrap().len() > before);
    }
    let contexts: Vec<_> = kept.0.lock().unwrap().iter().map(|told| told.2.clone()).collect();
    assert_eq!(contexts, [None, None, None, TraceContext::new(PARENT, "")]);
}

#[cfg(feature = "flight")]
mod flight {
    use super::*;
    use crate::flight::{client, integers, local, messages};
    use arrow_flight::decode::FlightRecordBatchStream;
    use arrow_flight::error::FlightError;
    use crosslane_server::flight::Flight;
    use futures_util::{TryStreamExt, stream};
    use tonic::Request;

    #[test]
    fn headers_of_flight_are_the_context() {
        let (server, _, kept) = open();
        let flight = Flight::open(&server, &local(), |_| {}).unwrap();
        crate::flight::run(async {
            let mut client = client(&flight).await;
            for with in [true, false] {
                let mut request = Request::new(stream::iter(messages("double", vec![integers([1, 2])])));
                if with {
                    request.metadata_mut().insert("traceparent", PARENT.parse().unwrap());
                    request.metadata_mut().insert("tracestate", "a=1".parse().unwrap());
                }
                let response = client.do_exchange(request).await.unwrap().into_inner();
                let batches =
                    FlightRecordBatchStream::new_from_flight_data(response.map_err(FlightError::from));
                batches.try_collect::<Vec<_>>().await.unwrap();
            }
        });
        eventually("both are told", || kept.0.lock().unwrap().len() == 2);
        let double = |context| ("double".to_owned(), "flight", context, 2, Outcome::Answered);
        assert_eq!(*kept.0.lock().unwrap(), [double(Some(context())), double(None)]);
    }
}

#[cfg(feature = "otel")]
mod otel {
    use super::*;
    use crosslane_server::HttpRuntime;
    use crosslane_server::otel::Exporter;
    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
        TraceService, TraceServiceServer,
    };
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::time::Duration;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Response, Status};

    struct Collector(mpsc::Sender<ExportTraceServiceRequest>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            self.0.send(request.into_inner()).expect("the test waits");
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    fn call(context: Option<&TraceContext>, outcome: Outcome) -> Call<'_> {
        Call {
            function: "double",
            library: "/a/b.py",
            client: "tcp",
            context,
            waited: Duration::from_millis(250),
            took: Duration::from_secs(2),
            rows: 3,
            received: 100,
            sent: 200,
            retries: 4,
            nulls: 5,
            outcome,
        }
    }

    #[test]
    fn a_collector_gets_a_span_of_each_call() {
        let runtime = HttpRuntime::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        runtime.spawn(async move {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            let service = TraceServiceServer::new(Collector(sender));
            let serving = tonic::transport::Server::builder().add_service(service);
            serving.serve_with_incoming(incoming).await.unwrap();
        });
        let exporter = Exporter::to(&url).unwrap();
        let parent = context();
        exporter.ended(&call(Some(&parent), Outcome::Answered));
        let failed = Outcome::Failed { class: "ValueError".into(), message: "ValueError: no".into() };
        exporter.ended(&call(None, failed));
        exporter.end();
        let mut spans = Vec::new();
        let mut names = Vec::new();
        while spans.len() < 2 {
            let request = requests.recv_timeout(Duration::from_secs(30)).unwrap();
            for of_resource in request.resource_spans {
                names.extend(of_resource.resource.unwrap().attributes);
                spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        assert!(names.iter().any(|attribute| attribute.key == "service.name"));
        let [answered, failed] = &spans[..] else { panic!("two spans: {spans:?}") };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(answered.name, "double");
        assert_eq!(hex(&answered.trace_id), &PARENT[3..35]);
        assert_eq!(hex(&answered.parent_span_id), &PARENT[36..52]);
        assert_eq!(answered.trace_state, "a=1");
        assert_eq!(answered.end_time_unix_nano - answered.start_time_unix_nano, 2_000_000_000);
        let attribute = |name: &str| {
            let found = answered.attributes.iter().find(|attribute| attribute.key == name);
            found.and_then(|found| found.value.clone()?.value).unwrap_or_else(|| panic!("no {name}"))
        };
        assert_eq!(attribute("rpc.method"), Value::StringValue("double".into()));
        assert_eq!(attribute("crosslane.file"), Value::StringValue("/a/b.py".into()));
        assert_eq!(attribute("crosslane.client"), Value::StringValue("tcp".into()));
        assert_eq!(attribute("crosslane.rows"), Value::IntValue(3));
        assert_eq!(attribute("crosslane.waited_seconds"), Value::DoubleValue(0.25));
        assert_eq!(
            failed.status.as_ref().map(|status| (status.code, &*status.message)),
            Some((2, "ValueError: no"))
        );
        assert!(failed.parent_span_id.is_empty());
        assert_ne!(failed.trace_id, answered.trace_id);
        let SpanCounts { made, exported, failed } = exporter.counts();
        assert_eq!((made, exported, failed), (2, 2, 0));
    }

    /// Nothing takes the connections of this listener.
    #[test]
    fn a_collector_that_hangs_delays_no_call_and_no_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = Exporter::to(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let mut options = options(&[unix()]);
        options.spans = Some(exporter.clone());
        let server = start(options).unwrap();
        let client = Client::new(&server.addresses()[0]);
        for value in 0..5000 {
            assert_eq!(client.call(DOUBLE, &[value]).unwrap(), [2 * value]);
        }
        eventually("all have spans", || exporter.counts().made == 5000);
        assert_eq!(exporter.counts().exported, 0);
        drop(client);
        assert!(server.shut_down(Duration::from_secs(60)));
        exporter.end();
        assert_eq!(exporter.counts().exported, 0);
    }
}
