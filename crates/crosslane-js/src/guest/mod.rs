//! A guest is an isolate that runs the functions of its library on batches. The thread of a lane runs it.
//!
//! | file | what is in it |
//! |---|---|
//! | `calls` | [`Guest`]: set-up, calls, scans and aggregate entries, and what it does when a call fails |
//! | `outcome` | what a call or a step of a scan ends with |
//! | `columns` | the columns of a batch as arguments for JavaScript |
//! | `results` | the buffers that JavaScript filled, as the column of a reply |

mod calls;
mod columns;
mod outcome;
mod results;

pub use calls::{Guest, MEMORY};
pub use outcome::{Answer, News, Step};
pub use results::Results;
