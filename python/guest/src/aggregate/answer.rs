//! The exchanges of an aggregate.

use super::accumulator::Aggregate;
use crate::lane::{CallResult, Exchange, fail, refuse, succeed};
use crate::values::overflow;
use crosslane::batch::Encode;
use crosslane::{Entry, Kind};
use crosslane_process::guest::{Call, GuestLane};
use crosslane_process::limits::{self, MemoryLimit};
use pyo3::prelude::*;

impl<'py> Aggregate<'py> {
    /// Answers an exchange.
    pub(crate) fn answer(&mut self, py: Python<'py>, lane: &mut GuestLane, call: Call) -> PyResult<()> {
        let entry = call.entry().unwrap_or_default();
        let signature = self.declaration.signature.clone();
        let Some(types) = Kind::Aggregate.entry(entry, &signature) else {
            return refuse(py, lane, call, &call.refusal(), None);
        };
        let limit = self.limit(entry);
        let (outcome, row_counts) = {
            let columns = lane.columns(types.takes())?;
            let exchange = Exchange::new(lane, call, &columns);
            (self.run(entry, &exchange), exchange.row_counts.into_inner())
        };
        drop(limit);
        let answer = call.with_rows(types.answer(call.header.rows as usize));
        match outcome {
            Ok(()) => {
                let results: &dyn Encode = match entry {
                    Entry::Finish => &self.results,
                    Entry::Save => &self.saved,
                    _ => &(),
                };
                succeed(py, lane, answer, results, row_counts)
            }
            Err(error) => fail(py, lane, call, error),
        }
    }

    /// Limits the memory of the states and of the work on them. An engine can always forget states.
    fn limit(&mut self, entry: Entry) -> Option<MemoryLimit> {
        let bytes = self.declaration.memory_limit.filter(|_| entry != Entry::Forget)?;
        if self.living.is_empty() {
            self.base = limits::data_size();
        }
        MemoryLimit::up_to(self.base?.saturating_add(bytes))
    }

    fn run(&mut self, entry: Entry, exchange: &Exchange<'_>) -> CallResult {
        // States that are forgotten need their rows no more.
        if !matches!(entry, Entry::Update | Entry::Forget) {
            self.flush(exchange)?;
        }
        match entry {
            Entry::Update if self.buffered.is_some() => self.collect(exchange),
            Entry::Update => self.update(exchange),
            Entry::Combine => self.combine(exchange),
            Entry::Finish => self.finish(exchange),
            Entry::Save => {
                self.saved.clear();
                self.saved.reserve(exchange.rows()).map_err(overflow)?;
                self.pending(exchange);
                exchange.each(|row| self.save(exchange.state(0, row)))
            }
            Entry::Load => self.load(exchange),
            _ => {
                if let Some(buffered) = &mut self.buffered {
                    buffered.forget((0..exchange.rows()).map(|row| exchange.state(0, row)));
                }
                exchange.each(|row| {
                    drop(self.take(exchange.state(0, row)));
                    Ok(())
                })?;
                self.shrink();
                Ok(())
            }
        }
    }
}
