//! The ways out, as system calls. They are made as they are, so that no library uses another call when
//! one is refused.

use super::place::Place;
use libc::*;
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A word in the memory of all processes of the test.
static WORD: AtomicU64 = AtomicU64::new(0);

/// A name, and what it does. The error is the number of the system's error.
pub(super) type Way = (&'static str, fn(&Place) -> Result<(), c_int>);

const NONE: usize = 0;
const HERE: usize = AT_FDCWD as usize;

/// Makes a system call.
fn call(number: c_long, arguments: &[usize]) -> Result<usize, c_int> {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = six;
    // SAFETY: the callers pass numbers, and addresses of memory that lives as long as the call.
    match unsafe { syscall(number, a, b, c, d, e, f) } {
        done if done < 0 => Err(errno()),
        done => Ok(done as usize),
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)
}

/// Makes a system call whose result does not matter.
fn does(number: c_long, arguments: &[usize]) -> Result<(), c_int> {
    call(number, arguments).map(drop)
}

fn text(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("a path without zeros")
}

fn at(path: &CString) -> usize {
    path.as_ptr().expose_provenance()
}

/// The address of a value. The call may write to it.
fn of<T>(value: &mut T) -> usize {
    (&raw mut *value).expose_provenance()
}

fn opens(path: impl AsRef<Path>, flags: c_int) -> Result<(), c_int> {
    let path = text(path);
    does(SYS_openat, &[HERE, at(&path), flags as usize, 0o600])
}

/// Makes a process that ends at once, by a system call that returns twice.
fn forks(number: c_long, arguments: &[usize]) -> Result<(), c_int> {
    match call(number, arguments)? {
        // SAFETY: the child has nothing to clean up.
        0 => unsafe { _exit(0) },
        child => ends(child),
    }
}

/// Waits for a child.
fn ends(child: usize) -> Result<(), c_int> {
    does(SYS_wait4, &[child, NONE, 0, 0])
}

/// Connects a new socket.
fn connects(family: c_int, kind: c_int, address: &[u8]) -> Result<(), c_int> {
    let socket = call(SYS_socket, &[family as usize, kind as usize, 0])?;
    does(SYS_connect, &[socket, address.as_ptr().expose_provenance(), address.len()])
}

/// An address of the Internet on this machine.
fn internet(port: u16) -> Vec<u8> {
    let family = (AF_INET as u16).to_ne_bytes();
    [&family[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat()
}

/// An address of a socket of this machine: a path, or a name after a zero.
fn unix(name: &[u8]) -> Vec<u8> {
    [&(AF_UNIX as u16).to_ne_bytes()[..], name].concat()
}

fn port(address: std::io::Result<std::net::SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port())
}

fn number(descriptor: &impl AsRawFd) -> usize {
    let descriptor: RawFd = descriptor.as_raw_fd();
    descriptor as usize
}

/// Reads or writes a word of the engine's memory. It has the word at the same address.
fn moves_memory(number: c_long, place: &Place) -> Result<(), c_int> {
    let mut word = 0u64;
    let mut here = iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let mut there = iovec { iov_base: WORD.as_ptr().cast(), iov_len: 8 };
    does(number, &[place.engine, of(&mut here), 1, of(&mut there), 1, 0])
}

/// Becomes the program `true`.
fn becomes(number: c_long, before: &[usize], path: &CString, after: &[usize]) -> Result<(), c_int> {
    let mut arguments = [path.as_ptr(), std::ptr::null()];
    let mut environment = [std::ptr::null::<c_char>()];
    let all = [before, &[at(path), of(&mut arguments), of(&mut environment)], after].concat();
    does(number, &all)
}

/// The numbers of a new process whose end is a signal, as clone3 takes them.
fn of_new_process() -> [u64; 8] {
    let mut numbers = [0; 8];
    numbers[4] = SIGCHLD as u64;
    numbers
}

const HAS_NAMESPACE: usize = SIGCHLD as usize | CLONE_NEWUSER as usize;
const SEIZE: usize = 0x4206;
const KEYRING_OF_PROCESS: usize = -2isize as usize;
const ALL: usize = -1isize as usize;

#[rustfmt::skip]
pub(super) const WAYS: &[Way] = &[
    // files
    ("read the users", |_| opens("/etc/passwd", O_RDONLY)),
    ("read the database", |place| opens(place.path_of("database"), O_RDONLY)),
    ("read the library", |place| opens(&place.library, O_RDONLY)),
    ("write to the database", |place| opens(place.path_of("database"), O_WRONLY)),
    ("make a file", |place| opens(place.path_of("new"), O_WRONLY | O_CREAT)),
    ("make a file without a name", |place| opens(place.path_of(""), O_WRONLY | O_TMPFILE)),
    ("descriptor of a path", |place| opens(place.path_of("database"), O_PATH)),
    ("open by openat2", |place| {
        let path = text(place.path_of("database"));
        does(SYS_openat2, &[HERE, at(&path), of(&mut [0u64; 3]), 24])
    }),
    ("open a folder", |_| opens("/", O_DIRECTORY)),
    ("shared memory", |_| opens("/dev/shm", O_RDWR | O_TMPFILE)),
    ("a device", |_| opens("/dev/null", O_RDWR)),
    ("own memory", |_| opens("/proc/self/mem", O_RDWR)),
    ("own map", |_| opens("/proc/self/maps", O_RDONLY)),
    ("environment of the engine", |place| opens(place.of_engine("environ"), O_RDONLY)),
    ("memory of the engine", |place| opens(place.of_engine("mem"), O_RDWR)),
    ("files of the engine", |place| opens(place.of_engine("fd"), O_RDONLY)),
    ("size of a file", |place| {
        let path = text(place.path_of("database"));
        does(SYS_newfstatat, &[HERE, at(&path), of(&mut [0u64; 32]), 0])
    }),
    ("more about a file", |place| {
        let path = text(place.path_of("database"));
        does(SYS_statx, &[HERE, at(&path), 0, STATX_BASIC_STATS as usize, of(&mut [0u64; 32])])
    }),
    ("rights to a file", |place| {
        let path = text(place.path_of("database"));
        does(SYS_faccessat, &[HERE, at(&path), R_OK as usize])
    }),
    ("target of a link", |_| {
        let path = text("/proc/self/exe");
        does(SYS_readlinkat, &[HERE, at(&path), of(&mut [0u8; 256]), 256])
    }),
    ("room of a file system", |_| does(SYS_statfs, &[at(&text("/")), of(&mut [0u64; 32])])),
    ("change the folder", |_| does(SYS_chdir, &[at(&text("/"))])),
    ("shorten a file", |place| does(SYS_truncate, &[at(&text(place.path_of("victim"))), 2])),
    ("make a folder", |place| does(SYS_mkdirat, &[HERE, at(&text(place.path_of("made"))), 0o700])),
    ("link a file", |place| {
        let paths = ["database", "linked"].map(|name| text(place.path_of(name)));
        does(SYS_linkat, &[HERE, at(&paths[0]), HERE, at(&paths[1]), 0])
    }),
    ("link by name", |place| {
        does(SYS_symlinkat, &[at(&text("/etc/passwd")), HERE, at(&text(place.path_of("link")))])
    }),
    ("rename a file", |place| {
        let paths = ["linked", "renamed"].map(|name| text(place.path_of(name)));
        does(SYS_renameat2, &[HERE, at(&paths[0]), HERE, at(&paths[1]), 0])
    }),
    ("delete a file", |place| does(SYS_unlinkat, &[HERE, at(&text(place.path_of("renamed"))), 0])),
    ("make a pipe with a name", |place| {
        does(SYS_mknodat, &[HERE, at(&text(place.path_of("pipe"))), S_IFIFO as usize | 0o600, 0])
    }),
    ("mode of a file", |place| does(SYS_fchmodat, &[HERE, at(&text(place.path_of("victim"))), 0o644])),
    ("owner of a file", |place| {
        does(SYS_fchownat, &[HERE, at(&text(place.path_of("victim"))), ALL, ALL, 0])
    }),
    ("time of a file", |place| does(SYS_utimensat, &[HERE, at(&text(place.path_of("victim"))), NONE, 0])),
    ("attributes of a file", |place| does(SYS_listxattr, &[at(&text(place.path_of("victim"))), NONE, 0])),
    ("handle of a file", |place| {
        let path = text(place.path_of("victim"));
        let mut handle = [0u32; 40];
        handle[0] = 128;
        does(SYS_name_to_handle_at, &[HERE, at(&path), of(&mut handle), of(&mut 0i32), 0])
    }),
    ("watch a file", |_| does(SYS_inotify_init1, &[0])),
    ("watch a mount", |_| does(SYS_fanotify_init, &[0, 0])),
    // sockets
    ("tcp", |place| connects(AF_INET, SOCK_STREAM, &internet(port(place.tcp.local_addr())))),
    ("udp", |place| connects(AF_INET, SOCK_DGRAM, &internet(port(place.udp.local_addr())))),
    ("socket of version 6", |_| does(SYS_socket, &[AF_INET6 as usize, SOCK_STREAM as usize, 0])),
    ("socket with a path", |place| {
        connects(AF_UNIX, SOCK_STREAM, &unix(place.path_of("socket").as_os_str().as_bytes()))
    }),
    ("socket with a name", |place| connects(AF_UNIX, SOCK_STREAM, &unix(&place.name_of_socket()))),
    ("socket of the kernel", |_| does(SYS_socket, &[AF_NETLINK as usize, SOCK_RAW as usize, 0])),
    ("pair of sockets", |_| {
        does(SYS_socketpair, &[AF_UNIX as usize, SOCK_STREAM as usize, 0, of(&mut [0i32; 2])])
    }),
    ("connect a socket from before", |place| {
        let address = internet(port(place.tcp.local_addr()));
        does(SYS_connect, &[number(&place.of_tcp), address.as_ptr().expose_provenance(), address.len()])
    }),
    ("send with the first packet", |place| {
        let address = internet(port(place.tcp.local_addr()));
        let text = [of(&mut [0u8]), 1, MSG_FASTOPEN as usize];
        let to = [address.as_ptr().expose_provenance(), address.len()];
        does(SYS_sendto, &[&[number(&place.of_fast)], &text[..], &to].concat())
    }),
    ("serve", |place| does(SYS_listen, &[number(&place.tcp), 8])),
    // programs and processes
    ("fork", |_| forks(SYS_clone, &[SIGCHLD as usize])),
    #[cfg(target_arch = "x86_64")]
    ("fork by its own name", |_| forks(SYS_fork, &[])),
    ("clone by clone3", |_| forks(SYS_clone3, &[of(&mut of_new_process()), size_of::<[u64; 8]>()])),
    ("spawn", |_| {
        let path = text("/bin/true");
        let (arguments, environment) = ([path.as_ptr().cast_mut(), std::ptr::null_mut()], [std::ptr::null_mut()]);
        let mut child = 0;
        // SAFETY: the texts and the lists live as long as the call, and zeros end the lists.
        let error = unsafe {
            let [none, also] = [std::ptr::null(); 2];
            posix_spawn(&raw mut child, path.as_ptr(), none, also.cast(), arguments.as_ptr(), environment.as_ptr())
        };
        if error == 0 { ends(child as usize) } else { Err(error) }
    }),
    ("become a program", |_| becomes(SYS_execve, &[], &text("/bin/true"), &[])),
    ("become a program of memory", |place| {
        let file = call(SYS_memfd_create, &[at(&text("program")), 0])?;
        let length = place.program.len();
        let written = call(SYS_write, &[file, place.program.as_ptr().expose_provenance(), length])?;
        assert_eq!(written, length);
        becomes(SYS_execveat, &[file], &text(""), &[AT_EMPTY_PATH as usize])
    }),
    ("session", |_| does(SYS_setsid, &[])),
    ("group of processes", |_| does(SYS_setpgid, &[0, 0])),
    ("signal to the engine", |place| does(SYS_kill, &[place.engine, 0])),
    ("signal to all", |_| does(SYS_kill, &[ALL, 0])),
    ("signal to a thread of the engine", |place| does(SYS_tgkill, &[place.engine, place.engine, 0])),
    ("signal to a thread by its number", |place| does(SYS_tkill, &[place.engine, 0])),
    ("signal with a value", |place| {
        let mut told = [0i32; 32];
        told[2] = SI_QUEUE;
        does(SYS_rt_sigqueueinfo, &[place.engine, 0, of(&mut told)])
    }),
    ("signals by a descriptor", |place| {
        does(SYS_fcntl, &[number(&place.udp), F_SETOWN as usize, place.engine])
    }),
    ("open the engine", |place| does(SYS_pidfd_open, &[place.engine, 0])),
    ("descriptor of the engine", |place| {
        let engine = call(SYS_pidfd_open, &[place.engine, 0])?;
        does(SYS_pidfd_getfd, &[engine, number(&place.tcp), 0])
    }),
    ("trace the engine", |place| does(SYS_ptrace, &[SEIZE, place.engine, 0, 0])),
    ("read memory of the engine", |place| moves_memory(SYS_process_vm_readv, place)),
    ("write memory of the engine", |place| moves_memory(SYS_process_vm_writev, place)),
    ("compare with the engine", |place| does(SYS_kcmp, &[place.engine, place.engine, 1, 0, 0])),
    ("limits of the engine", |place| {
        does(SYS_prlimit64, &[place.engine, RLIMIT_NOFILE as usize, NONE, of(&mut [0u64; 2])])
    }),
    ("priority of the engine", |place| does(SYS_setpriority, &[PRIO_PROCESS as usize, place.engine, 19])),
    ("scheduling of the engine", |place| {
        does(SYS_sched_setscheduler, &[place.engine, SCHED_OTHER as usize, of(&mut 0i32)])
    }),
    ("outlive the engine", |_| does(SYS_prctl, &[PR_SET_PDEATHSIG as usize, 0])),
    ("dump memory", |_| does(SYS_prctl, &[PR_SET_DUMPABLE as usize, 1])),
    // namespaces, identity, and what all processes share
    ("namespace of users", |_| forks(SYS_clone, &[HAS_NAMESPACE])),
    ("namespace of mounts", |_| does(SYS_unshare, &[CLONE_NEWNS as usize])),
    ("enter a namespace", |place| does(SYS_setns, &[number(&place.namespace), 0])),
    ("another root", |place| does(SYS_chroot, &[at(&text(place.path_of("")))])),
    ("mount", |place| {
        let (kind, path) = (text("tmpfs"), text(place.path_of("")));
        does(SYS_mount, &[at(&kind), at(&path), at(&kind), 0, NONE])?;
        does(SYS_umount2, &[at(&path), MNT_DETACH as usize])
    }),
    ("mount by descriptors", |_| does(SYS_fsopen, &[at(&text("tmpfs")), 0])),
    ("another user", |_| does(SYS_setresuid, &[ALL, ALL, ALL])),
    ("another personality", |_| does(SYS_personality, &[0])),
    ("memory of System V", |_| {
        let memory = call(SYS_shmget, &[IPC_PRIVATE as usize, 4096, IPC_CREAT as usize | 0o600])?;
        does(SYS_shmctl, &[memory, IPC_RMID as usize, NONE])
    }),
    ("semaphores of System V", |_| {
        let semaphores = call(SYS_semget, &[IPC_PRIVATE as usize, 1, IPC_CREAT as usize | 0o600])?;
        does(SYS_semctl, &[semaphores, 0, IPC_RMID as usize])
    }),
    ("messages of System V", |_| {
        let queue = call(SYS_msgget, &[IPC_PRIVATE as usize, IPC_CREAT as usize | 0o600])?;
        does(SYS_msgctl, &[queue, IPC_RMID as usize, NONE])
    }),
    ("messages of POSIX", |place| {
        let name = text(format!("crosslane-ways-{}", place.engine));
        call(SYS_mq_open, &[at(&name), (O_CREAT | O_RDWR) as usize, 0o600, NONE])?;
        does(SYS_mq_unlink, &[at(&name)])
    }),
    ("find a key", |_| does(SYS_keyctl, &[0, KEYRING_OF_PROCESS, 1])),
    ("key", |_| {
        let (kind, name) = (text("user"), text("crosslane-way"));
        does(SYS_add_key, &[at(&kind), at(&name), at(&name), 4, KEYRING_OF_PROCESS])
    }),
    // the kernel
    ("ring of the kernel", |_| does(SYS_io_uring_setup, &[1, of(&mut [0u64; 15])])),
    ("requests of the kernel", |_| does(SYS_io_setup, &[1, of(&mut 0u64)])),
    ("program in the kernel", |_| does(SYS_bpf, &[0, of(&mut [2u32, 4, 4, 1, 0, 0]), 24])),
    ("counters of the processor", |_| {
        let mut wanted = [0u32; 32];
        (wanted[0], wanted[1]) = (1, size_of::<[u32; 32]>() as u32);
        does(SYS_perf_event_open, &[of(&mut wanted), 0, ALL, ALL, 0])
    }),
    ("faults of memory", |_| does(SYS_userfaultfd, &[1])),
    ("further filters", |_| does(SYS_seccomp, &[2, 0, of(&mut SECCOMP_RET_ERRNO.clone())])),
    ("rules of Landlock", |_| does(SYS_landlock_create_ruleset, &[NONE, 0, 1])),
    ("clock of the machine", |_| does(SYS_adjtimex, &[of(&mut [0u64; 32])])),
    ("log of the kernel", |_| does(SYS_syslog, &[10, NONE, 0])),
];
