//! The resources that a process uses while it is measured.

use anyhow::{Context, Result, ensure};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::{fs, io};

/// The counts of a thread since its start.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    switches: u64,
    /// None if the kernel does not tell.
    migrations: Option<u64>,
}

/// The resources that a process has used so far, and running counters.
#[derive(Debug)]
pub struct Usage {
    pid: u32,
    cpu: u64,
    threads: HashMap<u32, Thread>,
    counters: Option<Vec<[Counter; 2]>>,
}

impl Usage {
    /// Reads what the process has used so far. Cycles and instructions are counted from now on.
    pub fn begin(pid: u32) -> Result<Usage> {
        let threads = threads(pid)?;
        let counters = threads.keys().map(|thread| counters(*thread)).collect::<io::Result<_>>().ok();
        Ok(Usage { pid, cpu: cpu(pid)?, threads, counters })
    }

    /// The resources since the beginning, divided by the number of answered requests. Null stands
    /// for what this machine cannot measure.
    pub fn report(mut self, requests: u64) -> Result<Value> {
        let spent = cpu(self.pid)? - self.cpu;
        let after = threads(self.pid)?;
        let mut switches = 0;
        let mut migrations = Some(0);
        for (number, thread) in &after {
            let before =
                self.threads.get(number).copied().unwrap_or(Thread { switches: 0, migrations: Some(0) });
            switches += thread.switches - before.switches;
            migrations = migrations
                .zip(thread.migrations.zip(before.migrations))
                .map(|(sum, (now, then))| sum + now - then);
        }
        // The counts of threads that have ended are lost.
        let ended = self.threads.keys().filter(|number| !after.contains_key(number)).count();
        let per_request = |amount: u64| amount as f64 / requests as f64;
        let counted = self.counters.as_mut().and_then(|counters| {
            let sum = |which: usize, counters: &mut Vec<[Counter; 2]>| {
                counters.iter_mut().map(|pair| pair[which].read()).sum::<io::Result<u64>>().ok()
            };
            Some((sum(0, counters)?, sum(1, counters)?))
        });
        Ok(json!({
            "cpu_us": per_request(spent) / 1e3,
            "switches": per_request(switches),
            "migrations": migrations.map(per_request),
            "cycles": counted.map(|(cycles, _)| per_request(cycles)),
            "ipc": counted.map(|(cycles, instructions)| instructions as f64 / cycles as f64),
            "threads": after.len(),
            "threads_ended": ended,
        }))
    }
}

/// Nanoseconds of processor time of all threads of a process, with those that have ended.
fn cpu(pid: u32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: the clock's number is written to a variable of its type.
    let rc = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    ensure!(rc == 0, "the server is not there any more");
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a variable of its type.
    let rc = unsafe { libc::clock_gettime(clock, &mut time) };
    ensure!(rc == 0, "the server is not there any more");
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn threads(pid: u32) -> Result<HashMap<u32, Thread>> {
    let mut threads = HashMap::new();
    let folder = format!("/proc/{pid}/task");
    for entry in fs::read_dir(&folder).context("the server is not there any more")? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        // A thread that has just ended has no files.
        let (Some(number), Ok(status)) = (number, fs::read_to_string(path.join("status"))) else { continue };
        let switches = field(&status, "voluntary_ctxt_switches").context("no count of context switches")?
            + field(&status, "nonvoluntary_ctxt_switches").context("no count of context switches")?;
        let schedule = fs::read_to_string(path.join("sched")).ok();
        let migrations = schedule.and_then(|text| field(&text, "se.nr_migrations"));
        threads.insert(number, Thread { switches, migrations });
    }
    Ok(threads)
}

/// The number in the line `NAME : NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == name).then(|| value.trim().parse().ok())?
    })
}

/// Counts cycles and instructions of a thread and of those that it starts. An error if the machine
/// has no counters, or does not allow them.
fn counters(thread: u32) -> io::Result<[Counter; 2]> {
    let count = |event: Hardware| -> io::Result<Counter> {
        let mut builder = Builder::new().kind(event).observe_pid(thread as libc::pid_t);
        builder.inherit(true).include_kernel();
        let mut counter = builder.build()?;
        counter.enable()?;
        Ok(counter)
    };
    Ok([count(Hardware::CPU_CYCLES)?, count(Hardware::INSTRUCTIONS)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process, thread};

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text =
            "nonvoluntary_ctxt_switches:\t5\nvoluntary_ctxt_switches:\t12\nse.nr_migrations      :     3\n";
        assert_eq!(field(text, "voluntary_ctxt_switches"), Some(12));
        assert_eq!(field(text, "nonvoluntary_ctxt_switches"), Some(5));
        assert_eq!(field(text, "se.nr_migrations"), Some(3));
        assert_eq!(field(text, "se.nr"), None);
    }

    #[test]
    fn what_all_threads_do_is_counted() {
        let usage = Usage::begin(process::id()).unwrap();
        // A thread that did not exist at the beginning. Another thread blocks and unblocks it.
        let (to, from) = (std::sync::mpsc::sync_channel(0), std::sync::mpsc::sync_channel(0));
        let echo = thread::spawn(move || from.1.iter().for_each(|()| to.0.send(()).unwrap()));
        for _ in 0..1000 {
            from.0.send(()).unwrap();
            to.1.recv().unwrap();
        }
        let report = usage.report(1).unwrap();
        drop(from.0);
        echo.join().unwrap();
        assert!(report["cpu_us"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["switches"].as_f64().unwrap() >= 1.0, "{report}");
        assert!(report["threads"].as_u64().unwrap() >= 2, "{report}");
    }
}
