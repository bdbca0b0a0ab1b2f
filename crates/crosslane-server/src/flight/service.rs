//! Listens for clients of Arrow Flight, and answers their calls.

use super::context::{Context, Offered};
use super::exchange::Exchange;
use super::{incoming, status};
use crate::Server;
use crate::client::RemoteZygote;
use crate::lane::LaneOptions;
use arrow_array::RecordBatch;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::{CompressionContext, DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{Error, Library, Settings, lock};
use crosslane_remote::context::TraceContext;
use futures_util::TryFutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// The version of the contract: arrow-udf's.
const VERSION: u8 = 2;
/// Calls at once at most.
const MOST_CALLS: usize = 256;
/// Exchanges of a connection at most.
const MOST_STREAMS: u32 = 256;
/// How much a client may send ahead, of an exchange and of all on its connection.
const WINDOWS: (u32, u32) = (1 << 20, 4 << 20);
/// How often a client is asked whether it lives, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));
/// How long the last messages may take after the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How the listener behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens: `host:port`, where the port 0 lets the system choose one.
    pub listen: String,
    /// A certificate's file and its key's, in PEM, if connections are to be encrypted.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// A server's listener for Arrow Flight, open until it is dropped.
pub struct Flight {
    context: Arc<Context>,
    address: String,
    /// `None` when it is closed.
    runtime: Option<Runtime>,
    /// Disconnected when all connections have ended.
    served: mpsc::Receiver<()>,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Flight {
    /// Listens. `log` gets a line for what happens to connections.
    ///
    /// # Errors
    /// [`Error::Engine`] if it cannot listen, the certificate cannot be read, or other machines could call functions
    /// without a token; [`Error::Boot`] if there are no threads for it.
    pub fn open(
        server: &Server,
        options: &Options,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let Options { listen, tls } = options;
        let unable = |what: &str| {
            let what = format!("{what} for Arrow Flight at {listen}");
            move |error: io::Error| Error::Engine(format!("{what}: {error}"))
        };
        let listener = TcpListener::bind(listen).map_err(unable("cannot listen"))?;
        let bound: SocketAddr = listener.local_addr().map_err(unable("cannot listen"))?;
        let token = server.token().cloned();
        if token.is_none() && !bound.ip().is_loopback() {
            return Err(Error::Engine(format!(
                "everybody who reaches {listen} could call the functions: give the server a token, or listen at \
                 127.0.0.1"
            )));
        }
        let identity = tls.as_ref().map(|(certificate, key)| {
            let read = |file: &PathBuf| {
                std::fs::read(file).map_err(|error| Error::Engine(format!("{}: {error}", file.display())))
            };
            Ok::<_, Error>(Identity::from_pem(read(certificate)?, read(key)?))
        });
        let identity = identity.transpose()?;
        let (connections, largest) = server.limits();
        let library = library(server, largest)?;
        let context = Arc::new(Context {
            offered: Mutex::new(Arc::new(Offered::new(library))),
            token,
            largest,
            places: Arc::new(Semaphore::new(connections)),
            slots: Arc::new(Semaphore::new(connections.div_ceil(2).min(MOST_CALLS))),
            ending: watch::Sender::new(false),
        });
        let runtime = Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(1, usize::from).min(4))
            .thread_name("crosslane-flight")
            .enable_all()
            .build()
            .map_err(unable("no threads"))?;
        let address =
            format!("{}://{}", if identity.is_some() { "grpc+tls" } else { "grpc" }, shown(listen, bound));
        let serving = {
            let _within = runtime.enter();
            serve(Arc::clone(&context), listener, identity, connections, log).map_err(unable("no server"))?
        };
        let (serves, served) = mpsc::channel();
        runtime.spawn(async move {
            serving.await;
            drop(serves);
        });
        Ok(Self { context, address, runtime: Some(runtime), served })
    }

    /// Where it listens: with the port that the system chose.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many functions can be called through it, and why others cannot.
    pub fn offered(&self) -> (usize, Vec<String>) {
        let offered = self.context.offered();
        let refused: Vec<_> =
            offered.functions.values().filter_map(|function| function.as_ref().err().cloned()).collect();
        (offered.functions.len() - refused.len(), refused)
    }

    /// Offers the functions that the server has now. Exchanges that run go on with theirs.
    ///
    /// # Errors
    /// [`Error::Engine`] if the server is shutting down. Then the functions stay as they were.
    pub fn renew(&self, server: &Server) -> Result<(), Error> {
        let offered = Arc::new(Offered::new(library(server, self.context.largest)?));
        let last = std::mem::replace(&mut *lock(&self.context.offered), offered);
        // Without the lock: this may end connections.
        drop(last);
        Ok(())
    }

    /// Takes no more connections and batches. What is worked on goes on; it ends with the server, which is to be shut
    /// down now, and this dropped then.
    pub fn end(&self) {
        self.context.ending.send_replace(true);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end();
        let _ = self.served.recv_timeout(LAST_WORDS);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_WORDS);
        }
    }
}

/// An address as it was asked for, with the port that it has.
fn shown(listen: &str, bound: SocketAddr) -> String {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    format!("{host}:{}", bound.port())
}

/// The server's functions, as another process would attach them.
fn library(server: &Server, largest: usize) -> Result<Library<RemoteZygote>, Error> {
    let name = "Arrow Flight";
    let dial = server.dial().ok_or_else(|| Error::Engine(crate::server::ENDING.into()))?;
    let settings = Settings::default();
    let options = LaneOptions { largest, stuck: settings.stuck() };
    let token = server.token().cloned();
    let pool = PoolOptions { warm: 0, idle_timeout: settings.idle_timeout };
    let (pool, functions) = Pool::start(pool, move |stop| RemoteZygote::within(dial, token, options, stop))?;
    Ok(Library { name: name.into(), version: 1, functions, pool })
}

/// What serves clients until the end, and a moment longer.
fn serve(
    context: Arc<Context>,
    listener: TcpListener,
    identity: Option<Identity>,
    connections: usize,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> io::Result<impl Future<Output = ()> + Send> {
    listener.set_nonblocking(true)?;
    let log = Arc::new(log);
    let logs = Arc::clone(&log);
    let incoming =
        incoming::incoming(tokio::net::TcpListener::from_std(listener)?, connections, move |line| logs(line));
    let (stream_window, connection_window) = WINDOWS;
    let (interval, answer) = PING;
    let mut server = tonic::transport::Server::builder()
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .max_concurrent_streams(MOST_STREAMS)
        .http2_keepalive_interval(Some(interval))
        .http2_keepalive_timeout(Some(answer));
    if let Some(identity) = identity {
        let config = ServerTlsConfig::new().identity(identity).timeout(incoming::SILENT);
        server = server.tls_config(config).map_err(io::Error::other)?;
    }
    let service = FlightServiceServer::new(Service(Arc::clone(&context)))
        .max_decoding_message_size(context.largest)
        .max_encoding_message_size(usize::MAX);
    let mut ending = context.ending.subscribe();
    let service = InterceptedService::new(service, move |request| context.admit(request));
    let ended = async move { drop(ending.wait_for(|ending| *ending).await) };
    let served = server.add_service(service).serve_with_incoming_shutdown(incoming, ended);
    Ok(async move {
        if let Err(error) = served.await {
            log(&format!("Arrow Flight has ended: {error}"));
        }
    })
}

/// A batch as a message. A batch is answered with one, however large it is.
fn encoded(batch: &RecordBatch, options: &IpcWriteOptions) -> Result<FlightData, Status> {
    // No type of ours has a dictionary.
    let mut dictionaries = DictionaryTracker::new(false);
    let encoded = IpcDataGenerator::default().encode(
        batch,
        &mut dictionaries,
        options,
        &mut CompressionContext::default(),
    );
    let (_, batch) = encoded.map_err(|error| Status::internal(status::shortened(&error.to_string())))?;
    Ok(batch.into())
}

/// What clients call.
struct Service(Arc<Context>);

/// What the contract does not have.
fn no_such_call<T>() -> Result<T, Status> {
    Err(Status::unimplemented("functions are called with GetFlightInfo and DoExchange"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<ActionResult, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        Ok(Response::new(self.0.offered().function(request.get_ref())?.info()?))
    }

    async fn list_flights(
        &self,
        _request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        let offered = self.0.offered();
        let functions = offered
            .library
            .functions
            .iter()
            .filter_map(|function| offered.functions.get(&function.name().to_lowercase())?.as_ref().ok());
        let infos: Vec<_> = functions.map(|function| function.info()).collect();
        Ok(Response::new(stream::iter(infos).boxed()))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place =
            place.map_err(|_| Status::resource_exhausted("the server has too many exchanges already"))?;
        let text = |name| request.metadata().get(name).and_then(|text| text.to_str().ok());
        let trace = TraceContext::new(
            text("traceparent").unwrap_or_default(),
            text("tracestate").unwrap_or_default(),
        );
        let opened = Exchange::open(Arc::clone(&self.0), place, trace, request.into_inner());
        let results = opened.map_ok(|exchange| {
            let options = IpcWriteOptions::default();
            let schema = FlightData::from(SchemaAsIpc::new(&exchange.schema(), &options));
            let results = stream::try_unfold(exchange, move |mut exchange| {
                let options = options.clone();
                async move {
                    let Some(batch) = exchange.next().await? else { return Ok(None) };
                    Ok(Some((encoded(&batch, &options)?, exchange)))
                }
            });
            stream::iter([Ok(schema)]).chain(results)
        });
        Ok(Response::new(results.try_flatten_stream().boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        match request.get_ref().r#type.as_str() {
            "protocol_version" => {
                let version = ActionResult::new(vec![VERSION]);
                Ok(Response::new(stream::iter([Ok(version)]).boxed()))
            }
            other => Err(Status::unimplemented(status::shortened(&format!("there is no action {other}")))),
        }
    }

    async fn list_actions(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        let version = ActionType {
            r#type: "protocol_version".into(),
            description: "the version of arrow-udf's contract, as a byte".into(),
        };
        Ok(Response::new(stream::iter([Ok(version)]).boxed()))
    }

    async fn handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        no_such_call()
    }

    async fn poll_flight_info(
        &self,
        _request: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        no_such_call()
    }

    async fn get_schema(
        &self,
        _request: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        no_such_call()
    }

    async fn do_get(&self, _request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        no_such_call()
    }

    async fn do_put(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        no_such_call()
    }
}
