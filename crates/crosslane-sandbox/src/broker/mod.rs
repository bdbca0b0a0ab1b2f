//! Connections to listed hosts. The engine makes them for the process of a library.
//!
//! # Protocol
//! 1. Before it loads the library, its process calls `listen`. From then on the kernel hands each
//!    `connect` of this process, and of all that it starts, to the owner of the returned descriptor.
//!    The process sends the descriptor to its engine, keeps no copy, and calls `probe`.
//! 2. A thread of the engine runs [`Broker::serve`]. For each call, it copies the address out of the
//!    caller's memory, and looks for it in the list. It takes a descriptor of the caller's own socket,
//!    connects that to the copied address, and answers the call.
//! 3. It never lets the kernel run the caller's own call: another thread of the process may have
//!    changed the address in memory.
//! 4. The thread ends when no process has the filter any more.
//!
//! # Names
//! Processes in such a sandbox have no datagrams, and the variable [`RESOLVER`] makes the C library ask
//! its name servers over TCP. The engine answers a connection to a name server itself: it resolves
//! names that are listed, and says of all others that they do not exist. Connections to the addresses of
//! listed names are allowed from then on.
//!
//! # Waits
//! While a caller waits, its socket does not block, and the broker polls it. So one thread serves all
//! callers, however slow the hosts are. The caller's process shares the socket's flags: if it makes
//! the socket block while the broker connects it, the broker may wait in `connect` until the kernel gives
//! up, for about two minutes. That stops the connections of this library, and of no other. A signal may end
//! the caller's wait. Its answer is dropped then. If the C library repeats the call, the broker gets
//! it as a new one.

pub(crate) mod connect;
pub(crate) mod hosts;
pub(crate) mod listener;
pub(crate) mod names;

pub use connect::Broker;

/// The variable that makes the C library ask for names over TCP, and first without the domains that it
/// may append, and its value.
pub const RESOLVER: (&str, &str) = ("RES_OPTIONS", "use-vc ndots:0");
