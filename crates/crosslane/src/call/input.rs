//! What a call takes from the engine, and what it gives.

use crate::batch::{Borrowed, Column, Encode, Frame};
use crate::error::Error;
use std::ops::Range;

/// The arguments of a call, as the engine holds them.
pub trait Input {
    /// Rows of the batch.
    fn rows(&self) -> usize;
    /// Gives `take` some of the rows, ready to be written into a ring. It is called once, unless there is an error.
    ///
    /// # Errors
    /// If there are no such rows, or there is no memory to find them with.
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error>;
    /// Some of the rows as a batch outside of a lane.
    ///
    /// # Errors
    /// As [`Input::slice`] and [`Frame::new`].
    fn frame(&self, rows: Range<usize>) -> Result<Frame, Error> {
        let (count, mut frame) = (rows.len(), None);
        self.slice(rows, &mut |content| frame = Some(Frame::new(content, count)))?;
        frame.unwrap_or_else(|| Err(Error::Engine(format!("an input without {count} rows"))))
    }
}

/// Where the results go.
pub trait Output {
    /// Takes the results of the rows from `first` on.
    ///
    /// # Errors
    /// If the engine cannot hold them.
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error>;
    /// The same for results whose values the guest can still change: copies the values to their own place and accepts the
    /// column with that copy, after `check` has accepted it. False if nothing was done: then the results come by
    /// [`Output::accept`].
    ///
    /// # Errors
    /// That of `check`; or if the engine cannot hold them.
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

/// Of an entry that is answered without results.
impl Output for () {
    fn accept(&mut self, _first: usize, _results: &Column<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}
