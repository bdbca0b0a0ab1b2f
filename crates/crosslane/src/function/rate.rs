//! How many calls of a function may begin in a second (`rate`): a token bucket that all threads of
//! an engine share. A server has one for the batches of all its clients.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most calls in a second.
const MOST: f64 = 1e9;

/// The rate of a function's calls. The bucket gains a token for each call that may begin, and has
/// those of one second at most. It begins with one.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Less than 0 after calls for which there were no tokens ([`Rate::begin`], [`Rate::spend`]).
    tokens: f64,
    since: Instant,
}

impl Rate {
    /// The rate that an option says: calls in a second, a minute or an hour, such as "50/s".
    ///
    /// # Errors
    /// What the option can be.
    pub(crate) fn parse(text: &str) -> Result<f64, String> {
        let (count, unit) = text.split_once('/').unwrap_or_default();
        let seconds = match unit.trim() {
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => f64::NAN,
        };
        let per_second = count.trim().parse::<f64>().map(|count| count / seconds).unwrap_or(f64::NAN);
        if per_second > 0.0 && per_second <= MOST {
            return Ok(per_second);
        }
        Err(format!("rate is a number of calls such as \"50/s\", \"300/min\" or \"1000/h\", not {text:?}"))
    }

    /// This many calls in a second. The first may begin now.
    pub(crate) fn new(per_second: f64) -> Self {
        Self { per_second, bucket: Mutex::new(Bucket { tokens: 1.0, since: Instant::now() }) }
    }

    /// The most tokens that the bucket has.
    pub(crate) fn most(&self) -> f64 {
        self.per_second.max(1.0)
    }

    /// Takes tokens for up to `most` calls that begin now.
    ///
    /// # Errors
    /// The time until there is one, if there is none.
    pub(crate) fn take(&self, most: usize, now: Instant) -> Result<usize, Duration> {
        let mut bucket = self.filled(now)?;
        let count = most.min(bucket.tokens as usize);
        bucket.tokens -= count as f64;
        Ok(count)
    }

    /// Takes tokens for this many calls, which begin together now. The next calls may begin when the bucket
    /// has gained the tokens of all of them.
    ///
    /// # Errors
    /// The time until there is a token, if there is none.
    pub(crate) fn begin(&self, calls: usize, now: Instant) -> Result<(), Duration> {
        self.filled(now)?.tokens -= calls as f64;
        Ok(())
    }

    /// The bucket with the tokens that it has now.
    ///
    /// # Errors
    /// The time until there is a token, if there is none.
    fn filled(&self, now: Instant) -> Result<MutexGuard<'_, Bucket>, Duration> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = now.saturating_duration_since(bucket.since).as_secs_f64() * self.per_second;
        bucket.tokens = (bucket.tokens + gained).min(self.most());
        bucket.since = bucket.since.max(now);
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64(((1.0 - bucket.tokens) / self.per_second).min(3600.0)));
        }
        Ok(bucket)
    }

    /// Takes tokens for calls that have begun already, such as those that a guest tried again.
    pub(crate) fn spend(&self, calls: u64) {
        if calls > 0 {
            self.bucket.lock().unwrap_or_else(PoisonError::into_inner).tokens -= calls as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, per_second) in
            [("50/s", 50.0), (" 300 / min", 5.0), ("1.5/h", 1.5 / 3600.0), ("1e9/s", 1e9)]
        {
            assert_eq!(Rate::parse(text), Ok(per_second));
        }
        for text in ["", "50", "50/d", "/s", "0/s", "-1/s", "nan/s", "inf/s", "1e10/s", "50/s/s"] {
            assert!(Rate::parse(text).unwrap_err().contains("such as \"50/s\""), "{text}");
        }
    }

    #[test]
    fn a_second_has_as_many_calls_as_the_rate_says() {
        let rate = Rate::new(10.0);
        let start = rate.bucket.lock().unwrap().since;
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(rate.take(5, at(0)), Ok(1));
        let pause = rate.take(5, at(0)).unwrap_err();
        assert!((pause.as_secs_f64() - 0.1).abs() < 1e-6, "{pause:?}");
        assert_eq!(rate.take(5, at(350)), Ok(3));
        assert_eq!(rate.take(100, at(1350)), Ok(10));
        // The rate saves up no more calls than those of a second.
        assert_eq!(rate.take(100, at(60_000)), Ok(10));
        rate.spend(15);
        let pause = rate.take(1, at(60_000)).unwrap_err();
        assert!((pause.as_secs_f64() - 1.6).abs() < 1e-6, "{pause:?}");
        // Threads may bring times that are older than the last one.
        assert!(rate.take(1, at(50_000)).is_err());
    }

    #[test]
    fn calls_that_begin_together_delay_the_next_ones() {
        let rate = Rate::new(10.0);
        let start = rate.bucket.lock().unwrap().since;
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(rate.begin(5, at(0)), Ok(()));
        let pause = rate.begin(1, at(0)).unwrap_err();
        assert!((pause.as_secs_f64() - 0.5).abs() < 1e-6, "{pause:?}");
        assert!(rate.begin(1, at(490)).is_err());
        assert_eq!(rate.begin(1, at(510)), Ok(()));
    }

    #[test]
    fn a_call_in_an_hour_may_begin() {
        let rate = Rate::new(1.0 / 3600.0);
        let start = rate.bucket.lock().unwrap().since;
        assert_eq!(rate.take(5, start), Ok(1));
        assert!(rate.take(1, start + Duration::from_secs(3000)).is_err());
        assert_eq!(rate.take(5, start + Duration::from_secs(3601)), Ok(1));
    }
}
