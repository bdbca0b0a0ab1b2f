//! The queue of one dispatcher.
//!
//! A dispatcher that starts a handler in the foreground puts itself into this queue. An idle worker
//! takes the dispatcher from the queue before any ordinary task. The queue never has another entry.
//! So it needs space for one entry, and its states are those of the dispatcher:
//!
//! | state | meaning | which thread may leave it |
//! |---|---|---|
//! | `IDLE` | it has no events | a thread that brings an event ([`PriorityQueue::post`]) |
//! | `RUNNING` | one worker holds its [`Turn`] | that worker ([`Turn::queue`], [`Turn::idle`]) |
//! | `MAIL` | as `RUNNING`, and new events have come | that worker, after it has fetched them |
//! | `QUEUED` | it is in its queue | any worker ([`PriorityQueue::take`], [`PriorityQueue::post`]) |
//!
//! **One producer.** A worker gives up its turn to enter `QUEUED`, and there is only one turn. The
//! step from `IDLE` or `QUEUED` to `RUNNING` makes the turn, and only one thread can make that
//! step. Code cannot copy a turn, and cannot use a turn again after giving it up:
//!
//! ```compile_fail,E0382
//! # let queue = std::sync::Arc::new(crosslane_sched::priority::PriorityQueue::new());
//! let turn = queue.post([1]).unwrap();
//! turn.queue();
//! turn.queue();
//! ```
//!
//! ```compile_fail,E0277
//! # use crosslane_sched::priority::Turn;
//! fn cloned(turn: impl Clone) {}
//! fn twice(turn: Turn<u32>) { cloned(turn) }
//! ```
//!
//! **No event is lost.** The thread that gets the turn appends its events. Another thread leaves
//! its events under the lock, and then changes `RUNNING` to `MAIL`. No step leads from `MAIL` to
//! `IDLE` or `QUEUED`. A turn that is dropped, for instance by a panic, puts the dispatcher into
//! its queue.
//!
//! The turn protects the pending events. Each step that gives it up releases, and each step that
//! takes it acquires.

use crate::sync::{AtomicU8, Mutex, Ordering, UnsafeCell, lock};
use std::collections::VecDeque;
use std::sync::Arc;

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const MAIL: u8 = 2;
const QUEUED: u8 = 3;

/// The queue of one dispatcher, with the events that the dispatcher has to handle.
#[derive(Debug)]
pub struct PriorityQueue<E> {
    state: AtomicU8,
    mail: Mutex<Vec<E>>,
    events: UnsafeCell<VecDeque<E>>,
}

// SAFETY: only the one `Turn` gives access to `events`, and they move between threads with it.
unsafe impl<E: Send> Send for PriorityQueue<E> {}
// SAFETY: as above; `mail` has a lock.
unsafe impl<E: Send> Sync for PriorityQueue<E> {}

impl<E> Default for PriorityQueue<E> {
    fn default() -> Self {
        PriorityQueue {
            state: AtomicU8::new(IDLE),
            mail: Mutex::new(Vec::new()),
            events: UnsafeCell::new(VecDeque::new()),
        }
    }
}

impl<E> PriorityQueue<E> {
    /// The queue of a dispatcher that is idle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the dispatcher is in its queue. Another worker may take it before the caller
    /// uses the answer.
    pub fn is_queued(&self) -> bool {
        self.state.load(Ordering::SeqCst) == QUEUED
    }

    /// Takes the dispatcher from its queue, if it is there.
    pub fn take(self: &Arc<Self>) -> Option<Turn<E>> {
        // A plain load keeps the cache line shared while workers look at an empty queue.
        if self.state.load(Ordering::Relaxed) == QUEUED { self.enter(QUEUED) } else { None }
    }

    /// Brings events. The caller gets the turn if the dispatcher was idle or in its queue.
    /// Otherwise the worker with the turn handles the events.
    pub fn post(self: &Arc<Self>, events: impl IntoIterator<Item = E>) -> Option<Turn<E>> {
        let mut events = Some(events);
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if state == IDLE || state == QUEUED {
                let Some(mut turn) = self.enter(state) else { continue };
                match events {
                    Some(events) => turn.events(|at_hand| at_hand.extend(events)),
                    None => turn.fetch(),
                }
                return Some(turn);
            }
            // This stores the events before the state changes. So a thread that sees the state
            // finds them.
            if let Some(events) = events.take() {
                lock(&self.mail).extend(events);
            }
            if self.state.compare_exchange(state, MAIL, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
    }

    fn enter(self: &Arc<Self>, from: u8) -> Option<Turn<E>> {
        let entered = self.state.compare_exchange(from, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        entered.is_ok().then(|| Turn(self.clone()))
    }
}

/// The right to run a dispatcher and to put it into its queue. There is one at a time.
#[derive(Debug)]
pub struct Turn<E>(Arc<PriorityQueue<E>>);

impl<E> Turn<E> {
    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<E> {
        self.events(VecDeque::pop_front)
    }

    /// Puts the dispatcher into its queue, and returns the queue.
    pub fn queue(self) -> Arc<PriorityQueue<E>> {
        self.0.clone()
    }

    /// Makes the dispatcher idle. If there are events, returns the turn instead.
    pub fn idle(mut self) -> Option<Turn<E>> {
        if self.events(|at_hand| at_hand.is_empty()) && self.leave(IDLE) {
            // The state is already `IDLE`, so the turn must not be dropped in the usual way.
            let turn = std::mem::ManuallyDrop::new(self);
            // SAFETY: the turn itself is not dropped, so its queue is dropped once, here.
            drop(unsafe { std::ptr::read(&turn.0) });
            return None;
        }
        self.fetch();
        Some(self)
    }

    fn leave(&mut self, to: u8) -> bool {
        self.0.state.compare_exchange(RUNNING, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Reads the mail.
    fn fetch(&mut self) {
        // A thread that leaves mail after this step changes the state to `MAIL` again.
        self.0.state.swap(RUNNING, Ordering::AcqRel);
        let mail = std::mem::take(&mut *lock(&self.0.mail));
        self.events(|at_hand| at_hand.extend(mail));
    }

    fn events<R>(&mut self, access: impl FnOnce(&mut VecDeque<E>) -> R) -> R {
        // SAFETY: this is the only turn, it is borrowed exclusively, and it acquired the writes
        // that the last turn released.
        self.0.events.with_mut(|events| access(unsafe { &mut *events }))
    }
}

impl<E> Drop for Turn<E> {
    fn drop(&mut self) {
        while !self.leave(QUEUED) {
            self.fetch();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn a_queued_dispatcher_is_taken_once() {
        let queue = Arc::new(PriorityQueue::new());
        assert!(queue.take().is_none());
        queue.post([1]).unwrap().queue();
        let mut turn = queue.take().unwrap();
        assert!(queue.take().is_none());
        assert_eq!(turn.next_event(), Some(1));
        assert!(turn.idle().is_none());
        assert!(queue.take().is_none());
    }

    #[test]
    fn a_dispatcher_with_mail_does_not_become_idle() {
        let queue = Arc::new(PriorityQueue::new());
        let mut turn = queue.post([1]).unwrap();
        assert!(queue.post([2, 3]).is_none());
        assert_eq!(turn.next_event(), Some(1));
        let mut turn = turn.idle().unwrap();
        assert_eq!((turn.next_event(), turn.next_event(), turn.next_event()), (Some(2), Some(3), None));
        assert!(turn.idle().is_none());
    }

    #[test]
    fn mail_for_a_running_dispatcher_goes_with_it_into_the_queue() {
        let queue = Arc::new(PriorityQueue::new());
        let turn = queue.post([1]).unwrap();
        assert!(queue.post([2]).is_none());
        turn.queue();
        let mut turn = queue.post([3]).unwrap();
        assert_eq!([turn.next_event(), turn.next_event(), turn.next_event()], [Some(1), Some(2), Some(3)]);
        assert!(turn.idle().is_none());
    }

    #[test]
    fn a_turn_that_a_panic_drops_is_not_lost() {
        let queue = Arc::new(PriorityQueue::new());
        let turn = queue.post([1]).unwrap();
        thread::spawn(move || {
            let _turn = turn;
            std::panic::resume_unwind(Box::new(()));
        })
        .join()
        .unwrap_err();
        assert_eq!(queue.take().unwrap().next_event(), Some(1));
    }

    /// Several workers preempt and resume several dispatchers while other workers bring events.
    /// Each event is handled exactly once, and in the end each dispatcher is idle. `SCHED_ROUNDS`
    /// sets the number of rounds.
    #[test]
    fn no_dispatcher_is_lost() {
        let rounds: usize = match std::env::var("SCHED_ROUNDS") {
            Ok(rounds) => rounds.parse().expect("SCHED_ROUNDS is a number"),
            Err(_) if cfg!(miri) => 300,
            Err(_) => 2_000_000,
        };
        let shared = Arc::new(Shared::new(rounds));
        let workers = [0, 1, 2].map(|worker| {
            let shared = shared.clone();
            thread::spawn(move || shared.work(worker))
        });
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(shared.handled.load(Ordering::SeqCst), rounds);
        assert_eq!(shared.sum.load(Ordering::SeqCst), rounds * (rounds - 1) / 2);
        for queue in &shared.queues {
            // The last handler may have ended while its dispatcher was in the queue.
            if let Some(mut turn) = queue.take() {
                assert_eq!(turn.next_event(), None);
                assert!(turn.idle().is_none());
            }
        }
    }

    struct Shared {
        queues: Vec<Arc<PriorityQueue<usize>>>,
        rounds: usize,
        posted: AtomicUsize,
        handled: AtomicUsize,
        sum: AtomicUsize,
    }

    impl Shared {
        fn new(rounds: usize) -> Self {
            let queues = (0..4).map(|_| Arc::new(PriorityQueue::new())).collect();
            let zero = || AtomicUsize::new(0);
            Shared { queues, rounds, posted: zero(), handled: zero(), sum: zero() }
        }

        fn work(&self, worker: usize) {
            let mut at = worker;
            while self.handled.load(Ordering::Relaxed) < self.rounds {
                at += 1;
                let queue = &self.queues[at % self.queues.len()];
                let turn = queue.take().or_else(|| {
                    let event = self.posted.fetch_add(1, Ordering::Relaxed);
                    if event < self.rounds { queue.post([event]) } else { None }
                });
                if let Some(turn) = turn {
                    self.dispatch(queue, turn);
                }
            }
        }

        fn dispatch(&self, queue: &Arc<PriorityQueue<usize>>, mut turn: Turn<usize>) {
            loop {
                if let Some(event) = turn.next_event() {
                    self.sum.fetch_add(event, Ordering::Relaxed);
                    self.handled.fetch_add(1, Ordering::Relaxed);
                    // The handler of the event runs, and another worker may take the dispatcher.
                    turn.queue();
                    match queue.take() {
                        Some(again) => turn = again,
                        None => return,
                    }
                } else {
                    match turn.idle() {
                        Some(more) => turn = more,
                        None => return,
                    }
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;

    /// Handles the events, in turns with other workers, and returns their sum.
    fn work(queue: &Arc<PriorityQueue<u32>>, mut turn: Turn<u32>) -> u32 {
        let mut sum = 0;
        loop {
            if let Some(event) = turn.next_event() {
                sum += event;
                turn.queue();
                match queue.take() {
                    Some(again) => turn = again,
                    None => return sum,
                }
            } else {
                match turn.idle() {
                    Some(more) => turn = more,
                    None => return sum,
                }
            }
        }
    }

    #[test]
    fn loom_events_of_two_workers_are_handled_once() {
        loom::model(|| {
            let queue = Arc::new(PriorityQueue::new());
            let other = {
                let queue = queue.clone();
                thread::spawn(move || queue.post([1]).map_or(0, |turn| work(&queue, turn)))
            };
            let mine = queue.post([10]).map_or(0, |turn| work(&queue, turn));
            let theirs = other.join().unwrap();
            // A worker may have left the dispatcher in its queue.
            let rest = queue.take().map_or(0, |turn| work(&queue, turn));
            assert_eq!(mine + theirs + rest, 11);
            assert!(queue.take().is_none());
        });
    }

    #[test]
    fn loom_a_dispatcher_in_its_queue_is_taken_by_one() {
        loom::model(|| {
            let queue = Arc::new(PriorityQueue::new());
            queue.post([1, 2]).unwrap().queue();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let queue = queue.clone();
                    thread::spawn(move || queue.take().map_or(0, |turn| work(&queue, turn)))
                })
                .collect();
            let sum: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
            let rest = queue.take().map_or(0, |turn| work(&queue, turn));
            assert_eq!(sum + rest, 3);
        });
    }
}
