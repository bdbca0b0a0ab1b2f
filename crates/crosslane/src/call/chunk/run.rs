//! The loop of a call, which sends slices, collects results, and waits.

use crate::call::chunk::budget::budgeted;
use crate::call::chunk::chunk_call::ChunkCall;
use crate::call::chunk::once::once;
use crate::call::chunk::paced::paced;
use crate::call::chunk::worker::Worker;
use crate::call::{Caller, Input, Output, Spent};
use crate::error::Error;
use crate::function::{Function, Library};
use crate::lane::{Entry, Lane};
use crate::pool::{PooledLane, Zygote};

/// Calls `function` with all rows of `input`, once for equal rows where that is faster.
///
/// # Errors
/// The error that the function raised, or how its lane was lost; see [`Error`].
pub fn call<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    caller: Caller<'_>,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let own = Spent::default();
    let spent = caller.spent.unwrap_or(&own);
    let caller = caller.spending(spent);
    once(function, input, output, &mut |input, output| {
        budgeted(function, spent, input, output, &mut |input, output| {
            // The boot of a lane may take long.
            let prepare = || {
                let lane = caller.check_out(library, function)?;
                library.pool.of(function).give_back(lane);
                Ok(())
            };
            paced(function, caller, (input, output), prepare, &mut |input, output| {
                call_rows(library, function, caller, input, output)
            })
        })
    })
}

/// Calls `function` with each row of `input`.
fn call_rows<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    caller: Caller<'_>,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let Some(mut call) = ChunkCall::new(library, function, Entry::Call, caller, input, output)? else {
        return Ok(());
    };
    let outcome = call.run();
    // Lanes that failed are gone already. Giving back a lane that still works on a slice ends it.
    let pool = library.pool.of(function);
    call.lanes.into_iter().for_each(|worker| pool.give_back(worker.lane));
    outcome
}

/// Uses an entry of `function` with all rows of `input`, which has the columns of the entry
/// ([`crate::EntryTypes`]). It uses only the lane of the caller, because that lane holds the state
/// that the entry works on. If the lane is lost, or still works, `lane` becomes `None`. Nothing is
/// sent again.
///
/// # Errors
/// As [`call`]; [`Error::LaneDied`] if there is no lane; [`Error::Engine`] if the function has no
/// such entry, or the entry is a scan.
pub fn call_on<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    entry: Entry,
    caller: Caller<'_>,
    lane: &mut Option<PooledLane<Z::Lane>>,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let Some(mut call) = ChunkCall::new(library, function, entry, caller, input, output)? else {
        return Ok(());
    };
    let Some(held) = lane.take() else { return Err(call.died("its worker is gone".into(), None)) };
    call.held = true;
    call.lanes.push(Worker::new(held, caller.group.join(), false));
    let outcome = call.run();
    *lane = call.lanes.pop().map(|worker| worker.lane).filter(|lane| lane.in_flight() == 0);
    outcome
}

impl<Z: Zygote> ChunkCall<'_, Z> {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.feed()?;
            let busy = self.lanes.iter().any(|worker| !worker.slices.is_empty());
            if !busy && self.again.is_empty() && self.rest.is_empty() {
                return Ok(());
            }
            // Slices may have been cut, or their lane lost on the way. Then they are sent again.
            if !self.collect()? && (busy || !self.has_more()) {
                self.wait();
            }
            self.look()?;
        }
    }
}
