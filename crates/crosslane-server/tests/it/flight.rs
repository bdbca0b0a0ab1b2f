//! Functions of a server, called over Arrow Flight by the client of arrow-flight and by the client of
//! arrow-udf (`arrow-udf-runtime`).

use crate::common::{BEGUN, eventually, options, start, start_counted, unix};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Criteria, FlightData, FlightDescriptor};
use arrow_schema::{DataType, Field, Schema};
use arrow_udf_runtime::remote;
use crosslane_server::flight::{self, Flight};
use crosslane_server::{Address, Server};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

pub(crate) fn local() -> flight::Options {
    flight::Options { listen: "127.0.0.1:0".into(), tls: None }
}

/// A server that listens for Arrow Flight. Its `Flight` is dropped first.
fn open() -> (Flight, Server) {
    let server = start(options(&[unix()])).unwrap();
    (Flight::open(&server, &local(), |_| {}).unwrap(), server)
}

fn uri(flight: &Flight) -> String {
    flight.address().replace("grpc://", "http://")
}

pub(crate) async fn client(flight: &Flight) -> FlightServiceClient<Channel> {
    let channel = Endpoint::new(uri(flight)).unwrap().connect().await.unwrap();
    FlightServiceClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// Runs a client's part.
pub(crate) fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), body).await.expect("it hangs") })
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn integers(values: impl IntoIterator<Item = i64>) -> RecordBatch {
    batch(vec![("x", Arc::new(Int64Array::from_iter_values(values)))])
}

fn path(name: &str) -> FlightDescriptor {
    FlightDescriptor::new_path(vec![name.to_owned()])
}

/// Messages of an exchange with these batches.
pub(crate) fn messages(name: &str, batches: Vec<RecordBatch>) -> Vec<FlightData> {
    let schema = batches.first().map_or_else(|| integers([]).schema(), RecordBatch::schema);
    let mut messages = arrow_flight::utils::batches_to_flight_data(&schema, batches).unwrap();
    messages[0].flight_descriptor = Some(path(name));
    messages
}

async fn exchange(
    client: &mut FlightServiceClient<Channel>,
    messages: Vec<FlightData>,
) -> Result<Vec<RecordBatch>, Status> {
    let response = client.do_exchange(stream::iter(messages)).await?.into_inner();
    let batches = FlightRecordBatchStream::new_from_flight_data(response.map_err(FlightError::from));
    batches.try_collect().await.map_err(Status::from)
}

async fn call(flight: &Flight, name: &str, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>, Status> {
    exchange(&mut client(flight).await, messages(name, batches)).await
}

fn values(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn arrow_udfs_client_calls_functions_and_tables() {
    let (flight, _server) = open();
    run(async {
        let client = remote::Client::connect(uri(&flight)).await.unwrap();
        assert_eq!(client.protocol_version(), 2);
        let function = client.get("double").await.unwrap();
        assert_eq!(function.name, "double");
        assert_eq!(function.args.fields().len(), 1);
        assert_eq!(function.args.field(0), &Field::new("x", DataType::Int64, true));
        assert_eq!(function.returns.field(0).data_type(), &DataType::Int64);
        let mut names: Vec<_> =
            client.list().await.unwrap().into_iter().map(|function| function.name).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "double",
                "end",
                "fail",
                "kept",
                "large",
                "lengths",
                "numbers",
                "rare",
                "rarely_kept",
                "texts",
                "wait"
            ]
        );

        let doubled = client.call("double", &integers(0..2048)).await.unwrap();
        assert_eq!(values(&doubled), (0..2048).map(|value| value * 2).collect::<Vec<_>>());
        let failed = client.call("fail", &integers([5])).await.unwrap_err().to_string();
        assert!(failed.contains("fail: Oops: it fails"), "{failed}");
        assert!(failed.contains("in row 1 of the batch, with x = 5"), "{failed}");

        let numbers = client.call_table_function("numbers", &integers([3, 0, 250])).await.unwrap();
        let batches: Vec<RecordBatch> = numbers.try_collect().await.unwrap();
        let rows = batches.iter().flat_map(|batch| {
            assert_eq!(batch.schema().field(0).name(), "row_index");
            let at = batch.column(0).as_any().downcast_ref::<Int32Array>().unwrap().values().to_vec();
            at.into_iter().zip(batch.column(1).as_primitive::<Int64Type>().values().to_vec())
        });
        let due = (0..3).map(|value| (0, value)).chain((0..250).map(|value| (2, value)));
        assert!(rows.eq(due));
    });
}

#[test]
fn batches_are_answered_in_order_whatever_each_takes() {
    let (flight, _server) = open();
    run(async {
        // The first batch takes the longest time.
        let batches: Vec<_> = (0..12).map(|at| integers([60 - 5 * at])).collect();
        let results = call(&flight, "wait", batches).await.unwrap();
        let results: Vec<_> = results.iter().flat_map(values).collect();
        assert_eq!(results, (0..12).map(|at| 60 - 5 * at).collect::<Vec<_>>());
        // The server also answers a batch without rows.
        let results = call(&flight, "double", vec![integers([]), integers([4])]).await.unwrap();
        assert_eq!(results.iter().map(values).collect::<Vec<_>>(), [vec![], vec![8]]);
        // The server answers an exchange without batches with a schema.
        assert!(call(&flight, "double", vec![]).await.unwrap().is_empty());
    });
}

#[test]
fn other_encodings_of_the_same_values_are_taken() {
    let (flight, _server) = open();
    run(async {
        let nulls = batch(vec![("x", arrow_array::new_null_array(&DataType::Null, 3))]);
        // The function admits no NULL. This guest does not check that, and reads zeros below the NULLs.
        let results = call(&flight, "double", vec![nulls]).await.unwrap();
        assert_eq!(results[0].num_rows(), 3);
        // These are rows from the middle of a longer array.
        let results = call(&flight, "double", vec![integers(0..100).slice(50, 3)]).await.unwrap();
        assert_eq!(values(&results[0]), [100, 102, 104]);
    });
}

#[test]
fn what_is_wrong_is_said_in_a_status() {
    let (flight, _server) = open();
    run(async {
        let refused =
            async |name: &str, given: RecordBatch| call(&flight, name, vec![given]).await.unwrap_err();
        let unknown = refused("nothing", integers([1])).await;
        assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "there is no function nothing"));

        let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let wrong = refused("double", batch(vec![("x", Arc::clone(&text))])).await;
        let due = "double takes (Int64), and the columns are (Utf8)";
        assert_eq!((wrong.code(), wrong.message()), (Code::InvalidArgument, due));
        let two = refused("double", batch(vec![("x", Arc::clone(&text)), ("y", text)])).await;
        assert_eq!(two.code(), Code::InvalidArgument, "{two}");

        let ended = refused("end", integers([1])).await;
        assert_eq!(ended.code(), Code::Internal, "{ended}");
        assert!(ended.message().starts_with("end: the thread that ran it was ended"), "{ended}");
        let failed = refused("fail", integers([5])).await;
        assert_eq!(failed.code(), Code::Unknown, "{failed}");

        let mut client = client(&flight).await;
        for descriptor in
            [path("nothing"), FlightDescriptor::new_path(vec![]), FlightDescriptor::new_cmd("double")]
        {
            client.get_flight_info(descriptor).await.unwrap_err();
        }
        let action = client.do_action(Action::new("drop", "")).await.unwrap_err();
        assert_eq!(action.code(), Code::Unimplemented);
        // The same connection can still be used.
        let results = exchange(&mut client, messages("double", vec![integers([2])])).await.unwrap();
        assert_eq!(values(&results[0]), [4]);
    });
}

#[test]
fn invalid_messages_end_only_their_exchange() {
    let (flight, _server) = open();
    run(async {
        let mut client = client(&flight).await;
        let good = messages("double", vec![integers(0..10)]);
        let named =
            |message: &FlightData| FlightData { flight_descriptor: Some(path("double")), ..message.clone() };
        let garbage = |bytes: &'static [u8]| FlightData { data_header: bytes.into(), ..good[0].clone() };
        let short = FlightData { data_body: good[1].data_body.slice(..8), ..good[1].clone() };
        let hostile: Vec<(&str, Vec<FlightData>)> = vec![
            ("nothing", vec![]),
            ("no function", vec![FlightData { flight_descriptor: None, ..good[0].clone() }]),
            ("no schema", vec![named(&good[1])]),
            ("no flatbuffer", vec![garbage(b"\xff\xff\xff\xff\xff\xff\xff\xff")]),
            ("a short header", vec![garbage(b"x")]),
            ("a short body", vec![good[0].clone(), short]),
        ];
        for (what, hostile) in hostile {
            let error = exchange(&mut client, hostile).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{what}: {error}");
        }
        // A flipped bit gives an error or other numbers, and no other effect.
        for at in 0..good[1].data_header.len() {
            let mut header = good[1].data_header.to_vec();
            header[at] ^= 0x41;
            let flipped = FlightData { data_header: header.into(), ..good[1].clone() };
            let _ = exchange(&mut client, vec![good[0].clone(), flipped]).await;
        }
        let mut client = self::client(&flight).await;
        let results = exchange(&mut client, good).await.unwrap();
        assert_eq!(values(&results[0]), (0..10).map(|value| value * 2).collect::<Vec<_>>());
    });
}

#[test]
fn what_is_too_large_is_refused_either_way() {
    let (flight, _server) = open();
    run(async {
        // The largest batch has 16 MiB.
        let error = call(&flight, "double", vec![integers(0..3 << 20)]).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        assert!(error.message().contains("--largest-batch"), "{error}");
        let text = call(&flight, "large", vec![integers([8 << 20])]).await.unwrap();
        assert_eq!(text[0].column(0).as_string::<i32>().value(0).len(), 8 << 20);
        // This batch announces more rows than any batch may have, and has no bytes for them.
        let rows = RecordBatch::try_new(
            Arc::new(Schema::new(vec![Field::new("x", DataType::Null, true)])),
            vec![arrow_array::new_null_array(&DataType::Null, 1 << 40)],
        );
        let error = call(&flight, "double", vec![rows.unwrap()]).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    });
}

#[test]
fn a_client_that_goes_away_frees_its_workers() {
    let (server, guests) = start_counted(options(&[unix()])).unwrap();
    let flight = Flight::open(&server, &local(), |_| {}).unwrap();
    run(async {
        for _ in 0..3 {
            let mut client = client(&flight).await;
            let (messages, receiver) = mpsc::channel::<FlightData>(64);
            for message in self::messages("wait", vec![integers([60_000]); 8]) {
                messages.send(message).await.unwrap();
            }
            let input =
                stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
            let response = client.do_exchange(input).await.unwrap();
            let waits = || server.load().0 > 0 && guests.load(std::sync::atomic::Ordering::Relaxed) > 0;
            tokio::task::block_in_place(|| eventually("nothing is called", waits));
            drop((response, messages, client));
            tokio::task::block_in_place(|| eventually("calls go on", || server.load().1 == 0));
        }
        // Both workers are idle again. They were ended, or have ended the calls for which no client
        // waits.
        let results = call(&flight, "double", vec![integers([1]); 20]).await.unwrap();
        assert_eq!(results.len(), 20);
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_itself() {
    let (flight, _server) = open();
    run(async {
        let mut client = client(&flight).await;
        let (messages, receiver) = mpsc::channel::<FlightData>(1);
        let input =
            stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        let response = client.do_exchange(input).await.unwrap();
        let good = self::messages("double", vec![integers(0..20_000)]);
        messages.send(good[0].clone()).await.unwrap();
        // If the server did not stop reading, it would take 64 MB.
        let mut sent = 0;
        while sent < 400 {
            match tokio::time::timeout(Duration::from_secs(2), messages.send(good[1].clone())).await {
                Ok(taken) => taken.unwrap(),
                Err(_) => break,
            }
            sent += 1;
        }
        assert!(sent < 200, "{sent} batches were taken of a client that reads none");
        drop(messages);
        let batches =
            FlightRecordBatchStream::new_from_flight_data(response.into_inner().map_err(FlightError::from));
        let batches: Vec<_> = batches.try_collect().await.unwrap();
        assert!(batches.len() >= sent, "{} of {sent}", batches.len());
    });
}

#[test]
fn many_clients_share_few_workers() {
    let (flight, _server) = open();
    run(async {
        let calls = (0..40).map(|at| {
            let flight = &flight;
            async move {
                let results = call(flight, "double", vec![integers([at]); 5]).await.unwrap();
                assert!(results.iter().all(|batch| values(batch) == [at * 2]));
            }
        });
        stream::iter(calls).buffer_unordered(40).collect::<Vec<()>>().await;
    });
}

#[test]
fn others_than_this_machine_need_a_token() {
    let server = start(options(&[unix()])).unwrap();
    let everywhere = flight::Options { listen: "0.0.0.0:0".into(), tls: None };
    let error = Flight::open(&server, &everywhere, |_| {}).unwrap_err().to_string();
    assert!(error.contains("give the server a token"), "{error}");
    drop(server);

    let server =
        start(crosslane_server::Options { token: Some("secret".into()), ..options(&[unix()]) }).unwrap();
    let flight = Flight::open(&server, &local(), |_| {}).unwrap();
    run(async {
        let mut client = client(&flight).await;
        for given in [None, Some("Bearer other"), Some("secret"), Some("Basic secret")] {
            let mut request = Request::new(Criteria::default());
            if let Some(given) = given {
                request.metadata_mut().insert("authorization", given.parse().unwrap());
            }
            let error = client.list_flights(request).await.unwrap_err();
            assert_eq!(error.code(), Code::Unauthenticated, "{given:?}: {error}");
        }
        let mut request = Request::new(stream::iter(messages("double", vec![integers([3])])));
        request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        // The client sends the token in the form that Databend uses.
        request.metadata_mut().insert("x-databend-query-id", "1".parse().unwrap());
        let response = client.do_exchange(request).await.unwrap().into_inner();
        let batches = FlightRecordBatchStream::new_from_flight_data(response.map_err(FlightError::from));
        let batches: Vec<_> = batches.try_collect().await.unwrap();
        assert_eq!(values(&batches[0]), [6]);
    });
}

#[test]
fn a_certificate_makes_connections_encrypted() {
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = std::env::temp_dir().join(format!("crosslane-flight-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let server = start(options(&[unix()])).unwrap();
    let encrypted = flight::Options { listen: "localhost:0".into(), tls: Some((certificate, key)) };
    let flight = Flight::open(&server, &encrypted, |_| {}).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    run(async {
        let address = flight.address().replace("grpc+tls://", "https://");
        let trusted = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(signed.cert.pem()));
        let channel = Endpoint::new(address).unwrap().tls_config(trusted).unwrap().connect().await.unwrap();
        let mut client = FlightServiceClient::new(channel);
        let results = exchange(&mut client, messages("double", vec![integers([21])])).await.unwrap();
        assert_eq!(values(&results[0]), [42]);
        let plain = flight.address().replace("grpc+tls://", "http://");
        let plain = remote::Client::connect(plain).await;
        assert!(plain.is_err() || plain.unwrap().get("double").await.is_err());
    });
    let missing = flight::Options { tls: Some(("/nowhere.pem".into(), "/nowhere.pem".into())), ..encrypted };
    let error = Flight::open(&server, &missing, |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere.pem: "), "{error}");
}

#[test]
fn calls_that_run_end_before_the_server_does_and_idle_exchanges_with_it() {
    let (flight, server) = open();
    let address = uri(&flight);
    run(async {
        let mut client = client(&flight).await;
        let (idle, receiver) = mpsc::channel::<FlightData>(1);
        let input =
            stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        let mut waits = client.do_exchange(input).await.unwrap().into_inner();
        idle.send(messages("double", vec![])[0].clone()).await.unwrap();
        waits.message().await.unwrap().expect("the schema");

        // Two workers have a call each, and one call waits in the queue.
        // No other test waits for this number of milliseconds.
        let times = [1001, 1002, 1003];
        let running = times.map(|time| {
            let mut client = client.clone();
            let messages = messages("wait", vec![integers([time])]);
            tokio::spawn(async move { exchange(&mut client, messages).await })
        });
        let begun = || BEGUN.lock().unwrap().iter().filter(|time| times.contains(time)).count();
        let drained = tokio::task::block_in_place(|| {
            // If the machine pauses, one call may have ended by now, and the last one may have begun.
            eventually("no call stands in line", || (begun() == 2 && server.load().1 == 1) || begun() == 3);
            flight.end();
            let drained = server.shut_down(Duration::from_secs(60));
            drop(flight);
            drained
        });
        assert!(drained);
        for (result, time) in running.into_iter().zip(times) {
            assert_eq!(values(&result.await.unwrap().unwrap()[0]), [time]);
        }
        let ended = waits.message().await.unwrap_err();
        assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "the server is shutting down"));
        assert!(Endpoint::new(address).unwrap().connect().await.is_err());
    });
}

#[test]
fn an_address_that_is_taken_is_named() {
    let (flight, server) = open();
    let listen = flight.address().trim_start_matches("grpc://").to_owned();
    let error =
        Flight::open(&server, &flight::Options { listen: listen.clone(), tls: None }, |_| {}).unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen for Arrow Flight at {listen}")), "{error}");
    let addresses: &[Address] = server.addresses();
    assert_eq!(addresses.len(), 1, "Arrow Flight has none of the native addresses");
}
