//! Lanes without a process, for the tests of both ends, and for a guest that writes the bytes of a
//! fuzzer.

use crate::external::{self, EXTERNAL};
use crate::guest::{Call, GuestLane, Next, RowCounts};
use crate::identity::{self, Process};
use crate::lane::{Home, LaneOptions, ProcessLane};
use crate::warden::LaneRecord;
use crosslane::batch::{self, BATCH, Column, Encode, Header, LAST, Plan, bit};
use crosslane::lane::{Lane, LaneError, Stuck};
use crosslane::pool::{Pool, PoolOptions, Zygote};
use crosslane::{Address, ColumnBuilder, DataType, Entry, Error, Layout, Part};
use crosslane_ring::Ends;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const RING: usize = 8192;
/// The offset of the reply ring's header, after the control page and the request ring.
const REPLIES: usize = 4096 + 256 + RING;
const REGION: usize = REPLIES + 256 + RING;

/// The types of the results that the fuzzer corrupts.
pub const TYPES: [&str; 12] = [
    "BIGINT",
    "BOOLEAN",
    "VARCHAR",
    "BLOB",
    "ENUM('a', 'b', 'c')",
    "DECIMAL(4,2)",
    "TIME",
    "VARCHAR[]",
    "INTEGER[3]",
    "STRUCT(a VARCHAR, b DOUBLE[])",
    "MAP(VARCHAR, STRUCT(x UUID, y BOOLEAN))",
    "STRUCT(a INTEGER[2][])[]",
];

/// A valid reply of three rows to the first call, in a type. The second row is NULL.
pub fn valid_reply(data_type: &DataType) -> Vec<u8> {
    long_reply(data_type, 3)
}

/// The same with this many rows.
pub fn long_reply(data_type: &DataType, rows: u32) -> Vec<u8> {
    let mut column = ColumnBuilder::new(data_type);
    for row in 0..rows {
        if row % 3 == 1 { column.null() } else { put(&mut column, data_type) }
    }
    let mut plan = Plan::default();
    column.plan(&mut plan);
    let mut frame = vec![0; plan.size()];
    let header = Header { kind: BATCH, flags: LAST, exchange: 1, rows, ..Header::default() };
    column.write(&mut plan.start(&mut frame, header));
    frame
}

fn put(column: &mut ColumnBuilder, data_type: &DataType) {
    match data_type.layout() {
        Layout::Bits => column.boolean(true),
        Layout::Fixed(1) => column.fixed(1u8),
        Layout::Fixed(2) => column.fixed(1u16),
        Layout::Fixed(4) => column.fixed(1u32),
        Layout::Fixed(8) => column.fixed(1u64),
        Layout::Fixed(_) => column.fixed(1u128),
        Layout::Bytes { .. } => column.bytes("häh".as_bytes()).unwrap_or_default(),
        layout => {
            let copies = if let Layout::FixedList(length) = layout { length } else { 1 };
            for (index, child) in data_type.children().enumerate() {
                (0..copies).for_each(|_| put(&mut column.children[index], child));
            }
            column.nested().unwrap_or_default();
        }
    }
}

/// The parts of both ends of a lane: the memory of the engine and of the guest, and their sockets.
///
/// # Panics
/// If the system has no memory or descriptors.
fn parts(ring: usize) -> ((Ends, OwnedFd), (OwnedFd, OwnedFd)) {
    let sockets =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    (Ends::create(ring).expect("memory"), sockets.expect("sockets"))
}

/// An engine's end of a lane to this process. `largest` is the most bytes of its batches.
fn engine_end(ends: Ends, socket: OwnedFd, largest: usize) -> ProcessLane {
    let process = Process::open(std::process::id() as i32).expect("a descriptor of this process");
    let options = LaneOptions { spin: Duration::ZERO, largest, stuck: Stuck::default() };
    ProcessLane::new(ends, socket, Arc::new(process), LaneRecord::new(1, Weak::new()), Home::Here, options)
}

/// Answers calls until the smallest answer does not fit, because the engine takes none.
///
/// # Panics
/// If the rings are too large for the calls that may be in flight.
pub fn fill(engine: &mut ProcessLane, guest: &mut GuestLane) {
    let mut large = ColumnBuilder::new(&DataType::Blob);
    large.bytes(&[0; 800]).expect("room");
    for results in [&large as &dyn Encode, &()] {
        let mut plan = Plan::default();
        results.plan(&mut plan);
        while guest.wait_for_room_or(plan.size(), || true).expect("a lane") {
            engine.submit(Address::call(0), 1, &()).expect("a lane").expect("room");
            let call = guest.next_call().expect("a lane").expect("a call");
            guest.succeed(call, results, RowCounts::default()).expect("a lane");
        }
    }
}

/// Both ends of a lane with rings of this many bytes.
///
/// # Panics
/// If the system has no memory or descriptors.
pub fn both_ends(ring: usize) -> (ProcessLane, GuestLane) {
    let ((ends, memory), (socket, guest_socket)) = parts(ring);
    identity::expect(socket.as_fd()).expect("a socket");
    // SAFETY: both are new, and this is their only guest.
    let guest = unsafe { GuestLane::open(memory, guest_socket, Duration::ZERO) }.expect("the same memory");
    let sender = identity::sender(socket.as_fd()).expect("a greeting");
    assert_eq!(sender, (std::process::id() as i32, false));
    (engine_end(ends, socket, usize::MAX), guest)
}

/// The guest's function for the first batch of an exchange, on the lane with this number (from 1).
/// It returns `false` if the guest's thread has to end.
pub type Guest = dyn Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync;

/// Makes lanes whose guests are threads of this process.
#[allow(missing_debug_implementations)]
pub struct Guests {
    guest: Arc<Guest>,
    ring: usize,
    booted: u64,
    most: u64,
}

impl Guests {
    /// Lanes with rings of this many bytes.
    pub fn new(
        ring: usize,
        guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { guest: Arc::new(guest), ring, booted: 0, most: u64::MAX }
    }

    /// The same, with a limit on the number of lanes.
    pub fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// A pool that keeps this many lanes for a long time.
    ///
    /// # Panics
    /// If its thread cannot be made.
    pub fn pool(self, warm: usize) -> Pool<Self> {
        let options = PoolOptions { warm, idle_timeout: Duration::from_secs(600) };
        Pool::start(options, move |_| Ok((self, ()))).expect("a thread").0
    }
}

impl Zygote for Guests {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        if self.booted == self.most {
            return Err(Error::Boot("there are enough".into()));
        }
        self.booted += 1;
        let (lane, mut end) = both_ends(self.ring);
        let (guest, number) = (Arc::clone(&self.guest), self.booted);
        thread::spawn(move || {
            while let Ok(next) = end.next_call_or(|| false) {
                match next {
                    Next::Call(call) if guest(number, &mut end, call) => {}
                    Next::Cancelled => {}
                    _ => break,
                }
            }
        });
        Ok(lane)
    }
}

/// An engine's end of a lane, and the bare rings of a guest that breaks the protocol.
///
/// # Panics
/// If the system has no memory or descriptors.
pub fn raw_ends(ring: usize) -> (ProcessLane, Ends) {
    let ((ends, memory), (socket, guest_socket)) = parts(ring);
    // The guest's socket stays open, as for a living guest.
    std::mem::forget(guest_socket);
    // SAFETY: the memory is new, and this is its only guest.
    let guest = unsafe { Ends::open(memory) }.expect("the same memory");
    (engine_end(ends, socket, usize::MAX), guest)
}

/// Sends an engine the garbage answer of a guest, and reads the answer as the engine does.
///
/// The first byte selects the type. The second byte selects the open exchange, as `opened` reads
/// it. Its bit 5 says whether the reply is taken in one step or two. If the second byte is even,
/// the remaining bytes are one frame in a valid ring. Otherwise they overwrite the ring itself:
/// first its positions, then its data.
///
/// # Panics
/// If the engine's side panics, which is what the fuzzer looks for, or the system has no memory.
pub fn garbage_reply(input: &[u8]) {
    let [pick, mode, garbage @ ..] = input else { return };
    let data_type: DataType = TYPES[*pick as usize % TYPES.len()].parse().expect("a type of the list");
    let ((ends, fd), (socket, _guest_socket)) = parts(RING);
    let mut lane = opened(engine_end(ends, socket, usize::MAX), *mode);
    if mode % 2 == 0 {
        // SAFETY: the memory is new, and this is its only guest.
        let mut guest = unsafe { Ends::open(&fd) }.expect("the same memory");
        let garbage = &garbage[..garbage.len().min(RING / 2 - 8)];
        assert!(guest.producer.push(garbage, u32::from(*mode / 2 % 4)).expect("a sound ring"));
    } else {
        overwrite(&fd, 0, garbage);
    }
    for _ in 0..4 {
        let taken = if mode & 0x20 == 0 { lane.try_collect() } else { lane.try_collect_head() };
        match taken {
            Ok(Some(_)) if mode & 0x80 != 0 => panic!("a reply to what was cancelled"),
            Ok(Some(header)) if header.kind == BATCH && header.rows <= 1 << 20 => {
                read_results(&mut lane, &data_type);
            }
            Ok(Some(_)) => {
                let _ = batch::failure_text(lane.frame());
            }
            // The message may have been thrown away, and more messages may follow.
            Ok(None) if mode & 0x80 != 0 => {}
            Ok(None) | Err(_) => break,
        }
    }
}

/// Takes the replies of a guest that writes one of two frames into its ring in turn, from byte
/// `start` on. The guest also writes while the replies are taken. `next` gets whether all values of
/// a reply fit, and returns whether another reply follows.
///
/// # Panics
/// If the engine's side panics, or the system has no memory.
pub fn changing_replies(
    data_type: &DataType,
    frames: [&[u8]; 2],
    start: usize,
    mut next: impl FnMut(bool) -> bool,
) {
    let ((ends, fd), (socket, _guest_socket)) = parts(RING);
    let mut lane = engine_end(ends, socket, usize::MAX);
    // SAFETY: the memory is new, and this is its only guest.
    let mut guest = unsafe { Ends::open(&fd) }.expect("the same memory");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for frame in frames {
                    // This is after the header of the ring, and the word of its first frame.
                    overwrite(&fd, 256 + 8 + start, &frame[start..]);
                }
            }
        });
        let mut another = true;
        while another {
            let argument = ColumnBuilder::new(&DataType::BigInt);
            let exchange = lane.submit(Address::call(0), 3, &argument).expect("a sound ring").expect("room");
            guest.consumer.pop().expect("a sound ring");
            let mut frame = frames[0].to_vec();
            let header = Header { exchange, ..batch::header(&frame).expect("a header") };
            frame[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
            assert!(guest.producer.push(&frame, 0).expect("a sound ring"));
            lane.try_collect_head().expect("a sound reply").expect("a reply");
            another = next(read_results(&mut lane, data_type).expect("a sound column"));
        }
        stop.store(true, Relaxed);
    });
}

/// Reads results as the engine does. Returns whether all their values fit. `None` if they are
/// malformed.
fn read_results(lane: &mut ProcessLane, data_type: &DataType) -> Option<bool> {
    let check = |column: &Column<'_>| {
        let unfit = crosslane::values::unfit(column);
        walk(column, &|row| !unfit.contains_key(&row));
        Some(unfit.is_empty())
    };
    if let Some(left) = lane.borrowed() {
        match batch::column_before(lane.frame(), left.length(), data_type) {
            Ok(Some((column, length))) => {
                let mut values = vec![0u64; length.div_ceil(8)];
                // SAFETY: the buffer has at least `length` bytes.
                unsafe { left.first(length).copy_to(values.as_mut_ptr().cast()) };
                let fits = check(&Column { data: &bytemuck::cast_slice(&values)[..length], ..column });
                lane.release();
                return fits;
            }
            Ok(None) => {}
            Err(_) => return None,
        }
    }
    lane.copy_rest();
    check(&batch::column(lane.frame(), data_type).ok()?)
}

/// Whether the engine takes this frame as the first reply to the exchange that [`garbage_reply`]
/// opens. `None` if it throws the reply away, because its exchange was cancelled.
///
/// # Panics
/// If the system has no memory or descriptors.
pub fn replied(frame: &[u8], mode: u8) -> Option<bool> {
    let ((ends, fd), (socket, _guest_socket)) = parts(RING);
    let mut lane = opened(engine_end(ends, socket, usize::MAX), mode);
    // SAFETY: the memory is new, and this is its only guest.
    let mut guest = unsafe { Ends::open(&fd) }.expect("the same memory");
    assert!(guest.producer.push(frame, 0).expect("a sound ring"));
    match lane.try_collect() {
        Ok(Some(_)) => Some(true),
        Ok(None) => None,
        Err(_) => Some(false),
    }
}

/// A lane with an exchange in flight. Bit 6 selects a scan instead of a call. Bit 7 says that the
/// exchange is cancelled.
fn opened(mut lane: ProcessLane, mode: u8) -> ProcessLane {
    let entry = if mode & 0x40 == 0 { Entry::Call } else { Entry::Scan };
    let address = Address { function: 0, entry, part: Part::Whole };
    lane.submit(address, 3, &ColumnBuilder::new(&DataType::BigInt)).expect("room in an empty ring");
    if mode & 0x80 != 0 {
        lane.cancel().expect("room for a cancellation");
    }
    lane
}

/// The engine's result for a guest that answers a call with the announcement of a large reply of
/// `length` bytes, in `file`. The engine has this `largest_batch`.
///
/// # Panics
/// If the system has no memory or descriptors.
pub fn announced_reply(
    length: u64,
    file: OwnedFd,
    largest_batch: usize,
) -> (ProcessLane, Result<Option<Header>, LaneError>) {
    let ((ends, fd), (socket, guest_socket)) = parts(RING);
    let mut lane = engine_end(ends, socket, largest_batch);
    lane.submit(Address::call(0), 3, &ColumnBuilder::new(&DataType::BigInt)).expect("room in an empty ring");
    external::send(guest_socket.as_fd(), file.as_fd(), SendFlags::empty()).expect("an open socket");
    drop(file);
    // SAFETY: the memory is new, and this is its only guest.
    let mut guest = unsafe { Ends::open(&fd) }.expect("the same memory");
    assert!(guest.producer.push(&length.to_le_bytes(), EXTERNAL).expect("a sound ring"));
    let reply = lane.try_collect();
    (lane, reply)
}

/// Overwrites the reply ring, from an offset in its header on.
fn overwrite(fd: &OwnedFd, at: usize, garbage: &[u8]) {
    // SAFETY: this is a new mapping of the whole region. It is written within its bounds, as a
    // guest may do at any time.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = rustix::mm::mmap(std::ptr::null_mut(), REGION, protection, MapFlags::SHARED, fd, 0)
            .expect("a mapping")
            .cast::<u8>();
        let length = garbage.len().min(256 + RING - at);
        base.add(REPLIES + at).copy_from_nonoverlapping(garbage.as_ptr(), length);
        rustix::mm::munmap(base.cast(), REGION).expect("the mapping");
    }
}

/// Reads each value. `fits` says whether a row should hold a value of its type. A row that was
/// refused need not, and neither need values below a NULL.
fn walk(column: &Column<'_>, fits: &dyn Fn(usize) -> bool) {
    let fits = |row: usize| column.is_valid(row) && fits(row);
    for row in 0..column.rows {
        match column.data_type.layout() {
            Layout::Bits => drop(std::hint::black_box(bit(column.data, row))),
            Layout::Fixed(width) => {
                drop(std::hint::black_box(column.data[row * width..(row + 1) * width].to_vec()))
            }
            Layout::Bytes { utf8 } => {
                let sound = !utf8 || std::str::from_utf8(column.bytes(row)).is_ok();
                assert!(sound || !fits(row), "text that is not UTF-8 came through");
            }
            Layout::List | Layout::FixedList(_) => {
                assert!(column.elements(row).end <= column.children[0].rows)
            }
            Layout::Struct => {}
        }
        if let (DataType::Enum(values), true) = (column.data_type, fits(row)) {
            assert!((column.data[row] as usize) < values.len(), "an ENUM code came through");
        }
    }
    let parent = |row: usize| match column.data_type.layout() {
        Layout::Struct => row,
        _ => (0..column.rows).find(|parent| column.elements(*parent).contains(&row)).unwrap_or(row),
    };
    column.children.iter().for_each(|child| walk(child, &|row| fits(parent(row))));
}

/// Pseudorandom numbers, which are the same for the same seed.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, by splitmix64 (G. Steele et al., "Fast Splittable Pseudorandom Number
    /// Generators", 2014).
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}
