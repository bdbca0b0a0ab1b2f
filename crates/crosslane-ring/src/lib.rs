//! Byte rings in shared memory, one producer and one consumer each.
//!
//! A lane is one memfd that holds a header and two rings, requests (engine to guest) and
//! replies (guest to engine). Each side maps it once and has [`Ends`] of it: the producer of one ring
//! and the consumer of the other. The ends are neither `Clone` nor shared, and their methods take
//! `&mut self`, so that a second producer or consumer on one side does not compile:
//!
//! ```compile_fail,E0277
//! fn cloned(ring: impl Clone) {}
//! cloned(crosslane_ring::heap_ring(64).0);
//! ```
//!
//! Nor does opening a lane's memory without the promise that it was not opened before:
//!
//! ```compile_fail,E0133
//! # let (engine, memory) = crosslane_ring::Ends::create(4096)?;
//! let guest = crosslane_ring::Ends::open(memory)?;
//! # Ok::<(), crosslane_ring::RegionError>(())
//! ```
//!
//! A [`Grant`] and a [`Frame`] belong to their ring, which can do nothing else meanwhile. There is no way
//! to commit a grant to another ring, to commit two at a time, or to release a frame twice:
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
//! Positions (`write`, `read`) count bytes since the ring was made and never wrap; the place in
//! the data is `position % capacity`. `write` is stored by the producer alone, `read` by the
//! consumer alone; each side keeps its own position privately and never reads it back.
//!
//! A frame is one little-endian word (`length | tag << 32`) and `length` bytes, padded to eight.
//! Frames are contiguous: where the rest of the data is too short for a frame, the producer puts
//! the word [`END_OF_RING`] there and begins at place 0. So it does where the ring is empty and a
//! sixteenth of it, or more than twice the frame, was written before it: batches that are answered before the next ones come all lie
//! in the same memory, which stays in the caches, and not in that of the whole ring in turns. The marker and the frame behind it are
//! published by one release store of `write`, so a consumer that sees the marker (after its acquire
//! load of `write`) also sees the frame; the marker is one aligned word and cannot tear.
//! A frame takes at most half the capacity, so an empty ring always has room for it.
//!
//! # Parking
//!
//! Who finds nothing to do spins for a short while with `sched_yield`, then parks: it stores 1 in the
//! wait word, issues a sequentially consistent fence, looks again, and only then sleeps on the
//! word with a futex. Who publishes a position issues the same fence and looks at the wait word:
//! of the two fences one comes first, so either the waiter sees the position or the publisher sees
//! the waiter. Every sleep has an end time, because the other side may die without a wake. [`wait_any`] does this for several
//! words, and for descriptors beside them.
//!
//! # Trust
//!
//! Either side may be hostile: every position and length that the other side stored is checked
//! before use, and a violation is a [`RingError`], never an access outside the mapping. What is checked is
//! read from the shared memory once. The memfd is sealed against shrinking, so an access inside the
//! mapping cannot fault.
//!
//! The protocol is model-checked with loom (`tests/it/loom.rs`) and run under Miri.

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

#[cfg(not(loom))]
pub use heap::{Heap, heap_ring};
pub use park::{Alarm, Bell, Parked, Spin, Waiter, Watch, wait_any, wait_either};
#[cfg(not(loom))]
pub use region::{Ends, MappedRing, Place, Places, ProgressWord, RegionError};
pub use ring::{Consumer, END_OF_RING, Frame, Grant, Memory, Producer, RingError, RingHeader};
pub use slice::Slice;
