//! Reads results of JavaScript. The prelude's writers fill buffers, and this copies them once, into
//! the reply. V8 itself writes ASCII text into the reply.

use crate::isolate::{Part, Reply};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::builder::Overflow;
use crosslane::{DataType, Failure, Layout};
use encoding_rs::mem;
use std::borrow::Cow;

/// The column of a batch's results.
#[derive(Debug)]
pub struct Results<'a> {
    reply: Reply<'a>,
    nodes: Vec<Node<'a>>,
}

/// A column or a child, in depth-first order.
#[derive(Debug)]
struct Node<'a> {
    rows: usize,
    nulls: usize,
    buffers: Vec<Buffer<'a>>,
}

#[derive(Debug)]
enum Buffer<'a> {
    Bytes(Cow<'a, [u8]>),
    /// ASCII text of this length. Its strings begin at part `first` of the reply.
    Ascii {
        first: usize,
        length: usize,
    },
}

impl<'a, T: Into<Cow<'a, [u8]>>> From<T> for Buffer<'a> {
    fn from(bytes: T) -> Self {
        Buffer::Bytes(bytes.into())
    }
}

impl Buffer<'_> {
    fn len(&self) -> usize {
        match self {
            Buffer::Bytes(bytes) => bytes.len(),
            Buffer::Ascii { length, .. } => *length,
        }
    }
}

impl<'a> Results<'a> {
    /// The results in a reply whose column begins at part `next`.
    pub(crate) fn after(next: usize, data_type: &DataType, reply: Reply<'a>) -> Result<Self, Failure> {
        let mut reader = Reader { reply, next, nodes: Vec::new() };
        match reader.column(data_type) {
            Some(()) if reader.next == reply.len() => Ok(Self { reply, nodes: reader.nodes }),
            Some(()) | None => Err(Failure {
                class: "RangeError".into(),
                message: Overflow::TooLarge.to_string(),
                ..Failure::default()
            }),
        }
    }
}

impl Encode for Results<'_> {
    fn plan(&self, plan: &mut Plan) {
        for node in &self.nodes {
            plan.node(node.rows, node.nulls);
            node.buffers.iter().for_each(|buffer| plan.buffer(buffer.len()));
        }
    }

    fn write(&self, body: &mut Body<'_>) {
        for buffer in self.nodes.iter().flat_map(|node| &node.buffers) {
            let place = body.buffer();
            match buffer {
                Buffer::Bytes(bytes) => place.copy_from_slice(bytes),
                Buffer::Ascii { first, .. } => read(self.reply, *first, place, Reply::latin1),
            }
        }
    }
}

struct Reader<'a> {
    reply: Reply<'a>,
    next: usize,
    nodes: Vec<Node<'a>>,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self) -> &'a [u8] {
        self.next += 1;
        match self.reply.part(self.next - 1) {
            Part::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.reply.count(self.next - 1)
    }

    /// Reads a column. `None` if the column's text is too long.
    fn column(&mut self, data_type: &DataType) -> Option<()> {
        let (rows, nulls) = (self.number(), self.number());
        let mut buffers = vec![Buffer::from(self.bytes())];
        match data_type.layout() {
            Layout::Bits | Layout::Fixed(_) | Layout::List => buffers.push(self.bytes().into()),
            Layout::Bytes { utf8: false } => {
                buffers.push(self.bytes().into());
                buffers.push(self.bytes().into());
            }
            Layout::Bytes { utf8: true } => {
                let [offsets, text] = self.text()?;
                buffers.push(offsets);
                buffers.push(text);
            }
            Layout::FixedList(_) | Layout::Struct => {}
        }
        self.nodes.push(Node { rows, nulls, buffers });
        data_type.children().try_for_each(|child| self.column(child))
    }

    /// Reads strings and their offsets in UTF-16 units. Returns offsets in bytes, and UTF-8.
    fn text(&mut self) -> Option<[Buffer<'a>; 2]> {
        let reply = self.reply;
        let offsets = self.bytes();
        let pieces = self.number();
        let first = self.next;
        let parts = (first..first + pieces).map(|index| reply.part(index));
        let latin = parts.clone().all(|part| matches!(part, Part::Latin1 { .. }));
        // ASCII is UTF-8 already.
        let ascii = parts.clone().all(|part| matches!(part, Part::Latin1 { length, utf8 } if utf8 == length));
        let length = parts
            .map(|part| match part {
                Part::Latin1 { length, .. } | Part::Utf16(length) => length,
                _ => 0,
            })
            .sum();
        self.next += pieces;
        if ascii {
            return Some([offsets.into(), Buffer::Ascii { first, length }]);
        }
        if latin {
            let mut text = vec![0; length];
            read(reply, first, &mut text, Reply::latin1);
            return recode(offsets, &text, 2, mem::convert_latin1_to_utf8);
        }
        let mut text = vec![0; length];
        read(reply, first, &mut text, |reply, index, piece| match reply.part(index) {
            Part::Latin1 { .. } => {
                let mut narrow = vec![0; piece.len()];
                reply.latin1(index, &mut narrow);
                piece.iter_mut().zip(narrow).for_each(|(wide, byte)| *wide = u16::from(byte));
            }
            _ => reply.utf16(index, piece),
        });
        recode(offsets, &text, 3, mem::convert_utf16_to_utf8)
    }
}

/// Reads consecutive strings of a reply into `text`. `text` has the length of all of them together.
fn read<'a, T>(
    reply: Reply<'a>,
    first: usize,
    mut text: &mut [T],
    read: impl Fn(&Reply<'a>, usize, &mut [T]),
) {
    let mut index = first;
    while !text.is_empty() {
        let (Part::Latin1 { length, .. } | Part::Utf16(length)) = reply.part(index) else { return };
        let (piece, rest) = text.split_at_mut(length);
        read(&reply, index, piece);
        text = rest;
        index += 1;
    }
}

/// Converts strings to UTF-8. `offsets` are the strings' ends, and `convert` needs up to `most`
/// bytes for a unit. Half a surrogate pair becomes U+FFFD, as in JavaScript's own `TextEncoder`.
fn recode<T>(
    offsets: &[u8],
    text: &[T],
    most: usize,
    convert: impl Fn(&[T], &mut [u8]) -> usize,
) -> Option<[Buffer<'static>; 2]> {
    let mut bytes = vec![0; text.len() * most];
    let mut ends = Vec::with_capacity(offsets.len());
    let place = |offset: &[u8]| i32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]) as usize;
    let (mut start, mut length) = (0, 0);
    for offset in offsets.chunks_exact(4) {
        let end = place(offset);
        length += convert(&text[start..end], &mut bytes[length..]);
        ends.extend_from_slice(&i32::try_from(length).ok()?.to_le_bytes());
        start = end;
    }
    bytes.truncate(length);
    Some([ends.into(), bytes.into()])
}
