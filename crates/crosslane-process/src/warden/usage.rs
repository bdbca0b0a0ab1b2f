//! How much memory a worker and all processes below it hold, as the kernel shows it in /proc.
//!
//! | counted | how |
//! |---|---|
//! | the worker's own memory | the memory in use of its new allocations: `RssAnon` and `VmData` of its status; at most the limit |
//! | the memory of a process below it | the pages that it has written and shares with no other process (`Private_Dirty` in smaps) |
//! | a memfd or a file on tmpfs that one of them has open | the file's blocks, once for all of them |
//! | shared memory that is mapped and not open | the mapped pages (smaps), once for all of them |
//!
//! The processes below the worker are its descendants, and the children of the reaper in the
//! worker's process group. Memory that a process shares with the zygote counts for no worker. The
//! memory of lanes ([`LANES`]) belongs to the engine.
//!
//! A file with a name that existed before the call counts only as far as it grows, because others
//! have written it. Such a file may be seen first only after it was written. Then the bytes before
//! the position of a descriptor count as written through that descriptor, unless it appends. The
//! reason is that a process that truncates a file and fills it again begins at 0. A file that was
//! closed cannot be distinguished from the files of other programs.
//!
//! To read the smaps of a large process takes milliseconds. They are read only if the numbers that
//! are read quickly could exceed the limit.

use super::proc::{File, LANES, Status, children, mappings, private, process_group};
use rustix::fs::{AtFlags, CWD, MemfdFlags, StatxFlags};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How many generations of processes below a worker are searched.
const GENERATIONS: usize = 32;

/// Seconds, and nanoseconds of the next one.
type Time = (i64, u32);

/// The memory of a worker and all processes below it at one time.
#[derive(Debug, Default)]
pub(crate) struct Base {
    anonymous: u64,
    data: u64,
    /// The private memory of each process below the worker.
    below: HashMap<i32, u64>,
    /// The size of each file in memory.
    files: HashMap<File, u64>,
    /// The time of the measurement, by the clock of files.
    taken: Time,
}

/// A worker whose memory is measured.
#[derive(Debug)]
pub(crate) struct Tree {
    worker: i32,
    /// The process that becomes the parent of processes whose parent has ended.
    reaper: i32,
    /// The most bytes of shared memory of its lane.
    lane: u64,
    /// The devices of files in memory.
    devices: HashSet<(u32, u32)>,
    /// The shared memory that the worker has inherited. Pages of it that others use too do not
    /// count.
    inherited: HashSet<File>,
}

impl Tree {
    /// The tree of a worker that has done nothing yet.
    pub(crate) fn new(worker: i32, reaper: i32, lane: u64) -> Self {
        let inherited = mappings(worker, "maps");
        let inherited = inherited.filter(|mapping| mapping.shared).map(|mapping| mapping.file).collect();
        Self { worker, reaper, lane, devices: memory_devices(), inherited }
    }

    /// The processes below the worker.
    pub(crate) fn below(&self) -> Vec<i32> {
        let is_orphan = |pid: &i32| process_group(*pid) == Some(self.worker);
        let mut last: Vec<i32> = children(self.reaper).filter(is_orphan).collect();
        last.push(self.worker);
        let mut found = last.clone();
        for _ in 0..GENERATIONS {
            last = last.into_iter().flat_map(children).filter(|pid| !found.contains(pid)).collect();
            if last.is_empty() {
                break;
            }
            found.extend(&last);
        }
        found.retain(|pid| *pid != self.worker);
        found
    }

    /// The memory of all these processes now. `None` if the worker has ended.
    pub(crate) fn base(&self) -> Option<Base> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let Status { anonymous, data, shared } = Status::of(self.worker)?;
        let below = self.below();
        let mut files: HashMap<File, u64> =
            self.open(&below).into_iter().map(|(file, open)| (file, open.bytes)).collect();
        if shared > self.lane || !below.is_empty() {
            for (file, mapped) in self.mapped(&below) {
                files.entry(file).or_insert(mapped.bytes());
            }
        }
        let below = below.into_iter().map(|pid| (pid, private(pid))).collect();
        Some(Base { anonymous, data, below, files, taken: (now.tv_sec, now.tv_nsec as u32) })
    }

    /// How many bytes these processes have more than in `base`. The worker's own growth is at most
    /// `limit`, which the kernel enforces. If the total certainly does not exceed `limit`, the
    /// result may be any number up to it. `None` if the worker has ended.
    pub(crate) fn growth(&self, base: &mut Base, limit: u64) -> Option<u64> {
        let Status { anonymous, data, shared } = Status::of(self.worker)?;
        let own = anonymous.saturating_sub(base.anonymous).min(data.saturating_sub(base.data)).min(limit);
        let below = self.below();
        let open = self.open(&below);
        let in_files: u64 =
            open.iter().map(|(file, open)| base.growth(*file, open.bytes, open.by_others(base.taken))).sum();
        let quickly = below.iter().filter_map(|pid| Status::of(*pid)).map(|it| it.anonymous + it.shared);
        let most = own + in_files + shared + quickly.sum::<u64>();
        if most <= limit {
            return Some(most);
        }
        let private_to = |pid: &i32| private(*pid).saturating_sub(base.below.get(pid).copied().unwrap_or(0));
        let of_below: u64 = below.iter().map(private_to).sum();
        let mapped = self.mapped(&below).into_iter().filter(|(file, _)| !open.contains_key(file));
        let in_mappings: u64 =
            mapped.map(|(file, mapped)| base.growth(file, mapped.bytes(), mapped.by_others())).sum();
        Some(own + in_files + of_below + in_mappings)
    }

    fn is_memory(&self, (major, minor, _): File) -> bool {
        self.devices.contains(&(major, minor))
    }

    /// The files in memory that these processes have open.
    fn open(&self, below: &[i32]) -> HashMap<File, Open> {
        let mut found = HashMap::new();
        for pid in below.iter().chain([&self.worker]) {
            for link in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                if let Some((file, open)) = Open::at(link.path()).filter(|(file, _)| self.is_memory(*file)) {
                    let before = found.insert(file, open).map_or(0, |before| before.written);
                    found.entry(file).and_modify(|open| open.written = open.written.max(before));
                }
            }
        }
        found
    }

    /// The shared memory that these processes have mapped.
    fn mapped(&self, below: &[i32]) -> HashMap<File, Mapped> {
        let mut found: HashMap<File, Mapped> = HashMap::new();
        for pid in below.iter().chain([&self.worker]) {
            for mapping in mappings(*pid, "smaps") {
                if !mapping.shared || !mapping.written || !self.is_memory(mapping.file) {
                    continue;
                }
                let mapped = found.entry(mapping.file).or_default();
                mapped.named = mapping.named;
                mapped.private += mapping.private;
                if !self.inherited.contains(&mapping.file) {
                    mapped.common = mapped.common.max(mapping.resident.saturating_sub(mapping.private));
                }
            }
        }
        found
    }
}

impl Base {
    /// How much a file has grown. If it is seen for the first time, others have written `by_others`
    /// bytes of it.
    fn growth(&mut self, file: File, bytes: u64, by_others: u64) -> u64 {
        bytes.saturating_sub(*self.files.entry(file).or_insert(by_others))
    }
}

/// A file in memory that a process has open.
#[derive(Debug)]
struct Open {
    bytes: u64,
    /// Since when the file has a name. It is the beginning of time if that is not known, and `None`
    /// if the file has no name.
    named_since: Option<Time>,
    /// When the file was written last.
    changed: Time,
    /// How many bytes may have been written through a descriptor.
    written: u64,
}

impl Open {
    /// The file of a link in a folder of descriptors. `None` if its memory does not count for the
    /// processes that have it open.
    fn at(link: PathBuf) -> Option<(File, Self)> {
        // This does not block on a file system that hangs.
        let flags = AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let file = rustix::fs::statx(CWD, &link, flags, wanted).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(u32::from(file.stx_mode)).is_file();
        if !is_file || file.stx_blocks == 0 {
            return None;
        }
        let named = file.stx_nlink > 0;
        let counts = if named {
            // Others have written a file that is only read here.
            fs::symlink_metadata(&link).is_ok_and(|link| {
                let mode = std::os::unix::fs::MetadataExt::mode(&link);
                mode & libc::S_IWUSR != 0
            })
        } else {
            !fs::read_link(&link).is_ok_and(|name| name.to_string_lossy().starts_with(LANES))
        };
        let id = (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
        // Kernels before 6.0 do not know when a file on tmpfs was made.
        let born = (file.stx_btime.tv_sec, file.stx_btime.tv_nsec);
        let named_since = named.then_some(born);
        let changed = (file.stx_mtime.tv_sec, file.stx_mtime.tv_nsec);
        let written = if counts && named { written(&link) } else { 0 };
        counts.then_some((id, Self { bytes: file.stx_blocks * 512, named_since, changed, written }))
    }

    /// How many bytes of the file count as written by others before time `then`, when it was not
    /// yet seen.
    fn by_others(&self, then: Time) -> u64 {
        match self.named_since {
            Some(since) if since < then && self.changed >= then => self.bytes.saturating_sub(self.written),
            Some(since) if since < then => self.bytes,
            _ => 0,
        }
    }
}

/// How many bytes of a file are before the position of a descriptor, given its link. 0 if the
/// descriptor appends.
fn written(link: &Path) -> u64 {
    let said = (|| {
        let process = link.parent()?.parent()?;
        let text = fs::read_to_string(process.join("fdinfo").join(link.file_name()?)).ok()?;
        let word = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = u32::from_str_radix(word("flags:")?, 8).ok()?;
        let position = word("pos:")?.parse().ok()?;
        Some(if flags & libc::O_APPEND as u32 == 0 { position } else { 0 })
    })();
    // The descriptor was closed meanwhile.
    said.unwrap_or(0)
}

/// Shared memory that processes have mapped.
#[derive(Debug, Default)]
struct Mapped {
    /// Bytes of pages that one process has mapped.
    private: u64,
    /// Bytes of pages that several processes have mapped.
    common: u64,
    /// Whether its file has a name.
    named: bool,
}

impl Mapped {
    /// How many bytes existed before the memory was seen: all, if others may know the file.
    fn by_others(&self) -> u64 {
        if self.named { self.bytes() } else { 0 }
    }

    fn bytes(&self) -> u64 {
        self.private + self.common
    }
}

/// The devices of memfds and of all tmpfs.
fn memory_devices() -> HashSet<(u32, u32)> {
    let memfd = rustix::fs::memfd_create("crosslane-device", MemfdFlags::CLOEXEC).and_then(|memfd| {
        let file = rustix::fs::statx(&memfd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok((file.stx_dev_major, file.stx_dev_minor))
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_mount = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        kind.starts_with("tmpfs ").then_some(device)
    };
    mounts.lines().filter_map(of_mount).chain(memfd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::fs::{File, OpenOptions};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};

    /// This variable is set if this program is a worker.
    const WORKER: &str = "CROSSLANE_TEST_USAGE";
    /// How much memory each way takes, and how far a measurement may be off.
    const SIZE: usize = 16 << 20;
    const SLACK: u64 = 2 << 20;

    /// Maps [`SIZE`] bytes of memory, and writes into them.
    fn fill(flags: MapFlags) -> &'static mut [u8] {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which stays until the process ends.
        let memory = unsafe {
            let start = rustix::mm::mmap_anonymous(std::ptr::null_mut(), SIZE, all, flags).unwrap();
            std::slice::from_raw_parts_mut(start.cast::<u8>(), SIZE)
        };
        memory.fill(1);
        memory
    }

    /// Writes [`SIZE`] bytes into a file, with little memory of its own.
    fn write(mut file: &File) {
        (0..SIZE >> 12).for_each(|_| file.write_all(&[1; 1 << 12]).unwrap());
    }

    /// Forks a process that runs `body` and then waits for its end. Returns its number when `body`
    /// is done.
    fn fork(body: impl FnOnce()) -> i32 {
        let (done, tell) = rustix::pipe::pipe().unwrap();
        // SAFETY: the new process makes only system calls.
        match unsafe { libc::fork() } {
            0 => {
                body();
                rustix::io::write(&tell, b"d").unwrap();
                loop {
                    // SAFETY: it waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            pid => {
                rustix::io::read(&done, &mut [0; 1]).unwrap();
                pid
            }
        }
    }

    /// The other side: a worker that does what each line of its input says. It only works when
    /// another test has started it.
    #[test]
    fn worker() {
        if std::env::var_os(WORKER).is_none() {
            return;
        }
        let (mut kept, mut forks) = (Vec::<File>::new(), Vec::new());
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let (word, path) = line.split_once(' ').unwrap_or((&line, ""));
            let mut said = 0;
            match word {
                "own" => _ = fill(MapFlags::PRIVATE),
                "mapping" => _ = fill(MapFlags::SHARED),
                "memfd" => {
                    kept.push(rustix::fs::memfd_create("user's", MemfdFlags::CLOEXEC).unwrap().into());
                    write(kept.last().unwrap());
                }
                "lane" => {
                    let name = "crosslane-batch";
                    kept.push(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap().into());
                    write(kept.last().unwrap());
                }
                "new" => {
                    kept.push(File::create_new(path).unwrap());
                    write(kept.last().unwrap());
                }
                "open" => kept.push(OpenOptions::new().write(true).open(path).unwrap()),
                "append" => {
                    kept.push(OpenOptions::new().append(true).open(path).unwrap());
                    kept.last().unwrap().write_all(&[1]).unwrap();
                }
                "fill" => {
                    kept.push(File::create(path).unwrap());
                    write(kept.last().unwrap());
                }
                "more" => write(kept.last().unwrap()),
                "child" => forks.push(fork(|| _ = fill(MapFlags::PRIVATE))),
                "idle" => forks.push(fork(|| ())),
                "reader" => {
                    let memory = fill(MapFlags::SHARED);
                    said = fork(|| assert_eq!(memory.iter().max(), Some(&1)));
                    forks.push(said);
                }
                "nothing" => {}
                _ => panic!("{word}"),
            }
            println!("did {said}");
        }
        for pid in forks {
            // SAFETY: they are this process's children, and no thread has waited for them.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }

    struct Worker(Child, BufReader<ChildStdout>);

    impl Worker {
        fn new() -> Self {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["warden::usage::tests::worker", "--exact", "--nocapture"]).env(WORKER, "1");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let said = BufReader::new(child.stdout.take().unwrap());
            let mut worker = Self(child, said);
            // While the worker starts, its memory grows. So this waits for its answer.
            worker.does("nothing");
            worker
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }

        fn does(&mut self, word: &str) -> i32 {
            writeln!(self.0.stdin.as_ref().unwrap(), "{word}").unwrap();
            for line in self.1.by_ref().lines() {
                if let Some((_, said)) = line.unwrap().split_once("did ") {
                    return said.parse().unwrap();
                }
            }
            panic!("it ended")
        }
    }

    impl Drop for Worker {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().unwrap();
        }
    }

    /// A name on tmpfs. Dropping it removes the file.
    struct Name(PathBuf);

    impl Name {
        fn new(what: &str) -> Self {
            Self(format!("/dev/shm/crosslane-{what}-{}", std::process::id()).into())
        }
    }

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn assert_is(grown: Option<u64>, times: u64, what: &str) {
        let grown = grown.unwrap();
        assert!(grown.abs_diff(times * SIZE as u64) < SLACK, "{what}: {grown} bytes");
    }

    #[test]
    fn each_way_to_hold_memory_counts_once() {
        let name = Name::new("new");
        let new = format!("new {}", name.0.display());
        let limit = SIZE as u64;
        let mut worker = Worker::new();
        let tree = Tree::new(worker.pid(), std::process::id() as i32, 0);
        let mut base = tree.base().unwrap();
        assert_is(tree.growth(&mut base, limit), 0, "nothing");
        for (count, way) in ["own", "mapping", "memfd", "child"].into_iter().enumerate() {
            worker.does(way);
            assert_is(tree.growth(&mut base, limit), count as u64 + 1, way);
        }
        // A process that shares all memory with its parent adds nothing.
        worker.does("idle");
        assert_is(tree.growth(&mut base, limit), 4, "idle");
        worker.does(&new);
        assert_is(tree.growth(&mut base, limit), 5, &new);
        worker.does("more");
        assert_is(tree.growth(&mut base, limit), 6, "more");
        // This file existed before. The worker fills it again before the tree has seen it.
        let old = Name::new("filled");
        fs::write(&old.0, vec![1; SIZE / 2]).unwrap();
        let mut base = tree.base().unwrap();
        worker.does(&format!("fill {}", old.0.display()));
        assert_is(tree.growth(&mut base, limit), 1, "fill");
        worker.does("more");
        assert_is(tree.growth(&mut base, limit), 2, "more");
        // Memory that exists when work begins does not count.
        let mut base = tree.base().unwrap();
        assert_is(tree.growth(&mut base, limit), 0, "later");
        // If the memory cannot exceed the limit, the tree does not look closer.
        let most = tree.growth(&mut base, 1 << 40).unwrap();
        assert!(most > 0, "{most}");
    }

    #[test]
    fn what_is_not_the_workers_does_not_count() {
        let name = Name::new("old");
        fs::write(&name.0, vec![1; SIZE]).unwrap();
        let mut worker = Worker::new();
        let tree = Tree::new(worker.pid(), std::process::id() as i32, 0);
        let mut base = tree.base().unwrap();
        worker.does(&format!("open {}", name.0.display()));
        assert_is(tree.growth(&mut base, 0), 0, "a file that was there");
        let name = Name::new("log");
        fs::write(&name.0, vec![1; SIZE]).unwrap();
        let mut base = tree.base().unwrap();
        worker.does(&format!("append {}", name.0.display()));
        assert_is(tree.growth(&mut base, 0), 0, "a file that others have written, too");
        worker.does("lane");
        assert_is(tree.growth(&mut base, 0), 0, "a lane's");
        // A worker of a zygote reads the zygote's shared memory.
        let reader = worker.does("reader");
        let tree = Tree::new(reader, worker.pid(), 0);
        assert!(tree.below().is_empty());
        assert_is(Status::of(reader).map(|status| status.shared), 1, "what it has read");
        let mut before = tree.base().unwrap();
        before.files.clear();
        assert_is(tree.growth(&mut before, 0), 0, "what it has inherited");
    }
}
