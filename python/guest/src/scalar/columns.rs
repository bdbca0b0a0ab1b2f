//! Calls of a function that the native part evaluates by columns, without Python's objects
//! (`crosslane_columns`).
//!
//! Before each batch, a check in Python says whether the function still means what was translated, and
//! that no debugger or profiler watches its calls. Rows that leave the program are called by the usual
//! loop. If they are many, the next batches are called so, too: 1, 2, 4 ... up to 64 of them, until a
//! batch leaves few rows again.
//!
//! A function of columns in which an engine calls the user's function of rows is evaluated so, too. If
//! a row leaves, the function of columns is called for the whole batch.

use super::batch::Batch;
use crate::declaration::Declaration;
use crate::lane::CallResult;
use crate::values::overflow;
use crosslane::batch::bit;
use crosslane::{ColumnBuilder, DataType, Signature};
use crosslane_columns::{CHUNK, Evaluator, Program, Source, Unsupported, compile};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};

/// The most batches that are called row by row before the program is tried again.
const LONGEST_PAUSE: u32 = 64;
/// As the last argument of [`ColumnCalls::new`]: a batch is better called row by row if one in so many
/// rows leaves.
pub(super) const MANY: usize = 4;

/// Why a translated function of this signature cannot be evaluated by columns: the line in its file,
/// and the reason. None if it can. `exact` is that of [`compile`].
///
/// Raises ValueError if the signature is none.
#[pyfunction]
pub(crate) fn why_not_columns(
    text: &str,
    signature: &str,
    admits_null: Vec<bool>,
    exact: bool,
) -> PyResult<Option<(u32, String)>> {
    let Ok(source) = serde_json::from_str(text) else {
        return Ok(Some((0, "its statements are nested too deeply".to_owned())));
    };
    let signature = signature.parse::<Signature>();
    let signature = signature.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let why = program(&source, &signature, &admits_null, exact).err();
    Ok(why.map(|Unsupported { line, reason }| (line, reason)))
}

fn program(
    source: &Source,
    signature: &Signature,
    admits_null: &[bool],
    exact: bool,
) -> Result<Program, Unsupported> {
    let types = signature.parameters.iter().map(|field| field.data_type.clone());
    let parameters: Vec<_> = types.zip(admits_null.iter().copied()).collect();
    compile(source, &parameters, &signature.returns, exact)
}

/// A function that may be evaluated by columns.
pub(super) struct ColumnCalls {
    evaluator: RefCell<Evaluator>,
    is_usable: Py<PyAny>,
    returns: DataType,
    /// A batch is better called at once if one in so many rows leaves.
    many: usize,
    /// How many batches will be called row by row before the next try, and how many were before
    /// this one.
    pause: Cell<u32>,
    last_pause: Cell<u32>,
}

impl ColumnCalls {
    /// None if the function cannot be evaluated so.
    pub(super) fn new(
        declared: &Bound<'_, PyAny>,
        declaration: &Declaration<'_>,
        many: usize,
    ) -> PyResult<Option<Self>> {
        let (py, signature) = (declared.py(), &declaration.signature);
        let of = py.import("crosslane._worker.translation")?.getattr("of")?;
        let translated = of.call1((declared, signature.parameters.len()))?;
        let Some((text, is_usable)) = translated.extract::<Option<(String, Py<PyAny>)>>()? else {
            return Ok(None);
        };
        let Ok(source) = serde_json::from_str::<Source>(&text) else { return Ok(None) };
        let exact = !declared.getattr("inner")?.is_none();
        Ok(program(&source, signature, &declaration.admits_null, exact).ok().map(|program| Self {
            evaluator: RefCell::new(Evaluator::new(program)),
            is_usable,
            returns: signature.returns.clone(),
            many,
            pause: Cell::new(0),
            last_pause: Cell::new(0),
        }))
    }

    /// Whether the next batch should be evaluated so.
    pub(super) fn is_usable(&self, py: Python<'_>) -> PyResult<bool> {
        match self.pause.get() {
            0 => self.is_usable.call0(py)?.extract(py),
            batches => {
                self.pause.set(batches - 1);
                Ok(false)
            }
        }
    }

    /// Evaluates a batch. Returns the bits of the rows that are left to be called, if there are any.
    /// They are NULL in `out`.
    pub(super) fn run(&self, batch: &Batch<'_, '_>, out: &mut ColumnBuilder) -> CallResult<Option<Vec<u8>>> {
        let (rows, selection) = (batch.selection.rows(), &batch.selection);
        let mut evaluator = self.evaluator.borrow_mut();
        let mut left = vec![0; rows.div_ceil(8)];
        let mut count = 0;
        batch.exchange.tell(0);
        for first in (0..rows).step_by(CHUNK) {
            let chunk = first..rows.min(first + CHUNK);
            let active = selection.bits();
            count +=
                evaluator.run(batch.exchange.columns, chunk, active, &mut left, out).map_err(overflow)?;
        }
        let asked = selection.count_before(rows);
        batch.exchange.row_counts.borrow_mut().by_columns += (asked - count) as u32;
        self.note(count > 0 && count.saturating_mul(self.many) >= asked);
        Ok((count > 0).then_some(left))
    }

    /// Decides how the next batches are called.
    fn note(&self, leaves_many: bool) {
        let pause = if leaves_many { (self.last_pause.get() * 2).clamp(1, LONGEST_PAUSE) } else { 0 };
        self.pause.set(pause);
        self.last_pause.set(pause);
    }

    /// A column for the results of calls.
    pub(super) fn results(&self) -> ColumnBuilder {
        ColumnBuilder::new(&self.returns)
    }

    /// Puts the results of the rows that were called between those of the program.
    pub(super) fn merge(&self, left: &[u8], called: &ColumnBuilder, out: &mut ColumnBuilder) -> CallResult {
        let evaluated = std::mem::replace(out, self.results());
        let (evaluated, called) = (evaluated.column(&self.returns), called.column(&self.returns));
        out.reserve(evaluated.rows).map_err(overflow)?;
        for row in 0..evaluated.rows {
            let from = if bit(left, row) { &called } else { &evaluated };
            out.copy(from, row).map_err(overflow)?;
        }
        Ok(())
    }
}
