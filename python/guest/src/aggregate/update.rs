//! The entry `update`: rows are added to their states.

use super::accumulator::Aggregate;
use super::buffered_rows::GroupIterator;
use crate::lane::{CallResult, Exchange, retry_or_null};
use crosslane::Verdict;
use crosslane::batch::{Column, bit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ptr;

impl<'py> Aggregate<'py> {
    /// Buffers rows, until there are many of them.
    pub(super) fn collect(&mut self, exchange: &Exchange<'_>) -> CallResult {
        let columns = &exchange.columns[1..];
        let selection = self.selection(exchange);
        for row in (0..exchange.rows()).filter(|row| selection.contains(*row)) {
            exchange.tell(row as u32);
            self.instance(exchange.state(0, row)).map_err(|error| (error, row))?;
        }
        let Some(buffered) = &mut self.buffered else { return Ok(()) };
        let state = |row| selection.contains(row).then(|| exchange.state(0, row));
        buffered.add(columns, (0..exchange.rows()).map(state))?;
        if buffered.is_full() {
            self.flush(exchange)?;
        }
        Ok(())
    }

    /// Adds the buffered rows to their groups, all of a group at once.
    pub(super) fn flush(&mut self, exchange: &Exchange<'_>) -> CallResult {
        let py = self.py();
        let Some(buffered) = self.buffered.as_mut().filter(|all| !all.is_empty()) else { return Ok(()) };
        // None of the next steps takes long, but all together may. So the engine is told of each
        // step.
        exchange.tell(u32::MAX - 1);
        let (chunks, sorted) = buffered.take();
        let groups = sorted.ranges().iter().filter_map(|(state, rows)| {
            let instance = self.living.get(*state)?.instance.as_ref()?;
            Some((instance.clone_ref(py), rows.start as u32, rows.len() as u32))
        });
        let groups = GroupIterator::new(groups.collect(), exchange.progress.clone(), exchange.sequence());
        exchange.tell(u32::MAX);
        let order = PyBytes::new(py, bytemuck::cast_slice(sorted.order()));
        let parts = self.states.call_method1(intern!(py, "sorted"), (chunks, order))?;
        let groups = Bound::new(py, groups)?;
        let (mut failed, mut tries) = (None, 0);
        while let Err(error) = self.states.call_method1(intern!(py, "run"), (&parts, &groups)).map(drop) {
            let Some((at, count)) = groups.borrow().last() else { return Err(error.into()) };
            if failed.replace(at) != Some(at) {
                tries = 0;
            }
            if let Verdict::Again(_) =
                retry_or_null(py, exchange, self.declaration.error_policy, error.into(), &mut tries, count)?
            {
                groups.borrow_mut().repeat();
            }
        }
        Ok(())
    }

    pub(super) fn update(&mut self, exchange: &Exchange<'_>) -> CallResult {
        let count = exchange.rows();
        let columns = &exchange.columns[1..];
        let mut selection = self.selection(exchange);
        let mut due = Vec::new();
        if self.format.is_some() {
            let most = (0..count).map(|row| exchange.state(0, row)).max().unwrap_or_default();
            self.state_mut(most)?;
            // This loop does nothing else, so that the processor loads many states at once.
            let mut now = vec![0; count.div_ceil(8)];
            for row in 0..count {
                let has_instance = self.living[exchange.state(0, row)].instance.is_some();
                now[row / 8] |= u8::from(has_instance && selection.contains(row)) << (row % 8);
            }
            let mut row = selection.next(0);
            while row < count {
                if !bit(&now, row) {
                    let is_pending = self.keep_pending(columns, row, exchange.state(0, row), &mut due);
                    now[row / 8] |= u8::from(!is_pending.map_err(|error| (error, row))?) << (row % 8);
                }
                row = selection.next(row + 1);
            }
            selection = selection.only(now);
            self.settle(exchange, due)?;
        }
        // The states keep the instances alive until all rows are done: nothing else changes the
        // states meanwhile.
        let mut instances = vec![ptr::null_mut(); count];
        let mut row = selection.next(0);
        while row < count {
            exchange.tell(row as u32);
            instances[row] = self.instance(exchange.state(0, row)).map_err(|error| (error, row))?;
            row = selection.next(row + 1);
        }
        self.add(exchange, columns, &selection, &instances, false)
    }

    /// Makes a row pending, if its state has no instance. A state without room for the row gets an
    /// instance. Returns whether the row is pending.
    #[inline]
    fn keep_pending(
        &mut self,
        columns: &[Column<'_>],
        row: usize,
        number: usize,
        due: &mut Vec<usize>,
    ) -> PyResult<bool> {
        let (state, Some(format)) = (&mut self.living[number], &self.format) else { return Ok(false) };
        if state.instance.is_some() {
            return Ok(false);
        }
        let is_pending = format.add(columns, row, &mut state.pending)?;
        if !is_pending {
            state.instance = Some(self.class.call0()?.unbind());
            due.push(number);
        }
        Ok(is_pending)
    }
}
