//! Where an error happened: the row and its arguments.

use super::{ChunkCall, Input};
use crate::batch;
use crate::error::{Error, Place};
use crate::function::Function;
use crate::pool::Zygote;
use crate::{DataType, display};

impl<Z: Zygote> ChunkCall<'_, Z> {
    pub(super) fn place(&self, row: Option<usize>) -> Place {
        place(self.function, self.input, row)
    }
}

/// The row and its arguments, read back from the engine's own data.
pub fn place(function: &Function, input: &dyn Input, row: Option<usize>) -> Place {
    Place(row.map(|row| (row + 1, arguments(function, input, row))))
}

fn arguments(function: &Function, input: &dyn Input, row: usize) -> String {
    let parameters = &function.signature.parameters;
    let types = parameters.iter().map(|parameter| -> &DataType { &parameter.data_type });
    let frame = input.frame(row..row + 1);
    let shown = frame.as_ref().map_err(Error::clone).and_then(|frame| {
        let columns = batch::columns(frame.bytes(), types)?;
        Ok(display::arguments(parameters, &columns, 0))
    });
    shown.unwrap_or_else(|error| error.to_string())
}
