//! The frames of the protocol.

use std::hint;
use std::time::{Duration, Instant};

/// The bytes of a frame.
pub const SIZE: usize = 64;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the request.
    pub number: u64,
    /// How many microseconds the server keeps a processor busy before it answers.
    pub spin: u32,
}

impl Request {
    /// The request as bytes. The filler depends on the number. So the generator notices an answer
    /// that mixes two requests.
    pub fn encode(self) -> [u8; SIZE] {
        let mut frame = [self.number as u8; SIZE];
        frame[..8].copy_from_slice(&self.number.to_le_bytes());
        frame[8..12].copy_from_slice(&self.spin.to_le_bytes());
        frame
    }

    /// The content of a frame with any filler.
    pub fn decode(frame: &[u8; SIZE]) -> Request {
        let (number, rest) = frame.split_first_chunk().expect("eight of 64 bytes");
        let spin = rest.first_chunk().expect("four of 56 bytes");
        Request { number: u64::from_le_bytes(*number), spin: u32::from_le_bytes(*spin) }
    }
}

/// The work of a server for a request. A heavy request keeps the processor busy for its time.
pub fn handle(frame: &[u8; SIZE]) {
    let spin = Request::decode(frame).spin;
    if spin > 0 {
        let begun = Instant::now();
        let time = Duration::from_micros(spin.into());
        while begun.elapsed() < time {
            hint::spin_loop();
        }
    }
}

/// The complete frames at the start of the received bytes.
pub fn whole(received: &[u8]) -> &[[u8; SIZE]] {
    received.as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_fields_in_their_places() {
        let frame = Request { number: 0x0102_0304_0506_0708, spin: 0x0a0b_0c0d }.encode();
        assert_eq!(frame[..12], [8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(frame[12..], [8; 52]);
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for request in [Request { number: 0, spin: 0 }, Request { number: u64::MAX, spin: u32::MAX }] {
            assert_eq!(Request::decode(&request.encode()), request);
        }
    }

    #[test]
    fn a_part_of_a_frame_waits_for_its_rest() {
        let frames = [Request { number: 1, spin: 0 }.encode(), Request { number: 2, spin: 0 }.encode()];
        let received = frames.as_flattened();
        assert_eq!(whole(received), frames);
        assert_eq!(whole(&received[..127]), &frames[..1]);
        assert_eq!(whole(&received[..63]).len(), 0);
    }
}
