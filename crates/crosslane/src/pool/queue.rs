//! The queue of a pool's waiters: which thread waits, which waiter gets a lane, and which lanes are
//! surplus.

use super::per_thread::Cells;
use super::state::{Kept, Place, State, Turn};
use crate::error::Error;
use crate::lane::Lane;
use crate::stats::LaneStats;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ThreadId;
use std::time::Instant;

impl<L: Lane> State<L> {
    /// Takes a lane for a thread that is not in the queue, unless others wait.
    pub(super) fn take_free(&mut self, cells: &Cells<Kept<L>>) -> Option<Box<Kept<L>>> {
        if self.is_awaited() { None } else { self.take(cells) }
    }

    /// Takes the warmest idle lane whose guest lives, or a lane from a cell.
    pub(super) fn take(&mut self, cells: &Cells<Kept<L>>) -> Option<Box<Kept<L>>> {
        loop {
            let mut kept = self.idle.pop();
            if kept.is_none() {
                kept = cells.take_any();
                self.out -= usize::from(kept.is_some());
            }
            let kept = kept?;
            if !kept.lane.has_ended() {
                self.lend(&kept);
                return Some(kept);
            }
            self.forget(&kept.stats);
        }
    }

    pub(super) fn lend(&mut self, kept: &Kept<L>) {
        kept.stats.busy.store(true, Relaxed);
        self.out += 1;
        self.keep_warm = true;
        self.used = true;
    }

    /// How many lanes the pool should have when no thread waits.
    pub(super) fn wanted(&self) -> usize {
        let warm = match (self.keep_warm, self.used) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.options.warm.max(1),
        };
        self.cap.map_or(warm, |cap| warm.min(cap)).min(self.most)
    }

    /// Whether the pool may have another lane.
    pub(super) fn has_room(&self) -> bool {
        self.idle.len() + self.out < self.most
    }

    /// Takes out the idle lanes that are too many in all pools together.
    pub(super) fn take_surplus(&mut self) -> Vec<Box<Kept<L>>> {
        let count = std::mem::take(&mut self.surplus).min(self.idle.len());
        if count > 0 {
            self.cap = Some(self.idle.len() + self.out - count);
        }
        // These lanes were used longest ago.
        let leaving: Vec<_> = self.idle.drain(..count).collect();
        self.lanes.retain(|living| !leaving.iter().any(|kept| Arc::ptr_eq(&kept.stats, living)));
        leaving
    }

    /// Takes back a lane that its caller does not use any more. The lane goes to the first waiter, or is
    /// idle.
    pub(super) fn receive(&mut self, kept: Box<Kept<L>>) {
        self.out -= 1;
        self.last_used = self.last_used.max(kept.since);
        if let Some(kept) = self.serve(kept) {
            self.idle.push(kept);
        }
    }

    pub(super) fn forget(&mut self, stats: &Arc<LaneStats>) {
        self.stats.discarded += 1;
        self.lanes.retain(|living| !Arc::ptr_eq(living, stats));
    }

    /// Whether a waiter has no lane yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.queue.iter().any(|place| !matches!(place.turn, Turn::Served(_)))
    }

    /// Whether a waiter needs another lane: more waiters are due than lanes prepare themselves.
    pub(super) fn is_due(&self) -> bool {
        self.has_room()
            && self.queue.iter().filter(|place| matches!(place.turn, Turn::Due)).count() > self.preparing
    }

    /// Gives a free lane to the first waiter. Returns the lane if there is no waiter.
    pub(super) fn serve(&mut self, kept: Box<Kept<L>>) -> Option<Box<Kept<L>>> {
        let Some(at) = self.queue.iter().position(|place| !matches!(place.turn, Turn::Served(_))) else {
            return Some(kept);
        };
        self.lend(&kept);
        self.queue[at].turn = Turn::Served(kept);
        None
    }

    /// Passes the error of a boot to the first waiter that is due.
    pub(super) fn refuse(&mut self, error: Error) {
        if let Some(place) = self.queue.iter_mut().find(|place| matches!(place.turn, Turn::Due)) {
            place.turn = Turn::Refused(error);
        }
    }

    /// Adds this thread to the end of the queue. Returns its ticket.
    pub(super) fn enqueue(&mut self) -> u64 {
        self.stats.waited += 1;
        self.keep_warm = true;
        self.used = true;
        self.cap = None;
        self.last_used = Instant::now();
        let thread = std::thread::current().id();
        self.queue.push_back(Place { ticket: self.stats.waited, thread, turn: Turn::Due });
        self.stats.waited
    }

    /// Whether refused waiters hold all lanes that are out. Then no lane comes back before one of
    /// these waiters gets an error.
    pub(super) fn is_stuck(&self) -> bool {
        let refused = |thread: &ThreadId| {
            let mut places = self.queue.iter();
            places.any(|place| place.thread == *thread && matches!(place.turn, Turn::Refused(_)))
        };
        self.held.values().filter(|thread| refused(thread)).count() == self.out
    }

    /// How a wait ended: with a lane, with no lane because the waiter left, or with an error.
    /// `None` if the wait goes on.
    pub(super) fn leave(&mut self, ticket: u64, left: bool) -> Option<Result<Option<Box<Kept<L>>>, Error>> {
        let at = self.queue.iter().position(|place| place.ticket == ticket)?;
        let over = match &self.queue[at].turn {
            Turn::Served(_) => true,
            Turn::Refused(_) if self.is_stuck() => true,
            Turn::Refused(_) | Turn::Due => left,
        };
        let place = if over { self.queue.remove(at)? } else { return None };
        Some(match place.turn {
            Turn::Served(kept) => Ok(Some(kept)),
            Turn::Refused(error) if !left => Err(error),
            Turn::Refused(_) | Turn::Due => Ok(None),
        })
    }
}
