//! Bounds what the processes of a sandboxed library use: threads, processes, and processor time
//! while no call runs.
//!
//! # Whom the warden bounds
//! | bounded together | if it exceeds a bound |
//! |---|---|
//! | a worker and the processes below it, also those of its group whose parents have ended | the worker ends, with all of them |
//! | all other processes of the library: the one that has loaded it, and what its file has started. For JavaScript, its workers, too | the library's processes end, with all workers. The next call starts them again |
//!
//! The kernel counts threads and processes for each user, not for each sandbox. So the warden counts
//! them, every [`LOOK`] or [`SHORT_LOOK`], or less often if a look takes long. While nothing is at work and no
//! sum of processor time grows, the warden rests: it looks less and less often, every [`REST`] in the end.
//! Work that begins wakes it ([`Bell::work_begins`]). Code in a sandbox may exceed the bound until the next
//! look: for [`REST`] at most, or longer if the last look took long.
//!
//! The filter of a worker without `allow_run` forbids it to make processes. Only a file that lies has some
//! below such a worker. So the warden searches for them once in each [`REST`], and in each look once it has
//! found some.
//!
//! # Processor time
//! `timeout` limits calls. Between calls, the warden adds up the processor time of the processes.
//! `1 / SHARE` of one processor is free, for threads that do a little from time to time. The sum halves
//! within each [`HALF`], so that only use far above the free share for a long time reaches the bound. A
//! process that is started while no call runs counts as [`START`], because the times of processes that end
//! soon are not seen.
//! The sum begins anew with each call. That of the library begins anew with each worker that it makes, and
//! with each call of a worker that may start programs: these may leave the worker's group.

use super::log::say;
use super::observed::{Bell, Observed, is_at_work};
use super::proc::{children, process_group, processor_time};
use crate::identity::Process;
use crosslane_sandbox::threads;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How often the warden looks.
const LOOK: Duration = Duration::from_millis(100);
/// How often it looks while processes may be started: while a file is loaded, or a function that may run
/// programs is at work. Processes that start others become many in a moment.
const SHORT_LOOK: Duration = Duration::from_millis(10);
/// How often it looks if nothing happens.
const REST: Duration = Duration::from_secs(1);
/// The warden uses at most `1 / PART` of the time for looks, or `1 / SHORT_PART` for short ones.
const PART: u32 = 20;
const SHORT_PART: u32 = 4;
/// How many threads a worker may have on a small machine, and for each processor of a large one.
/// Libraries that compute start one or two for each processor, and a worker may have several of them.
const THREADS: (usize, usize) = (256, 16);
/// The processor time between calls on a small machine, and for each processor of a large one.
/// Libraries that compute may spin for 0.2 s on each processor when a call has ended.
const BETWEEN_CALLS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(500));
/// Between calls, `1 / SHARE` of one processor is free.
const SHARE: u32 = 10;
/// How long it takes until a sum of processor time counts as half.
const HALF: Duration = Duration::from_secs(60);
/// What a process that is started between calls counts as, in addition to its time.
const START: Duration = Duration::from_secs(1);
/// How long the processes of a worker's group may take to end.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the reaper may take to end a library's processes. It tries this for less time
/// ([`crate::reaper`]), and without it they would go on.
const PATIENCE_OF_LIBRARY: Duration = Duration::from_secs(11);

/// What a worker in a sandbox may use.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// The most threads of a worker and the processes below it.
    pub threads: usize,
    /// The most processor time between two calls.
    pub between_calls: Duration,
    /// How many processors the machine has.
    processors: u32,
}

impl Allowance {
    /// What it is on a machine with as many processors as this one.
    #[must_use]
    pub fn of_this_machine() -> Self {
        // SAFETY: sysconf has no requirements. Libraries count processors in this way, whatever a
        // container may use.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
        Self {
            threads: THREADS.0.max(THREADS.1 * processors as usize),
            between_calls: BETWEEN_CALLS.0.max(BETWEEN_CALLS.1 * processors),
            processors,
        }
    }
}

/// A sandboxed library. Its engine and its warden share this.
#[derive(Debug)]
pub(crate) struct Library {
    name: String,
    /// The process below which all others of the library are.
    root: Process,
    /// Odd while the file is loaded, or a worker is made.
    work: AtomicU64,
    /// Why the warden has ended it, and when.
    ended: OnceLock<(String, Instant)>,
}

impl Library {
    /// A library that is being loaded.
    pub(crate) fn new(name: String, root: Process) -> Self {
        Self { name, root, work: AtomicU64::new(1), ended: OnceLock::new() }
    }

    /// Notes that work of the library's own process begins or ends.
    pub(crate) fn begins_or_ends(&self) {
        self.work.fetch_add(1, SeqCst);
    }

    /// Why the warden has ended the library's processes, if it has.
    pub(crate) fn why_it_ended(&self) -> Option<&str> {
        self.ended.get().map(|(why, _)| why.as_str())
    }

    /// Ends the library's processes. The reaper does that, if there is one. It needs a moment.
    fn end(&self, why: &str, workers: &[&Observed]) {
        workers.iter().for_each(|worker| worker.note_end(why));
        if self.ended.get().is_none() {
            say(&format!("{}: {why}; all its processes were ended", self.name));
        }
        let (_, since) = self.ended.get_or_init(|| (why.to_owned(), Instant::now()));
        if since.elapsed() > PATIENCE_OF_LIBRARY {
            self.root.kill();
        } else {
            let _ = rustix::process::pidfd_send_signal(&self.root, Signal::TERM);
        }
    }
}

/// What is bounded together.
#[derive(Debug, Clone, Copy)]
struct Account {
    work: u64,
    /// The processor time since the end of the last work, without what is free. Earlier time counts less.
    spent: Duration,
}

impl Account {
    /// The account after a look at something that has `used` this time since the last look, `elapsed` ago.
    fn after(last: Option<Self>, work: u64, is_at_work: bool, used: Duration, elapsed: Duration) -> Self {
        let spent = match last {
            Some(last) if last.work == work && !is_at_work => {
                let part = (-elapsed.div_duration_f64(HALF)).exp2();
                (last.spent.mul_f64(part) + used).saturating_sub(elapsed / SHARE)
            }
            _ => Duration::ZERO,
        };
        Self { work, spent }
    }
}

/// The warden's knowledge about the processes of a library.
#[derive(Debug)]
pub(crate) struct Bounds {
    most: Allowance,
    name: String,
    /// The process below which all others of the library are.
    root: i32,
    /// The library, if its own process is in a sandbox.
    library: Option<Arc<Library>>,
    of_library: Option<Account>,
    of_workers: HashMap<i32, Account>,
    /// The workers below which there were processes at the last look.
    parents: HashSet<i32>,
    /// The processor time of each process at the last look.
    times: HashMap<i32, Duration>,
    /// The processes that are workers, and when they were seen last. The ends of workers and their
    /// groups take processor time, which is nobody's.
    workers: HashMap<i32, Instant>,
    /// When the warden has looked last, when it has searched for processes below all workers, and when it
    /// looks next.
    last: Instant,
    searched: Instant,
    next: Option<Instant>,
    /// The time between looks, if they do not take long. It is longer than [`LOOK`] while the warden rests.
    pause: Duration,
}

impl Bounds {
    pub(crate) fn new(name: String, root: i32, library: Option<Arc<Library>>) -> Self {
        let now = Instant::now();
        Self {
            most: Allowance::of_this_machine(),
            name,
            root,
            next: library.is_some().then_some(now),
            library,
            of_library: None,
            of_workers: HashMap::new(),
            parents: HashSet::new(),
            times: HashMap::new(),
            workers: HashMap::new(),
            last: now,
            searched: now,
            pause: LOOK,
        }
    }

    /// Whether the library's own process is in a sandbox.
    pub(crate) fn is_of_sandbox(&self) -> bool {
        self.library.is_some()
    }

    /// How long the warden may sleep. `None` if nothing is bounded.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Looks at the library's processes, if it is time, or if work has begun while the warden rested.
    pub(crate) fn look(&mut self, bell: &Bell, observed: &[&Observed]) {
        let begun = Instant::now();
        let is_woken = self.pause > LOOK && !bell.rests.load(SeqCst);
        if self.next.is_some_and(|next| begun < next) && !is_woken {
            return;
        }
        let observed: Vec<_> =
            observed.iter().copied().filter(|worker| !worker.process.has_ended()).collect();
        let bounded = observed.iter().filter(|worker| worker.is_bounded);
        let bounded: HashMap<i32, &Observed> = bounded.map(|worker| (worker.process.pid, *worker)).collect();
        // The number of a root that has ended may be that of another process.
        let is_over = self.library.as_ref().map_or(bounded.is_empty(), |library| library.root.has_ended());
        if is_over {
            (self.next, self.pause) = (None, LOOK);
            return;
        }
        let grows = self.look_at(&bounded, &observed);
        let loads = || self.library.as_ref().is_some_and(|library| is_at_work(library.work.load(SeqCst)));
        // Work that begins from now on rings.
        bell.rests.store(true, SeqCst);
        let forks = loads() || bounded.values().any(|worker| worker.may_run && is_at_work(worker.work()));
        let is_at_work = observed.iter().any(|worker| is_at_work(worker.work()));
        let (pause, part) = match (forks, is_at_work || grows) {
            (true, _) => (SHORT_LOOK, SHORT_PART),
            (_, true) => (LOOK, PART),
            _ => ((self.pause.max(LOOK) * 2).min(REST), PART),
        };
        if pause <= LOOK {
            bell.rests.store(false, SeqCst);
        }
        let now = Instant::now();
        self.last = begun;
        self.pause = pause;
        self.next = Some(now + pause.max((now - begun) * part));
    }

    /// Looks at these workers and at the rest of the library. Returns whether a sum of processor time grows.
    fn look_at(&mut self, bounded: &HashMap<i32, &Observed>, observed: &[&Observed]) -> bool {
        let now = Instant::now();
        let searches = now - self.searched >= REST;
        if searches {
            self.searched = now;
        }
        self.workers.extend(bounded.keys().map(|pid| (*pid, now)));
        self.workers.retain(|_, seen| now - *seen < PATIENCE);
        // Those whose parents have ended, by the group of a worker if they are of one.
        let groups = children(self.root).map(|pid| (pid, process_group(pid).unwrap_or(0)));
        let (orphans, others): (HashMap<_, _>, HashMap<_, _>) =
            groups.partition(|(_, group)| self.workers.contains_key(group));
        let is_called = observed.iter().any(|worker| is_at_work(worker.work()));
        let mut look = Look {
            before: std::mem::take(&mut self.times),
            times: HashMap::new(),
            start: if is_called { Duration::ZERO } else { START },
            elapsed: self.last.elapsed(),
            grows: false,
            most: self.most,
        };
        let mut accounts = HashMap::new();
        let mut parents = HashSet::new();
        for (pid, worker) in bounded {
            let own = orphans.iter().filter(|(_, group)| *group == pid).map(|(orphan, _)| *orphan);
            let mut processes: Vec<_> = [*pid].into_iter().chain(own).collect();
            if searches || worker.may_run || processes.len() > 1 || self.parents.contains(pid) {
                processes = descend(processes, 0, |_| true, self.most.threads);
            }
            if processes.len() > 1 {
                parents.insert(*pid);
            }
            let (work, last) = (worker.work(), self.of_workers.remove(pid));
            let (account, excess) = look.at(&processes, last, work, is_at_work(work), 0);
            accounts.insert(*pid, account);
            let Some(excess) = excess else { continue };
            // The worker may have begun an exchange meanwhile.
            if matches!(excess, Excess::Threads(_)) || worker.work() == work {
                let who = match processes.len() - 1 {
                    0 => "its worker".to_owned(),
                    below => format!("its worker and {below} process(es) below it"),
                };
                let why = excess.told(&who);
                // Its group ends at once, whatever it starts meanwhile.
                worker.end(&why, &[]);
                // If there are very many, those outside of the group are the library's at the next look.
                if processes.len() <= self.most.threads {
                    let others = processes[1..].iter().filter_map(|pid| Process::below(*pid, self.root).ok());
                    others.for_each(|process| process.kill());
                }
                say(&format!("{}: {why}; the worker was ended", self.name));
            }
        }
        (self.of_workers, self.parents) = (accounts, parents);
        if let Some(library) = &self.library {
            let start = [self.root].into_iter().chain(others.into_keys()).collect();
            let is_ours = |pid: &i32| !self.workers.contains_key(pid);
            let processes = descend(start, 1, is_ours, self.most.threads);
            // Workers that are threads of the library's own process.
            let threads = observed.iter().filter(|worker| !worker.is_bounded).count();
            // These may have processes here: the threads, and workers that may start programs.
            let working = || observed.iter().filter(|worker| !worker.is_bounded || worker.may_run);
            let works = || working().map(|worker| worker.work()).chain([library.work.load(SeqCst)]);
            let work = works().fold(0, u64::wrapping_add);
            let last = self.of_library.take();
            let (account, excess) = look.at(&processes, last, work, works().any(is_at_work), threads);
            self.of_library = Some(account);
            if let Some(excess) = excess {
                library.end(&excess.told("the processes of its library that are no workers"), observed);
            }
        }
        self.times = look.times;
        look.grows
    }
}

/// One look at all processes of a library.
struct Look {
    before: HashMap<i32, Duration>,
    times: HashMap<i32, Duration>,
    /// What a process counts as that is started.
    start: Duration,
    /// The time since the last look.
    elapsed: Duration,
    /// Whether a sum of processor time grows.
    grows: bool,
    most: Allowance,
}

impl Look {
    /// Looks at processes that are bounded together. `further` threads are allowed in addition.
    fn at(
        &mut self,
        processes: &[i32],
        last: Option<Account>,
        work: u64,
        is_at_work: bool,
        further: usize,
    ) -> (Account, Option<Excess>) {
        let most = self.most.threads + further;
        // If there are very many, each further question takes time, in which they become more.
        let threads = match processes.len() > most {
            true => processes.len(),
            false => processes.iter().map(|pid| threads(pid).unwrap_or(0) as usize).sum(),
        };
        if threads > most {
            return (Account { work, spent: Duration::ZERO }, Some(Excess::Threads([threads, most])));
        }
        let used: Duration = processes.iter().filter_map(|pid| self.used(*pid)).sum();
        let account = Account::after(last, work, is_at_work, used, self.elapsed);
        self.grows |= account.spent > last.map_or(Duration::ZERO, |last| last.spent);
        let excess = account.spent > self.most.between_calls;
        (account, excess.then_some(Excess::Time(account.spent)))
    }

    /// The processor time that a process has used since the last look. `None` if it has ended.
    fn used(&mut self, pid: i32) -> Option<Duration> {
        let time = processor_time(pid)?;
        self.times.insert(pid, time);
        Some(match self.before.get(&pid) {
            Some(before) => time.saturating_sub(*before),
            // It may be a worker that has ended long ago, and is not reaped yet. A new process cannot have
            // used more.
            None => time.min(self.elapsed * self.most.processors) + self.start,
        })
    }
}

/// Which bound is exceeded.
#[derive(Debug)]
enum Excess {
    /// How many threads there are, and how many there may be.
    Threads([usize; 2]),
    Time(Duration),
}

impl Excess {
    fn told(&self, who: &str) -> String {
        match self {
            Excess::Threads([threads, most]) => {
                format!("{who} had at least {threads} threads, and {most} are allowed in a sandbox")
            }
            Excess::Time(spent) => {
                let spent = spent.as_secs_f64();
                format!("{who} used {spent:.1} s of processor time while no call ran, in a sandbox")
            }
        }
    }
}

/// These processes and those below them, of which `is_ours` says that they count. Those below the first
/// `known` are given. If there are more than `most`, some may be missing.
fn descend(mut found: Vec<i32>, known: usize, is_ours: impl Fn(&i32) -> bool, most: usize) -> Vec<i32> {
    let mut next = known;
    while next < found.len() && found.len() <= most {
        let room = most + 1 - found.len();
        found.extend(children(found[next]).filter(&is_ours).take(room));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: bool = false;

    /// The account of something that uses a part of one processor, after some looks.
    fn spent(percent: u32, looks: u32) -> Duration {
        let account = Account { work: 2, spent: Duration::ZERO };
        let used = LOOK * percent / 100;
        (0..looks).fold(account, |last, _| Account::after(Some(last), 2, IDLE, used, LOOK)).spent
    }

    #[test]
    fn processor_time_adds_up_between_calls() {
        let burn = |last, work, is_at_work| Account::after(last, work, is_at_work, LOOK, LOOK);
        let account = burn(None, 0, IDLE);
        assert_eq!(account.spent, Duration::ZERO);
        let account = burn(Some(account), 0, IDLE);
        assert_eq!(account.spent, LOOK - LOOK / SHARE);
        assert_eq!(burn(Some(account), 1, true).spent, Duration::ZERO);
        // A call has begun and ended between two looks.
        assert_eq!(burn(Some(account), 2, IDLE).spent, Duration::ZERO);
    }

    #[test]
    fn a_little_time_is_free_and_much_is_not() {
        assert_eq!(spent(10, 1_000_000), Duration::ZERO);
        // The sum of 1 % of a processor over all of that time would be 1000 s.
        assert!(spent(11, 1_000_000) < Duration::from_secs(1));
        assert!(spent(15, 1_000_000) < BETWEEN_CALLS.0);
        assert!(spent(17, 10_000) > BETWEEN_CALLS.0);
        assert!(spent(100, 60) > BETWEEN_CALLS.0);
    }

    #[test]
    fn a_process_without_an_earlier_look_costs_no_more_than_it_can_have_used() {
        let (elapsed, start) = (Duration::from_nanos(1), Duration::ZERO);
        let most = Allowance::of_this_machine();
        let mut look =
            Look { before: HashMap::new(), times: HashMap::new(), start, elapsed, grows: false, most };
        let this = std::process::id() as i32;
        assert_eq!(look.used(this), Some(elapsed * most.processors));
        assert!(look.times[&this] > elapsed * most.processors);
    }

    #[test]
    fn processes_are_found_below_others() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (this, pid) = (std::process::id() as i32, child.id() as i32);
        assert!(descend(vec![this], 0, |_| true, 1000).contains(&pid));
        assert_eq!(descend(vec![this], 0, |_| false, 1000), [this]);
        assert_eq!(descend(vec![this], 0, |_| true, 1).len(), 2);
        assert_eq!(threads(pid).unwrap(), 1);
        assert!(processor_time(pid).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processor_time(pid), None);
    }
}
