//! Calls that an engine makes while it plans a query, because their arguments are constant. If one fails, the engine goes on
//! planning, tries again, and once more when the query runs.

use super::Input;
use crate::batch::Frame;
use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long a failure counts. A query that is only prepared may run much later, and then tries anew.
const COUNTS: Duration = Duration::from_secs(1);

/// The calls of a deterministic function at one place in one query; no other query sees them.
///
/// An engine need not say which arguments are constant. So the last failure of a call with one row, as planning makes
/// them, is kept with that row, and is that of any call which begins with the same row.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Whether there is a failure, so that calls where none has failed take no lock.
    failed: AtomicBool,
    last: Mutex<Option<Failed>>,
}

#[derive(Debug)]
struct Failed {
    when: Instant,
    row: Frame,
    error: Error,
}

impl Attempts {
    /// Makes a call with these arguments, unless it has just failed.
    ///
    /// # Errors
    /// That of the call, or of the one that failed.
    pub fn once<T>(
        &self,
        arguments: &dyn Input,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = self.failure(arguments) {
            return Err(error);
        }
        let outcome = call();
        if let Err(error) = &outcome
            && arguments.rows() == 1
            && let Ok(row) = first(arguments)
        {
            let failed = Failed { when: Instant::now(), row, error: error.clone() };
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(failed);
            self.failed.store(true, Relaxed);
        }
        outcome
    }

    /// How a call with these arguments has just failed, if it has.
    fn failure(&self, arguments: &dyn Input) -> Option<Error> {
        if !self.failed.load(Relaxed) || arguments.rows() == 0 {
            return None;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = last.as_ref().filter(|failed| failed.when.elapsed() < COUNTS)?;
        let row = first(arguments).ok()?;
        (row.bytes() == failed.row.bytes()).then(|| failed.error.clone())
    }

    /// Lets the call be made again, if only that can tell how it ends.
    pub fn forget(&self) {
        self.failed.store(false, Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The first row of the arguments.
fn first(arguments: &dyn Input) -> Result<Frame, Error> {
    Frame::new(&*arguments.slice(0..1)?, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Body, Encode, Plan};
    use std::ops::Range;

    /// A column of bytes.
    struct Bytes(&'static [u8]);

    impl Input for Bytes {
        fn rows(&self) -> usize {
            self.0.len()
        }
        fn slice(&self, rows: Range<usize>) -> Result<Box<dyn Encode + '_>, Error> {
            Ok(Box::new(Bytes(&self.0[rows])))
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

    #[test]
    fn a_failure_is_not_tried_again_at_once_and_a_success_is() {
        let attempts = Attempts::default();
        let one = Bytes(&[1]);
        let failed = |text: &str| Err::<i32, _>(Error::Engine(text.into()));
        let text = |outcome: Result<i32, Error>| outcome.unwrap_err().to_string();
        assert_eq!(attempts.once(&one, || Ok(1)).unwrap(), 1);
        assert_eq!(text(attempts.once(&one, || failed("first"))), "first");
        assert_eq!(text(attempts.once(&one, || Ok(2))), "first");
        assert_eq!(text(attempts.once(&Bytes(&[1, 1, 1]), || Ok(2))), "first");
        assert_eq!(Attempts::default().once(&one, || Ok(2)).unwrap(), 2);
        attempts.forget();
        assert_eq!(attempts.once(&one, || Ok(3)).unwrap(), 3);
    }

    #[test]
    fn calls_with_other_arguments_are_made() {
        let attempts = Attempts::default();
        let failed = || Err::<i32, _>(Error::Engine("failed".into()));
        attempts.once(&Bytes(&[1]), failed).unwrap_err();
        assert_eq!(attempts.once(&Bytes(&[2]), || Ok(2)).unwrap(), 2);
        assert_eq!(attempts.once(&Bytes(&[2, 1]), || Ok(2)).unwrap(), 2);
        assert_eq!(attempts.once(&Bytes(&[]), || Ok(2)).unwrap(), 2);
        // Planning has one row.
        attempts.once(&Bytes(&[2, 2]), failed).unwrap_err();
        assert_eq!(attempts.once(&Bytes(&[2]), || Ok(2)).unwrap(), 2);
    }
}
