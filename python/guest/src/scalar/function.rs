//! A scalar function, ready to be called.

use super::batch::{Batch, Callee};
use super::concurrent::ConcurrentCalls;
use super::rows::RowCalls;
use super::vectorized::VectorizedCalls;
use crate::arrow::Results;
use crate::declaration::Declaration;
use crate::lane::{CallResult, Exchange, fail, succeed};
use crate::loops::Selection;
use crate::values::overflow;
use crosslane::ColumnBuilder;
use crosslane_process::guest::{Call, GuestLane};
use crosslane_process::limits::MemoryLimit;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

pub(crate) struct Function<'py> {
    callee: Callee<'py>,
    kind: Kind<'py>,
}

enum Kind<'py> {
    Row(RowCalls<'py>),
    Async(ConcurrentCalls<'py>),
    Vectorized(VectorizedCalls<'py>),
}

impl<'py> Function<'py> {
    /// `runner` is the one of an `async` function, once it was called.
    pub(crate) fn new(declared: &Bound<'py, PyAny>, runner: &mut Option<Py<PyAny>>) -> PyResult<Self> {
        let py = declared.py();
        let declaration = Declaration::read(declared)?;
        let signature = &declaration.signature;
        if signature.takes_any() {
            return Err(PyOSError::new_err(format!(
                "a call of {signature} without the types of its arguments"
            )));
        }
        let kind: String = declared.getattr("kind")?.extract()?;
        let (kind, callable) = match kind.as_str() {
            "row" => {
                let kind = Kind::Row(RowCalls::new(declared, &declaration)?);
                (kind, declared.call_method0("callee")?)
            }
            "async" => {
                let kind = Kind::Async(ConcurrentCalls::new(declared, &declaration)?);
                if runner.is_none() {
                    let made =
                        py.import("crosslane._worker.coroutines")?.getattr("Runner")?.call1((declared,))?;
                    *runner = Some(made.unbind());
                }
                (kind, runner.as_ref().map_or_else(|| declared.clone(), |runner| runner.bind(py).clone()))
            }
            _ => {
                let (calls, caller) = VectorizedCalls::new(declared, &declaration)?;
                (Kind::Vectorized(calls), caller)
            }
        };
        Ok(Self { callee: Callee { callable, declaration }, kind })
    }

    /// A column for its results.
    pub(crate) fn results(&self) -> ColumnBuilder {
        ColumnBuilder::new(&self.callee.declaration.signature.returns)
    }

    /// Runs it over a batch, and answers.
    pub(crate) fn answer(
        &self,
        py: Python<'py>,
        lane: &mut GuestLane,
        call: Call,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let limit = self.callee.declaration.memory_limit.and_then(MemoryLimit::set);
        out.clear();
        let (outcome, row_counts) = {
            let parameters = &self.callee.declaration.signature.parameters;
            let columns = lane.columns(parameters.iter().map(|field| &field.data_type))?;
            let exchange = Exchange::new(lane, call, &columns);
            (self.run(py, &exchange, out), exchange.row_counts.into_inner())
        };
        drop(limit);
        match outcome {
            Ok(Some(results)) => succeed(py, lane, call, &results, row_counts),
            Ok(None) => succeed(py, lane, call, out, row_counts),
            Err(error) => fail(py, lane, call, error),
        }
    }

    /// Runs the function over a batch, into `out` or as the results that it returns.
    fn run(
        &self,
        py: Python<'py>,
        exchange: &Exchange<'_>,
        out: &mut ColumnBuilder,
    ) -> CallResult<Option<Results>> {
        let rows = exchange.rows();
        out.reserve(rows).map_err(overflow)?;
        let selection =
            Selection::without_nulls(rows, exchange.columns, &self.callee.declaration.admits_null);
        let batch = Batch { py, callee: &self.callee, exchange, selection };
        match &self.kind {
            Kind::Row(calls) => calls.run(batch, out).map(|()| None),
            Kind::Async(calls) => calls.run(&batch, out).map(|()| None),
            Kind::Vectorized(calls) => calls.run(&batch, out),
        }
    }
}
