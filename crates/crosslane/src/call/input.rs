//! The arguments that a call takes from the engine, and the results that it gives.

use crate::batch::{Borrowed, Column, Encode, Frame};
use crate::error::Error;
use std::ops::Range;

/// The arguments of a call, as the engine holds them.
pub trait Input {
    /// Rows of the batch.
    fn rows(&self) -> usize;
    /// Passes some of the rows to `take`, ready to be written into a ring. Calls `take` once,
    /// unless there is an error.
    ///
    /// # Errors
    /// If there are no such rows, or if there is not enough memory.
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error>;
    /// The number of a row among the engine's rows, from 0. Errors show it.
    fn number(&self, row: usize) -> usize {
        row
    }
    /// Copies some of the rows into a batch outside of a lane.
    ///
    /// # Errors
    /// As [`Input::slice`] and [`Frame::new`].
    fn frame(&self, rows: Range<usize>) -> Result<Frame, Error> {
        let (count, mut frame) = (rows.len(), None);
        self.slice(rows, &mut |content| frame = Some(Frame::new(content, count)))?;
        frame.unwrap_or_else(|| Err(Error::Engine(format!("an input without {count} rows"))))
    }
}

/// The receiver of the results of a call.
pub trait Output {
    /// Takes the results of the rows from `first` on.
    ///
    /// # Errors
    /// If the engine cannot hold them.
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error>;
    /// Takes results whose values the guest can still change. Copies the values to their own place,
    /// and accepts the column with that copy after `check` has accepted it. Returns false if it did
    /// nothing. Then the results come by [`Output::accept`].
    ///
    /// # Errors
    /// The error of `check`; or an error if the engine cannot hold the results.
    fn accept_borrowed(
        &mut self,
        _first: usize,
        _results: &Column<'_>,
        _values: Borrowed<'_>,
        _check: &mut dyn FnMut(&Column<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        Ok(false)
    }
    /// Makes one row NULL.
    fn null(&mut self, row: usize);
}

/// The output of an entry that is answered without results.
impl Output for () {
    fn accept(&mut self, _first: usize, _results: &Column<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

/// An output for results whose first row is `first` in another output.
#[derive(Debug)]
pub struct Behind<'a, O: ?Sized> {
    /// The row of the other output.
    pub first: usize,
    /// The other output.
    pub output: &'a mut O,
}

impl<O: Output + ?Sized> Output for Behind<'_, O> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.output.accept(self.first + first, results)
    }
    fn accept_borrowed(
        &mut self,
        first: usize,
        results: &Column<'_>,
        values: Borrowed<'_>,
        check: &mut dyn FnMut(&Column<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        self.output.accept_borrowed(self.first + first, results, values, check)
    }
    fn null(&mut self, row: usize) {
        self.output.null(self.first + row);
    }
}
