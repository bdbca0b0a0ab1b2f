//! The format of messages. Each message has a header. A batch also has the nodes and buffers of an
//! Arrow record batch, and its body.
//!
//! | part | bytes | content (little-endian) |
//! |---|---|---|
//! | [`Header`] | 64 | what the frame is, and how many nodes and buffers follow |
//! | nodes | 16 each | (rows, nulls) of each column, depth first, as Arrow's `FieldNode` |
//! | buffers | 16 each | (offset in the body, bytes), in Arrow's order, as Arrow's `Buffer` |
//! | types | | the types of the arguments as text, if the function takes any types; else empty |
//! | body | | the buffers, each at a multiple of 8; the body begins at a multiple of 64 |
//!
//! This is the content of an Arrow IPC record batch without its flatbuffer envelope. Both sides
//! know the types from the signature, so an envelope would only cost work.

use bytemuck::{Pod, Zeroable};

/// The message is a batch. The engine sends the arguments. The guest sends the results, as one
/// column.
pub const BATCH: u16 = 1;
/// The message is a [`crate::Failure`] as JSON, with `rows` bytes after the header. It is the
/// guest's last message of the exchange.
pub const FAILURE: u16 = 2;
/// The engine needs no more results of this exchange or of earlier exchanges.
pub const CANCEL: u16 = 3;

/// The flag of a side's last message in an exchange.
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
    /// The number of the exchange. Each lane counts its exchanges from 1.
    pub exchange: u64,
    /// In a batch: the number of rows. In a failure: the bytes of its text.
    pub rows: u32,
    /// The number of nodes that follow.
    pub nodes: u32,
    /// The number of buffers that follow.
    pub buffers: u32,
    /// From the guest: the number of rows that became NULL because of `on_error = null`.
    pub errors: u32,
    /// From the guest: the number of calls that it tried again.
    pub retries: u32,
    /// In a failure: the row that failed, or `u32::MAX`. In results of [`crate::Entry::Iterate`]:
    /// the number of batches that the guest has taken. In results of [`crate::Entry::Call`]: the
    /// number of rows that were evaluated by columns, or `u32::MAX`.
    pub row: u32,
    /// From the guest: the nanoseconds that it waited for the engine since its last message.
    pub waited: u64,
    /// From the guest: the nanoseconds that it then worked on this message.
    pub worked: u64,
    /// In arguments of a function that takes any type: the bytes of the text of their types. Else
    /// 0.
    pub types: u32,
    /// The [`crate::Entry`] of the function that the exchange uses.
    pub entry: u32,
}

impl Header {
    /// The number of rows that were evaluated by columns, in results of [`crate::Entry::Call`].
    pub fn by_columns(&self) -> u32 {
        if self.kind == BATCH && self.row <= self.rows { self.row } else { 0 }
    }
}

pub(super) const HEADER: usize = size_of::<Header>();
/// The length of a frame's beginning, in bytes, that [`last_buffer`] needs.
pub const HEAD: usize = HEADER + size_of::<Node>() + MOST_BUFFERS * size_of::<Span>();
/// The most buffers of a column without children: validity, offsets, values.
pub(super) const MOST_BUFFERS: usize = 3;
/// A last buffer of fewer bytes is copied together with the bytes before it.
pub(super) const LONG: usize = 1024;
/// The most bytes of a failure: three texts as JSON, which can write one byte as six.
pub(super) const LONGEST_FAILURE: usize = 2 << 20;

/// The numbers of rows and NULLs of one column.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Node {
    pub(super) rows: u64,
    pub(super) nulls: u64,
}

/// The place of a buffer in the body.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) length: u64,
}
