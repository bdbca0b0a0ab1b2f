//! Scalar functions: of rows, of several rows at once (`async`), and of whole columns (vectorized).

mod batch;
mod columns;
mod concurrent;
mod elements;
mod function;
mod rows;
mod vectorized;

pub(crate) use columns::why_not_columns;
pub(crate) use elements::Elements;
pub(crate) use function::Function;
