//! A running call of a chunk.

use crate::call::chunk::worker::{Slice, Worker};
use crate::call::clock::Clock;
use crate::call::{Caller, Input, Output};
use crate::cost::{Cost, Width};
use crate::error::Error;
use crate::function::{EntryTypes, Function, Library};
use crate::lane::Entry;
use crate::pool::Zygote;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;

/// A running call.
pub(super) struct ChunkCall<'a, Z: Zygote> {
    pub(super) library: &'a Library<Z>,
    pub(super) function: &'a Function,
    pub(super) entry: Entry,
    /// The types of the entry's columns.
    pub(super) types: EntryTypes<'a>,
    pub(super) cost: &'a Cost,
    pub(super) caller: Caller<'a>,
    pub(super) input: &'a dyn Input,
    pub(super) output: &'a mut dyn Output,
    /// Rows that have not yet been cut into slices.
    pub(super) rest: Range<usize>,
    /// The width of the arguments' rows, if they are narrower than those of earlier calls.
    pub(super) narrow: Option<Width>,
    /// Slices that were lost with a lane.
    pub(super) again: VecDeque<Slice>,
    pub(super) lanes: SmallVec<[Worker<'a, Z::Lane>; 1]>,
    /// Whether the only lane belongs to the caller.
    pub(super) held: bool,
    /// Whether a slice is in flight whose reply will show what a row costs.
    pub(super) probing: bool,
    pub(super) clock: Clock,
}

impl<'a, Z: Zygote> ChunkCall<'a, Z> {
    /// A call of all rows; `None` if there are none.
    pub(super) fn new(
        library: &'a Library<Z>,
        function: &'a Function,
        entry: Entry,
        caller: Caller<'a>,
        input: &'a dyn Input,
        output: &'a mut dyn Output,
    ) -> Result<Option<Self>, Error> {
        let types = function.entry(entry)?;
        if !entry.is_answered_once() {
            return Err(Error::Engine(format!("{}: {entry:?} has any number of answers", function.name())));
        }
        let rows = input.rows();
        if rows == 0 {
            return Ok(None);
        }
        // A query of many short calls is cancelled between them, because no wait is long enough to
        // look.
        if caller.was_cancelled() {
            return Err(Caller::cancelled(function));
        }
        Ok(Some(Self {
            library,
            function,
            entry,
            types,
            cost: function.cost(entry),
            caller,
            input,
            output,
            rest: 0..rows,
            narrow: None,
            again: VecDeque::new(),
            lanes: SmallVec::new(),
            held: false,
            probing: false,
            clock: Clock::new(function),
        }))
    }
}
