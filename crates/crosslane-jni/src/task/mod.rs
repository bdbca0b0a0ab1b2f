//! The work of one Spark task.
//!
//! A task has a [`Program`]. The program says what happens with each batch of rows: calls of scalar
//! functions, the rows of a table function, or the results of a stream function. A thread of the
//! task's own works off batch after batch. Meanwhile Spark's thread reads the next rows and passes
//! results on. So both directions are busy, and all that belongs to Spark (the input, its context,
//! its memory) stays on Spark's thread.
//!
//! # Protocol
//! Two queues lead to the thread and back. Spark's thread hands over at most `depth` batches before
//! it has taken all answers to the oldest one. Answers come in the order of the batches. An answer
//! may say that the function wants one more batch. So the first queue stays short. The second queue
//! has room for a few answers. The memory of a batch belongs to the thread from [`Task::submit`]
//! until Spark's thread has taken the batch's last answer or an error, or until [`Task::end`] has
//! returned. Nothing comes after an error.
//!
//! | waiting thread | for | what ends the wait |
//! |---|---|---|
//! | Spark's thread, in [`Task::take`] | an answer | an answer, an error, or the timeout |
//! | the thread | a batch | a batch, or the end of the queue: [`Task::finish`], [`Task::end`] |
//! | the thread | room for an answer | Spark's thread takes one, or [`Task::end`] drops the queue |
//! | the thread | a guest | the reply, the guest's death, the deadline, or the cancellation by [`Task::end`] |
//!
//! | module | content |
//! |---|---|
//! | `counts` | what the answers cost |
//! | `program` | what a program consists of, and the check that its parts fit |
//! | `work` | the thread's queues, and the answers that it gives |
//! | `run` | how the thread runs a program |
//! | `handle` | the task as Spark's thread sees it |

mod counts;
mod handle;
mod program;
mod run;
mod work;

pub use counts::Counts;
pub use handle::Task;
pub use program::{Argument, Program, Step};
pub use work::Answer;
