//! A client that sends any bytes.

use super::integers;
use crosslane::Entry;
use crosslane::batch::{BATCH, Encode, Header, LAST, Plan};
use crosslane_server::Address;
use crosslane_server::wire::{self, Ask, CONTROL, Decoder, PROTOCOL, Tell, prefix};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The greeting of a client without a token.
pub fn hello(text: Option<String>, watches: bool) -> Ask {
    Ask::Hello { protocol: PROTOCOL, token: None, text, watches }
}

/// A client that sends any bytes.
pub struct Raw {
    pub stream: UnixStream,
    decoder: Decoder,
}

impl Raw {
    pub fn connect(address: &Address) -> Self {
        let Address::Unix(path) = address else { unreachable!() };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, decoder: Decoder::new(64 << 20) }
    }

    /// A client that the server has welcomed.
    pub fn new(address: &Address) -> Self {
        let mut raw = Self::connect(address);
        raw.send(&wire::control(&hello(None, false)).unwrap());
        assert!(matches!(raw.told(), Some(Tell::Welcome { .. })));
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The server may have ended the connection during the write.
        let _ = self.stream.write_all(bytes);
    }

    pub fn message(&mut self, lane: u32, message: &[u8]) {
        self.send(&[&prefix(lane, message.len())[..], message].concat());
    }

    /// The next message and its lane. `None` at the end.
    pub fn next(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut piece = [0; 65536];
        loop {
            if let Some((lane, bytes)) = self.decoder.message().unwrap() {
                return Some((lane, bytes.to_vec()));
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => self.decoder.push(&piece[..read.unwrap()]),
            }
        }
    }

    pub fn told(&mut self) -> Option<Tell> {
        loop {
            match self.next()? {
                (CONTROL, text) => return Some(serde_json::from_slice(&text).unwrap()),
                _ => continue,
            }
        }
    }

    /// The reason for which the server ends the connection. The server must end it.
    pub fn refusal(&mut self) -> String {
        let mut last = String::new();
        while let Some(told) = self.told() {
            if let Tell::Refused { message } = told {
                last = message;
            }
        }
        last
    }

    /// The header of the next message of a lane that does not report progress.
    pub fn reply(&mut self) -> Header {
        loop {
            match self.next().expect("a reply") {
                (CONTROL, text) => {
                    let told = serde_json::from_slice(&text).unwrap();
                    assert!(matches!(told, Tell::Progress { .. }), "{told:?}");
                }
                (_, frame) => return crosslane::batch::header(&frame).unwrap(),
            }
        }
    }
}

pub fn frame(header: Header, content: &dyn Encode) -> Vec<u8> {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    let mut frame = vec![0; plan.size()];
    content.write(&mut plan.start(&mut frame, header));
    frame
}

/// The header of a call.
pub fn call(function: u32, exchange: u64, rows: u32) -> Header {
    Header {
        kind: BATCH,
        flags: LAST,
        function,
        exchange,
        rows,
        entry: Entry::Call as u32,
        ..Header::default()
    }
}

pub fn calls(function: u32, exchange: u64, value: i64) -> Vec<u8> {
    frame(call(function, exchange, 1), &integers([value]))
}
