//! The answers of guests: failures, and rows of tables and streams.

use crate::batch::builder::{ColumnBuilder, Overflow};
use crate::batch::{self, Column, Header};
use crate::error::Failure;
use crate::function::{Function, OnError};
use crate::lane::{COUNT, Lane, WRITING};
use crate::types::values::unfit;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most rows that a guest's progress can count. A scan may have any number of rows.
pub(super) const MOST_ROWS: usize = WRITING as usize;

/// The row of an exchange that a guest is making, by the guest's own report.
pub(super) fn made<L: Lane>(lane: &L, exchange: u64) -> Option<usize> {
    let (at, row) = lane.progress();
    let counts = row != u32::MAX && row & COUNT != 0;
    (at == exchange as u32 && counts).then_some((row & !COUNT) as usize)
}

/// Copies the rows of a batch from row `from` on into `out`. The rows of `unfit` become NULLs.
pub(super) fn copied(
    out: &mut ColumnBuilder,
    column: &Column<'_>,
    from: usize,
    unfit: &BTreeMap<usize, String>,
) -> Result<(), Overflow> {
    out.clear();
    out.reserve(column.rows - from)?;
    for row in from..column.rows {
        if unfit.contains_key(&row) { out.null() } else { out.copy(column, row)? }
    }
    Ok(())
}

/// Finds the rows with a value that is invalid for its type, and describes each value. These rows
/// become NULL. `before` rows came before this batch.
///
/// # Errors
/// The first of these values, if the function's `on_error` is to fail.
pub(super) fn forgiven(
    function: &Function,
    column: &Column<'_>,
    before: u64,
) -> Result<BTreeMap<usize, String>, Box<Failure>> {
    let unfit = unfit(column);
    match (function.spec.on_error, unfit.first_key_value()) {
        (OnError::Fail, Some((row, what))) => {
            Err(Box::new(Failure::unfit(&format!("{what}, in row {}", before + *row as u64 + 1))))
        }
        _ => Ok(unfit),
    }
}

/// Reads the failure that a guest reports.
///
/// # Errors
/// The reason why the failure cannot be read.
pub(super) fn failure(header: &Header, frame: &[u8]) -> Result<Box<Failure>, String> {
    let text = batch::failure_text(frame).map_err(|malformed| malformed.to_string());
    let failure = text.and_then(|text| serde_json::from_slice(text).map_err(|error| error.to_string()));
    let failure = failure.map_err(|error| format!("a failure that cannot be read: {error}"))?;
    Ok(Box::new(Failure { worked: Duration::from_nanos(header.worked), ..failure }))
}
