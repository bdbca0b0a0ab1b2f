//! The messages of a connection: those of its lanes, and a few of the connection itself.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the length of the message in bytes, little-endian |
//! | 4 | the lane of the message, or [`CONTROL`] |
//! | | the message: as in a ring ([`crosslane::batch`]) for a lane, JSON for the connection |
//!
//! A client begins with [`Ask::Hello`]. The server answers with [`Tell::Welcome`] or
//! [`Tell::Refused`]. Then the client uses lanes. Any number below [`CONTROL`] can be a lane's
//! number. A lane lives from its first message until [`Ask::Close`] or [`Tell::Ended`]. The
//! exchanges of a lane are numbered from 1 and answered in this order. Lanes wait for each other as
//! little as the machine allows.

use crosslane::FunctionSpec;
use serde::{Deserialize, Serialize};
use std::io;

/// The version of this protocol. Both sides must have the same.
pub const PROTOCOL: u32 = 1;
/// The lane of messages that belong to the connection.
pub const CONTROL: u32 = u32::MAX;
/// The bytes before a message.
pub const PREFIX: usize = 8;
/// The most bytes of a message of the connection.
pub const LONGEST_CONTROL: usize = 64 << 20;
/// The most bytes of a client's message before the server welcomes the client.
pub const LONGEST_HELLO: usize = 64 << 10;

/// A message of the connection from a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Ask {
    /// The first message.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The token that the server's administrator has given the client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
        /// The `text` of the functions that the client knows. If the server still has these, they
        /// are the functions of this connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Whether the client only waits on this connection: the server ends it when it has loaded
        /// other functions.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        watches: bool,
    },
    /// The context of the exchanges that the client opens on a lane from now on, as
    /// [`crate::context::TraceContext`] has it. Only for a server whose welcome says `contexts`.
    Context {
        /// The number of the lane.
        lane: u32,
        /// The content of `traceparent`; empty if they have none.
        #[serde(default)]
        traceparent: String,
        /// The content of `tracestate`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tracestate: String,
    },
    /// The client does not use a lane any more. The server cancels the lane's calls in flight.
    Close {
        /// The number of the lane.
        lane: u32,
    },
}

/// A message of the connection from a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Tell {
    /// The server lets the client in. Calls name functions by their places in this list.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The server's name and version.
        server: String,
        /// All functions of the server's libraries.
        functions: Vec<FunctionSpec>,
        /// Identifies the source text of these functions, if all guests tell it.
        text: Option<String>,
        /// The most bytes of a message that the server takes.
        largest: usize,
        /// Whether the server loads its files again when they change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reloads: bool,
        /// Whether the server takes [`Ask::Context`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        contexts: bool,
    },
    /// The server refuses the client and ends the connection.
    Refused {
        /// The reason.
        message: String,
    },
    /// A lane's worker was lost, with all its calls in flight. The lane's number is not used again.
    Ended {
        /// The number of the lane.
        lane: u32,
        /// How the worker was lost.
        message: String,
    },
    /// The progress of the function that works for a lane, as [`crosslane::lane::Lane::progress`]
    /// returns it.
    Progress {
        /// The number of the lane.
        lane: u32,
        /// The low half of the exchange's number.
        exchange: u32,
        /// The row.
        row: u32,
        /// How much longer the function's guest pauses before it tries a call again, in
        /// milliseconds.
        #[serde(default, skip_serializing_if = "is_zero")]
        rest: u64,
        /// The low half of the number of an exchange that waits in the server for the `rate` of its
        /// function. It has not begun.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held: Option<u32>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde gives a reference
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Returns the prefix of a message of `length` bytes.
pub fn prefix(lane: u32, length: usize) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&(length as u32).to_le_bytes());
    prefix[4..].copy_from_slice(&lane.to_le_bytes());
    prefix
}

/// Returns the length and the lane of the message after this prefix.
pub fn read_prefix(prefix: [u8; PREFIX]) -> (usize, u32) {
    let [a, b, c, d, lane @ ..] = prefix;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(lane))
}

/// Returns a message of the connection with its prefix.
///
/// # Errors
/// If the message cannot be written as JSON, or is too long.
pub fn control(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(message)?;
    if text.len() > LONGEST_CONTROL {
        let what = format!("a message of {} bytes, more than {LONGEST_CONTROL}", text.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok([&prefix(CONTROL, text.len())[..], &text].concat())
}

/// The most bytes of memory that a decoder keeps when it is empty.
const KEPT: usize = 1 << 20;

/// Cuts received bytes into messages.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// The offset of the first message that was not taken.
    start: usize,
    largest: usize,
}

/// A message is longer than the receiver allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes, where {most} are the most")]
pub struct TooLong {
    length: usize,
    most: usize,
}

impl Decoder {
    /// Makes a decoder that takes messages of at most `largest` bytes.
    pub fn new(largest: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, largest }
    }

    /// Changes the limit: from now on, messages of at most `largest` bytes are taken.
    pub fn admit(&mut self, largest: usize) {
        self.largest = largest;
    }

    /// Adds received bytes.
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

    /// Whether some bytes were received and not yet taken as a message.
    pub fn is_within(&self) -> bool {
        self.start < self.bytes.len()
    }

    /// Returns the length of the next message and its lane. Some bytes of the message may still be
    /// missing.
    ///
    /// # Errors
    /// If the message is longer than the limit.
    pub fn due(&self) -> Result<Option<(usize, u32)>, TooLong> {
        let Some((prefix, _)) = self.bytes[self.start..].split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let (length, lane) = read_prefix(*prefix);
        let most = if lane == CONTROL { self.largest.min(LONGEST_CONTROL) } else { self.largest };
        if length > most { Err(TooLong { length, most }) } else { Ok(Some((length, lane))) }
    }

    /// Takes the next message if it is complete, with its lane.
    ///
    /// # Errors
    /// If the message is longer than the limit. The prefix is enough to see that.
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
    fn each_control_message_is_read_as_it_was_written() {
        let tells = [
            Tell::Refused { message: "no".into() },
            Tell::Progress { lane: 3, exchange: 4, row: 5, rest: 6, held: Some(7) },
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

    /// Servers and clients of before know nothing of contexts, and skip what they do not know.
    #[test]
    fn a_welcome_of_another_version_is_read() {
        let read = |more: &str| {
            let text = format!(
                r#"{{"op": "welcome", "protocol": 1, "server": "s", "functions": [], "text": null, "largest": 1{more}}}"#
            );
            match serde_json::from_str(&text).unwrap() {
                Tell::Welcome { contexts, .. } => contexts,
                told => panic!("{told:?}"),
            }
        };
        assert!(!read("") && read(r#", "contexts": true, "later": 1"#));
    }
}
