//! seccomp: which system calls there are.
//!
//! Each process has two filters, and one more in lanes. The first answers ENOSYS to what is neither
//! known to be needed nor forbidden. The second answers EPERM to what is forbidden, and to forbidden
//! arguments. The kernel takes the stricter answer.

mod lists;

use crate::machine::Machine;
use crosslane::{Net, Sandbox};
use libc::*;
use lists::{
    FCNTL, FORBIDDEN, FORKING, IOCTL, KIND, KINDS, NAMESPACES, NEEDED, NETWORK, OF_DESCRIPTORS, OPENING,
    OPTIONS, PATHS, PRCTL, PROCESSES, RESTRICTING, WRITING,
};
use seccompiler::{
    BpfProgram, SeccompAction as Action, SeccompCmpArgLen as Length, SeccompCmpOp as Is,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Stands for the number of the process in a filter, which may be made before a fork.
const OWN: u32 = 0x7ffa_5e1f;
pub(crate) type Rules = BTreeMap<i64, Vec<Rule>>;

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
    FORBIDDEN.iter().for_each(|(_, calls)| add(&mut rules, calls));
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
    if sandbox.recorded {
        return rules;
    }
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
        rules.insert(SYS_clone, vec![makes_process()]);
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

/// A filter that hands calls over to another process, and lets all others pass.
pub(crate) fn handing_over(rules: Rules) -> Result<BpfProgram, String> {
    // The library of filters has no action for it. This one is used for nothing else.
    let mut program = compile(rules, Action::Allow, Action::Trace(0))?;
    for instruction in program.iter_mut().filter(|instruction| instruction.k == SECCOMP_RET_TRACE) {
        instruction.k = SECCOMP_RET_USER_NOTIF;
    }
    Ok(program)
}

/// The calls that connect a socket.
pub(crate) fn connecting() -> Rules {
    Rules::from([(SYS_connect, Vec::new())])
}

/// The calls that tell what a library touches.
pub(crate) fn telling() -> Rules {
    let mut rules = connecting();
    add(&mut rules, OPENING);
    add(&mut rules, WRITING);
    FORBIDDEN.iter().filter(|(name, _)| !name.is_empty()).for_each(|(_, calls)| add(&mut rules, calls));
    let has_address = Condition::new(4, Length::Qword, Is::Ne, 0).expect("an argument's index is below six");
    rules.insert(SYS_sendto, vec![all(vec![has_address])]);
    add(&mut rules, FORKING);
    rules.insert(SYS_clone, vec![makes_process()]);
    rules
}

/// Whether this is a call that makes a process, or perhaps a thread.
pub(crate) fn may_fork(call: c_long) -> bool {
    call == SYS_clone || FORKING.contains(&call)
}

/// Arguments of `clone` for a process, and no thread.
fn makes_process() -> Rule {
    all(vec![when(0, Is::MaskedEq(CLONE_THREAD as u64), 0)])
}

/// What no sandbox allows, and this call is used for.
pub(crate) fn never_allowed(call: c_long) -> Option<&'static str> {
    let group = FORBIDDEN.iter().find(|(name, calls)| !name.is_empty() && calls.contains(&call));
    group.map(|(name, _)| *name)
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
        // An open file can still be used.
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
            // No library is known to need this call.
            assert_eq!(errno(syscall(SYS_clone3, std::ptr::null::<u8>(), 0) as c_int), Some(ENOSYS));
        }
        assert_eq!(std::thread::spawn(|| 42).join().unwrap(), 42);
    }
}
