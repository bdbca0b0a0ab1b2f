//! Writes batches. A plan measures a batch first, and then the batch is written once.

use super::header::{HEADER, Header, Node, Span};
use crate::error::Error;
use crate::types::Layout;
use std::sync::Arc;

/// Nodes and buffers, in the order in which they are written.
#[derive(Debug, Default, Clone)]
pub struct Plan {
    nodes: Vec<Node>,
    spans: Vec<Span>,
    types: Option<Arc<str>>,
    body: u64,
    too_large: bool,
}

impl Plan {
    /// Removes the columns and keeps the memory.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.spans.clear();
        (self.types, self.body, self.too_large) = (None, 0, false);
    }

    /// Notes that a column has more bytes or elements than 32-bit offsets can address. The caller
    /// must not write this plan, but cut the batch.
    pub fn overflow(&mut self) {
        self.too_large = true;
    }

    /// Whether [`Plan::overflow`] was called.
    pub fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// Notes the types of the columns, because the signature does not have them.
    pub fn types(&mut self, types: &Arc<str>) {
        self.types = Some(Arc::clone(types));
    }

    /// Adds a column. Its buffers must follow.
    pub fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push(Node { rows: rows as u64, nulls: nulls as u64 });
    }

    /// Adds a buffer of `length` bytes. The validity buffer of a column without NULLs has length 0.
    pub fn buffer(&mut self, length: usize) {
        self.spans.push(Span { offset: self.body, length: length as u64 });
        self.body += (length as u64).next_multiple_of(8);
    }

    /// Adds a column of this layout with its buffers, and not its children. `bytes` is the number of
    /// bytes of all values, for a column of bytes.
    pub fn column(&mut self, layout: Layout, rows: usize, nulls: usize, bytes: usize) {
        self.node(rows, nulls);
        self.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 });
        match layout {
            Layout::Bits => self.buffer(rows.div_ceil(8)),
            Layout::Fixed(width) => self.buffer(rows * width),
            Layout::Bytes { .. } => {
                self.buffer((rows + 1) * size_of::<i32>());
                self.buffer(bytes);
            }
            Layout::List => self.buffer((rows + 1) * size_of::<i32>()),
            Layout::FixedList(_) | Layout::Struct => {}
        }
    }

    fn body_start(&self) -> usize {
        let types = self.types.as_ref().map_or(0, |types| types.len());
        (HEADER + size_of_val(&self.nodes[..]) + size_of_val(&self.spans[..]) + types).next_multiple_of(64)
    }

    /// The size of the whole frame, in bytes.
    pub fn size(&self) -> usize {
        self.body_start() + self.body as usize
    }

    /// Writes the header, the nodes and the buffer list to `frame`, which has [`Plan::size`] bytes.
    /// The result returns the buffers in order.
    pub fn start<'a>(&'a self, frame: &'a mut [u8], mut header: Header) -> Body<'a> {
        header.nodes = self.nodes.len() as u32;
        header.buffers = self.spans.len() as u32;
        let types = self.types.as_ref().map_or(&[][..], |types| types.as_bytes());
        header.types = types.len() as u32;
        let (head, body) = frame.split_at_mut(self.body_start());
        let mut at = 0;
        for part in [
            bytemuck::bytes_of(&header),
            bytemuck::cast_slice(&self.nodes),
            bytemuck::cast_slice(&self.spans),
            types,
        ] {
            head[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Body { rest: body, spans: self.spans.iter(), at: 0 }
    }
}

/// The buffers of a frame, in the order of the plan.
#[derive(Debug)]
pub struct Body<'a> {
    rest: &'a mut [u8],
    spans: std::slice::Iter<'a, Span>,
    at: u64,
}

impl<'a> Body<'a> {
    /// The next buffer. The caller must fill all of it.
    ///
    /// # Panics
    /// If the plan has no more buffers, because the plan and the written data differ.
    pub fn buffer(&mut self) -> &'a mut [u8] {
        let span = self.spans.next().expect("a buffer that was planned");
        let rest = std::mem::take(&mut self.rest);
        let (_, rest) = rest.split_at_mut((span.offset - self.at) as usize);
        let (buffer, rest) = rest.split_at_mut(span.length as usize);
        self.rest = rest;
        self.at = span.offset + span.length;
        buffer
    }

    /// Fills the buffers that [`Plan::column`] planned, with the first bytes of each of these.
    pub fn column(&mut self, layout: Layout, validity: &[u8], offsets: &[i32], data: &[u8]) {
        let mut copy = |bytes: &[u8]| {
            let buffer = self.buffer();
            buffer.copy_from_slice(&bytes[..buffer.len()]);
        };
        copy(validity);
        if matches!(layout, Layout::Bytes { .. } | Layout::List) {
            copy(bytemuck::cast_slice(offsets));
        }
        if matches!(layout, Layout::Bits | Layout::Fixed(_) | Layout::Bytes { .. }) {
            copy(data);
        }
    }
}

/// Data that can become a batch. It is planned first, and then written once, in its final place.
pub trait Encode {
    /// Adds the nodes and the buffers.
    fn plan(&self, plan: &mut Plan);
    /// Fills the buffers, in the same order.
    fn write(&self, body: &mut Body<'_>);
}

/// Columns in the order of the vector.
impl<T: Encode> Encode for Vec<T> {
    fn plan(&self, plan: &mut Plan) {
        self.iter().for_each(|column| column.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        self.iter().for_each(|column| column.write(body));
    }
}

impl Encode for &dyn Encode {
    fn plan(&self, plan: &mut Plan) {
        (**self).plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        (**self).write(body);
    }
}

/// Columns, with their types as text if the signature does not have them.
#[derive(Debug)]
pub struct Typed<'a, T: ?Sized> {
    /// The types of the columns.
    pub types: Option<&'a Arc<str>>,
    /// The columns.
    pub columns: &'a T,
}

impl<T: Encode + ?Sized> Encode for Typed<'_, T> {
    fn plan(&self, plan: &mut Plan) {
        self.types.into_iter().for_each(|types| plan.types(types));
        self.columns.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.columns.write(body);
    }
}

/// A batch without columns.
impl Encode for () {
    fn plan(&self, _plan: &mut Plan) {}
    fn write(&self, _body: &mut Body<'_>) {}
}

/// A batch outside of a lane, for a reader on the same thread.
#[derive(Debug)]
pub struct Frame {
    words: Vec<u64>,
    length: usize,
}

impl Frame {
    /// Writes rows as a batch.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no memory for it, or if 32-bit offsets cannot address its
    /// parts.
    pub fn new(content: &dyn Encode, rows: usize) -> Result<Self, Error> {
        let mut plan = Plan::default();
        content.plan(&mut plan);
        if plan.is_too_large() {
            return Err(Error::Engine(format!("{rows} row(s) exceed 2 GiB")));
        }
        let length = plan.size();
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(length.div_ceil(8)).map_err(|_| Error::memory(length))?;
        words.resize(length.div_ceil(8), 0);
        let header = Header { rows: rows as u32, ..Header::default() };
        content.write(&mut plan.start(&mut bytemuck::cast_slice_mut(&mut words)[..length], header));
        Ok(Self { words, length })
    }

    /// A batch that was written elsewhere, at an address that readers need.
    pub fn of(bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { words, length: bytes.len() }
    }

    /// The frame, which [`columns`] reads.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}
