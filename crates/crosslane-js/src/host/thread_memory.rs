//! Counters of the kernel for memory and threads. They include all memory of V8, also memory that
//! V8 does not count.
//!
//! The host uses no huge pages, so that the first touch of each page is one page fault of the
//! thread.

use rustix::process::Pid;
use std::fs;
use std::time::Duration;

/// The bytes of all pages on which a thread of this process had a page fault since it began. Some
/// may be free again.
pub(crate) fn faulted_bytes(thread: Pid) -> u64 {
    in_bytes(stat_numbers(thread, 8).map(|[minflt]| minflt))
}

/// How long a thread of this process has run since it began. Time in which it waited for a
/// processor does not count.
pub(crate) fn cpu_time(thread: Pid) -> Duration {
    let ticks = stat_numbers(thread, 12).map_or(0, |[utime, stime]| utime + stime);
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Numbers of a thread in `/proc`, from this place after the thread's name on. (The name may
/// contain spaces.)
fn stat_numbers<const COUNT: usize>(thread: Pid, place: usize) -> Option<[u64; COUNT]> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split(' ').skip(place);
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        *number = fields.next()?.parse().ok()?;
    }
    Some(numbers)
}

/// The bytes of memory of this process, without memory that it shares with others.
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
