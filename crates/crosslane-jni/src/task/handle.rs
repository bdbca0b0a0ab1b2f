//! The task as Spark's thread sees it.

use super::program::Program;
use super::work::{Answer, Batch, Ended, Work};
use crate::library::group;
use crosslane::Error;
use crosslane::call::{CallGroup, Caller};
use crosslane::pool::Zygote;
use crosslane::stats::now;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// At most this many answers wait for Spark's thread.
const WAITING: usize = 2;

/// The work of one Spark task, on one lane. Spark's thread uses it. A drop ends the work at once: when
/// it returns, nothing reads the batches any more.
#[derive(Debug)]
pub struct Task {
    group: Arc<CallGroup>,
    batches: Option<Sender<Batch>>,
    answers: Option<Receiver<Result<Answer, Error>>>,
    thread: Option<JoinHandle<()>>,
    /// The last answer that was taken. The JVM reads it.
    taken: Option<Answer>,
}

impl Task {
    /// Begins the work.
    ///
    /// # Errors
    /// [`Error::Engine`] if the thread cannot be started.
    pub fn begin<Z: Zygote>(program: Program<Z>) -> Result<Self, Error> {
        let group = group();
        let (batches, incoming) = channel::<Batch>();
        let (outgoing, answers) = sync_channel(WAITING.max(program.depth));
        let calls = Arc::clone(&group);
        // A cancellation ends calls that began before it. This one counts as begun now, although
        // the thread may come to it after a cancellation.
        let begun = now();
        let thread = thread::Builder::new().name("crosslane-task".into()).spawn(move || {
            let caller = Caller::since(&calls, 1, begun);
            let reported = Cell::new((Instant::now(), program.counted()));
            let work = Work { program: &program, batches: &incoming, answers: &outgoing, caller, reported };
            // A panic must become an error: without one, Spark would take the answers so far for
            // all of them.
            let run = catch_unwind(AssertUnwindSafe(|| program.run(&work)));
            let defect = || Ended::Failed(Error::Engine("a defect of crosslane's, please report it".into()));
            if let Err(Ended::Failed(error)) = run.unwrap_or_else(|_| Err(defect())) {
                // It fails if Spark's thread wants no more answers.
                let _ = outgoing.send(Err(error));
            }
        });
        let thread = thread.map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        let (batches, answers) = (Some(batches), Some(answers));
        Ok(Self { group, batches, answers, thread: Some(thread), taken: None })
    }

    /// Hands a batch over.
    ///
    /// # Safety
    /// The table must describe columns of the program's inputs with this many rows. They must not change
    /// until the batch's last answer or an error was taken, or the task has ended.
    pub unsafe fn submit(&mut self, rows: usize, table: Vec<u64>) {
        if let Some(batches) = &self.batches {
            // It fails if the thread has ended with an error, which `take` returns.
            let _ = batches.send(Batch { rows, table });
        }
    }

    /// Says that no more batches come.
    pub fn finish(&mut self) {
        self.batches = None;
    }

    /// The next answer, if it comes within the timeout. `Some(None)` means that no more answers
    /// come. The answer lives until the next call.
    ///
    /// # Errors
    /// What the function raised, or how its lane ended. After an error, the task can only be ended.
    pub fn take(&mut self, timeout: Duration) -> Result<Option<Option<&Answer>>, Error> {
        self.taken = None;
        let Some(answers) = &self.answers else { return Ok(Some(None)) };
        match answers.recv_timeout(timeout) {
            Ok(answer) => {
                self.taken = Some(answer?);
                Ok(Some(self.taken.as_ref()))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) if self.batches.is_none() => Ok(Some(None)),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Engine("the work of this task has ended".into()))
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.batches = None;
        self.answers = None;
        self.group.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}
