//! How a language calls its functions.

use crate::values::Values;
use std::time::Duration;

/// How a language calls its functions, row by row.
pub trait Invoke: Values {
    /// What is called.
    type Callee;
    /// The arguments of a call, where the language's collector sees them.
    type Arguments;

    /// Runs `work`, which calls the function for one row after the other: a language that is entered and left at some
    /// cost does that here, once.
    ///
    /// # Errors
    /// What ended it before its end.
    fn enter(&self, callee: &Self::Callee, work: impl FnMut(&mut Self::Arguments))
    -> Result<(), Self::Error>;

    /// Adds an argument to those of the next call. There may be any number of them.
    fn argument(&self, arguments: &mut Self::Arguments, value: Self::Value);

    /// Calls the function, and empties the arguments.
    ///
    /// # Errors
    /// What it raised.
    fn call(
        &self,
        callee: &Self::Callee,
        arguments: &mut Self::Arguments,
    ) -> Result<Self::Value, Self::Error>;

    /// Whether neither `retries` nor `on_error` may hold an error up.
    fn is_final(&self, _error: &Self::Error) -> bool {
        false
    }

    /// Waits before another try.
    ///
    /// # Errors
    /// What ended the wait.
    fn pause(&self, time: Duration) -> Result<(), Self::Error> {
        std::thread::sleep(time);
        Ok(())
    }
}
