//! The treatment of rows whose call failed. The engine and the guests of all languages use this one
//! rule.

use crate::stats::now;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// The longest pause before the first retry. It doubles with each retry.
const BACKOFF: Duration = Duration::from_millis(50);
/// The longest pause. A call that fails with a later time is not tried again.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The longest pause after `tries` retries, before the next one.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF * 2u32.saturating_pow(tries.min(6))
}

/// The pause after `tries` retries, before the next one. It is the same in guests and in the engine.
/// A part of it is random, so that calls that failed together are not repeated together.
///
/// `after` is the time that the error names, such as a service's `Retry-After`. The pause is at least
/// that long. Otherwise it is from half of [`backoff`] to all of it. `None` if
/// `after` is longer than [`LONGEST_PAUSE`].
pub fn pause(tries: u32, after: Option<RetryAfter>) -> Option<Duration> {
    // Forks have the same state of the standard library's random numbers.
    let seed = (tries, std::process::id(), now());
    let random = RandomState::new().hash_one(seed) as f64 / u64::MAX as f64;
    match after.map(RetryAfter::time) {
        Some(after) if after > LONGEST_PAUSE => None,
        Some(after) => Some(after.mul_f64(1.0 + random / 10.0).min(LONGEST_PAUSE)),
        None => Some(backoff(tries).mul_f64(0.5 + random / 2.0)),
    }
}

/// The time after which a failed call may be tried again, as its error says, in milliseconds. Guests
/// name it in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "f64", into = "f64")]
pub struct RetryAfter(NonZeroU32);

impl RetryAfter {
    /// The time of a number of seconds. `None` for what is no time.
    pub fn seconds(seconds: f64) -> Option<Self> {
        (seconds >= 0.0).then(|| seconds.into())
    }

    fn time(self) -> Duration {
        Duration::from_millis(self.0.get().into())
    }
}

impl From<f64> for RetryAfter {
    fn from(seconds: f64) -> Self {
        // A cast saturates. A service that wants no pause gets one of a millisecond.
        Self(NonZeroU32::new((seconds * 1000.0).ceil() as u32).unwrap_or(NonZeroU32::MIN))
    }
}

impl From<RetryAfter> for f64 {
    fn from(after: RetryAfter) -> Self {
        after.time().as_secs_f64()
    }
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
    /// The next step for rows whose call has failed after `tries` retries, with an error that names
    /// this time for the next try ([`pause`]).
    ///
    /// # Errors
    /// `error` itself, if there is no further retry and the rows do not become NULL.
    #[inline]
    pub fn judge<E>(self, error: E, tries: u32, after: Option<RetryAfter>) -> Result<Verdict, E> {
        let again = if tries < self.retries { pause(tries, after) } else { None };
        match (again, self.on_error) {
            (Some(pause), _) => Ok(Verdict::Again(pause)),
            (None, OnError::Null) => Ok(Verdict::Null),
            (None, OnError::Fail) => Err(error),
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
            for tries in 0..2 {
                let Ok(Verdict::Again(pause)) = error_policy.judge("why", tries, None) else {
                    panic!("no further try after {tries}")
                };
                assert!((backoff(tries) / 2..=backoff(tries)).contains(&pause), "{pause:?}");
            }
            assert_eq!(error_policy.judge("why", 2, None), at_last);
            assert_eq!(error_policy.judge("why", 3, RetryAfter::seconds(0.0)), at_last);
            // The service asks for a pause that is longer than any wait may be.
            assert_eq!(error_policy.judge("why", 0, RetryAfter::seconds(7200.0)), at_last);
        }
        assert_eq!(ErrorPolicy::default().judge("why", 0, RetryAfter::seconds(0.0)), Err("why"));
    }

    #[test]
    fn a_pause_is_as_long_as_the_error_says() {
        for (after, least, most) in [(2.5, 2.5, 2.75), (0.0, 0.001, 0.0011), (3600.0, 3600.0, 3600.0)] {
            let pause = pause(3, RetryAfter::seconds(after)).unwrap().as_secs_f64();
            assert!((least..=most).contains(&pause), "{after}: {pause}");
        }
        assert_eq!(pause(3, RetryAfter::seconds(f64::INFINITY)), None);
        for nonsense in [-1.0, f64::NAN] {
            assert!(pause(0, RetryAfter::seconds(nonsense)).unwrap() <= backoff(0));
        }
        let pauses: std::collections::HashSet<_> = (0..20).map(|_| pause(5, None)).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
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
