//! Dispatchers. Each passes the events of its sockets to the tasks that wait for them, one after
//! another.
//!
//! An event wakes a task, and the dispatcher starts that task in the foreground: the worker runs
//! the task at once. The dispatcher waits in its own queue ([`super::priority`]) until the task
//! leaves the worker, or until another worker takes the dispatcher from the queue.

use super::priority::PriorityQueue;
use crate::idle::Token;
use crate::io::Source;
use crate::stats::Counter;
use crate::sync::{Mutex, MutexGuard, lock};
use rustix::event::epoll::EventFlags;
use slab::Slab;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Readiness of one of a dispatcher's sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) source: u32,
    pub(crate) flags: EventFlags,
}

#[derive(Debug)]
pub(crate) struct EventDispatcher {
    number: u32,
    pub(crate) queue: Arc<PriorityQueue<Event>>,
    /// How many handlers it has started. Only the worker with its turn writes this.
    pub(crate) started: Counter,
    sources: Mutex<Slab<Arc<Source>>>,
    /// The handle was dropped, so the dispatcher ends with its last socket. Set with the lock of
    /// `sources`.
    closed: AtomicBool,
}

impl EventDispatcher {
    fn sources(&self) -> MutexGuard<'_, Slab<Arc<Source>>> {
        lock(&self.sources)
    }

    /// Adds a source, and returns its token for the kernel. Returns `None` if the dispatcher is
    /// closed.
    pub(crate) fn add(&self, source: Arc<Source>) -> Option<Token> {
        let mut sources = self.sources();
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let source = u32::try_from(sources.insert(source)).expect("descriptors are fewer than 2^32");
        Some(Token { dispatcher: self.number, source })
    }

    pub(crate) fn remove(&self, source: u32, all: &Dispatchers) {
        let mut sources = self.sources();
        let removed = sources.try_remove(source as usize);
        let is_over = sources.is_empty() && self.closed.load(Ordering::Relaxed);
        drop(sources);
        drop(removed);
        if is_over {
            all.remove(self);
        }
    }

    /// Wakes the tasks that wait for the event.
    ///
    /// The event may be for an earlier socket that had the same number. Then a task wakes without
    /// reason, tries, and waits again.
    pub(crate) fn deliver(&self, event: Event) {
        let source = self.sources().get(event.source as usize).cloned();
        if let Some(source) = source {
            source.deliver(event.flags);
        }
    }
}

/// The dispatchers of a group.
#[derive(Debug, Default)]
pub(crate) struct Dispatchers {
    all: Mutex<Slab<Arc<EventDispatcher>>>,
    /// Changes with `all`. So workers know when they must copy the list again.
    version: AtomicUsize,
    next: AtomicUsize,
}

/// A worker's copy of the list, by number.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    version: usize,
    pub(crate) all: Vec<Option<Arc<EventDispatcher>>>,
}

impl Dispatchers {
    fn all(&self) -> MutexGuard<'_, Slab<Arc<EventDispatcher>>> {
        lock(&self.all)
    }

    pub(crate) fn add(&self) -> Arc<EventDispatcher> {
        let mut all = self.all();
        let entry = all.vacant_entry();
        let dispatcher = Arc::new(EventDispatcher {
            number: u32::try_from(entry.key()).expect("dispatchers are fewer than 2^32"),
            queue: Arc::new(PriorityQueue::new()),
            started: Counter::default(),
            sources: Mutex::new(Slab::new()),
            closed: AtomicBool::new(false),
        });
        entry.insert(dispatcher.clone());
        self.version.fetch_add(1, Ordering::Release);
        dispatcher
    }

    fn remove(&self, dispatcher: &EventDispatcher) {
        let mut all = self.all();
        let number = dispatcher.number as usize;
        if all.get(number).is_some_and(|there| std::ptr::eq(&**there, dispatcher)) {
            all.remove(number);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Closes a dispatcher: it takes no more sources, and ends with its last source.
    pub(super) fn close(&self, dispatcher: &EventDispatcher) {
        let sources = dispatcher.sources();
        dispatcher.closed.store(true, Ordering::Relaxed);
        let is_unused = sources.is_empty();
        drop(sources);
        if is_unused {
            self.remove(dispatcher);
        }
    }

    /// Copies the list again, if it has changed.
    pub(crate) fn refresh(&self, snapshot: &mut Snapshot) {
        let version = self.version.load(Ordering::Acquire);
        if version != snapshot.version {
            let all = self.all();
            snapshot.all = (0..all.capacity()).map(|number| all.get(number).cloned()).collect();
            snapshot.version = version;
        }
    }

    /// Adds a source to an open dispatcher. The dispatchers take turns.
    pub(crate) fn add_source(&self, source: &Arc<Source>) -> Option<(Arc<EventDispatcher>, Token)> {
        let all = self.all();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % all.len().max(1);
        let in_turn = all.iter().skip(first).chain(all.iter().take(first));
        in_turn.into_iter().find_map(|(_, there)| Some((there.clone(), there.add(source.clone())?)))
    }

    /// Wakes all tasks that wait for sockets. They then see that the scheduler has ended.
    pub(crate) fn end(&self) {
        let all: Vec<_> = self.all().iter().map(|(_, there)| there.clone()).collect();
        for dispatcher in all {
            let sources: Vec<_> = dispatcher.sources().iter().map(|(_, source)| source.clone()).collect();
            for source in sources {
                source.deliver(EventFlags::IN | EventFlags::OUT);
            }
        }
    }

    /// Returns whether a dispatcher waits in its queue.
    pub(crate) fn any_queued(&self) -> bool {
        self.all().iter().any(|(_, there)| there.queue.is_queued())
    }

    /// Returns whether a dispatcher waits behind the same handler as at the last look. `before` has
    /// the number of handlers that each queued dispatcher had started at the last look.
    pub(crate) fn any_stuck(&self, before: &mut Vec<Option<u64>>) -> bool {
        let all = self.all();
        let now = (0..all.capacity()).map(|number| all.get(number)).map(|there| {
            let there = there.filter(|there| there.queue.is_queued())?;
            Some(there.started.get())
        });
        let now: Vec<_> = now.collect();
        let is_stuck = now.iter().zip(before.iter()).any(|(now, before)| now.is_some() && now == before);
        *before = now;
        is_stuck
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }
}
