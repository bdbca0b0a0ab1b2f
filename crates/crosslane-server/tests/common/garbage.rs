//! The bodies of the fuzzers (`make fuzz`), which a stable test runs, too. Each function takes any
//! bytes. It panics if the side under test does not cope with them.

use super::raw::{Raw, call, frame, hello};
use super::{Client, DOUBLE, NUMBERS, WAIT, eventually, integers, options, places, start, unix};
use crosslane::batch::{self, CANCEL, Header, LAST};
use crosslane::{ColumnBuilder, DataType, Entry};
use crosslane_server::wire::{self, Ask, CONTROL, Decoder, PREFIX, PROTOCOL, Tell, prefix};
use crosslane_server::{Address, Server};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// The largest length that a message may announce in [`answers`]. A client takes memory for a message
/// before the message comes.
const ANNOUNCED: u32 = 1 << 20;
/// How long [`lie`] waits for a request of a client. A client that has a request sends it at once.
const ASKS: Duration = Duration::from_millis(100);
/// The largest number of steps that [`client`] makes on a connection.
const MOST: usize = 64;

/// Cuts a stream into messages. The first byte limits their length. The second byte is the size of the
/// pieces of the stream.
///
/// # Panics
/// If other pieces give other messages, or if the decoder keeps more than a message and a piece.
pub fn wire(input: &[u8]) {
    let [largest, piece, stream @ ..] = input else { return };
    let largest = usize::from(*largest) * 16;
    let piece = usize::from(*piece).max(1);
    let whole = messages(stream, largest, usize::MAX);
    assert_eq!(messages(stream, largest, piece), whole, "in pieces of {piece}");
    assert_eq!(messages(stream, largest, 1), whole, "byte by byte");
}

/// The messages of a stream, and whether a message that is too long ends it.
fn messages(stream: &[u8], largest: usize, piece: usize) -> (Vec<(u32, Vec<u8>)>, bool) {
    let (mut decoder, mut got, mut taken) = (Decoder::new(largest), Vec::new(), 0);
    let mut come = 0;
    for bytes in stream.chunks(piece) {
        decoder.push(bytes);
        come += bytes.len();
        loop {
            match decoder.message() {
                Ok(Some((lane, bytes))) => {
                    taken += PREFIX + bytes.len();
                    assert!(bytes.len() <= largest);
                    got.push((lane, bytes.to_vec()));
                }
                Ok(None) => break,
                Err(_) => return (got, true),
            }
        }
        assert_eq!(decoder.is_within(), taken < come);
        assert!(come - taken < PREFIX + largest.max(1), "{} bytes are kept", come - taken);
    }
    (got, false)
}

/// Reads the bytes of a fuzzer piece by piece.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn small(&mut self, end: u8) -> u8 {
        self.byte().unwrap_or_default() % end
    }

    fn some(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte().unwrap_or_default()).min(self.0.len());
        let (some, rest) = self.0.split_at(length);
        self.0 = rest;
        some
    }
}

/// The client's knowledge of one of its lanes.
#[derive(Default)]
struct Known {
    /// The numbers of exchanges that were opened and that have ended.
    opened: u64,
    ended: u64,
    /// Whether it was closed, or is lost.
    over: bool,
}

fn victim() -> &'static (Server, Address) {
    static VICTIM: OnceLock<(Server, Address)> = OnceLock::new();
    VICTIM.get_or_init(|| {
        let mut options = options(&[unix()]);
        options.workers = 4;
        options.largest = 1 << 20;
        let server = start(options).expect("a server");
        let address = server.addresses()[0].clone();
        (server, address)
    })
}

/// Sends to a server what the bytes say: calls, scans, cancels and closes, valid or not, on four lanes
/// of a connection.
///
/// # Panics
/// If the server answers out of turn, or keeps a connection that breaks its protocol. Also if it keeps
/// anything of the connection, or does not serve another client afterwards.
pub fn client(input: &[u8]) {
    let (server, address) = victim();
    let mut raw = Raw::new(address);
    let mut lanes: HashMap<u32, Known> = HashMap::new();
    let mut bytes = Bytes(input);
    for _ in 0..MOST {
        let Some(what) = bytes.byte() else { break };
        let lane = u32::from(bytes.small(4));
        let known = lanes.entry(lane).or_default();
        match what % 8 {
            0..=2 => {
                known.opened += 1;
                let function = u32::from(bytes.small(6));
                // Waits are short, and all messages fit into the socket, because this client does not
                // always read.
                let most = if function == WAIT { 2 } else { 16 };
                let values = bytes.some().iter().take(most).map(|byte| i64::from(byte % 16));
                let values: Vec<i64> = values.collect();
                let header = call(function, known.opened, values.len() as u32);
                if function != NUMBERS {
                    raw.message(lane, &frame(header, &integers(values)));
                    continue;
                }
                let header = Header { entry: Entry::Scan as u32, rows: 1, ..header };
                let mut columns = Vec::from([&DataType::Blob, &places()].map(ColumnBuilder::new));
                columns.iter_mut().for_each(ColumnBuilder::null);
                columns.push(integers([values.first().map_or(0, |value| value * 100)]));
                raw.message(lane, &frame(header, &columns));
            }
            3 => {
                let exchange = known.opened.saturating_sub(u64::from(bytes.small(3)));
                raw.message(lane, &frame(Header { kind: CANCEL, ..call(0, exchange, 0) }, &()));
            }
            4 => {
                raw.send(&wire::control(&Ask::Close { lane }).expect("a message"));
                // The client may use the number again while answers to its earlier use are still on
                // their way.
                *known = Known { over: true, ..Known::default() };
            }
            5 => {
                // This call is valid except for its header.
                let mut whole =
                    frame(call(u32::from(bytes.small(7)), known.opened + 1, 2), &integers([1, 2]));
                let head = whole.len() - 16;
                for place in bytes.some().chunks_exact(2) {
                    whole[usize::from(place[0]) % head] = place[1];
                }
                known.over = true;
                raw.message(lane, &whole);
            }
            6 => {
                let lane = if bytes.small(2) == 0 { lane } else { CONTROL };
                lanes.values_mut().for_each(|known| known.over = true);
                raw.message(lane, bytes.some());
            }
            _ => {
                if known.ended < known.opened && !known.over && !answer(&mut raw, &mut lanes) {
                    break;
                }
            }
        }
    }
    // This message ends the connection at the latest.
    raw.send(&wire::control(&hello(None, false)).expect("a message"));
    while answer(&mut raw, &mut lanes) {}
    drop(raw);
    eventually("something is left of a connection", || server.load() == (0, 0));
    check_others(address);
}

/// Takes the server's next message. Returns false at the end.
fn answer(raw: &mut Raw, lanes: &mut HashMap<u32, Known>) -> bool {
    let Some((lane, bytes)) = raw.next() else { return false };
    if lane == CONTROL {
        if let Tell::Ended { lane, .. } = serde_json::from_slice(&bytes).expect("what a server says") {
            lanes.entry(lane).or_default().over = true;
        }
        return true;
    }
    let known = lanes.get_mut(&lane).expect("a lane that is used");
    let header = batch::header(&bytes).expect("a header");
    if !known.over {
        assert_eq!(header.exchange, known.ended + 1, "out of turn");
        assert!(header.exchange <= known.opened, "nobody has asked for it");
        known.ended += u64::from(header.flags & LAST);
    }
    true
}

/// Checks from time to time that the server serves another client.
fn check_others(address: &Address) {
    static OTHER: OnceLock<Mutex<u64>> = OnceLock::new();
    let mut count = OTHER.get_or_init(Mutex::default).lock().expect("no panic before");
    *count += 1;
    if (*count).is_multiple_of(64) {
        let mut raw = Raw::new(address);
        raw.message(0, &frame(call(0, 1, 1), &integers([21])));
        assert_eq!(raw.reply().exchange, 1);
        drop(raw);
        let (server, _) = victim();
        eventually("something is left of another connection", || server.load() == (0, 0));
    }
}

/// A server that lies, and the bytes that say how.
struct Liar {
    address: Address,
    lies: Arc<Mutex<Vec<u8>>>,
}

fn liar() -> &'static Liar {
    static LIAR: OnceLock<Liar> = OnceLock::new();
    LIAR.get_or_init(|| {
        let address = unix();
        let Address::Unix(path) = &address else { unreachable!() };
        let listener = UnixListener::bind(path).expect("a socket");
        let lies = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&lies);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let lies = told.lock().expect("no panic before").clone();
                thread::spawn(move || lie(stream, &lies));
            }
        });
        Liar { address, lies }
    })
}

/// Serves a client with lies. The first byte says whether the greeting is true.
fn lie(mut stream: UnixStream, lies: &[u8]) {
    let _ = stream.set_read_timeout(Some(ASKS));
    if is_honest(lies) {
        let welcome = Tell::Welcome {
            protocol: PROTOCOL,
            server: "liar 1".into(),
            functions: serde_json::from_value(super::functions()).expect("functions"),
            text: Some("lies".into()),
            largest: 1 << 20,
            reloads: false,
            contexts: false,
        };
        let _ = stream.write_all(&wire::control(&welcome).expect("a message"));
    }
    let mut asked = [0; 65536];
    let mut bytes = Bytes(lies.get(1..).unwrap_or_default());
    while let Some(what) = bytes.byte() {
        let said = match what % 8 {
            // Waits for the client to ask.
            0 => match stream.read(&mut asked) {
                Ok(1..) => continue,
                _ => return,
            },
            1 | 2 => {
                // A reply whose header may be false.
                let values = bytes.some();
                let header = call(0, u64::from(bytes.small(3)), values.len() as u32);
                let mut reply = frame(header, &integers(values.iter().map(|value| i64::from(*value) * 2)));
                let head = reply.len().min(128);
                for place in bytes.some().chunks_exact(2) {
                    reply[usize::from(place[0]) % head] = place[1];
                }
                [&prefix(0, reply.len())[..], &reply].concat()
            }
            3 => {
                let told = match bytes.small(3) {
                    0 => {
                        let (row, rest) = (u32::from(bytes.small(255)), u64::from(bytes.small(255)));
                        Tell::Progress { lane: 0, exchange: 1, row, rest, held: (what >= 128).then_some(1) }
                    }
                    1 => Tell::Ended { lane: 0, message: String::from_utf8_lossy(bytes.some()).into_owned() },
                    _ => Tell::Refused { message: String::from_utf8_lossy(bytes.some()).into_owned() },
                };
                wire::control(&told).expect("a message")
            }
            4 => {
                let text = bytes.some();
                [&prefix(CONTROL, text.len())[..], text].concat()
            }
            5 => {
                // The message announces more bytes than it has.
                let [a, b, c, d] = [bytes.small(255), bytes.small(255), bytes.small(255), bytes.small(255)];
                let length = u32::from_le_bytes([a, b, c, d]) % ANNOUNCED;
                let lane = if bytes.small(2) == 0 { 0 } else { CONTROL };
                [&prefix(lane, length as usize)[..], bytes.some()].concat()
            }
            6 => {
                let lane = u32::from(bytes.small(3));
                let message = bytes.some();
                [&prefix(lane, message.len())[..], message].concat()
            }
            _ => bytes.some().iter().map(|byte| byte & 0x7F).collect(),
        };
        if stream.write_all(&said).is_err() {
            return;
        }
    }
}

/// Attaches a server that answers as the bytes say, and calls one of its functions.
///
/// # Panics
/// If the client panics, or waits after such a server has said everything.
pub fn answers(input: &[u8]) {
    let Liar { address, lies } = liar();
    *lies.lock().expect("no panic before") = input.to_vec();
    let client = match Client::attach(address, None) {
        Ok(client) => client,
        Err(error) => return assert!(error.to_string().contains(&address.to_string()), "{error}"),
    };
    // If the greeting is a lie, the function may have any signature.
    if is_honest(input) {
        let _ = client.call(DOUBLE, &[21]);
    }
}

/// Whether the greeting is true.
fn is_honest(lies: &[u8]) -> bool {
    lies.first().is_some_and(|first| first % 4 != 0)
}
