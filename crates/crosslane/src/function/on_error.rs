//! The treatment of rows whose call failed. The engine and the guests of all languages use this one
//! rule.

use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;

/// The pause before the first retry. It doubles with each retry.
const BACKOFF: Duration = Duration::from_millis(50);

/// The pause after `tries` retries, before the next one. It is the same in guests and in the
/// engine.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF * 2u32.saturating_pow(tries.min(6))
}

/// The result of a row whose call failed.
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

/// The options of a function for calls that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorPolicy {
    /// The number of times that a failed call is tried again.
    pub retries: u32,
    /// The result after the last retry has failed.
    pub on_error: OnError,
}

/// The next step for rows whose call failed, if the query goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another call, after this pause.
    Again(Duration),
    /// The rows become NULL.
    Null,
}

impl ErrorPolicy {
    /// The next step for rows whose call has failed after `tries` retries.
    ///
    /// # Errors
    /// `error` itself, if there is no further retry and the rows do not become NULL.
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
