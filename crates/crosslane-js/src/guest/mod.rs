//! A guest is an isolate that runs the functions of its library on batches. The thread of a lane
//! runs it.
//!
//! | file | content |
//! |---|---|
//! | `calls` | [`Guest`]: set-up, calls, scans, aggregate entries, and failures of calls |
//! | `outcome` | how a call or a step of a scan ends |
//! | `columns` | makes arguments for JavaScript of the columns of a batch |
//! | `results` | makes the column of a reply of the buffers that JavaScript filled |

mod calls;
mod columns;
mod outcome;
mod results;

pub use calls::{Guest, MEMORY};
pub use outcome::{Answer, News, Step};
pub use results::Results;
