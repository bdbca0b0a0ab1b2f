//! The thread of the engine that notes what a library touches.

use super::files::{Used, used};
use super::notes::Notes;
use crate::broker::connect::{connect_to_here, own_descriptors, take_socket};
use crate::broker::hosts::{NAME_SERVER, is_special};
use crate::broker::listener::{Call, Listener};
use crate::broker::names;
use crate::calls;
use crate::files::{Accesses, HOSTS, OWN_PROCESS, Runtime, Unnamed, refuse_to_write};
use crosslane::{Net, lock};
use landlock::AccessFs;
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::net::sockopt;
use rustix::process::Pid;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The most threads that resolve names.
const MOST_THREADS: usize = 64;
/// The most addresses whose names are remembered.
const MOST_ADDRESSES: usize = 4096;
/// The most bytes of the address of a socket of Unix.
const LONGEST_ADDRESS: usize = size_of::<libc::sockaddr_un>();
/// Where services listen that resolve names. Without them, the C library asks the engine.
const RESOLVERS: [&str; 5] =
    ["/run/systemd/resolve", "/run/nscd", "/var/run/nscd", "/run/avahi-daemon", "/var/run/avahi-daemon"];

/// Notes what a library touches.
#[derive(Debug)]
pub struct Recorder {
    listener: Listener,
    runtime: Runtime,
    file: PathBuf,
    is_needed: fn(&str) -> bool,
}

impl Recorder {
    /// A recorder for the owner of this descriptor, whose language reads this. The notes are added to
    /// `file`. `is_needed` tells whether a variable must be allowed.
    pub fn new(listener: OwnedFd, runtime: Runtime, file: PathBuf, is_needed: fn(&str) -> bool) -> Self {
        Self { listener: Listener(listener), runtime, file, is_needed }
    }

    /// Notes until no process can touch anything any more.
    pub fn serve(self) {
        if !own_descriptors(&self.listener) {
            return;
        }
        let Ok(notes) = Notes::new(&self.file) else { return };
        let notes = Arc::new(notes);
        let mut serving = Serving {
            unnamed: Unnamed::new(&Net::Nothing, &self.runtime),
            with_network: Unnamed::new(&Net::Hosts(Vec::new()), &self.runtime),
            names: Arc::new(Names { notes: Arc::clone(&notes), by_address: Mutex::default() }),
            notes,
            zygote: None,
            recorder: self,
        };
        serving.run();
    }
}

/// What becomes of a call.
enum Fate {
    /// The kernel runs it.
    Runs,
    Answered(Result<(), Errno>),
}

struct Serving {
    recorder: Recorder,
    unnamed: Unnamed,
    with_network: Unnamed,
    names: Arc<Names>,
    notes: Arc<Notes>,
    /// The process that loads the library.
    zygote: Option<Pid>,
}

impl Serving {
    fn run(&mut self) {
        loop {
            let mut polled = [self.recorder.listener.poll()];
            match rustix::event::poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let Some(has_call) = Listener::has_call(polled[0].revents()) else { return };
            if has_call && let Ok(call) = self.recorder.listener.receive() {
                let fate = self.look(&call);
                match fate {
                    Fate::Runs => self.recorder.listener.go_on(call.id()),
                    Fate::Answered(outcome) => self.recorder.listener.answer(call.id(), outcome),
                }
            }
        }
    }

    /// Notes what a call touches.
    fn look(&mut self, call: &Call) -> Fate {
        if call.number() == libc::SYS_connect {
            return self.connected(call);
        }
        if call.number() == libc::SYS_sendto {
            // The C library also asks the kernel itself in this way, which addresses machines have.
            if [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX].contains(&family(call, 4)) {
                self.never("datagrams (UDP, and sockets of Unix)");
            }
            return Fate::Runs;
        }
        if calls::may_fork(call.number()) {
            if call.process().ok() != self.zygote && !is_thread(call) {
                self.notes.add("fork", "", false);
            }
            return Fate::Runs;
        }
        if let Some(what) = calls::never_allowed(call.number()) {
            self.never(what);
            return Fate::Runs;
        }
        // The kernel says what is wrong with a path that cannot be read.
        let used = used(call).unwrap_or_default();
        // The caller may have ended, and its number may be another's.
        if !self.recorder.listener.is_waiting(call.id()) {
            return Fate::Runs;
        }
        for used in used {
            match used {
                Used::Variable(name) if (self.recorder.is_needed)(&name) => {
                    self.notes.add("variable", &name, false);
                }
                Used::Variable(_) => {}
                Used::File(path, _) if path == Path::new(HOSTS) => return Fate::Answered(Err(Errno::ACCESS)),
                Used::File(path, access) => self.touched(call, &path, access),
            }
        }
        Fate::Runs
    }

    fn never(&self, what: &str) {
        self.notes.add("never", what, false);
    }

    fn touched(&self, call: &Call, path: &Path, access: Accesses) {
        let caller = call.process().ok();
        if access.contains(AccessFs::Execute) {
            // Workers run nothing, not even their own program, unless a program is allowed.
            let is_allowed = self.unnamed.refused(path, access).is_empty() && caller == self.zygote;
            if !is_allowed {
                self.notes.add("run", &path.to_string_lossy(), false);
            }
            return;
        }
        let process = |pid: Option<Pid>| pid.map(|pid| format!("/proc/{}", pid.as_raw_nonzero()));
        let below = |folder: Option<String>| path.strip_prefix(folder?).ok();
        let path = match below(process(self.zygote)) {
            Some(rest) => &Path::new(OWN_PROCESS).join(rest),
            None => path,
        };
        let refused = self.unnamed.refused(path, access);
        if refused.is_empty() {
            return;
        }
        if path.starts_with("/proc") {
            let rest = below(process(caller));
            let path = rest.map_or_else(|| anonymous(path), |rest| Path::new(OWN_PROCESS).join(rest));
            return self.never(&path.to_string_lossy());
        }
        let kind = path.metadata().map(|metadata| metadata.file_type());
        if kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device()) {
            return self.never(&format!("the device {}", path.display()));
        }
        let network = self.with_network.refused(path, access).is_empty();
        let reading = AccessFs::ReadFile | AccessFs::ReadDir;
        if (refused & !reading).is_empty() {
            return self.notes.add("read", &path.to_string_lossy(), network);
        }
        match refuse_to_write(path, &self.recorder.runtime) {
            Ok(()) => self.notes.add("write", &path.to_string_lossy(), network),
            Err(why) => self.never(&format!("to change {}: {why}; use another folder", path.display())),
        }
    }

    fn connected(&mut self, call: &Call) -> Fate {
        let address = call.address();
        if call.socket() < 0 {
            // That is the probe, which comes before all else.
            self.zygote = self.zygote.or(call.process().ok());
            return Fate::Answered(address.and(Err(Errno::ACCESS)));
        }
        let Ok(to) = address else { return self.connected_here(call) };
        // The C library connects such sockets, and sends nothing, to find the best address of a host.
        if to.port() == 0 || is_datagram(call) {
            return Fate::Runs;
        }
        if to.port() == NAME_SERVER {
            return Fate::Answered(self.connect_to_names(call));
        }
        for host in self.names.hosts(to) {
            self.notes.add("host", &host, false);
        }
        Fate::Runs
    }

    /// Gives the caller a connection to a thread that resolves names and notes them.
    fn connect_to_names(&self, call: &Call) -> Result<(), Errno> {
        // Each of the threads has the names.
        if Arc::strong_count(&self.names) > MOST_THREADS {
            return Err(Errno::AGAIN);
        }
        let (stream, names) = (connect_to_here(&self.recorder.listener, call)?, Arc::clone(&self.names));
        let thread = std::thread::Builder::new().name("crosslane-names".into());
        // If there is no thread, the caller sees the end of its connection.
        let _ = thread.spawn(move || names::serve(&stream, &[], |name| names.resolve(name)));
        Ok(())
    }

    /// Notes a connection that leads to no other machine.
    fn connected_here(&self, call: &Call) -> Fate {
        if family(call, 1) != libc::AF_UNIX {
            return Fate::Runs;
        }
        let mut address = [0; LONGEST_ADDRESS];
        let length = LONGEST_ADDRESS.min(call.argument(2) as usize);
        let count = call.memory(call.argument(1), &mut address[..length]).unwrap_or_default();
        let path = address[..count].get(size_of::<libc::sa_family_t>()..).unwrap_or_default();
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path));
        if RESOLVERS.iter().any(|resolver| path.starts_with(resolver)) {
            return Fate::Answered(Err(Errno::ACCESS));
        }
        let name =
            if path.as_os_str().is_empty() { "one without a path".into() } else { path.to_string_lossy() };
        self.never(&format!("sockets of Unix: {name}"));
        Fate::Runs
    }
}

/// Whether a call makes a thread in its process. Filters read the flags of the older calls.
fn is_thread(call: &Call) -> bool {
    let mut flags = [0; size_of::<u64>()];
    call.number() == libc::SYS_clone3
        && call.memory(call.argument(0), &mut flags).is_ok()
        && u64::from_ne_bytes(flags) & libc::CLONE_THREAD as u64 != 0
}

/// The family of the address to which this argument points.
fn family(call: &Call, argument: usize) -> libc::c_int {
    let mut family = [0; size_of::<libc::sa_family_t>()];
    match call.memory(call.argument(argument), &mut family) {
        Ok(_) => libc::sa_family_t::from_ne_bytes(family).into(),
        Err(_) => libc::AF_UNSPEC,
    }
}

/// Whether the caller's socket is one for datagrams. A container may forbid to look.
fn is_datagram(call: &Call) -> bool {
    take_socket(call)
        .and_then(|socket| sockopt::socket_type(&socket))
        .is_ok_and(|kind| kind == SocketType::DGRAM)
}

/// A path of `/proc` without the number of a process.
fn anonymous(path: &Path) -> PathBuf {
    let is_number = |part: &OsStr| part.as_bytes().iter().all(u8::is_ascii_digit);
    path.iter().map(|part| if is_number(part) { OsStr::new("PID") } else { part }).collect()
}

/// The names of the addresses that the library knows.
struct Names {
    notes: Arc<Notes>,
    by_address: Mutex<HashMap<IpAddr, String>>,
}

impl Names {
    /// The addresses of a name.
    fn resolve(&self, name: &str) -> Option<Vec<IpAddr>> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let found = (&name[..], 0).to_socket_addrs().into_iter().flatten();
        let addresses: Vec<_> = found.map(|address| address.ip().to_canonical()).collect();
        self.notes.add("name", &name, false);
        let mut known = lock(&self.by_address);
        for address in &addresses {
            if known.len() < MOST_ADDRESSES || known.contains_key(address) {
                known.insert(*address, name.clone());
            }
        }
        Some(addresses)
    }

    /// How a list of hosts names an address: by its last name. A name allows no special addresses, but it
    /// must be listed to be resolved.
    fn hosts(&self, to: SocketAddr) -> Vec<String> {
        let ip = to.ip().to_canonical();
        let port = to.port();
        let name = lock(&self.by_address).get(&ip).cloned();
        let address = match ip {
            ip if ip.is_loopback() => "localhost".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let mut hosts = match name {
            Some(name) if is_special(ip) => vec![address, name],
            Some(name) => vec![name],
            None => vec![address],
        };
        hosts.dedup();
        hosts.into_iter().map(|host| format!("{host}:{port}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_names_that_a_list_of_hosts_needs() {
        let path = std::env::temp_dir().join(format!("crosslane-names-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let known = [("10.0.0.7", "a.example"), ("127.0.0.1", "localhost"), ("127.0.0.2", "own.example")];
        let known = known.map(|(address, name)| (address.parse().unwrap(), name.to_owned()));
        let notes = Arc::new(Notes::new(&path).unwrap());
        let names = Names { notes, by_address: Mutex::new(known.into()) };
        for (address, hosts) in [
            ("10.0.0.7:443", &["a.example:443"][..]),
            ("10.0.0.8:443", &["10.0.0.8:443"]),
            ("127.0.0.1:80", &["localhost:80"]),
            ("127.0.0.2:80", &["localhost:80", "own.example:80"]),
            ("[::1]:80", &["localhost:80"]),
            ("[fd00::7]:80", &["[fd00::7]:80"]),
            ("[::ffff:10.0.0.7]:1", &["a.example:1"]),
        ] {
            assert_eq!(names.hosts(address.parse().unwrap()), hosts);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn paths_of_processes_have_no_numbers() {
        assert_eq!(anonymous(Path::new("/proc/42/task/43/stat")), Path::new("/proc/PID/task/PID/stat"));
        assert_eq!(anonymous(Path::new("/proc/sys/x1")), Path::new("/proc/sys/x1"));
    }
}
