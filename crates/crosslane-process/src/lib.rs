//! Process lanes: a guest runs in a process of its own, and two rings in shared memory connect it
//! to the engine.
//!
//! | part | work |
//! |---|---|
//! | engine | [`Zygote`] starts `interpreter -m crosslane._worker.zygote` for one library and asks it for lanes |
//! | zygote | loads the library once, forks a child per lane, reaps the children and reports how they ended |
//! | lane | the child: [`guest::GuestLane`] takes calls from the ring and answers them |
//!
//! In addition to its memory, a lane has a socket pair (`SOCK_SEQPACKET`). The socket carries
//! descriptors of memory for frames that do not fit into the ring. Its end tells the guest that the
//! engine is gone. The output of a lane goes through a pipe to the [`warden`], which writes it to
//! the log.

mod aligned;
pub mod control;
pub mod definition;
mod external;
mod files;
pub mod guest;
mod identity;
mod lane;
pub mod limits;
mod metadata;
mod placement;
mod poll;
mod source;
#[doc(hidden)]
pub mod testing;
mod warden;
mod zygote;

pub use aligned::Aligned;
pub use files::{Files, Looks, Watched, hash};
pub use lane::ProcessLane;
pub use metadata::{OWN_SANDBOX, own_sandbox};
pub use source::Source;
pub use warden::bounds::Allowance;
pub use warden::log::{
    LogForm, flush as flush_log, occupy_standard_descriptors, print as print_to_log, report_panics,
    set_log_form,
};
pub use zygote::{
    ForkServer, Loaded, Origin, Program, Zygote, ZygoteOptions, ask_for_connections, environment, guests,
    prepared_ruby, reaper,
};
