//! The waits of a call.

use crate::call::chunk::chunk_call::ChunkCall;
use crate::call::clock::{FAR, FEW, Trouble, cores};
use crate::call::loss::Loss;
use crate::error::Error;
use crate::lane::Patience;
use crate::pool::Zygote;
use smallvec::SmallVec;

impl<Z: Zygote> ChunkCall<'_, Z> {
    /// How to wait for the next reply.
    fn patience(&self) -> Patience {
        let first = self
            .lanes
            .iter()
            .filter_map(|worker| worker.slices.first())
            .map(|submitted| submitted.slice.rows.len());
        match first.min().and_then(|rows| self.cost.estimate(rows)) {
            Some(estimate) if estimate > FAR => Patience::Sleep,
            // Each lane at work keeps a core busy, in addition to the core that would spin.
            Some(_) if 2 * self.caller.group.busy() <= cores() => Patience::SpinLonger,
            _ => Patience::Spin,
        }
    }

    /// Waits for a reply, or until it is time to look.
    pub(super) fn wait(&mut self) {
        let patience = self.patience();
        let lanes: SmallVec<[&mut Z::Lane; FEW]> = self
            .lanes
            .iter_mut()
            .filter(|worker| !worker.slices.is_empty())
            .map(|worker| &mut *worker.lane)
            .collect();
        self.clock.wait(&lanes, patience);
    }

    /// Looks for cancellation, deaths and deadlines whenever it is time, even if replies come. A
    /// guest may wake its engine, or answer, all the time.
    pub(super) fn look(&mut self) -> Result<(), Error> {
        if !self.clock.due(self.function, self.caller)? {
            return Ok(());
        }
        let mut index = 0;
        while index < self.lanes.len() {
            match self.lanes[index].trouble(&self.clock) {
                None => index += 1,
                Some(Trouble::Dead(error)) => self.drain_dead(index, &error)?,
                Some(Trouble::Late(late)) => self.lose(index, Loss::Late(&late))?,
            }
        }
        Ok(())
    }
}
