//! Answers people and monitoring over HTTP: health, metrics and a page.
//!
//! The service is read-only, and shows names and numbers. At a loopback address, all users of the
//! machine may read it. Pages of other sites may not: the service checks the name that the browser
//! asks for ([`Access::Local`]). At other addresses it needs a token, unless the options make it
//! public.
//!
//! # Slow and silent clients
//! Each connection gets one answer. It has [`LIMIT`] for everything, and sends at most [`LONGEST`]
//! bytes of a head. If there are too many connections, the oldest is closed. So the service answers
//! a new client, however many clients stay silent. It makes what it shows once per [`FRESH`],
//! however many clients ask.

use super::metrics;
use super::monitor::Monitor;
use super::runtime::HttpRuntime;
use crate::server::Server;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crosslane::{Error, lock};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const LONGEST: usize = 16 << 10;
/// Connections at most.
const MOST: usize = 64;
/// How long what was made for one client is shown to others.
const FRESH: Duration = Duration::from_millis(100);
/// How long the task that accepts connections waits after an error, such as having no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// The page has its own script and style, and asks its own server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The clients that may see the page and the metrics. Every client may see health and readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Clients on this machine. The address must be a loopback one.
    Local,
    /// Clients that have the token.
    Token(String),
    /// Every client that reaches the address.
    Public,
}

/// The HTTP listener, which shows a server from its start to its end.
pub struct Http {
    address: SocketAddr,
    monitor: Arc<Monitor>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Http {
    /// Listens at an address, `host:port`.
    ///
    /// # Errors
    /// [`Error::Engine`] if it cannot listen, or other machines could see what was meant for this one.
    pub fn open(runtime: &HttpRuntime, address: &str, access: Access) -> Result<Self, Error> {
        let system =
            |error: io::Error| Error::Engine(format!("cannot listen for HTTP at {address}: {error}"));
        let listener = std::net::TcpListener::bind(address).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let bound = listener.local_addr().map_err(system)?;
        if access == Access::Local && !bound.ip().is_loopback() {
            return Err(Error::Engine(format!(
                "everybody who reaches {address} could see the functions' names and numbers: give --http-token-file, or \
                 --http-public if that is meant, or listen at 127.0.0.1"
            )));
        }
        let monitor = Monitor::new();
        let service = Arc::new(Service {
            monitor: Arc::clone(&monitor),
            access,
            state: Cache::default(),
            metrics: Cache::default(),
        });
        runtime.spawn(watch(Arc::clone(&monitor)));
        runtime.spawn(accept(listener, service));
        Ok(Self { address: bound, monitor })
    }

    /// Where it listens: with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says what the server waits for before it is ready.
    pub fn loading(&self, what: impl Into<String>) {
        self.monitor.loading(what.into());
    }

    /// Shows a server that is ready.
    pub fn show(&self, server: &Server) {
        self.monitor.serving(server.shared());
    }
}

/// What all connections use.
struct Service {
    monitor: Arc<Monitor>,
    access: Access,
    state: Cache,
    metrics: Cache,
}

/// What was made last, and when.
#[derive(Default)]
struct Cache(Mutex<Option<(Instant, Bytes)>>);

impl Cache {
    fn get(&self, make: impl FnOnce() -> Option<String>) -> Option<Bytes> {
        let mut cached = lock(&self.0);
        if let Some((made, bytes)) = &*cached
            && made.elapsed() < FRESH
        {
            return Some(bytes.clone());
        }
        let bytes = Bytes::from(make()?);
        *cached = Some((Instant::now(), bytes.clone()));
        Some(bytes)
    }
}

async fn watch(monitor: Arc<Monitor>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        monitor.tick();
    }
}

async fn accept(listener: std::net::TcpListener, service: Arc<Service>) {
    // Within the runtime, which it belongs to.
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= MOST
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                connections.push_back(tokio::spawn(serve(stream, Arc::clone(&service))));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn serve(stream: TcpStream, service: Arc<Service>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LIMIT).max_buf_size(LONGEST).keep_alive(false);
    let answers = service_fn(|request: Request<Incoming>| {
        let response = service.answer(&request);
        async { Ok::<_, Infallible>(response) }
    });
    // What a client does wrong ends its connection, and nothing else.
    let _ = timeout(LIMIT, http.serve_connection(TokioIo::new(stream), answers)).await;
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Service {
    fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/health" => return answer(StatusCode::OK, TEXT, "ok\n"),
            "/ready" => {
                return match self.monitor.unready() {
                    None => answer(StatusCode::OK, TEXT, "ok\n"),
                    Some(why) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
                };
            }
            _ => {}
        }
        if let Some(refused) = self.refusal(request) {
            return refused;
        }
        let made = |media_type, bytes: Option<Bytes>| match bytes {
            Some(bytes) => answer(StatusCode::OK, media_type, bytes),
            None => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "it cannot be shown\n"),
        };
        let snapshot = || self.monitor.snapshot();
        match request.uri().path() {
            "/" => answer(StatusCode::OK, HTML, PAGE),
            "/metrics" => made(metrics::MEDIA_TYPE, self.metrics.get(|| metrics::text(snapshot()).ok())),
            "/state.json" => {
                made("application/json", self.state.get(|| serde_json::to_string(&snapshot()).ok()))
            }
            _ => answer(
                StatusCode::NOT_FOUND,
                TEXT,
                "there are /, /state.json, /metrics, /health and /ready\n",
            ),
        }
    }

    /// Why a client does not see what is shown.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Answer> {
        match &self.access {
            Access::Public => None,
            Access::Local => {
                let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
                // A page of another site, whose name its owner has pointed at this machine, asks for that name.
                (!host.is_some_and(is_local)).then(|| {
                    let what = "this address shows itself to this machine only: ask for localhost, or an IP address\n";
                    answer(StatusCode::MISDIRECTED_REQUEST, TEXT, what)
                })
            }
            Access::Token(token) => {
                let given =
                    request.headers().get(AUTHORIZATION).and_then(|value| token_of(value.to_str().ok()?));
                let is_right =
                    given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(token.as_bytes())));
                (!is_right).then(|| {
                    let mut refused = answer(StatusCode::UNAUTHORIZED, TEXT, "it needs a token\n");
                    let scheme = HeaderValue::from_static("Basic realm=\"crosslane\", charset=\"UTF-8\"");
                    refused.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                    refused
                })
            }
        }
    }
}

/// Whether a host is one that no other machine can point at this machine.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The token of a client: of programs as a bearer's, of browsers as the password of any user.
fn token_of(authorization: &str) -> Option<String> {
    let (scheme, value) = authorization.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().to_owned());
    }
    let both = scheme.eq_ignore_ascii_case("basic").then(|| BASE64_STANDARD.decode(value.trim()).ok())??;
    String::from_utf8(both).ok()?.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_others_can_point_here_are_not_local() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:7412", "[::1]:7412", "[::1]", "10.0.0.1"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "example.org", "localhost.example.org:80", "127.0.0.1.example.org", "[::1", ":80"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn tokens_come_from_programs_and_browsers() {
        let basic = format!("Basic {}", BASE64_STANDARD.encode("any:a:b"));
        assert_eq!(token_of("Bearer a:b").as_deref(), Some("a:b"));
        assert_eq!(token_of("bearer  a:b ").as_deref(), Some("a:b"));
        assert_eq!(token_of(&basic).as_deref(), Some("a:b"));
        for wrong in ["", "a:b", "Basic a:b", "Digest a:b", "Basic YQ=="] {
            assert_eq!(token_of(wrong), None, "{wrong}");
        }
    }
}
