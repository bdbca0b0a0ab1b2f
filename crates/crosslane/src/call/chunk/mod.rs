//! The call of one chunk, cut into slices, over one lane or several.

mod budget;
mod chunk_call;
mod deliver;
mod feed;
mod lost;
mod once;
mod paced;
mod replies;
mod run;
mod wait;
mod worker;

pub use budget::budgeted;
pub use deliver::deliver;
pub use once::once;
pub use run::{call, call_on};
