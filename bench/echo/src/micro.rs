//! The time of single steps of a scheduler: starting, waking and stealing. tokio and
//! crossbeam-deque do the same steps.

use crossbeam_deque::{Steal, Worker};
use crosslane_sched::priority::PriorityQueue;
use crosslane_sched::{Scheduler, foreground, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The time that a scheduler needs for a step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The step.
    pub work: &'static str,
    /// The scheduler.
    pub who: &'static str,
    /// The mean of all repetitions.
    pub time: Duration,
}

const OURS: &str = "Crosslane";
const TOKIO: &str = "tokio";
const BARE: &str = "crossbeam-deque";
const STEPS: u32 = 200_000;
const WAKES: u32 = 20_000;

/// Measures all steps once.
pub fn measure() -> Vec<Step> {
    let step = |work, who, time: Duration, steps: u32| Step { work, who, time: time / steps };
    let scheduler = Scheduler::builder().workers(2).start().expect("threads can be started");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("threads can be started");
    let started = scheduler.handle().spawn(timed(async {
        for _ in 0..STEPS {
            foreground(async {}).await.await.expect("the task ends");
        }
    }));
    let in_background = scheduler.handle().spawn(timed(async {
        let tasks: Vec<_> = (0..STEPS).map(|_| spawn(async {})).collect();
        for task in tasks {
            task.await.expect("the task ends");
        }
    }));
    let in_tokio = timed(async {
        let tasks: Vec<_> = (0..STEPS).map(|_| tokio::spawn(async {})).collect();
        for task in tasks {
            task.await.expect("the task ends");
        }
    });
    let one_by_one = timed(async {
        for _ in 0..STEPS {
            tokio::spawn(async {}).await.expect("the task ends");
        }
    });
    let foreground_start = scheduler.block_on(started).expect("the task ends");
    let background = scheduler.block_on(in_background).expect("the task ends");
    let join = |task: tokio::task::JoinHandle<Duration>| tokio.block_on(task).expect("the task ends");
    vec![
        step("start a task in the foreground, and wait for it", OURS, foreground_start, STEPS),
        step("start a task, and wait for it", TOKIO, join(tokio.spawn(one_by_one)), STEPS),
        step("start a task in the background", OURS, background, STEPS),
        step("start a task in the background", TOKIO, join(tokio.spawn(in_tokio)), STEPS),
        step(
            "wake an idle scheduler from outside, and wait for the task",
            OURS,
            wake_ours(&scheduler),
            WAKES,
        ),
        step("wake an idle scheduler from outside, and wait for the task", TOKIO, wake_tokio(&tokio), WAKES),
        step("owner: put a dispatcher into its queue, and take it back", OURS, requeue(), STEPS),
        step("owner: push a task, and pop it", BARE, push_and_pop(), STEPS),
        step("thief: take a dispatcher that another thread queues", OURS, take(), STEPS),
        step("thief: steal a task that another thread pushes", BARE, steal(), STEPS),
    ]
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

fn wake_ours(scheduler: &Scheduler) -> Duration {
    let start = Instant::now();
    for _ in 0..WAKES {
        scheduler.block_on(scheduler.handle().spawn(async {})).expect("the task ends");
    }
    start.elapsed()
}

fn wake_tokio(tokio: &tokio::runtime::Runtime) -> Duration {
    let start = Instant::now();
    for _ in 0..WAKES {
        tokio.block_on(tokio.spawn(async {})).expect("the task ends");
    }
    start.elapsed()
}

fn requeue() -> Duration {
    let queue = Arc::new(PriorityQueue::new());
    let mut turn = queue.post([()]).expect("a new dispatcher is idle");
    let start = Instant::now();
    for _ in 0..STEPS {
        turn.queue();
        turn = queue.take().expect("nobody else takes it");
    }
    start.elapsed()
}

fn push_and_pop() -> Duration {
    let queue = Worker::new_lifo();
    let start = Instant::now();
    for step in 0..STEPS {
        queue.push(step);
        queue.pop().expect("nobody else takes it");
    }
    start.elapsed()
}

/// The time in which this thread takes each step that another thread gives. The other thread waits
/// for a flag, which says that the step before was taken.
fn handed_over(mut give: impl FnMut(u64) + Send + 'static, mut take: impl FnMut(u64)) -> Duration {
    let taken = Arc::new(AtomicU64::new(0));
    let owner = {
        let taken = taken.clone();
        thread::spawn(move || {
            for step in 0..u64::from(STEPS) {
                while taken.load(Ordering::Acquire) < step {
                    std::hint::spin_loop();
                }
                give(step);
            }
        })
    };
    let start = Instant::now();
    for step in 0..u64::from(STEPS) {
        take(step);
        taken.store(step + 1, Ordering::Release);
    }
    let time = start.elapsed();
    owner.join().expect("the owner ends");
    time
}

/// The thief gives the dispatcher back before the next step, because only its holder may queue it again.
fn take() -> Duration {
    let queue = Arc::new(PriorityQueue::new());
    let owned = queue.clone();
    let give = move |_| {
        owned.post([()]).expect("it was left idle").queue();
    };
    handed_over(give, |_| {
        let mut turn = loop {
            match queue.take() {
                Some(turn) => break turn,
                None => std::hint::spin_loop(),
            }
        };
        while turn.next_event().is_some() {}
        assert!(turn.idle().is_none(), "nobody brings events meanwhile");
    })
}

fn steal() -> Duration {
    let queue = Worker::new_lifo();
    let stealer = queue.stealer();
    handed_over(
        move |step| queue.push(step),
        |step| loop {
            match stealer.steal() {
                Steal::Success(got) => break assert_eq!(got, step),
                Steal::Empty | Steal::Retry => std::hint::spin_loop(),
            }
        },
    )
}
