//! The capabilities of the process, and what the kernel keeps for it.

use std::io;

/// The versions of the structures: two parts of three words.
const VERSION: u32 = 0x2008_0522;
/// Root may read files of other users. Which files, Landlock says.
const KEPT: u32 = 1 << 1 | 1 << 2;
/// More capabilities than there are.
const MOST: libc::c_ulong = 64;

/// The most that a process in a sandbox may have of each of these. It cannot be raised. Some are counts of
/// the user, of which the engine needs some, too.
const LIMITS: [(libc::__rlimit_resource_t, u64); 7] = [
    // The kernel would write a dump, outside of the sandbox.
    (libc::RLIMIT_CORE, 0),
    // Each descriptor may have memory of the kernel, such as the content of a pipe.
    (libc::RLIMIT_NOFILE, 4096),
    // Memory that is never written to swap. This is the default of Linux.
    (libc::RLIMIT_MEMLOCK, 8 << 20),
    // Timers, and signals that wait.
    (libc::RLIMIT_SIGPENDING, 1024),
    (libc::RLIMIT_MSGQUEUE, 0),
    // Threads that others could not interrupt, and that are preferred to others.
    (libc::RLIMIT_RTPRIO, 0),
    (libc::RLIMIT_NICE, 0),
];

/// Drops all capabilities but those of files, and limits what the kernel keeps for the process, now and for
/// programs that the process becomes.
pub(crate) fn drop_all() -> io::Result<()> {
    LIMITS.iter().try_for_each(|(resource, most)| lower(*resource, *most))?;
    let header = [VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the header and the sets have the sizes of this version; the other calls take numbers.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        if sets == [[0; 3]; 2] {
            return Ok(());
        }
        // Beyond the last capability this fails.
        for capability in 0..MOST {
            if capability >= 32 || KEPT & (1 << capability) == 0 {
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        let [first, second] = &mut sets;
        first.iter_mut().for_each(|set| *set &= KEPT);
        *second = [0; 3];
        match libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Lowers both limits of a resource to `most`, if they are higher.
fn lower(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for both calls.
    unsafe {
        if libc::getrlimit(resource, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        let lowered = libc::rlimit { rlim_cur: limit.rlim_cur.min(most), rlim_max: limit.rlim_max.min(most) };
        match libc::setrlimit(resource, &raw const lowered) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
