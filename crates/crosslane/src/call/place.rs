//! Where an error happened: the row and its arguments.

use super::{ChunkCall, Input};
use crate::batch;
use crate::display;
use crate::error::{Error, Place};
use crate::exchange::Entry;
use crate::function::Function;
use crate::kind::EntryTypes;
use crate::pool::Zygote;

impl<Z: Zygote> ChunkCall<'_, Z> {
    pub(super) fn place(&self, row: Option<usize>) -> Place {
        place(self.function, self.entry, self.input, row)
    }
}

/// The row of an entry and its columns, read back from the engine's own data.
pub fn place(function: &Function, entry: Entry, input: &dyn Input, row: Option<usize>) -> Place {
    let types = function.entry(entry).ok();
    Place(types.zip(row).map(|(types, row)| (row + 1, arguments(types, input, row))))
}

fn arguments(types: EntryTypes<'_>, input: &dyn Input, row: usize) -> String {
    let frame = input.frame(row..row + 1);
    let shown = frame.as_ref().map_err(Error::clone).and_then(|frame| {
        let columns = batch::columns(frame.bytes(), types.takes())?;
        Ok(display::arguments(types.fields(), &columns, 0))
    });
    shown.unwrap_or_else(|error| error.to_string())
}
