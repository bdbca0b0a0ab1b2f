//! What travels over a connection: the messages of lanes, and a few of the connection's own.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the bytes of the message, little-endian |
//! | 4 | the lane that it belongs to, or [`CONTROL`] |
//! | | the message: that of a lane as in a ring ([`crosslane::batch`]), that of the connection as JSON |
//!
//! A client begins with [`Ask::Hello`], which the server answers with [`Tell::Welcome`] or [`Tell::Refused`]. Then the client
//! uses lanes: any number below [`CONTROL`] is one, from its first message until [`Ask::Close`] or [`Tell::Ended`].
//! Its exchanges are counted from 1, and are answered in their order; lanes wait for each other as little as the
//! machine allows.

use crosslane::FunctionSpec;
use serde::{Deserialize, Serialize};
use std::io;

/// The version of what is written here. Both sides must have the same.
pub const PROTOCOL: u32 = 1;
/// The lane of messages that belong to the connection.
pub const CONTROL: u32 = u32::MAX;
/// The bytes before a message.
pub const PREFIX: usize = 8;
/// A message of the connection is no longer.
pub const LONGEST_CONTROL: usize = 64 << 20;
/// One of a client before it is welcome.
pub const LONGEST_HELLO: usize = 64 << 10;

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Ask {
    /// The first message.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// What the server's administrator has given the client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// A lane is not used any more. What is in flight on it is cancelled.
    Close {
        /// Which.
        lane: u32,
    },
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Tell {
    /// The client may use these functions, by their places in the list.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The server's name and version.
        server: String,
        /// All functions of its libraries.
        functions: Vec<FunctionSpec>,
        /// What tells these functions' text from any other, if all guests say so.
        text: Option<String>,
        /// The most bytes of a message.
        largest: usize,
    },
    /// The client may not go on; the connection ends.
    Refused {
        /// Why.
        message: String,
    },
    /// A lane's worker was lost with what was in flight. The lane's number is not used again.
    Ended {
        /// Which.
        lane: u32,
        /// How.
        message: String,
    },
    /// How far the function is that works for a lane, as [`crosslane::lane::Lane::progress`] says it.
    Progress {
        /// Which.
        lane: u32,
        /// The low half of the exchange's number.
        exchange: u32,
        /// The row.
        row: u32,
    },
}

/// The bytes before a message of so many bytes.
pub fn prefix(lane: u32, length: usize) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&(length as u32).to_le_bytes());
    prefix[4..].copy_from_slice(&lane.to_le_bytes());
    prefix
}

/// The length of the message behind these bytes, and its lane.
pub fn read_prefix(prefix: [u8; PREFIX]) -> (usize, u32) {
    let [a, b, c, d, lane @ ..] = prefix;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(lane))
}

/// A message of the connection with what stands before it.
///
/// # Errors
/// If it cannot be told as JSON, or is too long.
pub fn control(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(message)?;
    if text.len() > LONGEST_CONTROL {
        let what = format!("a message of {} bytes, more than {LONGEST_CONTROL}", text.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok([&prefix(CONTROL, text.len())[..], &text].concat())
}

/// How much memory a decoder keeps when it is empty.
const KEPT: usize = 1 << 20;

/// A message, at an address that is a multiple of 8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    words: Vec<u64>,
    length: usize,
}

impl Message {
    /// A copy.
    pub fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { words, length: bytes.len() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}

/// What was received, cut into messages.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Where the first message begins that was not taken.
    start: usize,
    largest: usize,
}

/// Bytes that are no messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes, where {most} are the most")]
pub struct TooLong {
    length: usize,
    most: usize,
}

impl Decoder {
    /// One that takes messages of so many bytes.
    pub fn new(largest: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, largest }
    }

    /// Takes messages of so many bytes from now on.
    pub fn admit(&mut self, largest: usize) {
        self.largest = largest;
    }

    /// Takes what was received.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.start = 0;
        } else if self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether a part of a message is there.
    pub fn is_within(&self) -> bool {
        self.start < self.bytes.len()
    }

    /// The length of the next message and its lane. The rest of it may still be missing.
    ///
    /// # Errors
    /// If it is longer than it may be.
    pub fn due(&self) -> Result<Option<(usize, u32)>, TooLong> {
        let Some((prefix, _)) = self.bytes[self.start..].split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let (length, lane) = read_prefix(*prefix);
        let most = if lane == CONTROL { self.largest.min(LONGEST_CONTROL) } else { self.largest };
        if length > most { Err(TooLong { length, most }) } else { Ok(Some((length, lane))) }
    }

    /// The next message that is complete, and its lane.
    ///
    /// # Errors
    /// If it is longer than it may be, as soon as it says so.
    pub fn message(&mut self) -> Result<Option<(u32, &[u8])>, TooLong> {
        let Some((length, lane)) = self.due()? else { return Ok(None) };
        let begin = self.start + PREFIX;
        if self.bytes.len() - begin < length {
            return Ok(None);
        }
        self.start = begin + length;
        Ok(Some((lane, &self.bytes[begin..begin + length])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_they_were_torn() {
        let sent = [(7, b"abc".to_vec()), (CONTROL, b"{}".to_vec()), (7, Vec::new()), (0, vec![9; 300])];
        let bytes: Vec<u8> =
            sent.iter().flat_map(|(lane, text)| [&prefix(*lane, text.len())[..], text].concat()).collect();
        for piece in [1, 2, 3, 7, 8, 9, 100, bytes.len()] {
            let (mut decoder, mut got) = (Decoder::new(300), Vec::new());
            for bytes in bytes.chunks(piece) {
                decoder.push(bytes);
                while let Some((lane, text)) = decoder.message().unwrap() {
                    got.push((lane, text.to_vec()));
                }
            }
            assert_eq!(got, sent, "in pieces of {piece}");
            assert!(!decoder.is_within());
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_is_there() {
        let mut decoder = Decoder::new(100);
        decoder.push(&prefix(1, 101));
        assert!(decoder.message().is_err());
        decoder.admit(101);
        assert_eq!(decoder.message(), Ok(None));
        assert!(decoder.is_within());
    }

    #[test]
    fn the_memory_of_a_large_message_is_not_kept() {
        let mut decoder = Decoder::new(8 * KEPT);
        decoder.push(&[&prefix(1, 8 * KEPT)[..], &vec![0; 8 * KEPT]].concat());
        assert!(decoder.message().unwrap().is_some());
        decoder.push(&prefix(1, 0));
        assert!(decoder.bytes.capacity() <= KEPT);
    }

    #[test]
    fn what_is_told_is_heard() {
        let tells = [
            Tell::Refused { message: "no".into() },
            Tell::Progress { lane: 3, exchange: 4, row: 5 },
            Tell::Ended { lane: 3, message: "it died".into() },
        ];
        for told in tells {
            let framed = control(&told).unwrap();
            let mut decoder = Decoder::new(1000);
            decoder.push(&framed);
            let (lane, text) = decoder.message().unwrap().unwrap();
            assert_eq!(lane, CONTROL);
            assert_eq!(serde_json::from_slice::<Tell>(text).unwrap(), told);
        }
    }

    #[test]
    fn a_message_lies_where_columns_can_be_read() {
        for length in 0..20 {
            let bytes: Vec<u8> = (0..length).collect();
            let message = Message::new(&bytes);
            assert_eq!(message.bytes(), bytes);
            assert!(message.bytes().as_ptr().addr().is_multiple_of(8));
        }
    }
}
