//! The kernel's interface to calls that another process answers (`seccomp_unotify(2)`).

use libc::{c_int, c_long, c_ulong, seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use seccompiler::BpfProgram;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most bytes of an address that are looked at: those of IPv6.
const LONGEST_ADDRESS: usize = size_of::<libc::sockaddr_in6>();

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`, from Linux 6.6 on.
const SYNC_WAKE_UP: c_ulong = 1;

/// Makes the kernel hand calls of this thread, and of all threads and processes that it starts, to the
/// owner of the returned descriptor: those for which this filter says so. `patience` are flags that say
/// what ends a caller's wait.
///
/// # Errors
/// EBUSY if there is such an owner already, as in some containers.
pub(crate) fn listen(filter: &BpfProgram, patience: c_ulong) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the filter outlives the call, which returns a new descriptor. Its instructions have the
    // layout of the kernel.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | patience;
        match libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) {
            descriptor if descriptor < 0 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor as RawFd)),
        }
    }
}

/// Checks that the owner of the descriptor of [`listen`] answers, by a call that it must refuse.
///
/// # Errors
/// Why it does not answer, and what to do.
pub(crate) fn probe() -> Result<(), String> {
    // SAFETY: zero is valid for it.
    let mut nowhere: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    nowhere.sin_family = libc::AF_INET as libc::sa_family_t;
    let length = size_of_val(&nowhere) as libc::socklen_t;
    // SAFETY: the address has this length.
    unsafe { libc::connect(-1, (&raw const nowhere).cast(), length) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES) => Ok(()),
        Some(libc::EPERM) => Err("the engine may not read the memory of its own workers: set the kernel's \
                                  kernel.yama.ptrace_scope to 1 or 0, or allow process_vm_readv in this container \
                                  (EPERM)"
            .into()),
        _ => Err(format!("the engine answers no calls: {error}")),
    }
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct Listener(pub OwnedFd);

impl Listener {
    /// Makes the kernel run the broker on the caller's processor, and the caller again with the answer, as
    /// both wait for each other. Before Linux 6.6 they wait for the scheduler.
    pub(super) fn wake_at_once(&self) {
        // SAFETY: this request takes a number, and no pointer.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Takes the next call. There is one if the descriptor is ready to be read.
    pub(crate) fn receive(&self) -> io::Result<Call> {
        // SAFETY: the kernel wants zeros.
        let mut call: seccomp_notif = unsafe { std::mem::zeroed() };
        self.control(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call)?;
        Ok(Call(call))
    }

    /// Ends the caller's wait. It may have ended already.
    pub(crate) fn answer(&self, id: u64, outcome: Result<(), Errno>) {
        let error = outcome.err().map_or(0, |error| -error.raw_os_error());
        let mut answer = seccomp_notif_resp { id, val: 0, error, flags: 0 };
        let _ = self.control(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
    }

    /// Lets the kernel run the caller's own call, with the arguments that its memory has then.
    pub(crate) fn go_on(&self, id: u64) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = seccomp_notif_resp { id, val: 0, error: 0, flags };
        let _ = self.control(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
    }

    /// Whether the caller still waits. If so, its thread is the one that made the call, and no other
    /// that has its number now.
    pub(crate) fn is_waiting(&self, mut id: u64) -> bool {
        self.control(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).is_ok()
    }

    /// Puts a descriptor in the place of the caller's socket.
    pub(crate) fn give(&self, call: &Call, ours: BorrowedFd<'_>, flags: OFlags) -> Result<(), Errno> {
        let mut gift = seccomp_notif_addfd {
            id: call.id(),
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: ours.as_raw_fd() as u32,
            newfd: call.socket() as u32,
            newfd_flags: (flags & OFlags::CLOEXEC).bits(),
        };
        self.control(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut gift)
    }

    /// Whether there is a call; `None` if there will never be one again.
    pub(crate) fn has_call(ready: PollFlags) -> Option<bool> {
        match ready {
            ready if ready.contains(PollFlags::IN) => Some(true),
            ready if ready.is_empty() => Some(false),
            _ => None,
        }
    }

    pub(crate) fn poll(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }

    fn control<T>(&self, request: libc::Ioctl, argument: *mut T) -> Result<(), Errno> {
        // SAFETY: each request has the structure of `libc` that the kernel expects for it.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) } {
            result if result < 0 => {
                Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))
            }
            _ => Ok(()),
        }
    }
}

/// A call that waits for its answer. All that it says may be a lie.
#[derive(Debug)]
pub(crate) struct Call(seccomp_notif);

impl Call {
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The number of the calling thread.
    pub(crate) fn thread(&self) -> u32 {
        self.0.pid
    }

    /// The number of the socket in the caller's process.
    pub(crate) fn socket(&self) -> c_int {
        self.0.data.args[0] as c_int
    }

    /// The number of the call.
    pub(crate) fn number(&self) -> c_long {
        self.0.data.nr.into()
    }

    /// An argument of the call.
    pub(crate) fn argument(&self, index: usize) -> u64 {
        self.0.data.args[index]
    }

    /// The number of the calling process.
    pub(crate) fn process(&self) -> Result<Pid, Errno> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.thread())).map_err(|_| Errno::SRCH)?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        process.and_then(Pid::from_raw).ok_or(Errno::SRCH)
    }

    /// The address as the caller's memory has it now, of the call `connect`.
    pub(crate) fn address(&self) -> Result<SocketAddr, Errno> {
        let [_, address, length, ..] = self.0.data.args;
        let length = (length as c_int).try_into().map_err(|_| Errno::INVAL)?;
        let mut bytes = [0; LONGEST_ADDRESS];
        let bytes = &mut bytes[..LONGEST_ADDRESS.min(length)];
        if self.memory(address, bytes)? != bytes.len() {
            return Err(Errno::FAULT);
        }
        parsed(bytes).ok_or(Errno::ACCESS)
    }

    /// Copies the caller's memory as it is now. Returns how many bytes there were.
    pub(crate) fn memory(&self, address: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let theirs = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize),
            iov_len: bytes.len(),
        };
        // SAFETY: our part is as long as it says. The kernel checks the other one.
        let copied = unsafe {
            libc::process_vm_readv(
                self.0.pid as c_int,
                &raw const ours,
                1,
                &raw const theirs,
                1,
                0 as c_ulong,
            )
        };
        match usize::try_from(copied) {
            Ok(copied) => Ok(copied),
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::FAULT)),
        }
    }

    /// The flags of the caller's descriptor.
    pub(crate) fn flags(&self) -> OFlags {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.thread(), self.socket()));
        let flags = info.unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        OFlags::from_bits_retain(flags.unwrap_or(OFlags::CLOEXEC.bits()))
    }
}

/// An address of IPv4 or IPv6. The kernel's structures have the family in the order of the processor,
/// and the rest in the order of the network.
fn parsed(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    match c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            let (address, _) = rest.split_first_chunk::<4>()?;
            Some((Ipv4Addr::from(*address), port).into())
        }
        libc::AF_INET6 => {
            let (flow, rest) = rest.split_first_chunk()?;
            let (address, rest) = rest.split_first_chunk::<16>()?;
            let (scope, _) = rest.split_first_chunk()?;
            let flow = u32::from_ne_bytes(*flow);
            Some(SocketAddrV6::new(Ipv6Addr::from(*address), port, flow, u32::from_ne_bytes(*scope)).into())
        }
        _ => None,
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_addresses_of_the_internet_are_known() {
        let mut four = vec![2, 0, 1, 187, 10, 0, 0, 7];
        assert_eq!(parsed(&four), None);
        four.extend([0; 8]);
        assert_eq!(parsed(&four), Some("10.0.0.7:443".parse().unwrap()));
        let mut six = vec![10, 0, 0, 80, 0, 0, 0, 0];
        six.extend([0; 15]);
        six.extend([1, 0, 0, 0]);
        assert_eq!(parsed(&six), None);
        six.push(0);
        assert_eq!(parsed(&six), Some("[::1]:80".parse().unwrap()));
        assert_eq!(parsed(b"\x01\x00/run/docker.sock"), None);
        assert_eq!(parsed(&[2]), None);
    }
}
