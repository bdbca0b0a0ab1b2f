//! The progress of a batch, which Ruby's loops report.

use crosslane::lane::COUNT;
use crosslane_guest::Progress;
use crosslane_gvl::{self as gvl, Unwind};
use crosslane_ring::ProgressWord;
use magnus::value::ReprValue;
use magnus::{Ruby, Value};
use std::time::Duration;

/// Reports to the engine how many rows of a batch are done. With this, the engine tells a slow call
/// from a stuck one.
#[magnus::wrap(class = "Crosslane::Native::Clock", free_immediately)]
pub(crate) struct Clock {
    word: Option<ProgressWord>,
    sequence: u32,
}

impl Clock {
    pub(crate) fn object(progress: Progress<'_>) -> Result<Value, Unwind> {
        let clock = Clock { word: progress.word.cloned(), sequence: progress.sequence };
        gvl::made(|| Ruby::get().expect("with the GVL").obj_wrap(clock).as_value())
    }

    pub(crate) fn call(&self, done: u32) {
        if let Some(word) = &self.word {
            // The highest bit marks the number as a count. Otherwise it would be read as a row's
            // index.
            word.set(self.sequence, done | COUNT);
        }
    }

    /// Reports that a row waits for so many seconds before it is called again.
    pub(crate) fn rest(&self, seconds: f64) {
        if let Some((word, time)) = self.word.as_ref().zip(Duration::try_from_secs_f64(seconds).ok()) {
            word.rest(time);
        }
    }
}
