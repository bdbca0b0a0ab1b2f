//! seccomp: which system calls there are.
//!
//! Each process has two filters, and one more in lanes. The first answers ENOSYS to what is neither
//! known to be needed nor forbidden. The second answers EPERM to what is forbidden, and to forbidden
//! arguments. The kernel takes the stricter answer.

use crate::machine::Machine;
use crosslane::{Net, Sandbox};
use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction as Action, SeccompCmpArgLen as Length, SeccompCmpOp as Is,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Stands for the number of the process in a filter, which may be made before a fork.
const OWN: u32 = 0x7ffa_5e1f;
/// Numbers of calls that the crate `libc` does not have on all processors.
const FUTEX_WAITV: c_long = 449;
const FCHMODAT2: c_long = 452;
const FUTEX_WAKE: c_long = 454;
const FUTEX_WAIT: c_long = 455;
const FUTEX_REQUEUE: c_long = 456;

/// What interpreters and their packages need after their start.
#[rustfmt::skip]
const NEEDED: &[c_long] = &[
    // descriptors
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_lseek, SYS_close, SYS_close_range, SYS_dup, SYS_dup3, SYS_fcntl, SYS_ioctl, SYS_ftruncate,
    SYS_fallocate, SYS_fsync, SYS_fdatasync, SYS_fadvise64, SYS_flock, SYS_sendfile, SYS_copy_file_range, SYS_splice, SYS_tee,
    SYS_pipe2, SYS_memfd_create, SYS_eventfd2, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
    SYS_signalfd4, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll, SYS_pselect6,
    // files: Landlock says which
    SYS_openat, SYS_newfstatat, SYS_fstat, SYS_statx, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_getdents64,
    SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_statfs, SYS_fstatfs, SYS_umask,
    // memory
    SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_msync, SYS_mincore, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_membarrier, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect,
    // threads, time, signals
    SYS_clone, SYS_exit, SYS_exit_group, SYS_futex, FUTEX_WAITV, FUTEX_WAKE, FUTEX_WAIT, FUTEX_REQUEUE,
    SYS_set_robust_list, SYS_get_robust_list, SYS_set_tid_address, SYS_rseq, SYS_gettid, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_getcpu, SYS_restart_syscall, SYS_nanosleep,
    SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_times, SYS_getitimer,
    SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend, SYS_sigaltstack, SYS_kill, SYS_tgkill,
    // the process itself, and its limits
    SYS_getpid, SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getgroups, SYS_getresuid,
    SYS_getresgid, SYS_getpgid, SYS_getsid, SYS_getrusage, SYS_prlimit64, SYS_getrlimit, SYS_setrlimit,
    SYS_getpriority, SYS_sysinfo, SYS_uname, SYS_getrandom, SYS_prctl, SYS_wait4, SYS_waitid, SYS_capget,
    SYS_personality,
    // the sockets that the engine gave, and pairs
    SYS_socketpair, SYS_sendmsg, SYS_recvmsg, SYS_sendto, SYS_recvfrom, SYS_sendmmsg, SYS_recvmmsg, SYS_shutdown,
    SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername,
    // older forms
    #[cfg(target_arch = "x86_64")] SYS_open,
    #[cfg(target_arch = "x86_64")] SYS_stat,
    #[cfg(target_arch = "x86_64")] SYS_lstat,
    #[cfg(target_arch = "x86_64")] SYS_access,
    #[cfg(target_arch = "x86_64")] SYS_readlink,
    #[cfg(target_arch = "x86_64")] SYS_getdents,
    #[cfg(target_arch = "x86_64")] SYS_pipe,
    #[cfg(target_arch = "x86_64")] SYS_dup2,
    #[cfg(target_arch = "x86_64")] SYS_poll,
    #[cfg(target_arch = "x86_64")] SYS_select,
    #[cfg(target_arch = "x86_64")] SYS_epoll_create,
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")] SYS_eventfd,
    #[cfg(target_arch = "x86_64")] SYS_signalfd,
    #[cfg(target_arch = "x86_64")] SYS_alarm,
    #[cfg(target_arch = "x86_64")] SYS_pause,
    #[cfg(target_arch = "x86_64")] SYS_time,
    #[cfg(target_arch = "x86_64")] SYS_getpgrp,
    #[cfg(target_arch = "x86_64")] SYS_arch_prctl,
];

/// What makes processes or puts them into groups: for the process that loads the library, and for
/// lanes that may run programs.
#[rustfmt::skip]
const PROCESSES: &[c_long] = &[
    SYS_execve, SYS_execveat, SYS_setpgid, SYS_setsid,
    #[cfg(target_arch = "x86_64")] SYS_fork,
    #[cfg(target_arch = "x86_64")] SYS_vfork,
];

/// What opens files by their paths, or tells of them: not in strict lanes. [`OF_DESCRIPTORS`] are further
/// ones.
#[rustfmt::skip]
const PATHS: &[c_long] = &[
    SYS_openat, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_chdir, SYS_statfs,
    #[cfg(target_arch = "x86_64")] SYS_open,
    #[cfg(target_arch = "x86_64")] SYS_stat,
    #[cfg(target_arch = "x86_64")] SYS_lstat,
    #[cfg(target_arch = "x86_64")] SYS_access,
    #[cfg(target_arch = "x86_64")] SYS_readlink,
];
/// What tells of a file by its path or descriptor, and the argument with flags that says which.
const OF_DESCRIPTORS: &[(c_long, u8)] = &[(SYS_newfstatat, 3), (SYS_statx, 2)];

/// What restricts a process further: for the process that loads the library, and lanes before they run.
#[rustfmt::skip]
const RESTRICTING: &[c_long] =
    &[SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self];

/// What changes folders: with `allow_write`. Landlock says where.
#[rustfmt::skip]
const WRITING: &[c_long] = &[
    SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_renameat, SYS_linkat, SYS_truncate,
    #[cfg(target_arch = "x86_64")] SYS_mkdir,
    #[cfg(target_arch = "x86_64")] SYS_rmdir,
    #[cfg(target_arch = "x86_64")] SYS_unlink,
    #[cfg(target_arch = "x86_64")] SYS_rename,
    #[cfg(target_arch = "x86_64")] SYS_link,
    #[cfg(target_arch = "x86_64")] SYS_creat,
];

/// With `allow_net`.
const NETWORK: &[c_long] = &[SYS_socket, SYS_connect];

/// What no sandbox allows.
#[rustfmt::skip]
const FORBIDDEN: &[c_long] = &[
    // other processes
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_open, SYS_pidfd_getfd,
    SYS_pidfd_send_signal, SYS_process_madvise, SYS_process_mrelease, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_tkill, SYS_setpriority, SYS_ioprio_set, SYS_sched_setscheduler, SYS_sched_setparam,
    SYS_migrate_pages, SYS_move_pages,
    // what Landlock does not watch: owners, modes, times, attributes, watches, handles
    SYS_fchmod, SYS_fchmodat, FCHMODAT2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_setxattr, SYS_lsetxattr,
    SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr,
    SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_inotify_init1, SYS_inotify_add_watch, SYS_fanotify_init,
    SYS_fanotify_mark, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_mknodat, SYS_symlinkat,
    // what all processes of a user share: System V, message queues, keys
    SYS_shmget, SYS_shmat, SYS_shmctl, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd,
    SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify,
    SYS_keyctl, SYS_add_key, SYS_request_key,
    // identity and namespaces
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid,
    SYS_setgroups, SYS_capset, SYS_unshare, SYS_setns, SYS_chroot, SYS_pivot_root, SYS_mount, SYS_umount2,
    SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    // servers
    SYS_bind, SYS_listen, SYS_accept, SYS_accept4,
    // the kernel
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_setup, SYS_io_submit, SYS_kexec_load, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_syslog,
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname,
    SYS_vhangup, SYS_lookup_dcookie, SYS_mbind, SYS_set_mempolicy, SYS_sync, SYS_syncfs, SYS_io_uring_setup,
    SYS_io_uring_enter, SYS_io_uring_register,
    // older forms
    #[cfg(target_arch = "x86_64")] SYS_chmod,
    #[cfg(target_arch = "x86_64")] SYS_chown,
    #[cfg(target_arch = "x86_64")] SYS_lchown,
    #[cfg(target_arch = "x86_64")] SYS_utime,
    #[cfg(target_arch = "x86_64")] SYS_utimes,
    #[cfg(target_arch = "x86_64")] SYS_futimesat,
    #[cfg(target_arch = "x86_64")] SYS_inotify_init,
    #[cfg(target_arch = "x86_64")] SYS_mknod,
    #[cfg(target_arch = "x86_64")] SYS_symlink,
    #[cfg(target_arch = "x86_64")] SYS_iopl,
    #[cfg(target_arch = "x86_64")] SYS_ioperm,
    #[cfg(target_arch = "x86_64")] SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")] SYS_uselib,
    #[cfg(target_arch = "x86_64")] SYS_ustat,
    #[cfg(target_arch = "x86_64")] SYS_sysfs,
    #[cfg(target_arch = "x86_64")] SYS_kexec_file_load,
];

/// Options of prctl that concern the caller alone, and loosen nothing.
const PRCTL: &[u64] = &[
    PR_GET_PDEATHSIG as u64,
    PR_GET_DUMPABLE as u64,
    PR_SET_NAME as u64,
    PR_GET_NAME as u64,
    PR_GET_SECCOMP as u64,
    PR_CAPBSET_READ as u64,
    PR_SET_TIMERSLACK as u64,
    PR_GET_TIMERSLACK as u64,
    PR_SET_NO_NEW_PRIVS as u64,
    PR_GET_NO_NEW_PRIVS as u64,
    PR_SET_THP_DISABLE as u64,
    PR_GET_THP_DISABLE as u64,
    PR_SET_VMA as u64,
];
const FCNTL: &[u64] = &[
    F_DUPFD as u64,
    F_GETFD as u64,
    F_SETFD as u64,
    F_GETFL as u64,
    F_SETFL as u64,
    F_GETLK as u64,
    F_SETLK as u64,
    F_SETLKW as u64,
    F_DUPFD_CLOEXEC as u64,
    F_GETPIPE_SZ as u64,
    F_SETPIPE_SZ as u64,
    F_ADD_SEALS as u64,
    F_GET_SEALS as u64,
    F_OFD_GETLK as u64,
    F_OFD_SETLK as u64,
    F_OFD_SETLKW as u64,
];
const IOCTL: &[u64] = &[TCGETS, FIOCLEX, FIONCLEX, FIONBIO, FIONREAD, TIOCGWINSZ];
/// The options of sockets, by their levels, if hosts are listed. Others may send packets elsewhere
/// (IPV6_RTHDR), change when a connection is made (TCP_FASTOPEN_CONNECT) or how long it takes
/// (TCP_SYNCNT), or make a close wait (SO_LINGER), which the engine may do.
const OPTIONS: &[(c_int, &[c_int])] = &[
    (
        SOL_SOCKET,
        &[
            SO_REUSEADDR,
            SO_KEEPALIVE,
            SO_SNDBUF,
            SO_RCVBUF,
            SO_RCVTIMEO,
            SO_SNDTIMEO,
            SO_RCVLOWAT,
            SO_PRIORITY,
            SO_OOBINLINE,
            SO_PASSCRED,
        ],
    ),
    (
        IPPROTO_TCP,
        &[
            TCP_NODELAY,
            TCP_CORK,
            TCP_QUICKACK,
            TCP_KEEPIDLE,
            TCP_KEEPINTVL,
            TCP_KEEPCNT,
            TCP_USER_TIMEOUT,
            TCP_NOTSENT_LOWAT,
        ],
    ),
    (IPPROTO_IP, &[IP_TOS]),
    (IPPROTO_IPV6, &[IPV6_V6ONLY, IPV6_TCLASS]),
];
const NAMESPACES: &[c_int] = &[
    CLONE_NEWNS,
    CLONE_NEWCGROUP,
    CLONE_NEWUTS,
    CLONE_NEWIPC,
    CLONE_NEWUSER,
    CLONE_NEWPID,
    CLONE_NEWNET,
    // The new process would be a sibling, which outlives its maker.
    CLONE_PARENT,
];
/// The kinds of sockets that there are.
const KINDS: std::ops::RangeInclusive<c_int> = 1..=10;
/// The part of a socket's type that says its kind.
const KIND: u64 = 0xf;

type Rules = BTreeMap<i64, Vec<Rule>>;

fn when(argument: u8, is: Is, value: u64) -> Condition {
    Condition::new(argument, Length::Dword, is, value).expect("an argument's index is below six")
}

fn all(conditions: Vec<Condition>) -> Rule {
    Rule::new(conditions).expect("a rule has conditions")
}

fn none_of(argument: u8, values: &[u64]) -> Rule {
    all(values.iter().map(|value| when(argument, Is::Ne, *value)).collect())
}

fn has(argument: u8, bits: u64) -> Rule {
    all(vec![when(argument, Is::MaskedEq(bits), bits)])
}

fn add(rules: &mut Rules, calls: &[c_long]) {
    rules.extend(calls.iter().map(|call| (*call, Vec::new())));
}

/// The kinds of sockets that are not among these.
fn other_kinds(allowed: &[c_int]) -> impl Iterator<Item = Rule> {
    let others = KINDS.filter(|kind| !allowed.contains(kind));
    others.map(|kind| all(vec![when(1, Is::MaskedEq(KIND), kind as u64)]))
}

/// Calls that connect a socket, and send data with the first packet.
fn first_packets() -> Rules {
    let calls = [(SYS_sendto, 3), (SYS_sendmsg, 2), (SYS_sendmmsg, 3)];
    calls.map(|(call, flags)| (call, vec![has(flags, MSG_FASTOPEN as u64)])).into()
}

/// The options of sockets that are not among [`OPTIONS`].
fn other_options() -> Vec<Rule> {
    let levels: Vec<_> = OPTIONS.iter().map(|(level, _)| *level as u64).collect();
    let others = OPTIONS.iter().map(|(level, options)| {
        let level = when(1, Is::Eq, *level as u64);
        let options = options.iter().map(|option| when(2, Is::Ne, *option as u64));
        all([level].into_iter().chain(options).collect())
    });
    others.chain([none_of(1, &levels)]).collect()
}

/// What is answered with EPERM in all processes of a library.
fn forbidden(sandbox: &Sandbox, machine: Machine) -> Rules {
    let mut rules = Rules::new();
    add(&mut rules, FORBIDDEN);
    if sandbox.write.is_empty() {
        add(&mut rules, WRITING);
    }
    if machine.truncates() {
        add(&mut rules, &[SYS_truncate]);
        let truncates =
            |argument| all(vec![when(argument, Is::MaskedEq((O_ACCMODE | O_TRUNC) as u64), O_TRUNC as u64)]);
        rules.insert(SYS_openat, vec![truncates(2)]);
        #[cfg(target_arch = "x86_64")]
        rules.insert(SYS_open, vec![truncates(1)]);
    }
    if !machine.scopes_signals() {
        for call in [SYS_kill, SYS_tgkill] {
            rules.insert(call, vec![none_of(0, &[u64::from(OWN)])]);
        }
    }
    rules.insert(SYS_clone, NAMESPACES.iter().map(|flag| has(0, u64::from(*flag as u32))).collect());
    rules.insert(SYS_prctl, vec![none_of(0, &[PRCTL, &[PR_SET_PDEATHSIG as u64]].concat())]);
    rules.insert(SYS_fcntl, vec![none_of(1, FCNTL)]);
    rules.insert(SYS_ioctl, vec![none_of(1, IOCTL)]);
    for call in [SYS_prlimit64, SYS_sched_setaffinity, SYS_sched_setattr] {
        rules.insert(call, vec![none_of(0, &[0])]);
    }
    rules.insert(SYS_personality, vec![none_of(0, &[0xffff_ffff])]);
    let family = |families: &[c_int]| none_of(0, &families.iter().map(|it| *it as u64).collect::<Vec<_>>());
    // A datagram could be sent to any socket that has a path.
    let pairs = other_kinds(&[SOCK_STREAM, SOCK_SEQPACKET]).chain([family(&[AF_UNIX])]);
    rules.insert(SYS_socketpair, pairs.collect());
    let internet = family(&[AF_INET, AF_INET6]);
    match sandbox.net {
        Net::Nothing => add(&mut rules, NETWORK),
        Net::Everything => {
            rules.insert(SYS_socket, other_kinds(&[SOCK_STREAM, SOCK_DGRAM]).chain([internet]).collect());
        }
        Net::Hosts(_) => {
            // Only TCP: it reaches no host without a connect, if nothing is sent with the first packet.
            let protocol = none_of(2, &[0, IPPROTO_TCP as u64]);
            rules.insert(SYS_socket, other_kinds(&[SOCK_STREAM]).chain([internet, protocol]).collect());
            rules.insert(SYS_setsockopt, other_options());
            rules.extend(first_packets());
        }
    }
    rules
}

/// What is answered with EPERM in lanes, in addition.
fn forbidden_in_lanes(sandbox: &Sandbox) -> Rules {
    let mut rules = Rules::new();
    add(&mut rules, RESTRICTING);
    rules.insert(SYS_prctl, vec![none_of(0, PRCTL)]);
    if sandbox.strict {
        for calls in [PATHS, WRITING, NETWORK] {
            add(&mut rules, calls);
        }
        rules.extend(first_packets());
        for (call, flags) in OF_DESCRIPTORS {
            rules.insert(*call, vec![all(vec![when(*flags, Is::MaskedEq(AT_EMPTY_PATH as u64), 0)])]);
        }
    }
    if sandbox.run.is_empty() || sandbox.strict {
        add(&mut rules, PROCESSES);
        rules.insert(SYS_clone, vec![all(vec![when(0, Is::MaskedEq(CLONE_THREAD as u64), 0)])]);
        for call in [SYS_kill, SYS_tgkill] {
            rules.insert(call, vec![none_of(0, &[u64::from(OWN)])]);
        }
    }
    rules
}

fn compile(rules: Rules, otherwise: Action, answer: Action) -> Result<BpfProgram, String> {
    let processor: TargetArch =
        std::env::consts::ARCH.try_into().map_err(|_| "seccomp: no filters are known for this processor")?;
    let filter = SeccompFilter::new(rules, otherwise, answer, processor);
    let program = filter.and_then(TryInto::try_into);
    program.map_err(|error| format!("seccomp: {error}"))
}

fn refusing(rules: Rules) -> Result<BpfProgram, String> {
    compile(rules, Action::Allow, Action::Errno(EPERM as u32))
}

/// The two filters of all processes of a library.
#[derive(Debug, Clone)]
pub(crate) struct Filters([BpfProgram; 2]);

impl Filters {
    pub(crate) fn new(sandbox: &Sandbox, machine: Machine) -> Result<Self, String> {
        let refused = forbidden(sandbox, machine);
        let mut known: Rules = refused.keys().map(|call| (*call, Vec::new())).collect();
        for calls in [NEEDED, PROCESSES, RESTRICTING, WRITING, NETWORK] {
            add(&mut known, calls);
        }
        let refused = refusing(refused)?;
        let known = compile(known, Action::Errno(ENOSYS as u32), Action::Allow)?;
        Ok(Self([known, refused]))
    }

    /// Restricts all threads of this process.
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.0.iter().try_for_each(apply)
    }
}

/// Restricts all threads of this process by a filter, for good.
fn apply(program: &BpfProgram) -> io::Result<()> {
    let mut program = program.clone();
    for instruction in program.iter_mut().filter(|instruction| instruction.k == OWN) {
        instruction.k = std::process::id();
    }
    seccompiler::apply_filter_all_threads(&program).map_err(|error| io::Error::other(error.to_string()))
}

/// What a lane enters before it runs anything of a library.
#[derive(Debug, Clone)]
pub struct LaneFilter(BpfProgram);

impl LaneFilter {
    /// The filter of the lanes of a process that has entered this sandbox.
    ///
    /// # Errors
    /// If there are no filters for this processor.
    pub fn new(sandbox: &Sandbox) -> Result<Self, String> {
        refusing(forbidden_in_lanes(sandbox)).map(Self)
    }

    /// The filter of lanes that need only the descriptors that they have, or that are sent to them. They
    /// open no file, make no socket, not even a pair, and start no program, whatever their sandbox allows.
    ///
    /// # Errors
    /// If there are no filters for this processor.
    pub(crate) fn of_descriptors() -> Result<Self, String> {
        let mut rules = forbidden_in_lanes(&Sandbox { strict: true, ..Sandbox::default() });
        add(&mut rules, &[SYS_socketpair]);
        refusing(rules).map(Self)
    }

    /// Restricts all threads of this process, the lane's, for good.
    ///
    /// # Errors
    /// What the kernel refuses. The process must not go on then.
    pub fn enter(&self) -> io::Result<()> {
        apply(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::process::Command;

    /// Set where a test is to restrict its process.
    const INSIDE: &str = "CROSSLANE_TEST_SANDBOX";

    /// Runs a test of this module again, in a process of its own.
    fn restricts(test: &str) -> bool {
        if std::env::var_os(INSIDE).is_some() {
            return true;
        }
        let name = format!("calls::tests::{test}");
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args([&name[..], "--exact", "--test-threads=1"]).env(INSIDE, "").status().unwrap();
        assert!(ended.success());
        false
    }

    fn errno(result: c_int) -> Option<c_int> {
        (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }

    #[test]
    fn filters_restrict_what_older_kernels_do_not() {
        if !restricts("filters_restrict_what_older_kernels_do_not") {
            return;
        }
        let path = std::env::temp_dir().join(format!("crosslane-truncated-{}", std::process::id()));
        fs::write(&path, "text").unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let sandbox = Sandbox { write: vec!["/tmp".into()], ..Sandbox::default() };
        Filters::new(&sandbox, Machine { landlock: 2 }).unwrap().enter().unwrap();
        // SAFETY: the calls take numbers, and a text that lives as long as they.
        unsafe {
            assert_eq!(errno(open(name.as_ptr(), O_RDONLY | O_TRUNC)), Some(EPERM));
            assert_eq!(errno(truncate(name.as_ptr(), 0)), Some(EPERM));
            assert_eq!(errno(kill(getppid(), 0)), Some(EPERM));
            assert_eq!(errno(kill(getpid(), 0)), None);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        File::options().write(true).truncate(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_strict_lane_opens_nothing() {
        if !restricts("a_strict_lane_opens_nothing") {
            return;
        }
        let sandbox = Sandbox { strict: true, net: Net::Everything, ..Sandbox::default() };
        let lane = LaneFilter::new(&sandbox).unwrap();
        Filters::new(&sandbox, Machine { landlock: 6 }).unwrap().enter().unwrap();
        let opened = File::open("/dev/null").unwrap();
        lane.enter().unwrap();
        let refused = |error: io::Error| error.raw_os_error() == Some(EPERM);
        assert!(File::open("/dev/null").is_err_and(refused));
        assert!(fs::metadata("/dev/null").is_err_and(refused));
        assert!(fs::read_link("/proc/self").is_err_and(refused));
        assert!(std::env::set_current_dir("/").is_err_and(refused));
        // What is open stays of use.
        assert!(opened.metadata().is_ok());
        // SAFETY: the calls take numbers.
        unsafe {
            assert_eq!(errno(socket(AF_INET, SOCK_STREAM, 0)), Some(EPERM));
            assert_eq!(errno(fork()), Some(EPERM));
        }
        assert_eq!(std::thread::spawn(|| 42).join().unwrap(), 42);
    }

    #[test]
    fn a_lane_makes_threads_and_no_processes() {
        if !restricts("a_lane_makes_threads_and_no_processes") {
            return;
        }
        let sandbox = Sandbox::default();
        let lane = LaneFilter::new(&sandbox).unwrap();
        Filters::new(&sandbox, Machine { landlock: 6 }).unwrap().enter().unwrap();
        // SAFETY: the calls take numbers; a child ends at once.
        unsafe {
            let child = fork();
            if child == 0 {
                _exit(0);
            }
            assert_eq!(errno(child), None);
            waitpid(child, std::ptr::null_mut(), 0);
            lane.enter().unwrap();
            assert_eq!(errno(fork()), Some(EPERM));
            assert_eq!(errno(kill(getppid(), 0)), Some(EPERM));
            assert_eq!(errno(kill(getpid(), 0)), None);
            // Not known to be needed.
            assert_eq!(errno(syscall(SYS_clone3, std::ptr::null::<u8>(), 0) as c_int), Some(ENOSYS));
        }
        assert_eq!(std::thread::spawn(|| 42).join().unwrap(), 42);
    }
}
