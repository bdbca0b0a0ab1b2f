//! What the kernel of this machine can enforce.

use std::io;
use std::sync::OnceLock;

/// What a process has seen before it entered a sandbox: it cannot look again.
static SEEN: OnceLock<Machine> = OnceLock::new();

/// What this machine can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The version of Landlock's interface.
    pub landlock: u32,
}

impl Machine {
    /// The first version of Landlock that restricts moves of files, in Linux 5.19.
    const MOVES: u32 = 2;
    /// The first version of Landlock that restricts whether files may be truncated, in Linux 6.2.
    const TRUNCATION: u32 = 3;
    /// The first version of Landlock that restricts signals, in Linux 6.12.
    const SIGNALS: u32 = 6;

    /// Looks at the kernel.
    ///
    /// # Errors
    /// Which layer is missing, why, and what to do.
    pub fn look() -> Result<Self, String> {
        if let Some(seen) = SEEN.get() {
            return Ok(*seen);
        }
        look_for_filters()?;
        let landlock = version()?;
        if landlock < Self::MOVES {
            return Err("Landlock is too old in this kernel: Linux 5.19 or newer is needed".into());
        }
        Ok(*SEEN.get_or_init(|| Self { landlock }))
    }

    /// Whether the kernel lets files be truncated that can only be read.
    pub(crate) fn truncates(self) -> bool {
        self.landlock < Self::TRUNCATION
    }

    /// Whether the kernel keeps signals within the sandbox. If not, filters allow fewer signals.
    #[must_use]
    pub fn scopes_signals(self) -> bool {
        self.landlock >= Self::SIGNALS
    }
}

/// Finds out whether the kernel has filters.
fn look_for_filters() -> Result<(), String> {
    // SAFETY: the call takes numbers. Without a filter in its memory argument it can only fail.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as libc::c_ulong, 0, 0, 0) };
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) => Ok(()),
        Some(libc::EINVAL) => {
            Err("this kernel has no seccomp filters: it was built without them (EINVAL)".into())
        }
        other => Err(format!("seccomp: {}", io::Error::from_raw_os_error(other.unwrap_or_default()))),
    }
}

/// The version of Landlock's interface.
fn version() -> Result<u32, String> {
    // SAFETY: with this flag the call only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
    if version > 0 {
        return Ok(version as u32);
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has no Landlock: it came with Linux 5.13, if it was built in (ENOSYS)".into()
        }
        Some(libc::EOPNOTSUPP) => {
            "this kernel has Landlock, but does not use it: add landlock to lsm= of the kernel's command line \
             (EOPNOTSUPP)"
                .into()
        }
        Some(libc::EPERM) => {
            "Landlock is forbidden here, probably by the seccomp profile of the container (EPERM)".into()
        }
        _ => format!("Landlock: {error}"),
    })
}
