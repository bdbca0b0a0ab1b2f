//! A batch of which a worker gets only some rows, because the results of the others are known.

use crate::server::budget::Held;
use crosslane::batch::{self, Frame};
use crosslane::call::Reuse;
use crosslane::{DataType, Error, Failure};

/// A batch of which some rows are called.
pub(super) struct Partly {
    reuse: Reuse,
    /// Room for the results that were found. They may have more bytes than the client has sent.
    _room: Held,
}

impl Partly {
    pub(super) fn new(reuse: Reuse, room: Held) -> Self {
        Self { reuse, _room: room }
    }

    /// How many rows the client has sent.
    pub(super) fn rows(&self) -> usize {
        self.reuse.rows()
    }

    /// How many rows are called.
    pub(super) fn called(&self) -> usize {
        self.reuse.called()
    }

    /// The row of the client's batch for a row that is called.
    pub(super) fn row(&self, called: u32) -> u32 {
        self.reuse.row(called)
    }

    /// The results of all rows, if none is called; or why they cannot be sent.
    pub(super) fn known(&self, most: usize) -> Result<Frame, Failure> {
        sendable(self.reuse.answer(None, most), most)
    }

    /// Keeps the results of a reply. Returns those of all rows of the client, or why they cannot be
    /// sent.
    ///
    /// # Errors
    /// What is wrong with the reply.
    pub(super) fn completed(
        &self,
        frame: &[u8],
        returns: &DataType,
        most: usize,
    ) -> Result<Result<Frame, Failure>, String> {
        let results = batch::column(frame, returns).map_err(|malformed| malformed.to_string())?;
        let all = self.reuse.keep(&results).and_then(|()| self.reuse.answer(Some(&results), most));
        Ok(sendable(all, most))
    }
}

/// The answer to a client, or why it cannot be sent.
fn sendable(answer: Result<Option<Frame>, Error>, most: usize) -> Result<Frame, Failure> {
    let message = match answer {
        Ok(Some(frame)) => return Ok(frame),
        Ok(None) => format!("the results of a batch exceed {most} bytes (--largest-batch)"),
        Err(error) => error.to_string(),
    };
    Err(Failure { class: "TooLarge".into(), message, ..Failure::default() })
}
