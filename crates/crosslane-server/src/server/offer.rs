//! What a server offers: the functions of its libraries, and their workers.
//!
//! A server that loads its files again makes a new offer. A connection keeps the offer that its client
//! was welcomed with. So calls finish with the functions that they began with, and no index of a
//! function changes its meaning. A client that needs more lanes for calls of an old offer names the
//! text that it knows ([`Ask::Hello`](crosslane_remote::wire::Ask)).
//!
//! An old offer ends when no connection has it any more ([`Offers::take_unused`]). No more than
//! [`MOST_OLD`] old offers are kept. The connections of older ones are ended.

use super::served::{Seal, ServedFunction};
use super::spans::Spans;
use super::workers::{Borrower, Watcher, Workers};
use crosslane::{Error, Function, FunctionSpec, Library, lock};
use crosslane_process::{Zygote, hash};
use crosslane_remote::wire::{self, PROTOCOL, Tell};
use crosslane_sched::Handle;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The most old offers.
const MOST_OLD: usize = 4;

/// A library, and a hash of its text.
#[derive(Debug, Clone)]
pub struct ServedLibrary {
    /// The library.
    pub library: Arc<Library<Zygote>>,
    /// The hash that its guest reports, if it reports one ([`crosslane_process::Loaded`]).
    pub text: Option<String>,
}

/// What all offers of a server are made with.
pub(super) struct Making {
    /// The most workers of each library that are not held.
    pub(super) workers: usize,
    /// The most bytes of a message.
    pub(super) largest: usize,
    /// Whether there may be later offers.
    pub(super) reloads: bool,
    pub(super) spans: Option<Arc<dyn Spans>>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) handle: Handle,
}

/// The functions that a server offers at a time, and their workers.
pub(crate) struct Offer {
    /// The number of offers until this one.
    pub(crate) number: u64,
    pub(crate) functions: Vec<ServedFunction>,
    /// The workers of each library, and those of functions that have workers of their own.
    pub(crate) workers: Vec<Arc<Workers>>,
    pub(super) watcher: Arc<Watcher>,
    /// Who makes spans of its calls, if anyone does.
    pub(crate) spans: Option<Arc<dyn Spans>>,
    pub(super) handle: Handle,
    /// The most bytes of a message.
    pub(super) largest: usize,
    /// The routes whose oldest batch waits for the `rate` of its function.
    held: Mutex<Vec<Arc<dyn Borrower>>>,
    pub(super) seal: Seal,
    /// Identifies the source text of the functions, if all guests tell it.
    text: Option<String>,
    /// Whether its connections are being ended, so that it gets no new ones.
    is_over: AtomicBool,
    /// The first message to a client, with its prefix.
    pub(super) welcome: Vec<u8>,
}

impl Offer {
    /// Makes the offer of these libraries. Functions that the last offer has, too, keep their counters.
    ///
    /// # Errors
    /// [`Error::Engine`] if two functions have the same name, or the system has no random numbers.
    pub(super) fn new(
        libraries: Vec<ServedLibrary>,
        last: Option<&Self>,
        making: &Making,
    ) -> Result<Self, Error> {
        let (mut functions, mut workers, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for ServedLibrary { library, text } in libraries {
            // Without a text, no two loads have the same one.
            texts.push(text.or_else(|| making.reloads.then(|| format!("load {}", library.version))));
            let mut add = |of: Option<&Arc<Function>>, most: usize| {
                let of = of.cloned();
                let index = workers.len();
                let (library, watcher) = (Arc::clone(&library), Arc::clone(&making.watcher));
                workers.push(Workers::new(library, of, index, most, watcher, making.handle.clone()));
                index
            };
            let most = making.workers.max(1);
            let shared = add(None, most);
            // The functions of each pool of its own, and its number.
            let mut own: Vec<(&[u32], usize)> = Vec::new();
            for (numbers, pool) in library.pool.reserved() {
                let first = library.functions.iter().find(|function| numbers.contains(&function.index));
                own.push((numbers, add(first, pool.most().min(most))));
            }
            functions.extend(library.functions.iter().map(|function| {
                let own = own.iter().find(|(numbers, _)| numbers.contains(&function.index));
                let workers = own.map_or(shared, |(_, index)| *index);
                let known = last.and_then(|last| last.find(function));
                known.map_or_else(
                    || ServedFunction::new(Arc::clone(function), workers),
                    |known| known.with_workers(workers),
                )
            }));
        }
        check_names(&functions)?;
        // The server sets up its workers itself. Clients do not.
        let specs =
            functions.iter().map(|served| FunctionSpec { set_up: false, ..served.function.spec.clone() });
        let texts: Option<Vec<String>> = texts.into_iter().collect();
        let text = texts.map(|texts| hash(texts.join(" ").as_bytes()));
        let welcome = wire::control(&Tell::Welcome {
            protocol: PROTOCOL,
            server: concat!("crosslane ", env!("CARGO_PKG_VERSION")).into(),
            functions: specs.collect(),
            text: text.clone(),
            largest: making.largest,
            reloads: making.reloads,
            contexts: making.spans.is_some(),
        });
        let unable = |what: &'static str| move |error| Error::Engine(format!("{what}: {error}"));
        Ok(Self {
            number: last.map_or(1, |last| last.number + 1),
            functions,
            workers,
            watcher: Arc::clone(&making.watcher),
            spans: making.spans.clone(),
            handle: making.handle.clone(),
            largest: making.largest,
            held: Mutex::default(),
            seal: Seal::new().map_err(unable("no random numbers"))?,
            text,
            is_over: AtomicBool::new(false),
            welcome: welcome.map_err(unable("the functions"))?,
        })
    }

    /// The same function of the same load.
    fn find(&self, function: &Arc<Function>) -> Option<&ServedFunction> {
        self.functions.iter().find(|served| Arc::ptr_eq(&served.function, function))
    }

    /// Lets a route try again at the next tick of the watcher.
    pub(super) fn retry_later(&self, route: Arc<dyn Borrower>) {
        lock(&self.held).push(route);
    }

    /// Looks after its workers, and after batches that wait. To be called at each tick.
    pub(super) fn look(&self) {
        self.workers.iter().for_each(Workers::look);
        let held = std::mem::take(&mut *lock(&self.held));
        held.into_iter().for_each(|route| route.retry());
    }

    /// Makes no workers from now on.
    pub(super) fn close(&self) {
        self.workers.iter().for_each(Workers::close);
    }
}

fn check_names(functions: &[ServedFunction]) -> Result<(), Error> {
    let mut named: Vec<_> = functions.iter().map(|served| &served.function).collect();
    named.sort_by_key(|function| function.name().to_lowercase());
    let same = |pair: &&[&Arc<Function>]| pair[0].name().to_lowercase() == pair[1].name().to_lowercase();
    let Some([one, other]) = named.windows(2).find(same) else { return Ok(()) };
    let place = |function: &Function| format!("{}:{}", function.spec.file, function.spec.line);
    Err(Error::Engine(format!(
        "{} and {} have the same name ({} and {}), by which clients call: a server has no overloads. Rename one of them",
        one.signature,
        other.signature,
        place(one),
        place(other)
    )))
}

/// The offers that connections have. The last one is the newest.
pub(crate) struct Offers(Mutex<Vec<Arc<Offer>>>);

impl Offers {
    pub(super) fn new(first: Offer) -> Self {
        Self(Mutex::new(vec![Arc::new(first)]))
    }

    /// All offers, the newest one last.
    pub(super) fn all(&self) -> Vec<Arc<Offer>> {
        lock(&self.0).clone()
    }

    /// What new clients get.
    pub(crate) fn newest(&self) -> Arc<Offer> {
        self.find(None, |_| {})
    }

    /// The newest offer with this text; without one, the newest of all. `keep` gets it before any
    /// later offer is made.
    pub(super) fn find(&self, text: Option<&String>, keep: impl FnOnce(&Arc<Offer>)) -> Arc<Offer> {
        let offers = lock(&self.0);
        let known = |offer: &&Arc<Offer>| {
            text.is_some() && offer.text.as_ref() == text && !offer.is_over.load(Relaxed)
        };
        let found = offers.iter().rev().find(known).or(offers.last());
        let found = found.expect("the newest offer stays");
        keep(found);
        Arc::clone(found)
    }

    /// Adds the newest offer. Returns the offers whose connections are to be ended.
    pub(super) fn add(&self, offer: Arc<Offer>) -> Vec<Arc<Offer>> {
        let mut offers = lock(&self.0);
        let old = offers.len();
        offers.push(offer);
        let over = &offers[..old.saturating_sub(MOST_OLD)];
        // No client gets them any more: clients get offers only under this lock.
        over.iter().for_each(|offer| offer.is_over.store(true, Relaxed));
        over.to_vec()
    }

    /// Removes the old offers that no connection has, and returns them.
    pub(super) fn take_unused(&self) -> Vec<Arc<Offer>> {
        let mut offers = lock(&self.0);
        let Some(newest) = offers.pop() else { return Vec::new() };
        // Connections get offers only under this lock.
        let (unused, used): (Vec<_>, Vec<_>) =
            offers.drain(..).partition(|offer| Arc::strong_count(offer) == 1);
        *offers = used;
        offers.push(newest);
        unused
    }
}
