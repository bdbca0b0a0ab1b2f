//! What the kernel says about a process: its memory, its mappings, its children, its group and its
//! processor time.

use std::fs;
use std::time::Duration;

/// The beginning of the names of memfds that go between engines and guests.
pub(super) const LANES: &str = "/memfd:crosslane-";
/// The end of the name of a file that was deleted.
const DELETED: &str = " (deleted)";

/// A file, named by its device (two numbers) and its inode.
pub(super) type File = (u32, u32, u64);

/// The numbers about a process that the kernel reports quickly.
pub(super) struct Status {
    /// Bytes of pages in use that belong to no file.
    pub(super) anonymous: u64,
    /// Bytes of private memory that can be written, in use or not.
    pub(super) data: u64,
    /// Bytes of pages of shared memory.
    pub(super) shared: u64,
}

impl Status {
    pub(super) fn of(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mut status = Self { anonymous: 0, data: 0, shared: 0 };
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name {
                "RssAnon" | "VmSwap" => status.anonymous += kilobytes(value),
                "VmData" => status.data = kilobytes(value),
                "RssShmem" => status.shared = kilobytes(value),
                _ => {}
            }
        }
        Some(status)
    }
}

/// A mapping of a process. From smaps, it also has the memory in use.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) file: File,
    pub(super) shared: bool,
    /// Whether the mapping can be written, and is not the memory of a lane.
    pub(super) written: bool,
    /// Whether its file has a name.
    pub(super) named: bool,
    pub(super) resident: u64,
    /// Bytes of pages that were written, and that no other process has mapped.
    pub(super) private: u64,
}

impl Mapping {
    /// Parses the first line of a mapping. `None` for another line.
    fn begins(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (range, permissions) = (words.next()?, words.next()?);
        if range.ends_with(':') {
            return None;
        }
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let file = (number(major)?, number(minor)?, words.next()?.parse().ok()?);
        let shared = permissions.ends_with('s');
        // The memory of lanes does not count.
        let written = permissions.contains('w') && !line.contains(LANES);
        let named = !line.ends_with(DELETED);
        Some(Self { file, shared, written, named, resident: 0, private: 0 })
    }
}

/// The mappings of a process, from its maps or smaps.
pub(super) fn mappings(pid: i32, by: &str) -> impl Iterator<Item = Mapping> {
    // The names of files may have any bytes.
    let text = fs::read(format!("/proc/{pid}/{by}")).unwrap_or_default();
    let mut found: Vec<Mapping> = Vec::new();
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some(mapping) = Mapping::begins(line) {
            found.push(mapping);
        } else if let (Some(last), Some((name, value))) = (found.last_mut(), line.split_once(':')) {
            match name {
                "Rss" => last.resident = kilobytes(value),
                "Private_Dirty" => last.private = kilobytes(value),
                _ => {}
            }
        }
    }
    found.into_iter()
}

/// The memory that a process has written and shares with no other process.
pub(super) fn private(pid: i32) -> u64 {
    mappings(pid, "smaps").filter(|mapping| !mapping.shared).map(|mapping| mapping.private).sum()
}

fn kilobytes(text: &str) -> u64 {
    text.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// The children of all threads of a process.
pub(super) fn children(pid: i32) -> impl Iterator<Item = i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.flat_map(|task| {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    })
}

/// The process group of a process. The kernel returns 0 for a group whose leader is outside of this
/// process's pid namespace. [`rustix::process::getpgid`] cannot return such a number.
pub(crate) fn process_group(pid: i32) -> Option<i32> {
    // SAFETY: getpgid takes a number.
    let group = unsafe { libc::getpgid(pid) };
    (group > 0).then_some(group)
}

/// The processor time of all threads that a process has had. `None` if it has ended.
pub(super) fn processor_time(pid: i32) -> Option<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both calls fill in what they are given.
    unsafe {
        if libc::clock_getcpuclockid(pid, &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
        {
            return None;
        }
    }
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
