//! What the kernel knows of memory: all that V8 takes, also where V8 does not count it.
//!
//! The host takes no huge pages, so that each page that a thread touches first is one fault of that thread.

use rustix::process::Pid;
use std::fs;

/// The bytes of all pages that a thread of this process was given since it began; some may be gone again.
pub(crate) fn given_to(thread: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // After the name, which may have spaces in it: `minflt` is the eighth field.
    let faults = stat.ok().and_then(|stat| stat.rsplit_once(')')?.1.split(' ').nth(8)?.parse().ok());
    in_bytes(faults)
}

/// The bytes that this process holds, without the memory that it shares with others.
pub(crate) fn held() -> u64 {
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
    fn pages_count_for_the_thread_that_fills_them() {
        const SIZE: u64 = 64 << 20;
        rustix::thread::disable_transparent_huge_pages(true).expect("a setting of this process");
        let me = rustix::thread::gettid();
        let before = (given_to(me), held());
        let filled = std::thread::spawn(|| {
            let before = given_to(rustix::thread::gettid());
            let filled = vec![1u8; SIZE as usize];
            assert!(given_to(rustix::thread::gettid()) >= before + SIZE);
            filled
        });
        let filled = filled.join().expect("the thread asserts what is so");
        assert!(held() >= before.1 + SIZE / 2);
        assert!(given_to(me) < before.0 + SIZE / 2);
        drop(filled);
    }
}
