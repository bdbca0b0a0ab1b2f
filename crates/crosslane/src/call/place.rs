//! Where an error happened: the row and its arguments.

use super::Input;
use crate::batch;
use crate::error::{Error, Place, Spot};
use crate::function::{EntryTypes, Function};
use crate::lane::Entry;
use crate::types::display;
use std::ops::Range;

/// The row of an entry and its columns, read back from the engine's own data. If the entry makes
/// rows, this is the number of the row that it made, with the function's arguments.
pub fn place(function: &Function, entry: Entry, input: &dyn Input, row: Option<usize>) -> Place {
    let made = !entry.is_answered_once();
    let of_input = if made { Some(0) } else { row };
    let types = function.entry(entry).ok().zip(of_input).zip(row);
    Place(types.map(|((types, of_input), row)| {
        let count = types.takes().count();
        let shown = if made { types.leading.len()..count - function.spec.hidden } else { 0..count };
        let row = if made { row } else { input.number(row) } + 1;
        let arguments = arguments(types, shown, input, of_input);
        if made { Spot::Made { row, arguments } } else { Spot::Given { row, arguments } }
    }))
}

/// Some columns of a row as text.
fn arguments(types: EntryTypes<'_>, shown: Range<usize>, input: &dyn Input, row: usize) -> String {
    let frame = input.frame(row..row + 1);
    let text = frame.as_ref().map_err(Error::clone).and_then(|frame| {
        let columns = batch::columns(frame.bytes(), types.takes())?;
        let fields = types.fields().skip(shown.start);
        Ok(display::arguments(fields, &columns[shown], 0))
    });
    text.unwrap_or_else(|error| error.to_string())
}
