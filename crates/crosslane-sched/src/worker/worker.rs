//! A worker: one thread that runs dispatchers and tasks.
//!
//! # What it does next
//!
//! 1. A task that was started in the foreground runs at once.
//! 2. A dispatcher that waits in its own queue.
//! 3. Its own queue, the newest task first: what it needs is in the caches.
//! 4. Tasks that were added from outside, and the oldest tasks of other workers' queues.
//! 5. It sleeps, maybe after [busy polling](crate::busy), and handles the events for which the kernel wakes it ([`crate::poller`]).
//!
//! Every [`FAIRNESS`] tasks the order is turned around once, so that no task waits for ever behind newer ones, and the
//! kernel is asked for events, so that busy workers see them too.
//!
//! # Permits
//!
//! A group has more threads than permits. A thread needs a permit for step 4, so that the processors are not
//! shared by more tasks than there are workers. Dispatchers and the tasks that they start need none: there is a
//! thread that waits for events also when all workers are busy with long tasks.

use crate::busy::Busy;
use crate::dispatcher::{self, Event, Snapshot};
use crate::poller::Harvest;
use crate::priority::Turn;
use crate::scheduler::Group;
use crate::stats::Counters;
use crate::task::wake;
use async_task::Runnable;
use crossbeam_deque::{Steal, Worker as Deque};
use crosslane_ring::Slice;
use std::cell::{Cell, RefCell, RefMut};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FAIRNESS: u32 = 61;
/// So often a task may find its descriptors ready before it lets others go first.
const BUDGET: u32 = 128;
/// One in so many handlers is measured.
const SAMPLE: u64 = 16;
/// A handler that takes so much of the processor is long: others had better not wait for it.
const LONG: Duration = Duration::from_micros(100);
/// So many long ones among the last 16 that were measured show that handlers take long. A single one may be short, and have
/// been charged for an interrupt, or for what another virtual machine had of the processor.
const MANY_LONG: u32 = 2;

/// How much of the processor this thread has had.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What is in a worker's queue.
#[derive(Debug)]
pub(crate) enum Job {
    Task(Runnable),
    /// A dispatcher that started a task, when dispatchers do not go first.
    Dispatch(Arc<dispatcher::Inner>, Turn<Event>),
}

/// How a task starts that is woken on this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It goes into the worker's queue, and an idle worker is woken for it.
    Background,
    /// The first one runs as soon as the dispatcher has put itself into its queue.
    Foreground,
    /// It goes into the worker's queue behind a task in the foreground, and nobody is woken for it yet.
    Behind,
}

/// What a worker has found that polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Events,
    /// Something beside events, and maybe these.
    Polled,
}

pub(crate) struct Worker {
    group: Arc<Group>,
    index: usize,
    queue: Deque<Job>,
    next: Cell<Option<Runnable>>,
    start: Cell<Start>,
    /// It was woken for work and has not found any yet.
    searching: Cell<bool>,
    has_permit: Cell<bool>,
    ticks: Cell<u32>,
    /// How many tasks have run of which each started the next one in the foreground.
    chain: Cell<u32>,
    /// Which of the last handlers that were measured took long, one bit each.
    long: Cell<u16>,
    /// What the current task has left of its [`BUDGET`].
    budget: Cell<u32>,
    /// It has polled since it last rested.
    has_polled: Cell<bool>,
    dispatchers: RefCell<Snapshot>,
}

thread_local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(ptr::null()) };
    /// The group whose `block_on` this thread is in.
    static ENTERED: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
    /// The group for whose calls that block this thread was made. It is only compared.
    static BLOCKING: Cell<*const Group> = const { Cell::new(ptr::null()) };
}

/// What the calling thread is to the schedulers.
#[derive(Debug)]
pub(crate) struct Current;

impl Current {
    fn with_worker<R>(access: impl FnOnce(&Worker) -> R) -> Option<R> {
        let worker = WORKER.get();
        // SAFETY: the pointer is set by `Worker::run` for its own thread and as long as the worker lives there.
        (!worker.is_null()).then(|| access(unsafe { &*worker }))
    }

    fn with_worker_of<R>(group: &Group, access: impl FnOnce(&Worker) -> R) -> Option<R> {
        Current::with_worker(|worker| ptr::eq(&*worker.group, group).then(|| access(worker))).flatten()
    }

    pub(crate) fn group() -> Option<Arc<Group>> {
        Current::with_worker(|worker| worker.group.clone()).or_else(|| ENTERED.with_borrow(Option::clone))
    }

    pub(crate) fn worker_index(group: &Group) -> Option<usize> {
        Current::with_worker_of(group, |worker| worker.index)
    }

    pub(crate) fn is_worker() -> bool {
        !WORKER.get().is_null()
    }

    /// Whether a task or a call of this group runs here: the group cannot end before this thread lets go of it.
    pub(crate) fn is_held_by(group: &Group) -> bool {
        Current::worker_index(group).is_some() || ptr::eq(BLOCKING.get(), group)
    }

    /// This thread is one for calls that block, until it ends.
    pub(crate) fn set_blocking(group: &Group) {
        BLOCKING.set(group);
    }

    /// What is started on this thread belongs to the group, until the answer is dropped.
    pub(crate) fn enter(group: Arc<Group>) -> Entered {
        Entered(ENTERED.replace(Some(group)))
    }

    /// Lets the task run next on this worker; gives it back if there is none, if another task comes next, or if as many
    /// tasks as [`FAIRNESS`] says have started each other already: others would never have a turn.
    pub(crate) fn start_next(group: &Group, runnable: Runnable) -> Result<(), Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| {
            if worker.chain.get() < FAIRNESS {
                worker.start_next(&mut runnable);
            }
        });
        runnable.map_or(Ok(()), Err)
    }

    /// Takes one from the current task's budget. False if there is none left.
    pub(crate) fn spend() -> bool {
        let spend = |worker: &Worker| {
            let left = worker.budget.get().checked_sub(1)?;
            worker.budget.set(left);
            Some(())
        };
        Current::with_worker(spend).is_none_or(|spent| spent.is_some())
    }

    pub(crate) fn set_start(start: Start) {
        Current::with_worker(|worker| worker.start.set(start));
    }

    /// Puts the task into this worker's queue, or lets it run next; gives it back if there is no worker here.
    pub(crate) fn schedule(group: &Group, runnable: Runnable, yields: bool) -> Option<Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| worker.schedule(&mut runnable, yields));
        runnable
    }
}

/// What the thread was in before it entered a group. It is in it again when this is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Option<Arc<Group>>);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.0.take());
    }
}

/// The thread is no worker any more when this is dropped.
struct Left;

impl Drop for Left {
    fn drop(&mut self) {
        WORKER.set(ptr::null());
    }
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

    fn counters(&self) -> &Counters {
        &self.group.counters[self.index]
    }

    /// Works until the group is stopped.
    pub(crate) fn run(self) {
        WORKER.set(&raw const self);
        // Dropped before the worker is, also by a panic.
        let left = Left;
        let slice = Slice::new(self.group.has_dispatchers());
        let mut harvest = Harvest::default();
        while !self.group.is_stopped() {
            match self.find() {
                Some(job) => self.execute(job),
                None => self.sleep(&mut harvest, &slice),
            }
            if self.ticks.get() >= FAIRNESS {
                self.ticks.set(0);
                self.look(&mut harvest);
                if let Some(job) = self.oldest() {
                    self.execute(job);
                }
            }
        }
        // Tasks that are dropped wake others, which find no worker here any more.
        drop(left);
        // The group shares the queue, and the tasks share the group: it would never be dropped.
        while let Some(job) = self.queue.pop() {
            drop(job);
        }
    }

    fn find(&self) -> Option<Job> {
        self.queued_dispatcher().or_else(|| self.queue.pop()).or_else(|| self.steal())
    }

    /// The task that waits longest: outside of all queues, or in this worker's own.
    fn oldest(&self) -> Option<Job> {
        if !self.group.injector.is_empty()
            && self.take_permit()
            && let Steal::Success(job) = self.group.injector.steal()
        {
            return Some(job);
        }
        self.group.stealers[self.index].steal().success()
    }

    /// The dispatchers of now.
    fn dispatchers(&self) -> RefMut<'_, Snapshot> {
        let mut dispatchers = self.dispatchers.borrow_mut();
        self.group.dispatchers.refresh(&mut dispatchers);
        dispatchers
    }

    fn sees_dispatcher(&self) -> bool {
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

    /// Hands the dispatcher's events to their tasks.
    fn dispatch(&self, dispatcher: &Arc<dispatcher::Inner>, mut turn: Turn<Event>) {
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

    /// Runs a task that a dispatcher started. Now and then it measures how long that takes.
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

    /// Runs a task, and those that it starts in the foreground, until they wait or end.
    fn run_task(&self, runnable: Runnable) {
        let mut next = Some(runnable);
        self.chain.set(0);
        while let Some(runnable) = next {
            self.counters().runs.count();
            self.ticks.set(self.ticks.get().saturating_add(1));
            self.chain.set(self.chain.get() + 1);
            self.budget.set(BUDGET);
            runnable.run();
            self.group.leave_forked();
            self.start.set(Start::Background);
            next = self.next.take();
            if next.is_some() {
                self.counters().foreground.count();
            }
        }
    }

    fn start_next(&self, runnable: &mut Option<Runnable>) {
        let next = self.next.take();
        if next.is_none() {
            self.next.set(runnable.take());
        } else {
            self.next.set(next);
        }
    }

    fn schedule(&self, runnable: &mut Option<Runnable>, yields: bool) {
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
            // A task that yields goes behind all others, which this worker's own queue cannot do.
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

    /// Handles events without waiting for them, if nobody else waits for them.
    fn look(&self, harvest: &mut Harvest) {
        if !self.group.idle.any() {
            self.group.idle.enter();
            self.group.poller.harvest(false, harvest);
            self.receive(harvest);
        }
    }

    fn sleep(&self, harvest: &mut Harvest, slice: &Slice) {
        self.ticks.set(0);
        if self.has_permit.take() {
            self.group.permits.fetch_add(1, Ordering::SeqCst);
        }
        if self.searching.take() {
            self.group.idle.stop_searching();
        }
        self.group.idle.enter();
        if self.has_to_stay() {
            self.group.idle.leave();
            return;
        }
        self.counters().parks.count();
        if self.group.idle.enter_poll() {
            slice.shorten();
            let found = self.busy_poll(harvest);
            if found == Found::Nothing {
                self.rest();
                self.group.poller.harvest(true, harvest);
            }
            self.group.idle.leave_poll();
            if self.group.idle.is_eager() {
                slice.restore();
            }
            // If this takes long, somebody else has to poll.
            self.group.monitor.watch();
            self.receive(harvest);
            if found == Found::Polled {
                self.handle();
            }
        } else {
            self.rest();
            if self.group.idle.sleep(|| self.has_to_stay()) {
                self.group.idle.woken();
                self.was_woken();
            } else {
                self.group.idle.leave();
            }
        }
    }

    /// Looks for events for a moment.
    fn busy_poll(&self, harvest: &mut Harvest) -> Found {
        let Some(turn) = self.group.busy.as_ref().and_then(Busy::begin) else { return Found::Nothing };
        self.has_polled.set(true);
        loop {
            let is_there = turn.look();
            self.group.poller.harvest(false, harvest);
            if is_there {
                return Found::Polled;
            }
            if harvest.has_any() {
                return Found::Events;
            }
            if self.group.is_stopped() || !turn.goes_on() {
                return Found::Nothing;
            }
        }
    }

    /// Handles what was found beside events. This worker runs the tasks that are woken.
    fn handle(&self) {
        let Some(busy) = &self.group.busy else { return };
        self.stop_searching();
        self.start.set(Start::Behind);
        let handled = panic::catch_unwind(AssertUnwindSafe(|| busy.source().handle()));
        self.start.set(Start::Background);
        // The hook has reported a panic.
        drop(handled);
    }

    /// If this worker has polled, what it polled must wake somebody from now on.
    fn rest(&self) {
        if let Some(busy) = self.group.busy.as_ref().filter(|_| self.has_polled.take()) {
            busy.source().rest();
        }
    }

    /// Whether there is a reason not to sleep.
    fn has_to_stay(&self) -> bool {
        self.group.is_stopped() || self.group.has_work() || self.sees_dispatcher()
    }

    fn was_woken(&self) {
        self.counters().wakes.count();
        self.searching.set(true);
    }

    /// Handles what a poller brought. It counts as idle before, and does not after.
    fn receive(&self, harvest: &mut Harvest) {
        if harvest.woken {
            self.group.idle.poller_woken();
            self.was_woken();
        } else {
            self.group.idle.leave();
        }
        if harvest.timers {
            // The worker's queue gives the newest task first, which shall be the one that was due first.
            for waker in self.group.timers.take_due(&self.group.poller).into_iter().rev() {
                wake(waker);
            }
        }
        if !harvest.events.is_empty() {
            self.stop_searching();
            self.hand_out(harvest);
        }
    }

    /// Brings the events to their dispatchers, and runs the first of them that needs somebody.
    fn hand_out(&self, harvest: &mut Harvest) {
        let dispatchers = self.dispatchers();
        let mut first = None;
        for events in harvest.events.chunk_by(|(one, _), (other, _)| one.dispatcher == other.dispatcher) {
            let Some(Some(dispatcher)) = dispatchers.all.get(events[0].0.dispatcher as usize) else {
                continue;
            };
            let events = events.iter().map(|(token, flags)| Event { source: token.source, flags: *flags });
            let Some(turn) = dispatcher.queue.post(events) else { continue };
            if first.is_none() {
                first = Some((dispatcher.clone(), turn));
            } else if self.group.priority {
                turn.queue();
                self.group.wake_one();
            } else {
                self.queue.push(Job::Dispatch(dispatcher.clone(), turn));
                self.group.wake_one();
            }
        }
        harvest.events.clear();
        drop(dispatchers);
        if let Some((dispatcher, turn)) = first {
            self.give_permit_back();
            self.dispatch(&dispatcher, turn);
        }
    }

    /// After a worker that was woken found work, somebody else has to look whether there is more.
    fn stop_searching(&self) {
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

    fn give_permit_back(&self) {
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

    /// A worker alone: the group's own threads and its monitor have ended.
    fn alone() -> (Arc<Group>, Worker) {
        let scheduler = Scheduler::builder().workers(1).start().unwrap();
        let group = scheduler.handle().dispatcher().group.clone();
        assert_eq!(scheduler.shut_down(Duration::ZERO).stuck, 0);
        (group.clone(), Worker::new(group, 0, Deque::new_lifo()))
    }

    /// It has looked at all queues before, with the dispatchers of then.
    #[test]
    fn a_worker_that_is_about_to_sleep_sees_a_new_dispatcher() {
        let (group, worker) = alone();
        assert!(worker.find().is_none() && !worker.sees_dispatcher());
        group.dispatchers.add().queue.post([]).unwrap().queue();
        assert!(worker.sees_dispatcher());
    }

    #[test]
    fn one_long_handler_is_no_sign_that_they_are_long() {
        // Its counter of events is 0, so that each handler is measured.
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
