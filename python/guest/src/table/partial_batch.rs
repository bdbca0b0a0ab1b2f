//! Some rows of a batch of columns.

use crate::arrow::Piece;
use crosslane::batch::{Body, Encode, Plan};

/// Rows of a batch, as STRUCTs.
pub(super) struct PartialBatch<'a> {
    pub(super) rows: usize,
    pub(super) pieces: Vec<Piece<'a>>,
}

impl PartialBatch<'_> {
    pub(super) fn none() -> Self {
        Self { rows: 0, pieces: Vec::new() }
    }
}

impl Encode for PartialBatch<'_> {
    fn plan(&self, plan: &mut Plan) {
        plan.node(self.rows, 0);
        plan.buffer(0);
        self.pieces.iter().for_each(|piece| piece.plan(plan));
    }

    fn write(&self, body: &mut Body<'_>) {
        body.buffer();
        self.pieces.iter().for_each(|piece| piece.write(body));
    }
}
