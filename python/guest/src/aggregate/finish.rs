//! The entry `finish`: the results of states.

use super::accumulator::Aggregate;
use super::state::{DueRows, State};
use crate::lane::{CallResult, Exchange, retry_or_null};
use crate::values::overflow;
use crosslane::Verdict;
use pyo3::intern;
use pyo3::prelude::*;

impl<'py> Aggregate<'py> {
    /// How many rows are for states with pending rows. This loop does nothing else, so that the
    /// processor loads many states at once.
    pub(super) fn pending(&self, exchange: &Exchange<'_>) -> usize {
        let states = (0..exchange.rows()).map(|row| self.living.get(exchange.state(0, row)));
        states.map(|state| usize::from(state.is_some_and(State::is_pending))).sum()
    }

    /// Writes the results of states. Pending rows stay pending: their instances are made for this
    /// call only, because few states are finished twice.
    pub(super) fn finish(&mut self, exchange: &Exchange<'_>) -> CallResult {
        self.results.clear();
        self.results.reserve(exchange.rows()).map_err(overflow)?;
        let mut fresh: Vec<Option<Bound<'py, PyAny>>> = vec![None; exchange.rows()];
        let pending = self.pending(exchange);
        if let Some(format) = self.format.as_ref().filter(|_| pending > 0) {
            let mut due = DueRows { columns: format.columns(), instances: Vec::new() };
            for (row, fresh) in fresh.iter_mut().enumerate() {
                let state = self.living.get(exchange.state(0, row));
                if let Some(State { pending, .. }) = state.filter(|state| state.is_pending()) {
                    exchange.tell(row as u32);
                    let instance = fresh.insert(self.class.call0().map_err(|error| (error, row))?);
                    due.add(format, pending, instance.as_ptr())?;
                }
            }
            self.add_due(exchange, &due)?;
        }
        for (row, fresh) in fresh.into_iter().enumerate() {
            self.finish_one(exchange, row, fresh)?;
        }
        Ok(())
    }

    fn finish_one(
        &mut self,
        exchange: &Exchange<'_>,
        row: usize,
        mut fresh: Option<Bound<'py, PyAny>>,
    ) -> CallResult {
        let py = self.py();
        let mut tries = 0;
        loop {
            exchange.tell(row as u32);
            let stored = self.living.get(exchange.state(0, row)).and_then(|state| state.instance.as_ref());
            let instance = match (stored, &fresh) {
                (Some(stored), _) => Ok(stored.bind(py)),
                (None, Some(fresh)) => Ok(fresh),
                (None, None) => self.class.call0().map(|made| &*fresh.insert(made)),
            };
            let result = instance.and_then(|instance| instance.call_method0(intern!(py, "finish")));
            let error = match result.and_then(|value| self.writer.write(&value, &mut self.results)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.results.truncate(row);
            match retry_or_null(
                py,
                exchange,
                self.declaration.error_policy,
                (error, row).into(),
                &mut tries,
                1,
            )? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    self.results.null();
                    return Ok(());
                }
            }
        }
    }
}
