//! The part of a function's memory limit that the kernel enforces. Beyond the limit, allocations
//! fail, and guests turn this into their MemoryError. The engine checks the memory that the kernel
//! does not count (`memory.rs`).

use crate::guest::sandboxed;
use std::fs;

/// The system ends workers before the database when memory runs out.
const OOM_SCORE: &[u8] = b"800";

/// Makes the system end this process before the database when memory runs out. A lane in a sandbox
/// has this from its zygote, and cannot write the file.
pub fn prefer_to_be_killed() {
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
}

/// The soft limit on private writable memory. Dropping it restores the earlier limit.
#[derive(Debug)]
pub struct MemoryLimit(libc::rlimit);

impl MemoryLimit {
    /// Lets the process allocate at most `bytes` more than it has now.
    pub fn set(bytes: u64) -> Option<Self> {
        Self::up_to(data_size()?.saturating_add(bytes))
    }

    /// Lets the process have at most this many bytes, as [`data_size`] counts them.
    pub fn up_to(bytes: u64) -> Option<Self> {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is a valid place for the result.
        if unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut old) } != 0 {
            return None;
        }
        let limit = Self(old);
        limit.apply(bytes.min(old.rlim_max));
        Some(limit)
    }

    fn apply(&self, soft: u64) {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: self.0.rlim_max };
        // SAFETY: the structure is valid; failure leaves the limit as it was.
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) };
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.apply(self.0.rlim_cur);
    }
}

/// The private writable bytes of this process: its data and stack.
#[must_use]
pub fn data_size() -> Option<u64> {
    bytes(&counts()?, 5)
}

/// The resident bytes of this process that it shares with no other.
#[must_use]
pub fn own_size() -> Option<u64> {
    let counts = counts()?;
    Some(bytes(&counts, 1)?.saturating_sub(bytes(&counts, 2)?))
}

/// The kernel's counts of this process's memory, in pages (`proc_pid_statm(5)`).
fn counts() -> Option<String> {
    let Some(descriptor) = sandboxed::statm() else { return fs::read_to_string("/proc/self/statm").ok() };
    let mut text = [0; 256];
    let length = rustix::io::pread(descriptor, &mut text, 0).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// One of these counts, by its number from 0, in bytes.
fn bytes(counts: &str, number: usize) -> Option<u64> {
    let pages: u64 = counts.split_whitespace().nth(number)?.parse().ok()?;
    // The library of system calls would open a file for this, which a sandbox may forbid.
    // SAFETY: sysconf has no requirements.
    Some(pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}
