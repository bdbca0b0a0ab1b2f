//! Messages as they travel: a header, and for a batch the nodes and buffers of an Arrow record batch, and its body.
//!
//! | part | bytes | content (little-endian) |
//! |---|---|---|
//! | [`Header`] | 64 | what the frame is, and how many nodes and buffers follow |
//! | nodes | 16 each | (rows, nulls) of each column, depth first, as Arrow's `FieldNode` |
//! | buffers | 16 each | (offset in the body, bytes), in Arrow's order, as Arrow's `Buffer` |
//! | types | | of the arguments of a function that takes any, as text; else nothing |
//! | body | | the buffers, each at a multiple of 8; the body itself begins at a multiple of 64 |
//!
//! This is the content of an Arrow IPC record batch without its flatbuffer envelope: both sides
//! know the types from the signature, so that an envelope would carry nothing but work.

use bytemuck::{Pod, Zeroable};

/// The message is a batch: of the engine, the arguments; of the guest, one column, the results.
pub const BATCH: u16 = 1;
/// The message is a [`crate::Failure`] as JSON, `rows` bytes long behind the header. It is the guest's last.
pub const FAILURE: u16 = 2;
/// The engine wants no more of this exchange, nor of those before it.
pub const CANCEL: u16 = 3;

/// The flag of a side's last message of an exchange.
pub const LAST: u16 = 1;

/// The first 64 bytes of every message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    /// [`BATCH`], [`FAILURE`] or [`CANCEL`].
    pub kind: u16,
    /// [`LAST`], or 0.
    pub flags: u16,
    /// The function's index in its library.
    pub function: u32,
    /// Which exchange of the lane it belongs to; they are counted from 1.
    pub exchange: u64,
    /// Rows of the batch; of a failure, the bytes of its text.
    pub rows: u32,
    /// How many nodes follow.
    pub nodes: u32,
    /// How many buffers follow.
    pub buffers: u32,
    /// Of the guest: how many rows became NULL because of `on_error = null`.
    pub errors: u32,
    /// Of the guest: how many calls were tried again.
    pub retries: u32,
    /// In a failure: the row that failed, or `u32::MAX`. In results of [`crate::Entry::Iterate`]: how many batches the guest has
    /// taken.
    pub row: u32,
    /// Of the guest: for how many nanoseconds it waited for the engine since its last message.
    pub waited: u64,
    /// Of the guest: for how many it then worked on this message.
    pub worked: u64,
    /// In arguments of a function that takes any type: the bytes of the text of their types; else 0.
    pub types: u32,
    /// Which [`crate::Entry`] of the function the exchange is for.
    pub entry: u32,
}

pub(super) const HEADER: usize = size_of::<Header>();
/// The first bytes of a frame in which [`last_buffer`] finds all that it looks for.
pub const HEAD: usize = HEADER + size_of::<Node>() + MOST_BUFFERS * size_of::<Span>();
/// Buffers of a column without children: validity, offsets, values.
pub(super) const MOST_BUFFERS: usize = 3;
/// A shorter buffer is copied with all before it.
pub(super) const LONG: usize = 1024;
/// Three texts as JSON, in which a byte may take six.
pub(super) const LONGEST_FAILURE: usize = 2 << 20;

/// Rows and NULLs of one column.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Node {
    pub(super) rows: u64,
    pub(super) nulls: u64,
}

/// Where a buffer lies in the body.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) length: u64,
}
