//! Groups of workers, and the types for users: schedulers, builders and handles.

mod builder;
mod group;
mod handle;
mod options;
mod running;
mod shutdown;

pub use builder::Builder;
pub(crate) use group::Group;
pub use handle::Handle;
pub use running::Scheduler;
pub use shutdown::Shutdown;
