//! The messages between a program and the process of a context.
//!
//! A message is the length of a text (`u32`), the text, the number of bytes that follow (`u64`), and the
//! bytes. The text is the message as JSON. The bytes are what is large: a value, a source, a snapshot.
//! Numbers are little-endian.

use crosslane::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::time::Duration;

/// The most bytes of a message's text. A failure is shorter.
const LONGEST: usize = 1 << 20;
/// How much memory a reader adds at once. So a length that is a lie costs no memory.
const PIECE: u64 = 1 << 20;

/// How long a thread that waits for a message looks for it before it sleeps. To wake a thread on an idle
/// processor takes as long as several calls.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// What a program sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToHost {
    /// Boot a context, from the snapshot in the bytes, if there are any. `memory` is its limit.
    Boot { memory: usize },
    /// Make a snapshot of the heap after a script has run. The bytes are an earlier snapshot, of which
    /// nothing but the heap is kept, and then the script. `cold` is the length of the former, or 0.
    Build { cold: usize, name: String },
    /// Run the script in the bytes.
    Eval { name: String },
    /// Call a function with the encoded arguments in the bytes.
    Invoke { path: String },
    /// Make a function of the program callable.
    Attach { path: String, number: u32 },
    /// Free all garbage.
    Collect,
    /// Tell V8's statistics of the heap.
    HeapStats,
    /// Tell how many bytes are in use.
    Memory,
    /// The answer to [`FromHost::Call`] and [`FromHost::Print`], and whether the script must end now. If
    /// the call failed, the bytes are a name and a message.
    Answer { failed: bool, over: bool },
    /// The answer to [`FromHost::Confirm`].
    Confirmed { over: bool },
}

/// What the process of a context sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromHost {
    /// The request is done. The bytes are its value.
    Done,
    /// The code threw.
    Raised(Failure),
    /// The code was ended.
    Ended { reason: u32, stack: String },
    /// There is no such context or snapshot.
    Refused { why: String },
    /// A script calls a function of the program with the encoded arguments in the bytes.
    Call { number: u32 },
    /// The console has printed the text in the bytes.
    Print { error: bool },
    /// Does the call still have to end?
    Confirm { reason: u32 },
    /// V8 cannot go on. The process ends.
    Fatal { reason: u32, what: String },
}

/// Sends a message.
///
/// # Errors
/// If the other side is gone. [`io::ErrorKind::InvalidInput`] if the text is too long. Then nothing was
/// sent.
pub(crate) fn send(mut stream: impl Write, message: &impl Serialize, parts: &[&[u8]]) -> io::Result<()> {
    /// A message up to this size is sent by one call.
    const SMALL: usize = 1 << 16;
    let text = serde_json::to_vec(message)?;
    if text.len() > LONGEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut head = Vec::with_capacity(12 + text.len() + if bytes <= SMALL { bytes } else { 0 });
    head.extend_from_slice(&(text.len() as u32).to_le_bytes());
    head.extend_from_slice(&text);
    head.extend_from_slice(&(bytes as u64).to_le_bytes());
    if bytes <= SMALL {
        parts.iter().for_each(|part| head.extend_from_slice(part));
        return stream.write_all(&head);
    }
    stream.write_all(&head)?;
    parts.iter().try_for_each(|part| stream.write_all(part))
}

/// Receives a message and its bytes, of which there may be `most`.
///
/// # Errors
/// If the other side is gone, or sends no message. [`io::ErrorKind::OutOfMemory`] if there is no memory
/// for the bytes, or they are too many.
pub(crate) fn receive<M: DeserializeOwned>(mut stream: impl Read, most: u64) -> io::Result<(M, Vec<u8>)> {
    let no_message = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(no_message("a message that is too long"));
    }
    let mut text = vec![0; length + 8];
    stream.read_exact(&mut text)?;
    let message = serde_json::from_slice(&text[..length])?;
    let mut count = [0; 8];
    count.copy_from_slice(&text[length..]);
    let count = u64::from_le_bytes(count);
    if count > most {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < count {
        let (from, more) = (bytes.len(), PIECE.min(count - bytes.len() as u64) as usize);
        bytes.try_reserve(more).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        bytes.resize(from + more, 0);
        stream.read_exact(&mut bytes[from..])?;
    }
    Ok((message, bytes))
}

/// Asks the process to end what runs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    /// The number of the outermost request, from 1. A request that is done is not ended.
    pub(crate) request: u64,
    /// The number of the reason.
    pub(crate) reason: u8,
    pub(crate) way: Way,
}

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    /// At V8's next check, with the stack.
    AtCheck,
    /// Wherever it is.
    AtOnce,
}

impl Signal {
    /// The bytes of a signal.
    pub(crate) const SIZE: usize = 10;

    /// The signal as bytes.
    pub(crate) fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [self.reason; Self::SIZE];
        bytes[..8].copy_from_slice(&self.request.to_le_bytes());
        bytes[9] = self.way as u8;
        bytes
    }

    /// The signal of these bytes.
    #[cfg(any(node, test))]
    pub(crate) fn of(bytes: [u8; Self::SIZE]) -> Self {
        let [request @ .., reason, way] = bytes;
        let way = if way == 0 { Way::AtCheck } else { Way::AtOnce };
        Self { request: u64::from_le_bytes(request), reason, way }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_and_signals_arrive_as_they_were_sent() {
        let (near, far) = UnixStream::pair().unwrap();
        let large = vec![7; (PIECE + 5) as usize];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&near, &ToHost::Eval { name: "ä".into() }, &[b"a", b"b"]).unwrap();
                send(&near, &ToHost::Collect, &[]).unwrap();
                let long = send(&near, &ToHost::Eval { name: "x".repeat(LONGEST) }, &[]);
                assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
                send(&near, &ToHost::Build { cold: 5, name: String::new() }, &[&large[..5], &large[5..]])
                    .unwrap();
                // It is refused.
                let _ = send(&near, &ToHost::Memory, &[&large]);
            });
            let next =
                |most| receive::<ToHost>(&far, most).map(|(message, bytes)| (format!("{message:?}"), bytes));
            assert_eq!(next(2).unwrap(), (r#"Eval { name: "ä" }"#.into(), b"ab".to_vec()));
            assert_eq!(next(0).unwrap(), ("Collect".into(), Vec::new()));
            assert_eq!(next(PIECE + 5).unwrap().1, large);
            assert_eq!(next(PIECE).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
            drop(far);
        });
        for way in [Way::AtCheck, Way::AtOnce] {
            let signal = Signal { request: 1 << 60, reason: 3, way };
            assert_eq!(Signal::of(signal.bytes()), signal);
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x02\0\0\0{}\0\0\0\0\0\0\0\0", b"\x01\0"] {
            let (near, far) = UnixStream::pair().unwrap();
            (&near).write_all(bytes).unwrap();
            drop(near);
            assert!(receive::<FromHost>(&far, 10).is_err());
        }
    }
}
