//! The entries `combine`, `save` and `load`: states are merged, and travel to other lanes as bytes.

use super::accumulator::Aggregate;
use super::instance_bytes;
use super::pending_rows::PendingRows;
use super::state::State;
use crate::lane::{CallResult, Exchange};
use crate::values::overflow;
use crosslane::batch::bit;
use pyo3::intern;
use pyo3::prelude::*;

/// The first byte of pending rows that travel to another lane. `crosslane._worker.aggregates` gives it to
/// no other form.
const PENDING: u8 = b'r';

impl<'py> Aggregate<'py> {
    pub(super) fn combine(&mut self, exchange: &Exchange<'_>) -> CallResult {
        let (targets, sources) = (|row| exchange.state(0, row), |row| exchange.state(1, row));
        // Most states whose rows must be added are known before the loop. Their rows are added
        // together.
        let with_instance = |row: &usize| {
            let source = self.living.get(sources(*row));
            let target = self.living.get(targets(*row));
            // Both states are read, so that the processor loads them for the loop below.
            source.is_some_and(|source| source.instance.is_some()) & target.is_some_and(State::is_pending)
        };
        let early = (0..exchange.rows()).filter(with_instance).map(targets).collect();
        self.settle(exchange, early)?;
        let mut due = Vec::new();
        for row in 0..exchange.rows() {
            let source = sources(row);
            let other = if bit(exchange.columns[2].data, row) {
                if self.living.get(source).is_some_and(State::is_due) {
                    self.settle(exchange, vec![source])?;
                }
                exchange.tell(row as u32);
                self.copy(source).map_err(|error| (error, row))?
            } else {
                self.take(source)
            };
            self.merge(exchange, row, other, &mut due)?;
        }
        self.settle(exchange, due)
    }

    /// A copy of a state. It shares nothing with the state that may change.
    fn copy(&mut self, number: usize) -> PyResult<State> {
        let py = self.py();
        let Some(State { instance, pending }) = self.living.get(number) else { return Ok(State::default()) };
        let Some(instance) = instance else {
            return Ok(State { instance: None, pending: pending.copy()? });
        };
        let instance = instance.bind(py);
        let copy = match &self.make_blank {
            Some(make_blank)
                if instance.get_type().is(&self.class)
                    && instance_bytes::write(instance, &mut self.bytes)? =>
            {
                let copy = make_blank.call1((&self.class,))?;
                instance_bytes::read(&self.bytes, &copy)?;
                copy
            }
            _ => self.states.call_method1(intern!(py, "copy"), (instance,))?,
        };
        Ok(State::of(copy.unbind()))
    }

    /// Merges a state, to which there is no other reference, into the target state of a row.
    fn merge(
        &mut self,
        exchange: &Exchange<'_>,
        row: usize,
        other: State,
        due: &mut Vec<usize>,
    ) -> CallResult {
        let py = self.py();
        let target = exchange.state(0, row);
        if other.is_nothing() {
            return Ok(());
        }
        let state = self.state_mut(target)?;
        if state.is_nothing() {
            *state = other;
        } else if other.instance.is_none() {
            state.pending.append(&other.pending)?;
        } else {
            if !state.pending.is_empty() {
                self.settle(exchange, vec![target])?;
            }
            exchange.tell(row as u32);
            let state = &mut self.living[target];
            if let (Some(instance), Some(other)) = (&state.instance, other.instance) {
                let merged = instance.bind(py).call_method1(intern!(py, "merge"), (other,));
                merged.map_err(|error| (error, row))?;
            }
            // The other state got these rows within this exchange. So they are the last rows of
            // this state, too.
            state.pending = other.pending;
        }
        if self.living[target].is_due() {
            due.push(target);
        }
        Ok(())
    }

    pub(super) fn save(&mut self, number: usize) -> PyResult<()> {
        let py = self.py();
        let Some(State { instance: Some(instance), .. }) = self.living.get(number) else {
            let Some(state) = self.living.get(number).filter(|state| !state.pending.is_empty()) else {
                self.saved.null();
                return Ok(());
            };
            state.pending.save(PENDING, &mut self.bytes);
            return self.saved.bytes(&self.bytes).map_err(overflow);
        };
        let instance = instance.bind(py);
        let plain = self.make_blank.is_some() && instance.get_type().is(&self.class);
        if plain && instance_bytes::write(instance, &mut self.bytes)? {
            return self.saved.bytes(&self.bytes).map_err(overflow);
        }
        let saved = self.states.call_method1(intern!(py, "save"), (instance,))?;
        self.saved.bytes(saved.extract()?).map_err(overflow)
    }

    pub(super) fn load(&mut self, exchange: &Exchange<'_>) -> CallResult {
        let saved = &exchange.columns[1];
        let bytes = |row: usize| saved.is_valid(row).then(|| saved.bytes(row));
        let with_instance = |row: &usize| {
            let target = self.living.get(exchange.state(0, *row));
            // Both sides are read, as in `combine`.
            bytes(*row).is_some_and(|saved| saved.first() != Some(&PENDING))
                & target.is_some_and(State::is_pending)
        };
        let early = (0..exchange.rows()).filter(with_instance).map(|row| exchange.state(0, row)).collect();
        self.settle(exchange, early)?;
        let mut due = Vec::new();
        for row in 0..exchange.rows() {
            if let Some(bytes) = bytes(row) {
                exchange.tell(row as u32);
                let other = self.loaded(bytes).map_err(|error| (error, row))?;
                self.merge(exchange, row, other, &mut due)?;
            }
        }
        self.settle(exchange, due)
    }

    /// A new state from bytes that [`Aggregate::save`] gave, on any lane.
    fn loaded(&self, bytes: &[u8]) -> PyResult<State> {
        let py = self.py();
        let instance = match (bytes.first(), &self.make_blank) {
            (Some(&PENDING), _) => {
                return Ok(State { instance: None, pending: PendingRows::load(bytes)? });
            }
            (Some(&instance_bytes::PLAIN), Some(make_blank)) => {
                let instance = make_blank.call1((&self.class,))?;
                instance_bytes::read(bytes, &instance)?;
                instance
            }
            _ => self.states.call_method1(intern!(py, "load"), (bytes,))?,
        };
        Ok(State::of(instance.unbind()))
    }
}
