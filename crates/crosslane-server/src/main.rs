//! What `crosslane serve` becomes: it reads as JSON from its standard input what to serve, says where it listens, and ends
//! at SIGTERM or SIGINT when what is in flight has ended.

use crosslane::pool::{Pool, PoolOptions};
use crosslane::{Error, Library};
use crosslane_process::{Source, Zygote, ZygoteOptions, guests};
use crosslane_server::flight::{self, Flight};
use crosslane_server::server::Served;
use crosslane_server::{Address, Options, Server};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How a user sets something.
const HOW_TO_SET: &str = "crosslane serve --set {name}={value}";

/// What to serve.
#[derive(Debug, Deserialize)]
struct Told {
    files: Vec<PathBuf>,
    listen: Vec<String>,
    token: Option<String>,
    /// A certificate's file, and its key's.
    tls: Option<(PathBuf, PathBuf)>,
    /// Where Arrow Flight is spoken: host:port.
    #[serde(default)]
    flight: Option<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    workers: usize,
    connections: usize,
    largest_batch: usize,
    /// Seconds.
    drain: f64,
}

fn main() -> ExitCode {
    let told: Told = match serde_json::from_reader(std::io::stdin()) {
        Ok(told) => told,
        Err(error) => {
            eprintln!("this program is started by `crosslane serve`: {error}");
            return ExitCode::from(2);
        }
    };
    match serve(told) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("crosslane: not all calls had ended in time; they were ended");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("crosslane: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal ends it. Returns whether all that was in flight then has ended.
fn serve(told: Told) -> Result<bool, Error> {
    // Before there are threads, which inherit it.
    let signals = Signals::block();
    crosslane_process::occupy_standard_descriptors();
    crosslane_process::report_panics();
    let mut settings = guests::settings(HOW_TO_SET);
    told.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let addresses = told.listen.iter().map(|address| address.parse::<Address>());
    let listen =
        addresses.collect::<Result<Vec<_>, _>>().map_err(|error| Error::Setting(error.to_string()))?;
    let libraries = told.files.iter().map(|file| load(file, &settings, told.workers));
    let libraries = libraries.collect::<Result<Vec<_>, _>>()?;
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
        spin: settings.spin,
    };
    let log = |line: &str| eprintln!("crosslane: {line}");
    let server = Server::start(options, libraries, log)?;
    let flight =
        told.flight.map(|listen| Flight::open(&server, &flight::Options { listen, tls: told.tls }, log));
    let flight = flight.transpose()?;
    for address in server.addresses() {
        println!("serving {count} functions at {address}");
    }
    if let Some(flight) = &flight {
        let (count, refused) = flight.offered();
        refused.into_iter().for_each(log);
        println!("serving {count} functions at {}", flight.address());
    }
    // Who waits for the line may have gone.
    let _ = std::io::stdout().flush();
    signals.wait();
    eprintln!("crosslane: shutting down");
    flight.iter().for_each(Flight::end);
    Ok(server.shut_down(Duration::try_from_secs_f64(told.drain).unwrap_or(Duration::MAX)))
}

fn load(file: &Path, settings: &crosslane::Settings, workers: usize) -> Result<Served, Error> {
    let path = file.canonicalize().map_err(|error| Error::Engine(format!("{}: {error}", file.display())))?;
    let source = Source::File { path };
    let name = source.name();
    let options = ZygoteOptions {
        origin: guests::origin(&source, settings)?,
        source,
        load_timeout: settings.load_timeout,
        stuck: settings.stuck(),
        ring_size: settings.ring_size,
        largest_batch: settings.largest_batch,
        spin: settings.spin,
        // The terminal's Ctrl-C reaches this program, too.
        on_interrupt: Arc::new(|_| {}),
    };
    let warm = if settings.warm_lanes == 0 { workers } else { settings.warm_lanes };
    let pool = PoolOptions { warm, idle_timeout: settings.idle_timeout };
    let (pool, loaded) = Pool::start(pool, move |stop| Zygote::start(options, stop))?;
    let library = Library { name, version: 1, functions: loaded.functions, pool };
    Ok(Served { library, text: loaded.text })
}

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
