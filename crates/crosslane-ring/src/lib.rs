//! Byte rings in shared memory. Each ring has one producer and one consumer.
//!
//! A lane is one memfd with a header and two rings: requests (engine to guest) and replies (guest
//! to engine). Each side maps the memfd once and has its [`Ends`]: the producer of one ring and the
//! consumer of the other. The ends are neither `Clone` nor shared, and their methods take `&mut
//! self`. So a second producer or consumer on one side does not compile:
//!
//! ```compile_fail,E0277
//! fn cloned(ring: impl Clone) {}
//! cloned(crosslane_ring::heap_ring(64).0);
//! ```
//!
//! To open a lane's memory, the caller must promise (`unsafe`) that no other code has opened it
//! before:
//!
//! ```compile_fail,E0133
//! # let (engine, memory) = crosslane_ring::Ends::create(4096)?;
//! let guest = crosslane_ring::Ends::open(memory)?;
//! # Ok::<(), crosslane_ring::RegionError>(())
//! ```
//!
//! A [`Grant`] and a [`Frame`] borrow their ring. So it is impossible to commit a grant to another
//! ring, to hold two grants at a time, or to release a frame twice:
//!
//! ```compile_fail,E0499
//! # let (mut producer, _) = crosslane_ring::heap_ring(64);
//! let one = producer.reserve(8)?;
//! let two = producer.reserve(8)?;
//! one.unwrap().commit(8, 0);
//! # Ok::<(), crosslane_ring::RingError>(())
//! ```
//!
//! ```compile_fail,E0382
//! # let (_, mut consumer) = crosslane_ring::heap_ring(64);
//! let frame = consumer.peek()?.unwrap();
//! frame.release();
//! frame.release();
//! # Ok::<(), crosslane_ring::RingError>(())
//! ```
//!
//! ```compile_fail,E0499
//! # let (_, mut consumer) = crosslane_ring::heap_ring(64);
//! let frame = consumer.peek()?.unwrap();
//! let same = consumer.peek()?.unwrap();
//! frame.release();
//! # Ok::<(), crosslane_ring::RingError>(())
//! ```
//!
//! # The ring protocol
//!
//! Positions (`write`, `read`) count bytes since the ring was made, and never wrap. The offset in
//! the data is `position % capacity`. Only the producer stores `write`, and only the consumer
//! stores `read`. Each side also keeps its own position in private memory, and never reads it from
//! the ring.
//!
//! A frame is one little-endian word (`length | tag << 32`) and `length` bytes, padded to eight.
//! Frames are contiguous. If the rest of the data is too short for a frame, the producer stores the
//! marker [`END_OF_RING`] there, and continues at offset 0. It also does so if the ring is empty,
//! and its offset is at least a sixteenth of the capacity and at least two frames. So batches that
//! are answered one by one reuse the same memory. This memory stays in the caches, unlike the whole
//! ring. One release store of `write` publishes the marker and the frame after it. So a consumer
//! that sees the marker after its acquire load of `write` also sees the frame. The marker is one
//! aligned word and cannot tear. A frame takes at most half the capacity, so an empty ring always
//! has space for it.
//!
//! # Parking
//!
//! A thread that finds nothing to do spins for a short time with `sched_yield`. If another program
//! uses the processor, a yield costs a whole time slice, so the thread then does not spin for a
//! while. After the spin it parks: it stores 1 in the wait word, issues a sequentially consistent
//! fence, and looks again. Only then it sleeps on the word with a futex. A thread that publishes a
//! position issues the same fence, and then looks at the wait word. One of the two fences comes
//! first, so either the waiter sees the position, or the publisher sees the waiter. Every sleep has
//! an end time, because the other side may die without a wake. [`wait_any`] does this for several
//! words and descriptors.
//!
//! # Trust
//!
//! Either side may be hostile. So each side checks every position and length of the other side
//! before it uses them. A violation is a [`RingError`], never an access outside the mapping. Each
//! side reads a checked value from the shared memory only once. The memfd is sealed against
//! shrinking, so an access inside the mapping cannot fault.
//!
//! Loom checks a model of the protocol (`tests/it/loom.rs`), and tests run under Miri.

#[cfg(not(target_os = "linux"))]
compile_error!("Crosslane runs on Linux: its lanes need memfds and futexes");

mod futex;
#[cfg(not(loom))]
mod heap;
mod park;
#[cfg(not(loom))]
mod region;
mod ring;
mod slice;
mod sync;
mod wait;

#[cfg(not(loom))]
pub use heap::{Heap, heap_ring};
pub use park::{Bell, Parked, Spin, Waiter, wait_any};
#[cfg(not(loom))]
pub use region::{Ends, Location, Locations, MappedRing, ProgressWord, RegionError};
pub use ring::{Consumer, END_OF_RING, Frame, Grant, Memory, Producer, RingError, RingHeader};
pub use slice::Slice;
pub use wait::{Alarm, Watch, wait_either};
