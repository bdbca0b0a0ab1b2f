//! Lanes without a process: for the tests of both ends, and for a guest that writes what a fuzzer says.

use crate::guest::GuestLane;
use crate::lane::{Home, ProcessLane};
use crate::warden::LaneRecord;
use crosslane::batch::{self, Column, Encode, Header, Plan, RESULT, Trust, bit};
use crosslane::lane::Lane;
use crosslane::{ColumnBuilder, DataType, Layout};
use crosslane_ring::Region;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use std::os::fd::OwnedFd;
use std::time::Duration;

const RING: usize = 4096;
/// Where the reply ring's header begins: behind the control page and the request ring.
const REPLIES: usize = 4096 + 256 + RING;
const REGION: usize = REPLIES + 256 + RING;

/// The types of the results that the fuzzer garbles.
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

/// A valid reply of three rows (the second is NULL) to the first call, in a type.
pub fn valid_reply(data_type: &DataType) -> Vec<u8> {
    let mut column = ColumnBuilder::new(data_type);
    fill(&mut column, data_type);
    column.null();
    fill(&mut column, data_type);
    let mut plan = Plan::default();
    column.plan(&mut plan);
    let mut frame = vec![0; plan.size()];
    let header = Header { kind: RESULT, sequence: 1, rows: 3, ..Header::default() };
    column.write(&mut plan.start(&mut frame, header));
    frame
}

fn fill(column: &mut ColumnBuilder, data_type: &DataType) {
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
                (0..copies).for_each(|_| fill(&mut column.children[index], child));
            }
            column.nested().unwrap_or_default();
        }
    }
}

/// An engine's end of a lane, and what its guest would get: memory and socket. The lane's process is this one.
///
/// # Panics
/// If the system has no memory or descriptors.
fn engine_end(ring: usize) -> (ProcessLane, OwnedFd, OwnedFd) {
    let (region, memory) = Region::create(ring).expect("memory");
    let (socket, guest_socket) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("sockets");
    let own = rustix::process::getpid();
    let process =
        rustix::process::pidfd_open(own, PidfdFlags::empty()).expect("a descriptor of this process");
    let lane =
        ProcessLane::new(region.engine(), socket, process, 0, LaneRecord::new(1), Home::Own, Duration::ZERO);
    (lane, memory, guest_socket)
}

/// Both ends of a lane with rings of so many bytes.
///
/// # Panics
/// If the system has no memory or descriptors.
pub fn both_ends(ring: usize) -> (ProcessLane, GuestLane) {
    let (lane, memory, socket) = engine_end(ring);
    (lane, GuestLane::open(memory, socket, Duration::ZERO).expect("the same memory"))
}

/// Lets a guest answer a call with garbage and reads the answer as the engine does.
///
/// The first byte picks the type. If the second is even, the rest is one frame in a sound ring; else
/// it overwrites the ring itself: its positions first, then its data.
///
/// # Panics
/// If the engine's side panics, which is what the fuzzer looks for, or the system has no memory.
pub fn garbage_reply(input: &[u8]) {
    let [pick, mode, garbage @ ..] = input else { return };
    let data_type: DataType = TYPES[*pick as usize % TYPES.len()].parse().expect("a type of the list");
    let (mut lane, fd, _socket) = engine_end(RING);
    lane.submit(0, 3, &ColumnBuilder::new(&DataType::BigInt)).expect("room in an empty ring");
    if mode % 2 == 0 {
        let mut guest = Region::open(&fd).expect("the same memory").guest();
        let garbage = &garbage[..garbage.len().min(RING / 2 - 8)];
        assert!(guest.producer.push(garbage, u32::from(*mode / 2 % 4)).expect("a sound ring"));
    } else {
        scribble(&fd, garbage);
    }
    for _ in 0..4 {
        match lane.try_collect() {
            Ok(Some(header)) if header.kind == RESULT && header.rows <= 1 << 20 => {
                if let Ok(columns) = batch::columns(lane.frame(), std::iter::once(&data_type), Trust::Nothing)
                {
                    columns.iter().for_each(walk);
                }
            }
            Ok(Some(_)) => {
                let _ = batch::failure_text(lane.frame());
            }
            Ok(None) | Err(_) => break,
        }
    }
}

fn scribble(fd: &OwnedFd, garbage: &[u8]) {
    // SAFETY: a new mapping of the whole region, written within its bounds while nobody else runs.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = rustix::mm::mmap(std::ptr::null_mut(), REGION, protection, MapFlags::SHARED, fd, 0)
            .expect("a mapping")
            .cast::<u8>();
        let length = garbage.len().min(256 + RING);
        base.add(REPLIES).copy_from_nonoverlapping(garbage.as_ptr(), length);
        rustix::mm::munmap(base.cast(), REGION).expect("the mapping");
    }
}

/// Touches every value.
fn walk(column: &Column<'_>) {
    for row in 0..column.rows {
        let valid = column.is_valid(row);
        match column.data_type.layout() {
            Layout::Bits => drop(std::hint::black_box(bit(column.data, row))),
            Layout::Fixed(width) => {
                drop(std::hint::black_box(column.data[row * width..(row + 1) * width].to_vec()))
            }
            Layout::Bytes { utf8 } => {
                let bytes = column.bytes(row);
                assert!(!utf8 || std::str::from_utf8(bytes).is_ok(), "text that is not UTF-8 came through");
            }
            Layout::List | Layout::FixedList(_) => {
                assert!(column.elements(row).end <= column.children[0].rows)
            }
            Layout::Struct => {}
        }
        if let (DataType::Enum(values), true) = (column.data_type, valid) {
            assert!((column.data[row] as usize) < values.len(), "an ENUM code came through");
        }
    }
    column.children.iter().for_each(walk);
}
