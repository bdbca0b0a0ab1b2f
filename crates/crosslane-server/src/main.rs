//! The program behind `crosslane serve`. It reads from its standard input, as JSON, what to serve.
//! It says where it listens. At SIGTERM or SIGINT it ends when all that is in flight has ended.
//! With the argument `bench` it is the load generator.

mod files;

use crosslane::Error;
use crosslane::trace::Trace;
use crosslane_process::{flush_log, guests, print_to_log};
use crosslane_sandbox::Machine;
#[cfg(feature = "flight")]
use crosslane_server::flight::{self, Flight};
use crosslane_server::http::Access;
use crosslane_server::load_test::{self, Event, Plan};
use crosslane_server::log::{self, Format};
use crosslane_server::{Address, Http, HttpRuntime, Options, Server};
#[cfg(feature = "otel")]
use crosslane_server::{otel::Exporter, server::Spans};
use files::Loading;
use serde::Deserialize;
#[cfg(feature = "flight")]
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tracing::{error, info, warn};

/// How a user changes a setting, for messages.
const HOW_TO_SET: &str = "crosslane serve --set {name}={value}";

/// What to serve.
#[derive(Debug, Deserialize)]
struct Told {
    files: Vec<PathBuf>,
    listen: Vec<String>,
    token: Option<String>,
    /// The files of a certificate and of its key.
    tls: Option<(PathBuf, PathBuf)>,
    http: Option<HttpTold>,
    /// The address of the Arrow Flight listener: host:port.
    #[serde(default)]
    flight: Option<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    /// Whether files are loaded again when they change.
    #[serde(default)]
    watch: bool,
    workers: usize,
    connections: usize,
    largest_batch: usize,
    /// [`waiting`] by default.
    waiting_bytes: Option<usize>,
    /// Seconds.
    drain: f64,
    #[serde(default)]
    log_format: Format,
    log_level: Option<String>,
}

/// The address of the HTTP listener, and the clients that may use it.
#[derive(Debug, Deserialize)]
struct HttpTold {
    address: String,
    token: Option<String>,
    public: bool,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == "bench") {
        return bench();
    }
    let told: Told = match serde_json::from_reader(std::io::stdin()) {
        Ok(told) => told,
        Err(error) => {
            eprintln!("this program is started by `crosslane serve`: {error}");
            return ExitCode::from(2);
        }
    };
    // Threads inherit the signal mask, so this comes before the first thread.
    let signals = Signals::block();
    crosslane_process::occupy_standard_descriptors();
    crosslane_process::report_panics();
    let format = told.log_format;
    if let Err(error) = log::start(format, told.log_level.as_deref().unwrap_or("info")) {
        eprintln!("crosslane: {error}");
        return ExitCode::from(2);
    }
    let outcome = serve(told, &signals);
    match &outcome {
        Ok(true) => info!("ended"),
        Ok(false) => error!("not all calls had ended in time; they were ended"),
        // A user has just started the program, and must see the lines of a traceback as lines.
        Err(error) if format == Format::Text => print_to_log(format!("crosslane: {error}\n").as_bytes()),
        Err(error) => error!(why = error.to_string(), "not started"),
    }
    flush_log();
    if let Ok(true) = outcome { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program behind `crosslane bench serve`. It reads from its standard input, as JSON, what to
/// measure. It prints a line of JSON for each event. A signal ends it with the results until then.
fn bench() -> ExitCode {
    let signals = Signals::block();
    crosslane_process::report_panics();
    let plan: Plan = match serde_json::from_reader(std::io::stdin()) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("this program is started by `crosslane bench serve`: {error}");
            return ExitCode::from(2);
        }
    };
    static STOP: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        signals.wait();
        STOP.store(true, Relaxed);
    });
    let measured = load_test::measure(&plan, &STOP, &mut |told| {
        let line = match told {
            Event::Progress { step, part } => serde_json::json!({ "progress": [step, part] }),
            Event::Step(report) => serde_json::json!({ "step": report }),
        };
        // If the reader has gone, this error ends the load test.
        Ok(writeln!(std::io::stdout(), "{line}")?)
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", crosslane::shortened(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal ends it. Returns whether all that was in flight at that time has ended.
fn serve(told: Told, signals: &Signals) -> Result<bool, Error> {
    #[cfg(not(feature = "flight"))]
    if told.flight.is_some() {
        return Err(Error::Setting(
            "this program was built without Arrow Flight; `make setup` in Crosslane's folder builds it with it".into(),
        ));
    }
    let mut settings = guests::settings(HOW_TO_SET);
    told.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let addresses = told.listen.iter().map(|address| address.parse::<Address>());
    let listen =
        addresses.collect::<Result<Vec<_>, _>>().map_err(|error| Error::Setting(error.to_string()))?;
    let is_on_network = told.flight.is_some() || listen.iter().any(|it| !matches!(it, Address::Unix(_)));
    let is_sandboxed = is_on_network && !told.settings.contains_key("sandbox");
    if is_sandboxed && told.settings.keys().any(|name| name.starts_with("allow_")) {
        // What is allowed limits what files ask for.
        settings.set("sandbox", "on")?;
    }
    if is_sandboxed && let Err(why) = Machine::look() {
        return Err(Error::Setting(format!(
            "functions that are offered on a network run in a sandbox, which is not possible here: {why}. With \
             --set sandbox=off they run without one"
        )));
    }
    let runtime = told.http.is_some().then(HttpRuntime::start).transpose();
    let runtime = runtime.map_err(|error| Error::Engine(format!("no thread for HTTP: {error}")))?;
    let trace = Arc::default();
    let http = match (&runtime, told.http) {
        (Some(runtime), Some(http)) => Some(open(runtime, http, &trace)?),
        _ => None,
    };
    // A cluster may set these variables for all programs, so what they say wrongly does not end this one.
    #[cfg(feature = "otel")]
    let exporter = Exporter::from_environment().unwrap_or_else(|error| {
        warn!(why = error.to_string(), "no spans");
        None
    });
    #[cfg(feature = "otel")]
    let spans = exporter.clone().map(|exporter| exporter as Arc<dyn Spans>);
    #[cfg(not(feature = "otel"))]
    let spans = {
        if crosslane_server::server::are_spans_wanted() {
            let why = "this program was built without OpenTelemetry; `make setup` in Crosslane's folder builds it with it";
            warn!(why, "no spans");
        }
        None
    };
    let spin = if settings.spin.is_zero() { Duration::ZERO } else { settings.spin.max(SPIN) };
    let loading = Loading { settings, is_sandboxed, workers: told.workers, ends: Arc::default(), trace };
    let files = told.files.iter().map(|file| {
        if let Some(http) = &http {
            http.loading(format!("{} is being loaded", file.display()));
        }
        loading.first(file)
    });
    let mut files = files.collect::<Result<Vec<_>, _>>()?;
    let libraries: Vec<_> = files.iter().map(|file| file.served.clone()).collect();
    let count: usize = libraries.iter().map(|served| served.library.functions.len()).sum();
    let tls = told
        .tls
        .as_ref()
        .map(|(certificate, key)| crosslane_server::tls::server(certificate, key))
        .transpose();
    let options = Options {
        listen,
        token: told.token,
        tls: tls.map_err(|error| Error::Engine(error.to_string()))?,
        workers: told.workers,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        connections: told.connections,
        largest: told.largest_batch,
        reloads: told.watch,
        waiting: told.waiting_bytes.unwrap_or_else(|| waiting(told.largest_batch)),
        slow: SLOW,
        spin,
        spans,
    };
    let server = Server::start(options, libraries)?;
    if let Some(http) = &http {
        http.show(&server);
    }
    #[cfg(feature = "flight")]
    let log = |line: &str| info!(what = line, "flight");
    #[cfg(feature = "flight")]
    let flight = told
        .flight
        .map(|listen| Flight::open(&server, &flight::Options { listen, tls: told.tls }, log))
        .transpose()?;
    let how = if is_sandboxed { " in a sandbox" } else { "" };
    for address in server.addresses() {
        println!("serving {count} functions{how} at {address}");
        info!(address = address.to_string(), functions = count, "serving");
    }
    #[cfg(feature = "flight")]
    if let Some(flight) = &flight {
        let (count, refused) = flight.offered();
        refused.iter().for_each(|line| log(line));
        println!("serving {count} functions{how} at {}", flight.address());
    }
    // The process that waits for the line may have gone.
    let _ = std::io::stdout().flush();
    // Whether clients of Arrow Flight still get the functions of before.
    #[cfg(feature = "flight")]
    let is_behind = Cell::new(false);
    #[cfg(feature = "flight")]
    let renew = || match flight.iter().try_for_each(|flight| flight.renew(&server)) {
        Ok(()) => is_behind.set(false),
        Err(error) if !is_behind.replace(true) => {
            warn!(why = error.to_string(), "Arrow Flight does not have the new functions yet");
        }
        Err(_) => {}
    };
    let offer = |libraries| {
        server.offer(libraries)?;
        #[cfg(feature = "flight")]
        renew();
        Ok(())
    };
    if told.watch {
        let watching = std::thread::current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                signals.wait();
                loading.ends.store(true, Relaxed);
                watching.unpark();
            });
            while !loading.ends.load(Relaxed) {
                std::thread::park_timeout(LOOK);
                loading.again_if_changed(&mut files, offer);
                #[cfg(feature = "flight")]
                if is_behind.get() {
                    renew();
                }
                server.end_unused();
            }
        });
    } else {
        signals.wait();
    }
    info!("shutting down");
    #[cfg(feature = "flight")]
    flight.iter().for_each(Flight::end);
    for (function, rows, reused) in server.reused() {
        info!(function, rows, reused, "results reused");
    }
    let has_drained = server.shut_down(Duration::try_from_secs_f64(told.drain).unwrap_or(Duration::MAX));
    #[cfg(feature = "otel")]
    exporter.iter().for_each(|exporter| exporter.end());
    Ok(has_drained)
}

/// How many bytes may wait by default, if a batch has at most `largest` bytes.
fn waiting(largest: usize) -> usize {
    (1 << 30).max(largest.saturating_mul(4))
}

/// Opens the HTTP listener for people and monitoring.
fn open(runtime: &HttpRuntime, told: HttpTold, trace: &Arc<Trace>) -> Result<Http, Error> {
    let access = match (told.token, told.public) {
        (Some(token), _) => Access::Token(token),
        (None, true) => Access::Public,
        (None, false) => Access::Local,
    };
    let http = Http::open(runtime, &told.address, access, trace)?;
    info!(url = format!("http://{}/", http.address()), "shown");
    Ok(http)
}

/// How long bytes may wait for a slow client while other clients have no room for theirs.
const SLOW: Duration = Duration::from_secs(5);
/// How often the server looks whether files have changed.
const LOOK: Duration = Duration::from_millis(200);
/// How long the server polls for calls and replies, unless the setting `spin` is more, or 0. This
/// is the time between calls at 20,000 calls a second.
const SPIN: Duration = Duration::from_micros(50);

/// SIGTERM and SIGINT, for the main thread to wait for.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Self {
        // SAFETY: the set is plain memory that the calls initialise.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self(set)
        }
    }

    fn wait(&self) {
        let mut signal = 0;
        // SAFETY: the set is initialised, and the place is valid.
        while unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } != 0 {}
    }
}
