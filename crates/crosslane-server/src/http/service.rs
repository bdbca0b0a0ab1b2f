//! Answers people and monitoring over HTTP: health, metrics and a page.
//!
//! The service shows names and numbers. At a loopback address, all users of the machine may read it.
//! Pages of other sites may not: the service checks the name that the browser asks for
//! ([`Access::Local`]). At other addresses it needs a token, unless the options make it public.
//!
//! # Traces
//! A trace is the only thing that a client can start, and it shows arguments. So without a token only
//! programs of the server's own user have traces, and a service that is public has none. A browser
//! sends a page's requests to any address, with the token that it knows. So the service also checks
//! which page a start or an end comes from ([`is_own_page`]).
//!
//! # Slow and silent clients
//! Each connection gets one answer. It has [`LIMIT`] for everything, and sends at most [`LONGEST`]
//! bytes of a head. If there are too many connections, the oldest is closed. So the service answers
//! a new client, however many clients stay silent. It makes what it shows once per [`FRESH`],
//! however many clients ask. To send a trace may take [`LONG`].

use super::metrics;
use super::monitor::{Monitor, Snapshot};
use super::runtime::HttpRuntime;
use super::tracing::{Form, Recorder, Seen, is_own};
use crate::server::Server;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crosslane::trace::Trace;
use crosslane::{Error, lock};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::info;

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to send a trace.
const LONG: Duration = Duration::from_secs(120);
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
const JSON: &str = "application/json";
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
    /// Listens at an address, `host:port`. Clients may start `trace`, in which the server's libraries
    /// record what happens.
    ///
    /// # Errors
    /// [`Error::Engine`] if it cannot listen, or other machines could see what was meant for this one.
    pub fn open(
        runtime: &HttpRuntime,
        address: &str,
        access: Access,
        trace: &Arc<Trace>,
    ) -> Result<Self, Error> {
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
            recorder: Arc::new(Recorder::new(Arc::clone(trace))),
            turn: Arc::new(Semaphore::new(1)),
            state: Cache::default(),
            metrics: Cache::default(),
        });
        runtime.spawn(watch(Arc::clone(&service)));
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
    recorder: Arc<Recorder>,
    /// What a client must have to start, to end or to see a trace. So clients occupy one thread at most.
    turn: Arc<Semaphore>,
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

async fn watch(service: Arc<Service>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        service.monitor.tick();
        if service.recorder.is_due() {
            let recorder = Arc::clone(&service.recorder);
            let _ = spawn_blocking(move || recorder.tick()).await;
        }
    }
}

async fn accept(listener: std::net::TcpListener, service: Arc<Service>) {
    // Within the runtime, which it belongs to.
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= MOST
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                connections.push_back(tokio::spawn(serve(stream, peer, Arc::clone(&service))));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, service: Arc<Service>) {
    let Ok(here) = stream.local_addr() else { return };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LIMIT).max_buf_size(LONGEST).keep_alive(false);
    let is_long = &AtomicBool::new(false);
    let answers = service_fn(|request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.answer(&request, Ends { peer, here }, is_long).await) }
    });
    // What a client does wrong ends its connection, and nothing else.
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), answers));
    if timeout(LIMIT, &mut served).await.is_err() && is_long.load(Relaxed) {
        let _ = timeout(LONG, served).await;
    }
}

/// The addresses of a client, and of the service as the client knows it.
#[derive(Clone, Copy)]
struct Ends {
    peer: SocketAddr,
    here: SocketAddr,
}

/// What the page reads.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// `None` if no client may have a trace.
    trace: Option<Seen>,
}

/// What a client wants of a trace.
#[derive(Clone, Copy)]
enum Wish {
    Start,
    End,
    Show(Form),
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// An answer with what was made.
fn made(media_type: &'static str, bytes: Option<impl Into<Bytes>>) -> Answer {
    match bytes {
        Some(bytes) => answer(StatusCode::OK, media_type, bytes),
        None => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "it cannot be shown\n"),
    }
}

fn forbidden(why: &str) -> Answer {
    answer(StatusCode::FORBIDDEN, TEXT, format!("{why}\n"))
}

fn conflict(why: &str) -> Answer {
    answer(StatusCode::CONFLICT, TEXT, format!("{why}\n"))
}

/// Why a request may not change something: it comes from a page of another site.
fn refusal_of_page(headers: &HeaderMap, changes: bool) -> Option<&'static str> {
    (changes && !is_own_page(headers)).then_some("only the page of this server may do that, or a program")
}

/// Whether a request comes from the page of this server, or from a program that is no browser. A
/// browser says which page has sent a request with POST.
fn is_own_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_host = |origin: &str| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.zip(text(HOST)).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
    };
    let is_same = |site: &str| matches!(site, "same-origin" | "none");
    // A proxy may ask for another host than the browser. So the browser's own judgement comes first.
    match text(HeaderName::from_static("sec-fetch-site")) {
        Some(site) => is_same(site),
        None => text(ORIGIN).is_none_or(is_host),
    }
}

impl Service {
    async fn answer(&self, request: &Request<Incoming>, ends: Ends, is_long: &AtomicBool) -> Answer {
        let path = request.uri().path();
        let changes = matches!(path, "/trace/start" | "/trace/end");
        let (is_allowed, allowed) = match (changes, request.method()) {
            (true, method) => (method == Method::POST, "POST"),
            (false, method) => (matches!(*method, Method::GET | Method::HEAD), "GET, HEAD"),
        };
        if !is_allowed {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("only {allowed}\n"));
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return refused;
        }
        match path {
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
        match path {
            "/" => answer(StatusCode::OK, HTML, PAGE),
            "/metrics" => {
                made(metrics::MEDIA_TYPE, self.metrics.get(|| metrics::text(self.monitor.snapshot()).ok()))
            }
            "/state.json" => made(JSON, self.state.get(|| serde_json::to_string(&self.shown()).ok())),
            "/trace/start" | "/trace/end" | "/trace.html" | "/trace.json" => {
                let is_public = self.access == Access::Public;
                let public =
                    is_public.then_some("a trace shows arguments of calls, so it needs --http-token-file");
                if let Some(why) = public.or_else(|| refusal_of_page(request.headers(), changes)) {
                    return forbidden(why);
                }
                let wish = match path {
                    "/trace/start" => Wish::Start,
                    "/trace/end" => Wish::End,
                    "/trace.html" => Wish::Show(Form::Page),
                    _ => Wish::Show(Form::Chrome),
                };
                if matches!(wish, Wish::Show(_)) {
                    is_long.store(true, Relaxed);
                }
                self.trace(wish, ends).await
            }
            _ => answer(
                StatusCode::NOT_FOUND,
                TEXT,
                "there are /, /state.json, /metrics, /health and /ready, and of a trace /trace.html and /trace.json\n",
            ),
        }
    }

    fn shown(&self) -> Shown {
        let trace = (self.access != Access::Public).then(|| self.recorder.seen());
        Shown { snapshot: self.monitor.snapshot(), trace }
    }

    /// Starts, ends or shows a trace, on a thread that may block. One client at a time has that.
    async fn trace(&self, wish: Wish, ends: Ends) -> Answer {
        let recorder = Arc::clone(&self.recorder);
        let needs_user = self.access == Access::Local;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let work = move || {
            // The client may go before this has ended.
            let _turn = turn;
            if needs_user && !is_own(ends.peer, ends.here) {
                return forbidden(
                    "a trace shows arguments of calls: without --http-token-file, only programs of the server's own user \
                     have one",
                );
            }
            match wish {
                Wish::Start if !recorder.start() => conflict("a trace is on already"),
                Wish::End if !recorder.end() => conflict("no trace is on"),
                Wish::Start | Wish::End => {
                    if matches!(wish, Wish::Start) {
                        info!(peer = ends.peer.to_string(), "trace started");
                    }
                    made(JSON, serde_json::to_string(&recorder.seen()).ok())
                }
                Wish::Show(form) => match recorder.text(form) {
                    Some(text) => {
                        answer(StatusCode::OK, if matches!(form, Form::Page) { HTML } else { JSON }, text)
                    }
                    None => answer(StatusCode::NOT_FOUND, TEXT, "there is no trace that has ended\n"),
                },
            }
        };
        spawn_blocking(work).await.unwrap_or_else(|_| made(TEXT, None::<Bytes>))
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
    fn pages_of_other_sites_change_nothing() {
        let is_own = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            is_own_page(&headers.collect())
        };
        let host = ("host", "127.0.0.1:7412");
        assert!(is_own(&[host]), "a program");
        assert!(is_own(&[host, ("origin", "http://127.0.0.1:7412"), ("sec-fetch-site", "same-origin")]));
        for origin in
            ["null", "", "http://127.0.0.1", "http://127.0.0.1:7412.example.org", "http://localhost:7412"]
        {
            assert!(!is_own(&[host, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(!is_own(&[host, ("sec-fetch-site", site)]), "{site}");
        }
        assert!(!is_own(&[("origin", "http://127.0.0.1:7412")]), "a request without a host");
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
