//! Calls a function no more often than its `rate` says. A chunk is called in parts, each with as many
//! rows as may begin at the moment.

use super::once::Call;
use crate::batch::{self, Encode};
use crate::call::{Behind, Caller, Clock, Input, Output};
use crate::error::Error;
use crate::function::Function;
use crate::lane::Entry;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The rows that are looked through for NULLs at once.
const PIECE: usize = 64;

/// Has a function called by `call` with all rows of `input`, at its rate. Before the first call may
/// begin, `prepare` waits for what it needs. So a wait for that does not count as a call.
///
/// # Errors
/// Those of `prepare` and `call`; [`Error::Cancelled`] if the query is cancelled during a pause.
pub(super) fn paced(
    function: &Function,
    caller: Caller<'_>,
    (input, output): (&dyn Input, &mut dyn Output),
    prepare: impl FnOnce() -> Result<(), Error>,
    call: &mut Call<'_>,
) -> Result<(), Error> {
    let Some(rate) = &function.rate else { return call(input, output) };
    let skipped = skipped(function, input)?;
    if skipped.contains(&false) {
        prepare()?;
    }
    let mut clock = Clock::new(function);
    let mut from = 0;
    while from < input.rows() {
        let rest = &skipped[from..];
        let wanted = rest.iter().filter(|skips| !**skips).count();
        let taken = match wanted {
            0 => Ok(0),
            // The server does not call all rows, and delays those that it calls.
            _ if function.spec.kept_by_server => Ok(wanted.min(rate.most() as usize)),
            _ => rate.take(wanted, Instant::now()),
        };
        match taken {
            Ok(count) => {
                let rows = from..from + rows_of(rest, count);
                from = rows.end;
                call(&Part { input, rows: rows.clone() }, &mut Behind { first: rows.start, output })?;
            }
            Err(pause) => clock.rest(pause, function, caller)?,
        }
    }
    Ok(())
}

/// The rows up to the first one for which there is no call. `skipped` says which rows are not called.
pub(super) fn rows_of(skipped: &[bool], calls: usize) -> usize {
    let called = skipped.iter().enumerate().filter(|(_, skips)| !**skips);
    called.map(|(row, _)| row).nth(calls).unwrap_or(skipped.len())
}

/// For each row, whether it is NULL without a call.
pub(super) fn skipped(function: &Function, input: &dyn Input) -> Result<Vec<bool>, Error> {
    let mut skipped = vec![false; input.rows()];
    if !function.spec.admits_null.contains(&false) {
        return Ok(skipped);
    }
    // In pieces, because arguments may be large.
    for first in (0..input.rows()).step_by(PIECE) {
        let rows = first..input.rows().min(first + PIECE);
        let frame = input.frame(rows.clone())?;
        let columns = batch::columns(frame.bytes(), function.entry(Entry::Call)?.takes())?;
        let skipping = columns.iter().zip(&function.spec.admits_null).filter(|(_, admits)| !**admits);
        for (column, _) in skipping {
            rows.clone().for_each(|row| skipped[row] |= !column.is_valid(row - first));
        }
    }
    Ok(skipped)
}

/// Consecutive rows of an input.
pub(super) struct Part<'a> {
    pub(super) input: &'a dyn Input,
    pub(super) rows: Range<usize>,
}

impl Input for Part<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.input.slice(self.rows.start + rows.start..self.rows.start + rows.end, take)
    }

    fn number(&self, row: usize) -> usize {
        self.input.number(self.rows.start + row)
    }
}

/// The rate of a function for a server, whose clients send batches.
impl Function {
    /// The most calls that may begin at once; `None` if there is no `rate`. A client sends no batch
    /// with more.
    pub fn most_calls(&self) -> Option<usize> {
        self.rate.as_ref().map(|rate| rate.most() as usize)
    }

    /// Whether a batch of this many calls may begin. Another one may begin before it does.
    pub fn may_begin(&self, calls: usize, now: Instant) -> bool {
        calls == 0 || self.rate.as_ref().is_none_or(|rate| rate.begin(0, now).is_ok())
    }

    /// Counts the calls of a batch that begins now. A batch begins as a whole, and the next one waits
    /// until all of its calls were allowed.
    ///
    /// # Errors
    /// The time until it may begin. Then nothing was counted.
    pub fn begin(&self, calls: usize, now: Instant) -> Result<(), Duration> {
        match &self.rate {
            Some(rate) if calls > 0 => rate.begin(calls, now),
            _ => Ok(()),
        }
    }

    /// Counts tries that a guest reports for a reply of this many rows. It can report any number.
    /// Returns those that there can be.
    pub fn count_tries(&self, tries: u32, rows: usize) -> u64 {
        let tries = u64::from(tries).min(rows as u64 * u64::from(self.spec.retries));
        self.rate.iter().for_each(|rate| rate.spend(tries));
        tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::FunctionSpec;

    fn limited(rate: &str) -> Function {
        let mut spec = FunctionSpec::new("f(x BIGINT) -> BIGINT".into());
        (spec.rate, spec.retries) = (Some(rate.into()), 2);
        Function::new(0, spec).unwrap()
    }

    /// The time at which no more calls may begin.
    fn used_up(function: &Function) -> Instant {
        let now = Instant::now();
        while function.begin(1, now).is_ok() {}
        now
    }

    #[test]
    fn clients_of_a_server_share_its_rate() {
        let function = limited("50/s");
        let start = used_up(&function);
        assert_eq!(function.most_calls(), Some(50));
        // Each millisecond two clients try to begin a batch, for ten seconds.
        let mut begun = [0; 2];
        for millisecond in 0..=10_000 {
            let now = start + Duration::from_millis(millisecond);
            let mut clients = [(0, 50), (1, 7)];
            // Neither is always the first.
            clients.rotate_left(millisecond as usize / 1000 % 2);
            for (client, calls) in clients {
                if function.begin(calls, now).is_ok() {
                    begun[client] += calls;
                }
            }
            let allowed = 1 + millisecond as usize * 50 / 1000;
            // One batch may have begun before all of its calls were allowed.
            assert!(begun[0] + begun[1] < allowed + 50, "{begun:?} after {millisecond} ms");
        }
        assert!(begun[0] + begun[1] >= 500, "{begun:?}");
        assert!(begun[0] > 0 && begun[1] > 0, "{begun:?}");
    }

    #[test]
    fn batches_without_calls_do_not_wait_and_tries_count() {
        let (free, function) = (limited("1/h"), limited("2/s"));
        assert_eq!(free.begin(0, used_up(&free)), Ok(()));
        let now = used_up(&function);
        // A guest reports any number, and of three rows there are no more than six tries.
        function.count_tries(u32::MAX, 3);
        assert!(function.begin(1, now + Duration::from_millis(2900)).is_err());
        assert_eq!(function.begin(1, now + Duration::from_millis(3600)), Ok(()));
    }
}
