//! How a language calls its functions.

use crate::values::Values;
use crosslane::RetryAfter;
use std::time::Duration;

/// How a language calls its functions, row by row.
pub trait Invoke: Values {
    /// A function of the language.
    type Callee;
    /// The arguments of a call, in a place that the language's collector sees.
    type Arguments;

    /// Runs `work`, which calls the function for one row after the other. A language that is costly
    /// to enter and leave enters here, once.
    ///
    /// # Errors
    /// The error that ended the work early.
    fn enter(&self, callee: &Self::Callee, work: impl FnMut(&mut Self::Arguments))
    -> Result<(), Self::Error>;

    /// Adds an argument for the next call. There may be any number of arguments.
    fn argument(&self, arguments: &mut Self::Arguments, value: Self::Value);

    /// Calls the function, and empties the arguments.
    ///
    /// # Errors
    /// The error that it raised.
    fn call(
        &self,
        callee: &Self::Callee,
        arguments: &mut Self::Arguments,
    ) -> Result<Self::Value, Self::Error>;

    /// Whether an error is raised at once, without `retries` and `on_error`.
    fn is_final(&self, _error: &Self::Error) -> bool {
        false
    }

    /// The time after which a failed call may be tried again, if its error says so.
    ///
    /// # Errors
    /// The error that ended the question.
    fn retry_after(&self, _error: &Self::Error) -> Result<Option<RetryAfter>, Self::Error> {
        Ok(None)
    }

    /// Waits before another try.
    ///
    /// # Errors
    /// The error that ended the wait.
    fn pause(&self, time: Duration) -> Result<(), Self::Error> {
        std::thread::sleep(time);
        Ok(())
    }
}
