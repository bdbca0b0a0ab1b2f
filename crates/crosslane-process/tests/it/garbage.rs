//! Whatever a guest writes, the engine reads results or errors. It never panics, and never reads a wrong
//! row.
//!
//! This is the bounded form of the fuzz target `reply` (`make fuzz`). Its replies are valid ones with a
//! few changed bytes, cut replies, and random bytes.

use crosslane::lane::Lane;
use crosslane::{DataType, batch};
use crosslane_process::testing::{
    Random, TYPES, announced_reply, changing_replies, garbage_reply, long_reply, replied, valid_reply,
};
use rustix::fs::{MemfdFlags, SealFlags};

const ROUNDS: u32 = 60_000;
/// A call, a scan, a cancelled call, and a cancelled scan.
const OPEN: [u8; 4] = [0, 0x40, 0x80, 0xC0];
/// The engine takes the reply in one step or in two.
const STEPS: [u8; 2] = [0, 0x20];

/// Values at which checks are often wrong.
const EDGES: [u64; 10] = [0, 1, 3, 7, 8, 255, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];

#[test]
fn garbled_replies_are_errors() {
    // The engine may take long replies in two steps.
    let replies: Vec<[Vec<u8>; 2]> = TYPES
        .iter()
        .map(|text| text.parse().unwrap())
        .map(|data_type: DataType| [valid_reply(&data_type), long_reply(&data_type, 300)])
        .collect();
    let mut random = Random(1);
    for _ in 0..ROUNDS {
        let pick = random.below(TYPES.len());
        let mut input = vec![pick as u8, OPEN[random.below(OPEN.len())] | STEPS[random.below(STEPS.len())]];
        input.extend_from_slice(&replies[pick][random.below(2)]);
        for _ in 0..random.below(4) {
            // Most bytes of a reply are values. The description of the values is at the start.
            let at = 2 + if random.below(2) == 0 {
                random.below(160.min(input.len() - 2))
            } else {
                random.below(input.len() - 2)
            };
            if random.below(2) == 0 {
                input[at] = random.next() as u8;
            } else {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let end = (at + 8).min(input.len());
                input[at..end].copy_from_slice(&edge[..end - at]);
            }
        }
        if random.below(8) == 0 {
            input.truncate(2 + random.below(input.len() - 2));
        }
        garbage_reply(&input);
    }
}

#[test]
fn garbled_rings_are_errors() {
    let mut random = Random(2);
    for _ in 0..ROUNDS {
        let mode = OPEN[random.below(OPEN.len())] | STEPS[random.below(STEPS.len())];
        let mut input = vec![random.next() as u8, 1 | mode];
        // The positions, in their cache lines, then data.
        for _ in 0..32 {
            let word = if random.below(3) == 0 { random.next() } else { EDGES[random.below(EDGES.len())] };
            input.extend_from_slice(&word.to_le_bytes());
        }
        for _ in 0..random.below(64) {
            let word = if random.below(2) == 0 { random.next() } else { EDGES[random.below(EDGES.len())] };
            input.extend_from_slice(&word.to_le_bytes());
        }
        garbage_reply(&input);
    }
}

#[test]
fn frames_with_any_tag_are_errors() {
    for mode in 0..8u8 {
        for length in 0..100 {
            let mut input = vec![0, mode & !1];
            input.resize(2 + length, 0xFF);
            garbage_reply(&input);
        }
    }
}

/// Large replies in files of any length, with any seals, announced with any length. The engine takes
/// only what the file holds.
#[test]
fn garbled_announcements_are_errors() {
    let reply = valid_reply(&DataType::BigInt);
    let mut random = Random(3);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..ROUNDS / 20 {
        let file =
            rustix::fs::memfd_create("reply", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let mut bytes = reply.clone();
        bytes[random.below(reply.len())] = random.next() as u8;
        rustix::io::pwrite(&file, &bytes, 0).unwrap();
        let size = match random.below(4) {
            0 => EDGES[random.below(7)],
            _ => bytes.len() as u64,
        };
        rustix::fs::ftruncate(&file, size).unwrap();
        let sized = SealFlags::SHRINK | SealFlags::GROW;
        let seals = if random.below(3) == 0 {
            SealFlags::from_bits_truncate(random.next() as u32) & (sized | SealFlags::WRITE | SealFlags::SEAL)
        } else {
            sized
        };
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        let announced = match random.below(4) {
            0 => EDGES[random.below(EDGES.len())],
            1 => bytes.len() as u64,
            _ => size,
        };
        let (lane, outcome) = announced_reply(announced, file, 1 << 20);
        if outcome.is_ok() {
            assert!(seals.contains(sized) && announced == size, "{seals:?}, {size} bytes, {announced} said");
            bytes.resize(size as usize, 0);
            assert_eq!(lane.frame(), bytes);
            taken += 1;
        } else {
            refused += 1;
        }
    }
    assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
}

/// The engine may take the values of a long column in a second step.
#[test]
fn a_buffer_between_words_is_malformed_in_one_step_and_in_two() {
    let mut frame = long_reply(&DataType::BigInt, 300);
    frame.extend([0; 8]);
    // The offset follows the header, the node and the buffer of the validity.
    let offset = 64 + 16 + 16;
    frame[offset] += 4;
    let (head, values) = frame.split_at(batch::last_buffer(&frame, frame.len()).expect("a long buffer"));
    for error in [
        batch::column(&frame, &DataType::BigInt).map(drop),
        batch::column_before(head, values.len(), &DataType::BigInt).map(drop),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("BIGINT: a buffer at "), "{error}");
    }
}

/// A guest sends a valid frame with a wrong header. Only an answer in its turn is a reply, and only to an
/// exchange that was not cancelled.
#[test]
fn messages_out_of_turn_are_errors() {
    let valid = valid_reply(&DataType::BigInt);
    let told = |at: usize, value: &[u8], mode: u8| {
        let mut frame = valid.clone();
        frame[at..at + value.len()].copy_from_slice(value);
        replied(&frame, mode)
    };
    for mode in OPEN {
        let wanted = if mode & 0x80 == 0 { Some(true) } else { None };
        assert_eq!(told(0, &1u16.to_le_bytes(), mode), wanted, "the valid one");
        for kind in [0u16, 3, 4, u16::MAX] {
            assert_eq!(told(0, &kind.to_le_bytes(), mode), Some(false), "kind {kind}");
        }
        for flags in [2u16, 3, 0x8000, u16::MAX] {
            assert_eq!(told(2, &flags.to_le_bytes(), mode), Some(false), "flags {flags}");
        }
        for exchange in [0u64, 2, u64::MAX] {
            assert_eq!(told(8, &exchange.to_le_bytes(), mode), Some(false), "exchange {exchange}");
        }
        // A reply of a scan may have more parts. A reply of a call may not, and neither may a failure.
        let goes_on = if mode & 0x40 == 0 { Some(false) } else { wanted };
        assert_eq!(told(2, &0u16.to_le_bytes(), mode), goes_on);
        assert_eq!(told(0, &2u32.to_le_bytes(), mode), Some(false));
    }
}

/// A guest changes its reply all the time, also while the engine takes it. The engine keeps exactly the
/// bytes that it has checked.
#[test]
fn the_engine_keeps_the_checked_bytes_of_a_changing_reply() {
    let text = DataType::Varchar;
    let sound = long_reply(&text, 300);
    // The values of 200 rows. Two of the four bytes of each value are one character, and half of it is
    // no valid text.
    let values = sound.len() - 800;
    let torn: Vec<u8> = sound.iter().map(|byte| if *byte == 0xC3 { b'x' } else { *byte }).collect();
    let (mut fit, mut unfit) = (0, 0);
    changing_replies(&text, [&sound, &torn], values, |fits| {
        if fits {
            fit += 1;
        } else {
            unfit += 1;
        }
        fit + unfit < 5_000 || fit == 0 || unfit == 0
    });
}
