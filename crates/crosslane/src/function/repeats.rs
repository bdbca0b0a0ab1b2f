//! Whether the rows of a function repeat.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The most chunks that are not compared, one after the other.
const LONGEST_PAUSE: u32 = 64;
/// Rows of a chunk repeat if one of this many does, at least.
const FEW: usize = 16;

/// Whether the rows of a function's chunks have repeated lately. A chunk without repeated rows shows
/// that the next ones have few, too: 1, 2, 4 ... [`LONGEST_PAUSE`] chunks are not compared then.
/// Threads may count a chunk too many, or too few.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// The chunks that are not compared from now on.
    pause: AtomicU32,
    /// The length of the last pause.
    last: AtomicU32,
}

impl Repeats {
    /// Whether the next chunk is not compared.
    pub(crate) fn is_pausing(&self) -> bool {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
        }
        pause > 0
    }

    /// Learns how many rows of a chunk were distinct.
    pub(crate) fn learn(&self, rows: usize, distinct: usize) {
        let few = rows - distinct < rows.div_ceil(FEW);
        let pause = if few { (2 * self.last.load(Relaxed)).clamp(1, LONGEST_PAUSE) } else { 0 };
        self.last.store(pause, Relaxed);
        self.pause.store(pause, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_without_repeated_rows_are_compared_less_and_less() {
        let repeats = Repeats::default();
        let mut compared = Vec::new();
        for chunk in 0..300 {
            if !repeats.is_pausing() {
                compared.push(chunk);
                repeats.learn(2048, 2000);
            }
        }
        assert_eq!(compared, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]);
        repeats.learn(2048, 1024);
        assert!(!repeats.is_pausing());
    }
}
