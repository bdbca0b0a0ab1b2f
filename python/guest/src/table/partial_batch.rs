//! Some rows of a batch of columns.

use crate::arrow;
use crosslane::ColumnBuilder;
use crosslane::batch::{Body, Encode, Plan};

/// Rows of a batch, as STRUCTs.
pub(super) struct PartialBatch<'a> {
    pub(super) rows: usize,
    pub(super) pieces: Vec<Piece<'a>>,
}

pub(super) enum Piece<'a> {
    Array(arrow::Part<'a>),
    Values(ColumnBuilder),
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
        for piece in &self.pieces {
            match piece {
                Piece::Array(part) => part.plan(plan),
                Piece::Values(out) => out.plan(plan),
            }
        }
    }

    fn write(&self, body: &mut Body<'_>) {
        body.buffer();
        for piece in &self.pieces {
            match piece {
                Piece::Array(part) => part.write(body),
                Piece::Values(out) => out.write(body),
            }
        }
    }
}
