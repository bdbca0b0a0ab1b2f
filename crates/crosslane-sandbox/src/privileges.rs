//! The capabilities of the process.

use std::io;

/// The versions of the structures: two parts of three words.
const VERSION: u32 = 0x2008_0522;
/// Root may read files of other users. Which files, Landlock says.
const KEPT: u32 = 1 << 1 | 1 << 2;
/// More capabilities than there are.
const MOST: libc::c_ulong = 64;

/// Drops all capabilities but those of files, now and for programs that the process becomes, and
/// turns core dumps off: a dump would be written by the kernel, outside of the sandbox.
pub(crate) fn drop_all() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) } != 0 {
        return Err(io::Error::last_os_error());
    }
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
