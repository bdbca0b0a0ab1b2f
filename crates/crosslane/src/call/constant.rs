//! Calls with constant arguments, which an engine makes while it plans a query. If one fails, the engine goes on
//! planning, tries again, and once more when the query runs.

use crate::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long the first failure counts. A query that is only prepared may run much later, and then tries anew.
const COUNTS: Duration = Duration::from_secs(1);

/// What became of one such call. It belongs to one place in one query, so that no other query sees it.
#[derive(Debug, Default)]
pub struct Constant(Mutex<Option<(Instant, Error)>>);

impl Constant {
    /// Makes the call, unless it has just failed.
    ///
    /// # Errors
    /// That of the call, or of the one that failed.
    pub fn once<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((when, error)) = known
            && when.elapsed() < COUNTS
        {
            return Err(error);
        }
        let outcome = call();
        if let Err(error) = &outcome {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), error.clone()));
        }
        outcome
    }

    /// Lets the call be made again, if only that can tell how it ends.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_not_tried_again_at_once_and_a_success_is() {
        let constant = Constant::default();
        assert_eq!(constant.once(|| Ok(1)).unwrap(), 1);
        let failed = || Err::<i32, _>(Error::Engine("first".into()));
        assert_eq!(constant.once(failed).unwrap_err().to_string(), "first");
        assert_eq!(constant.once(|| Ok(2)).unwrap_err().to_string(), "first");
        assert_eq!(Constant::default().once(|| Ok(2)).unwrap(), 2);
        constant.forget();
        assert_eq!(constant.once(|| Ok(3)).unwrap(), 3);
    }
}
