//! Reads the kernel's counters of memory and of threads. They include the memory that V8 does not
//! count.
//!
//! The host uses no huge pages. So each page causes one page fault of the thread that touches it
//! first.

use rustix::process::Pid;
use std::fs;
use std::time::Duration;

/// Returns the bytes of all pages on which a thread of this process had a page fault. Some of the
/// pages may be free again.
pub(crate) fn faulted_bytes(thread: Pid) -> u64 {
    in_bytes(stat_numbers(thread, 8).map(|[minflt]| minflt))
}

/// Returns how long a thread of this process has run. Time in which the thread waited for a
/// processor does not count.
pub(crate) fn cpu_time(thread: Pid) -> Duration {
    let ticks = stat_numbers(thread, 12).map_or(0, |[utime, stime]| utime + stime);
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Reads consecutive numbers of a thread in `/proc`. `place` counts the fields after the thread's
/// name, because the name may contain spaces.
fn stat_numbers<const COUNT: usize>(thread: Pid, place: usize) -> Option<[u64; COUNT]> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split(' ').skip(place);
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        *number = fields.next()?.parse().ok()?;
    }
    Some(numbers)
}

/// Returns the bytes of this process's memory, without memory that it shares with other processes.
pub(crate) fn own_bytes() -> u64 {
    let counts = fs::read_to_string("/proc/self/statm").ok().and_then(|statm| {
        let mut pages = statm.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
        Some(pages.next()?.saturating_sub(pages.next()?))
    });
    in_bytes(counts)
}

fn in_bytes(pages: Option<u64>) -> u64 {
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_wait_do_not_work() {
        let me = rustix::thread::gettid();
        let before = cpu_time(me);
        let other = std::thread::spawn(|| {
            let me = rustix::thread::gettid();
            while cpu_time(me) < Duration::from_millis(200) {}
        });
        other.join().expect("it only works");
        assert!(cpu_time(me) < before + Duration::from_millis(100));
    }

    #[test]
    fn pages_count_for_the_thread_that_fills_them() {
        const SIZE: u64 = 64 << 20;
        rustix::thread::disable_transparent_huge_pages(true).expect("a setting of this process");
        let me = rustix::thread::gettid();
        let before = (faulted_bytes(me), own_bytes());
        let filled = std::thread::spawn(|| {
            let before = faulted_bytes(rustix::thread::gettid());
            let filled = vec![1u8; SIZE as usize];
            assert!(faulted_bytes(rustix::thread::gettid()) >= before + SIZE);
            filled
        });
        let filled = filled.join().expect("the thread asserts what is so");
        assert!(own_bytes() >= before.1 + SIZE / 2);
        assert!(faulted_bytes(me) < before.0 + SIZE / 2);
        drop(filled);
    }
}
