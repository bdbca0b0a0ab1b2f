//! What becomes of rows whose call failed: the one rule for the engine, and for the guests in all languages.

use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;

/// The first pause before a call is tried again; it doubles with each try.
const BACKOFF: Duration = Duration::from_millis(50);

/// The pause before try `tries + 1`, in guests as in the engine.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF * 2u32.saturating_pow(tries.min(6))
}

/// What a row becomes whose call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The query fails.
    #[default]
    Fail,
    /// The row becomes NULL.
    Null,
}

impl FromStr for OnError {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fail" => Ok(Self::Fail),
            "null" => Ok(Self::Null),
            _ => Err(format!("on_error is fail or null, not {name:?}")),
        }
    }
}

/// What a function's options say of calls that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorPolicy {
    /// How often a failed call is tried again.
    pub retries: u32,
    /// What follows when it has failed as often.
    pub on_error: OnError,
}

/// What becomes of rows whose call failed, if the query goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another call, after this pause.
    Again(Duration),
    /// NULL.
    Null,
}

impl ErrorPolicy {
    /// What becomes of rows whose call failed after `tries` more than the first; the error itself if it ends the query.
    ///
    /// # Errors
    /// With `error`, if there is no further try and the rows do not become NULL.
    #[inline]
    pub fn judge<E>(self, error: E, tries: u32) -> Result<Verdict, E> {
        match self.on_error {
            _ if tries < self.retries => Ok(Verdict::Again(backoff(tries))),
            OnError::Null => Ok(Verdict::Null),
            OnError::Fail => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_first_and_then_null_or_the_error() {
        for (on_error, at_last) in [(OnError::Fail, Err("why")), (OnError::Null, Ok(Verdict::Null))] {
            let error_policy = ErrorPolicy { retries: 2, on_error };
            assert_eq!(error_policy.judge("why", 0), Ok(Verdict::Again(backoff(0))));
            assert_eq!(error_policy.judge("why", 1), Ok(Verdict::Again(backoff(1))));
            assert_eq!(error_policy.judge("why", 2), at_last);
            assert_eq!(error_policy.judge("why", 3), at_last);
        }
        assert_eq!(ErrorPolicy::default().judge("why", 0), Err("why"));
    }

    #[test]
    fn its_names_are_those_of_the_option() {
        for (name, on_error) in [("fail", OnError::Fail), ("null", OnError::Null)] {
            assert_eq!(name.parse(), Ok(on_error));
            assert_eq!(serde_json::to_value(on_error).unwrap(), name);
        }
        assert_eq!("NULL".parse::<OnError>(), Err("on_error is fail or null, not \"NULL\"".to_owned()));
    }
}
