//! Where the memory and the code of a program or library are.

use super::version::unknown;
use crosslane::Error;
use std::fs;

/// The address ranges of a program or library, and of its code.
pub(super) struct MemoryMap {
    all: Vec<(usize, usize)>,
    code: Vec<(usize, usize)>,
}

impl MemoryMap {
    /// The map of the file whose memory contains an address.
    pub(super) fn around(address: usize) -> Result<Self, Error> {
        let maps = fs::read_to_string("/proc/self/maps").map_err(|error| Error::Engine(error.to_string()))?;
        let parsed = maps.lines().filter_map(|line| {
            let mut parts = line.split_ascii_whitespace();
            let (range, mode) = (parts.next()?, parts.next()?);
            let (from, to) = range.split_once('-')?;
            let range = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
            // The next fields are the offset, the device, the file's number and its name.
            Some((range, mode.contains('x'), parts.nth(2)?, parts.next()?))
        });
        let parsed: Vec<_> = parsed.collect();
        let within = |(from, to): (usize, usize)| (from..to).contains(&address);
        let own = parsed.iter().find(|(range, ..)| within(*range)).ok_or_else(|| unknown("the tables"))?;
        let same: Vec<_> = parsed.iter().filter(|other| (other.2, other.3) == (own.2, own.3)).collect();
        let all = same.iter().map(|(range, ..)| *range).collect();
        let code = same.iter().filter(|(_, code, ..)| *code).map(|(range, ..)| *range).collect();
        Ok(Self { all, code })
    }

    pub(super) fn has_code(&self, address: usize) -> bool {
        self.code.iter().any(|(from, to)| (*from..*to).contains(&address))
    }

    /// Whether `words` words from an address on can be read.
    pub(super) fn holds(&self, address: usize, words: usize) -> bool {
        let end = address + words * size_of::<usize>();
        self.all.iter().any(|(from, to)| *from <= address && end <= *to)
    }
}
