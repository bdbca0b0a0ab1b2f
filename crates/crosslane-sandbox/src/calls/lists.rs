//! The lists of system calls, their options and flags.

use libc::*;

/// Numbers of calls that the crate `libc` does not have on all processors.
const FUTEX_WAITV: c_long = 449;
const FCHMODAT2: c_long = 452;
const FUTEX_WAKE: c_long = 454;
const FUTEX_WAIT: c_long = 455;
const FUTEX_REQUEUE: c_long = 456;

/// What interpreters and their packages need after their start.
#[rustfmt::skip]
pub(super) const NEEDED: &[c_long] = &[
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
pub(super) const PROCESSES: &[c_long] = &[
    SYS_execve, SYS_execveat, SYS_setpgid, SYS_setsid,
    #[cfg(target_arch = "x86_64")] SYS_fork,
    #[cfg(target_arch = "x86_64")] SYS_vfork,
];

/// What opens files by their paths, or tells of them: not in strict lanes. [`OF_DESCRIPTORS`] are further
/// ones.
#[rustfmt::skip]
pub(super) const PATHS: &[c_long] = &[
    SYS_openat, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_chdir, SYS_statfs,
    #[cfg(target_arch = "x86_64")] SYS_open,
    #[cfg(target_arch = "x86_64")] SYS_stat,
    #[cfg(target_arch = "x86_64")] SYS_lstat,
    #[cfg(target_arch = "x86_64")] SYS_access,
    #[cfg(target_arch = "x86_64")] SYS_readlink,
];
/// What tells of a file by its path or descriptor, and the argument with flags that says which.
pub(super) const OF_DESCRIPTORS: &[(c_long, u8)] = &[(SYS_newfstatat, 3), (SYS_statx, 2)];

/// What opens files, and runs programs.
#[rustfmt::skip]
pub(super) const OPENING: &[c_long] = &[
    SYS_openat, SYS_openat2, SYS_execve, SYS_execveat,
    #[cfg(target_arch = "x86_64")] SYS_open,
];

/// What makes processes, besides `clone`.
#[rustfmt::skip]
pub(super) const FORKING: &[c_long] = &[
    SYS_clone3,
    #[cfg(target_arch = "x86_64")] SYS_fork,
    #[cfg(target_arch = "x86_64")] SYS_vfork,
];

/// What restricts a process further: for the process that loads the library.
pub(super) const RESTRICTING: &[c_long] =
    &[SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self];

/// What changes folders: with `allow_write`. Landlock says where.
#[rustfmt::skip]
pub(super) const WRITING: &[c_long] = &[
    SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_renameat, SYS_linkat, SYS_truncate,
    #[cfg(target_arch = "x86_64")] SYS_mkdir,
    #[cfg(target_arch = "x86_64")] SYS_rmdir,
    #[cfg(target_arch = "x86_64")] SYS_unlink,
    #[cfg(target_arch = "x86_64")] SYS_rename,
    #[cfg(target_arch = "x86_64")] SYS_link,
    #[cfg(target_arch = "x86_64")] SYS_creat,
];

/// With `allow_net`.
pub(super) const NETWORK: &[c_long] = &[SYS_socket, SYS_connect];

/// What no sandbox allows, in groups with names for users. An empty name is for calls that languages and
/// programs make and do without.
#[rustfmt::skip]
pub(super) const FORBIDDEN: &[(&str, &[c_long])] = &[
    ("signals to other processes, their priorities and their memory", &[
        SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_open, SYS_pidfd_getfd,
        SYS_pidfd_send_signal, SYS_process_madvise, SYS_process_mrelease, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
        SYS_tkill, SYS_setpriority, SYS_ioprio_set, SYS_migrate_pages, SYS_move_pages,
    ]),
    ("", &[SYS_sched_setscheduler, SYS_sched_setparam, SYS_mbind, SYS_set_mempolicy]),
    // Landlock does not watch these.
    ("to change modes, owners, times and attributes of files", &[
        SYS_fchmod, SYS_fchmodat, FCHMODAT2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_setxattr, SYS_lsetxattr,
        SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
        #[cfg(target_arch = "x86_64")] SYS_chmod,
        #[cfg(target_arch = "x86_64")] SYS_chown,
        #[cfg(target_arch = "x86_64")] SYS_lchown,
        #[cfg(target_arch = "x86_64")] SYS_utime,
        #[cfg(target_arch = "x86_64")] SYS_utimes,
        #[cfg(target_arch = "x86_64")] SYS_futimesat,
    ]),
    ("", &[
        SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_sync, SYS_syncfs,
    ]),
    ("to watch files, and to open them by handles", &[
        SYS_inotify_init1, SYS_inotify_add_watch, SYS_fanotify_init, SYS_fanotify_mark, SYS_name_to_handle_at,
        SYS_open_by_handle_at,
        #[cfg(target_arch = "x86_64")] SYS_inotify_init,
    ]),
    ("symbolic links, named pipes and devices", &[
        SYS_mknodat, SYS_symlinkat,
        #[cfg(target_arch = "x86_64")] SYS_mknod,
        #[cfg(target_arch = "x86_64")] SYS_symlink,
    ]),
    // All processes of a user share these.
    ("System V memory, semaphores, message queues and keys", &[
        SYS_shmget, SYS_shmat, SYS_shmctl, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd,
        SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify,
        SYS_keyctl, SYS_add_key, SYS_request_key,
    ]),
    ("other users, namespaces and mounts", &[
        SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid,
        SYS_setgroups, SYS_capset, SYS_unshare, SYS_setns, SYS_chroot, SYS_pivot_root, SYS_mount, SYS_umount2,
        SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    ]),
    ("servers", &[SYS_listen]),
    ("", &[SYS_bind, SYS_accept, SYS_accept4]),
    ("to change or inspect the kernel", &[
        SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_kexec_load, SYS_init_module, SYS_finit_module,
        SYS_delete_module, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_syslog, SYS_settimeofday,
        SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_vhangup,
        SYS_lookup_dcookie,
        #[cfg(target_arch = "x86_64")] SYS_iopl,
        #[cfg(target_arch = "x86_64")] SYS_ioperm,
        #[cfg(target_arch = "x86_64")] SYS_modify_ldt,
        #[cfg(target_arch = "x86_64")] SYS_uselib,
        #[cfg(target_arch = "x86_64")] SYS_ustat,
        #[cfg(target_arch = "x86_64")] SYS_sysfs,
        #[cfg(target_arch = "x86_64")] SYS_kexec_file_load,
    ]),
    ("asynchronous input and output of the kernel (io_uring, io_submit)", &[
        SYS_io_setup, SYS_io_submit, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    ]),
];

/// Options of prctl that concern the caller alone, and loosen nothing.
pub(super) const PRCTL: &[u64] = &[
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
pub(super) const FCNTL: &[u64] = &[
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
pub(super) const IOCTL: &[u64] = &[TCGETS, FIOCLEX, FIONCLEX, FIONBIO, FIONREAD, TIOCGWINSZ];
/// The options of sockets, by their levels, if hosts are listed. Others may send packets elsewhere
/// (IPV6_RTHDR), change when a connection is made (TCP_FASTOPEN_CONNECT) or how long it takes
/// (TCP_SYNCNT), or make a close wait (SO_LINGER), which the engine may do.
pub(super) const OPTIONS: &[(c_int, &[c_int])] = &[
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
pub(super) const NAMESPACES: &[c_int] = &[
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
pub(super) const KINDS: std::ops::RangeInclusive<c_int> = 1..=10;
/// The part of a socket's type that says its kind.
pub(super) const KIND: u64 = 0xf;
