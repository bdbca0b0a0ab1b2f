//! A worker: one thread that runs dispatchers and tasks.
//!
//! # The order of work
//!
//! 1. A task that was started in the foreground, at once.
//! 2. A dispatcher that waits in the dispatcher's own queue.
//! 3. A task of the worker's own queue, the newest first: its data is in the caches.
//! 4. A task that another thread added, or the oldest task of another worker's queue.
//! 5. Without any of these, it sleeps, sometimes after busy polling. Then it handles the events for
//!    which the kernel wakes it (`events`).
//!
//! After every [`FAIRNESS`] tasks, the worker runs the oldest task once. So no task waits for ever
//! behind newer tasks. It also polls the kernel for events. So busy workers see events too.
//!
//! # Permits
//!
//! A group has more threads than permits. A thread needs a permit for step 4. So the number of
//! tasks that share the processors is at most the number of workers. Dispatchers and the tasks that
//! they start need no permit. So a thread waits for events even when all workers are busy with long
//! tasks.

use super::job::{Job, Start};
use crate::dispatcher::priority::Turn;
use crate::dispatcher::{Event, EventDispatcher, Snapshot};
use crate::idle::Ready;
use crate::scheduler::Group;
use crate::stats::Counters;
use async_task::Runnable;
use crossbeam_deque::{Steal, Worker as Deque};
use crosslane_ring::Slice;
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) const FAIRNESS: u32 = 61;
/// How often a task may find its descriptors ready before other tasks run first.
const BUDGET: u32 = 128;
/// One of this many handlers is measured.
const SAMPLE: u64 = 16;
/// A handler that takes more processor time than this is long. Other work should not wait for it.
const LONG: Duration = Duration::from_micros(100);
/// Handlers count as long if this many of the last 16 measured handlers were long. A single short
/// handler may seem long, because its time may include an interrupt or another virtual machine.
const MANY_LONG: u32 = 2;

/// Returns the processor time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) struct Worker {
    pub(super) group: Arc<Group>,
    pub(super) index: usize,
    pub(super) queue: Deque<Job>,
    pub(super) next: Cell<Option<Runnable>>,
    pub(super) start: Cell<Start>,
    /// The worker was woken for work and has not found any yet.
    pub(super) searching: Cell<bool>,
    pub(super) has_permit: Cell<bool>,
    pub(super) ticks: Cell<u32>,
    /// The length of the current chain of tasks. Each of them started the next in the foreground.
    pub(super) chain: Cell<u32>,
    /// One bit for each of the last measured handlers: whether it was long.
    pub(super) long: Cell<u16>,
    /// The rest of the current task's [`BUDGET`].
    pub(super) budget: Cell<u32>,
    /// The worker has polled since it last called `rest`.
    pub(super) has_polled: Cell<bool>,
    pub(super) dispatchers: RefCell<Snapshot>,
}

impl Worker {
    pub(crate) fn new(group: Arc<Group>, index: usize, queue: Deque<Job>) -> Self {
        Worker {
            group,
            index,
            queue,
            next: Cell::new(None),
            start: Cell::new(Start::Background),
            searching: Cell::new(false),
            has_permit: Cell::new(false),
            ticks: Cell::new(0),
            chain: Cell::new(0),
            long: Cell::new(0),
            budget: Cell::new(0),
            has_polled: Cell::new(false),
            dispatchers: RefCell::default(),
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.group.counters[self.index]
    }

    /// Works until the group is stopped.
    pub(super) fn run(&self) {
        let slice = Slice::new(self.group.has_dispatchers());
        let mut ready = Ready::default();
        while !self.group.is_stopped() {
            match self.find() {
                Some(job) => self.execute(job),
                None => self.sleep(&mut ready, &slice),
            }
            if self.ticks.get() >= FAIRNESS {
                self.ticks.set(0);
                self.look(&mut ready);
                if let Some(job) = self.oldest() {
                    self.execute(job);
                }
            }
        }
    }

    /// Drops the tasks of its queue. The group owns the queue, and the tasks own the group. Without
    /// this, neither would ever be dropped.
    pub(super) fn drop_queued(&self) {
        while let Some(job) = self.queue.pop() {
            drop(job);
        }
    }

    fn find(&self) -> Option<Job> {
        self.queued_dispatcher().or_else(|| self.queue.pop()).or_else(|| self.steal())
    }

    /// Takes the oldest task: a task that another thread added, or the oldest task of this worker's
    /// queue.
    fn oldest(&self) -> Option<Job> {
        if !self.group.injector.is_empty()
            && self.take_permit()
            && let Steal::Success(job) = self.group.injector.steal()
        {
            return Some(job);
        }
        self.group.stealers[self.index].steal().success()
    }

    /// Returns the current dispatchers.
    pub(super) fn dispatchers(&self) -> RefMut<'_, Snapshot> {
        let mut dispatchers = self.dispatchers.borrow_mut();
        self.group.dispatchers.refresh(&mut dispatchers);
        dispatchers
    }

    pub(super) fn sees_dispatcher(&self) -> bool {
        self.group.priority && self.dispatchers().all.iter().flatten().any(|there| there.queue.is_queued())
    }

    fn queued_dispatcher(&self) -> Option<Job> {
        if !self.group.priority {
            return None;
        }
        let dispatchers = self.dispatchers();
        let found =
            dispatchers.all.iter().flatten().find_map(|there| there.queue.take().map(|turn| (there, turn)));
        found.map(|(there, turn)| {
            self.counters().priority_hits.count();
            Job::Dispatch(there.clone(), turn)
        })
    }

    fn steal(&self) -> Option<Job> {
        if !self.group.has_tasks() || !self.take_permit() {
            return None;
        }
        loop {
            let mut again = false;
            match self.group.injector.steal_batch_and_pop(&self.queue) {
                Steal::Success(job) => return Some(job),
                Steal::Retry => again = true,
                Steal::Empty => {}
            }
            let others = self.group.stealers.len();
            for distance in 1..others {
                match self.group.stealers[(self.index + distance) % others].steal_batch_and_pop(&self.queue) {
                    Steal::Success(job) => {
                        self.counters().steals.count();
                        return Some(job);
                    }
                    Steal::Retry => again = true,
                    Steal::Empty => {}
                }
            }
            if !again {
                return None;
            }
        }
    }

    fn execute(&self, job: Job) {
        self.stop_searching();
        match job {
            Job::Task(runnable) => self.run_task(runnable),
            Job::Dispatch(dispatcher, turn) => {
                self.give_permit_back();
                self.dispatch(&dispatcher, turn);
            }
        }
    }

    /// Passes the dispatcher's events to their tasks.
    pub(super) fn dispatch(&self, dispatcher: &Arc<EventDispatcher>, mut turn: Turn<Event>) {
        loop {
            let Some(event) = turn.next_event() else {
                match turn.idle() {
                    Some(more) => turn = more,
                    None => return,
                }
                continue;
            };
            self.counters().dispatches.count();
            self.start.set(Start::Foreground);
            dispatcher.deliver(event);
            self.start.set(Start::Background);
            let Some(runnable) = self.next.take() else { continue };
            self.counters().foreground.count();
            dispatcher.started.count();
            if !self.group.priority {
                self.queue.push(Job::Dispatch(dispatcher.clone(), turn));
                self.group.monitor.watch();
                self.run_handler(runnable);
                return;
            }
            let queue = turn.queue();
            self.group.monitor.watch();
            self.run_handler(runnable);
            match queue.take() {
                Some(again) => turn = again,
                None => return,
            }
        }
    }

    /// Runs a task that a dispatcher started. Measures some of them.
    fn run_handler(&self, runnable: Runnable) {
        if !self.counters().dispatches.get().is_multiple_of(SAMPLE) {
            return self.run_task(runnable);
        }
        let before = cpu_time();
        self.run_task(runnable);
        let is_long = cpu_time() - before > LONG;
        self.long.set(self.long.get() << 1 | u16::from(is_long));
        if is_long && self.long.get().count_ones() >= MANY_LONG {
            self.group.monitor.saw_long_handler();
            self.group.idle.set_eager(true);
        }
    }

    /// Runs a task, and the tasks that it starts in the foreground, until they wait or end.
    fn run_task(&self, runnable: Runnable) {
        let mut next = Some(runnable);
        self.chain.set(0);
        while let Some(runnable) = next {
            self.counters().runs.count();
            self.ticks.set(self.ticks.get().saturating_add(1));
            self.chain.set(self.chain.get() + 1);
            self.budget.set(BUDGET);
            runnable.run();
            self.group.abort_if_forked();
            self.start.set(Start::Background);
            next = self.next.take();
            if next.is_some() {
                self.counters().foreground.count();
            }
        }
    }

    pub(super) fn start_next(&self, runnable: &mut Option<Runnable>) {
        let next = self.next.take();
        if next.is_none() {
            self.next.set(runnable.take());
        } else {
            self.next.set(next);
        }
    }

    pub(super) fn schedule(&self, runnable: &mut Option<Runnable>, yields: bool) {
        match self.start.get() {
            Start::Foreground => {
                self.start_next(runnable);
                if runnable.is_some() {
                    self.push(runnable);
                    self.group.wake_one();
                }
            }
            Start::Behind => {
                self.push(runnable);
                self.group.monitor.watch();
            }
            // A task that yields goes behind all other tasks. From this worker's own queue, it
            // would run first.
            Start::Background if yields => {}
            Start::Background => {
                self.push(runnable);
                self.group.wake_one();
            }
        }
    }

    fn push(&self, runnable: &mut Option<Runnable>) {
        if let Some(runnable) = runnable.take() {
            self.queue.push(Job::Task(runnable));
        }
    }

    /// Ends this worker's search after it found work. If it was the last search, another worker
    /// checks whether there is more work.
    pub(super) fn stop_searching(&self) {
        if self.searching.take() && self.group.idle.stop_searching() && self.group.has_work() {
            self.group.wake_one();
        }
    }

    fn take_permit(&self) -> bool {
        if !self.has_permit.get() {
            let took = self
                .group
                .permits
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            self.has_permit.set(took.is_ok());
        }
        self.has_permit.get()
    }

    pub(super) fn give_permit_back(&self) {
        if self.has_permit.take() {
            self.group.permits.fetch_add(1, Ordering::SeqCst);
            if self.group.has_work() {
                self.group.wake_one();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Scheduler;

    /// Makes a worker alone. The group's own threads and its monitor have ended.
    fn alone() -> (Arc<Group>, Worker) {
        let scheduler = Scheduler::builder().workers(1).start().unwrap();
        let group = scheduler.handle().dispatcher().group.clone();
        assert_eq!(scheduler.shut_down(Duration::ZERO).stuck, 0);
        (group.clone(), Worker::new(group, 0, Deque::new_lifo()))
    }

    /// The worker has looked at all queues before, with the list of dispatchers at that time.
    #[test]
    fn a_worker_that_is_about_to_sleep_sees_a_new_dispatcher() {
        let (group, worker) = alone();
        assert!(worker.find().is_none() && !worker.sees_dispatcher());
        group.dispatchers.add().queue.post([]).unwrap().queue();
        assert!(worker.sees_dispatcher());
    }

    #[test]
    fn one_long_handler_is_no_sign_that_they_are_long() {
        // The counter of events is 0, so each handler is measured.
        let (group, worker) = alone();
        let run = |time: Duration| {
            let spin = async move {
                let begun = cpu_time();
                while cpu_time() - begun < time {}
            };
            let (runnable, task) = async_task::spawn(spin, drop);
            task.detach();
            worker.run_handler(runnable);
        };
        run(2 * LONG);
        (0..15).for_each(|_| run(Duration::ZERO));
        run(2 * LONG);
        assert!(!group.idle.is_eager());
        run(2 * LONG);
        assert!(group.idle.is_eager());
    }
}
