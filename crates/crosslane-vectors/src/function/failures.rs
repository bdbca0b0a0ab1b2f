//! Failures of calls that DuckDB makes while it plans a query, because their arguments are
//! constant. DuckDB ignores such a failure, and makes the same call again: while it plans, and when
//! the query runs.

use crosslane::batch::Frame;
use crosslane::call::Input;
use crosslane::{Error, lock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a failure counts. A prepared query may run much later, and then makes the call again.
const COUNTS: Duration = Duration::from_secs(1);
/// Where statements have no numbers, a failure is kept if the function took this long, or if the
/// call was cancelled or cost its worker. On a busy machine even a quick function takes 50 ms; its
/// failure must not become that of the next run of a prepared query.
const SLOW: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };

/// The last failure of a deterministic function at one place in one query. Other queries do not see
/// it.
///
/// DuckDB does not tell which arguments are constant. Planning makes calls with one row. So the
/// last failure of a call with one row is kept together with that row, and any call that begins
/// with the same row fails with it.
///
/// A prepared query may run several times, and each run has to call the function again. Where
/// statements have numbers, a failure counts only for its own statement. Elsewhere a run looks like
/// planning. There, a failure is kept only if that saves a wait, and only until the first call that
/// succeeds or has several rows: both show that the arguments vary.
#[derive(Debug, Default)]
pub struct RecentFailure {
    /// Whether the arguments are known not to be constant.
    varies: AtomicBool,
    /// Whether there is a failure. While there is none, calls take no lock.
    failed: AtomicBool,
    last: Mutex<Option<Failed>>,
}

#[derive(Debug)]
struct Failed {
    when: Instant,
    statement: Option<u64>,
    row: Frame,
    error: Error,
}

impl RecentFailure {
    /// Makes a call with these arguments, unless it has just failed. Planning and the first run of
    /// a statement have the same number; each further run has another one.
    ///
    /// # Errors
    /// That of the call, or of the one that failed.
    pub fn once<T>(
        &self,
        statement: Option<u64>,
        arguments: &dyn Input,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = self.failure(statement, arguments) {
            return Err(error);
        }
        let begun = Instant::now();
        let outcome = call();
        if (outcome.is_ok() || arguments.rows() != 1) && !self.varies.load(Relaxed) {
            self.varies.store(true, Relaxed);
        }
        if let Err(error) = &outcome
            && arguments.rows() == 1
            && (statement.is_some() || !self.varies.load(Relaxed) && is_costly(error, begun))
            && let Ok(row) = arguments.frame(0..1)
        {
            let failed = Failed { when: Instant::now(), statement, row, error: error.clone() };
            *lock(&self.last) = Some(failed);
            self.failed.store(true, Relaxed);
        }
        outcome
    }

    /// The failure that counts for a call with these arguments.
    fn failure(&self, statement: Option<u64>, arguments: &dyn Input) -> Option<Error> {
        if !self.failed.load(Relaxed) || arguments.rows() == 0 {
            return None;
        }
        let last = lock(&self.last);
        let counts = |failed: &&Failed| failed.when.elapsed() < COUNTS && failed.statement == statement;
        let failed = last.as_ref().filter(counts)?;
        let row = arguments.frame(0..1).ok()?;
        (row.bytes() == failed.row.bytes()).then(|| failed.error.clone())
    }

    /// Forgets the failure, so that the call is made again.
    pub fn forget(&self) {
        self.failed.store(false, Relaxed);
        *lock(&self.last) = None;
    }
}

/// Whether the failure of a call that began at `begun` is kept: the function took long, or another
/// call would be wrong. After Ctrl-C another call would not be cancelled again. A call that cost
/// its worker might get the next worker killed too. If the guest reports its time, only that
/// counts, without the boot of the worker.
fn is_costly(error: &Error, begun: Instant) -> bool {
    match error {
        Error::TimedOut { .. } | Error::LaneDied { .. } | Error::Cancelled { .. } => true,
        Error::Raised { failure, .. } if failure.ended => true,
        Error::Raised { failure, .. } if !failure.worked.is_zero() => failure.worked >= SLOW,
        _ => begun.elapsed() >= SLOW,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::batch::{Body, Encode, Plan};
    use crosslane::{Failure, Place, Stall};
    use std::ops::Range;

    /// A column of bytes.
    struct Bytes(&'static [u8]);

    impl Input for Bytes {
        fn rows(&self) -> usize {
            self.0.len()
        }
        fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
            take(&Bytes(&self.0[rows]));
            Ok(())
        }
    }

    impl Encode for Bytes {
        fn plan(&self, plan: &mut Plan) {
            plan.node(self.0.len(), 0);
            plan.buffer(0);
            plan.buffer(self.0.len());
        }
        fn write(&self, body: &mut Body<'_>) {
            body.buffer();
            body.buffer().copy_from_slice(self.0);
        }
    }

    fn failed() -> Result<i32, Error> {
        Err(Error::Engine("failed".into()))
    }

    #[test]
    fn a_failure_is_not_tried_again_at_once_and_a_success_is() {
        let recent = RecentFailure::default();
        let one = Bytes(&[1]);
        let text = |outcome: Result<i32, Error>| outcome.unwrap_err().to_string();
        assert_eq!(recent.once(Some(1), &one, || Ok(1)).unwrap(), 1);
        assert_eq!(text(recent.once(Some(1), &one, failed)), "failed");
        assert_eq!(text(recent.once(Some(1), &one, || Ok(2))), "failed");
        assert_eq!(text(recent.once(Some(1), &Bytes(&[1, 1, 1]), || Ok(2))), "failed");
        assert_eq!(RecentFailure::default().once(Some(1), &one, || Ok(2)).unwrap(), 2);
        recent.forget();
        assert_eq!(recent.once(Some(1), &one, || Ok(3)).unwrap(), 3);
    }

    #[test]
    fn calls_with_other_arguments_are_made() {
        let recent = RecentFailure::default();
        recent.once(Some(1), &Bytes(&[1]), failed).unwrap_err();
        assert_eq!(recent.once(Some(1), &Bytes(&[2]), || Ok(2)).unwrap(), 2);
        assert_eq!(recent.once(Some(1), &Bytes(&[2, 1]), || Ok(2)).unwrap(), 2);
        assert_eq!(recent.once(Some(1), &Bytes(&[]), || Ok(2)).unwrap(), 2);
        // During planning, a call has one row.
        recent.once(Some(1), &Bytes(&[2, 2]), failed).unwrap_err();
        assert_eq!(recent.once(Some(1), &Bytes(&[2]), || Ok(2)).unwrap(), 2);
    }

    #[test]
    fn calls_of_the_next_run_are_made() {
        let recent = RecentFailure::default();
        recent.once(Some(1), &Bytes(&[1]), failed).unwrap_err();
        assert_eq!(recent.once(Some(2), &Bytes(&[1]), || Ok(2)).unwrap(), 2);
    }

    #[test]
    fn without_statement_numbers_slow_failures_of_constant_arguments_are_kept() {
        let raised = |worked: Duration| -> Result<i32, Error> {
            let failure = Box::new(Failure { worked, ..Failure::default() });
            Err(Error::Raised { function: "f".into(), failure, place: Place::default() })
        };
        let late = || {
            std::thread::sleep(SLOW);
            failed()
        };
        let after_a_boot = || {
            std::thread::sleep(SLOW);
            raised(Duration::from_nanos(1))
        };
        let unfit = || {
            std::thread::sleep(SLOW);
            raised(Duration::ZERO)
        };
        let (recent, one) = (RecentFailure::default(), Bytes(&[1]));
        let kept = |outcome: &mut dyn FnMut() -> Result<i32, Error>| {
            recent.forget();
            recent.once(None, &one, outcome).unwrap_err();
            recent.failure(None, &one).is_some()
        };
        assert!(!kept(&mut || raised(Duration::from_nanos(1))), "it was quick");
        assert!(!kept(&mut { after_a_boot }), "the function was quick");
        assert!(kept(&mut || raised(SLOW)));
        assert!(kept(&mut { unfit }), "the engine has refused its result");
        assert!(kept(&mut { late }), "it has not raised: it was waited for");
        let timed_out = || {
            let (function, place) = ("f".into(), Place::default());
            Err(Error::TimedOut { function, seconds: 0.001, place, stall: Stall::default() })
        };
        assert!(kept(&mut { timed_out }), "its time was over, however short it is");
        let died = || {
            let (function, how) = ("f".into(), "its worker process was killed".into());
            Err(Error::LaneDied { function, how, place: Place::default() })
        };
        assert!(kept(&mut { died }), "it has cost its worker");
        assert!(kept(&mut || Err(Error::Cancelled { function: "f".into() })), "it is not to go on");
        let ended = || {
            let failure =
                Box::new(Failure { ended: true, worked: Duration::from_nanos(1), ..Failure::default() });
            Err(Error::Raised { function: "f".into(), failure, place: Place::default() })
        };
        assert!(kept(&mut { ended }), "its guest says that its process ends");
        recent.forget();
        recent.once(None, &one, || Ok(1)).unwrap();
        assert!(!kept(&mut || raised(SLOW)), "one has succeeded");
    }
}
