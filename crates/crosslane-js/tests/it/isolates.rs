//! Isolates: the end of a call, limits of memory, snapshots, and files that cannot be loaded.

use crate::support::{Log, call, load};
use crosslane_js::guest::Guest;
use crosslane_js::isolate::Reason;
use crosslane_js::library::Library;
use crosslane_process::Files;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn a_call_ends_from_another_thread_and_the_isolate_goes_on() {
    let text = "udf('f(x BIGINT) -> BIGINT', (x) => { while (x === 3) {} return x; });";
    let mut fixture = load(text).unwrap();
    let handle = Arc::clone(fixture.guest.handle());
    for reason in [Reason::Timeout, Reason::Closed] {
        let (handle, over) = (Arc::clone(&handle), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&over);
        let ender = std::thread::spawn(move || {
            // A request before the call has begun ends nothing.
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                handle.end(reason, true);
            }
        });
        let (message, _) = call(&mut fixture.guest, 0, &[Some(1), Some(3)]).unwrap_err();
        over.store(true, Relaxed);
        assert!(
            message.contains(if reason == Reason::Timeout { "TimeoutError" } else { "closed" }),
            "{message}"
        );
        ender.join().unwrap();
        assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    }
    // A request without a running call ends nothing.
    handle.end(Reason::Timeout, true);
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
}

#[test]
fn memory_of_a_vectorized_call_is_detached() {
    let text = "let kept = [];
        udf('keep(x BIGINT) -> BIGINT', { vectorized: true, bigint: true }, (x) => (kept.push(x), x));
        udf('kept(x BIGINT) -> BIGINT', (x) => kept[Number(x)].length + kept.length);";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(7), Some(8)]).unwrap(), [Some(7), Some(8)]);
    assert_eq!(call(&mut fixture.guest, 1, &[Some(0)]).unwrap(), [Some(1)]);
}

#[test]
fn garbage_of_a_set_up_does_not_raise_the_limit_of_calls() {
    let text = "udf('f(x BIGINT) -> BIGINT', class {
          constructor() { for (const all = []; all.length < 30;) all.push(new Array(1.2e6).fill(0.5)); }
          call(x) { return x; }
        });
        udf('g(x BIGINT) -> BIGINT', { memory_limit: '50 MB' }, (x) => {
          const all = [];
          while (all.length < x) all.push(new Array(1.25e5).fill(0.5));
          return x;
        });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    guest.set_up(0).unwrap();
    assert_eq!(call(guest, 1, &[Some(30)]), Ok(vec![Some(30)]));
    let (failure, _) = call(guest, 1, &[Some(100)]).unwrap_err();
    assert!(failure.contains("the function's memory_limit"), "{failure}");
}

#[test]
fn an_error_after_a_caught_refusal_of_memory_is_not_a_memory_error() {
    let text = "udf('f(x BIGINT) -> BIGINT', (x) => {
        try {
          if (x !== 2) new ArrayBuffer(2 ** 30);
        } catch (error) {
          if (x === 3) throw error;
        }
        if (x > 1) throw new RangeError('mine');
        return x;
      });";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    // The failure comes in a later call, and in the same call.
    for rows in [&[Some(2)][..], &[Some(1), Some(2)]] {
        let (message, _) = call(&mut fixture.guest, 0, rows).unwrap_err();
        assert!(message.starts_with("RangeError: mine"), "{message}");
        assert!(!fixture.guest.is_spent());
    }
    let (message, _) = call(&mut fixture.guest, 0, &[Some(3)]).unwrap_err();
    assert!(message.contains("more than 537 MB were used"), "{message}");
}

#[test]
fn warming_up_keeps_compiled_code_only() {
    let text = "let calls = 0;
        udf('calls(x BIGINT) -> BIGINT', { warmup: [[5], [6]] }, (x) => { console.log('called'); return ++calls; });";
    let mut fixture = load(text).unwrap();
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    assert_eq!(fixture.log.try_iter().collect::<Vec<_>>(), ["called\n"]);
    let mut other = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
    assert_eq!(call(&mut other, 0, &[Some(1)]).unwrap(), [Some(1)]);
}

#[test]
fn isolates_of_two_snapshots_are_refused() {
    let fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x);").unwrap();
    let bytes: &'static [u8] = fixture.library.snapshot.bytes().to_vec().leak();
    // SAFETY: the bytes are a copy of a snapshot of this build.
    let copy = unsafe { crosslane_js::isolate::Snapshot::from_bytes(bytes) };
    let second = Arc::new(Library {
        snapshot: Arc::new(copy),
        functions: fixture.library.functions.clone(),
        files: Files::default(),
        time: fixture.library.time,
    });
    let boot = || Guest::boot(&second, Box::new(Log(mpsc::channel().0)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(boot)).is_err());
    drop(fixture.guest);
    boot().unwrap();
}

#[test]
fn an_isolate_without_address_space_is_an_error() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x);").unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let held = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = held.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: the calls only read and write the limit.
    let boot = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
        // V8 reserves 128 MB for the code of an isolate.
        let least = libc::rlimit { rlim_cur: pages * 4096 + (100 << 20), ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &least), 0);
        let boot = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0)));
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        boot
    };
    let message = boot.err().unwrap().to_string();
    assert_eq!(message, "V8 found no memory for its heap: the system gives the process no more");
    assert_eq!(call(&mut fixture.guest, 0, &[Some(1)]).unwrap(), [Some(1)]);
    Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
}

#[test]
fn the_error_of_a_file_that_cannot_be_loaded_has_its_place() {
    let failure = load("const a = 1;\nnull.x;").err().unwrap();
    assert_eq!(failure.class, "TypeError");
    assert!(failure.traceback.contains(":2:6"), "{failure}");
    assert!(load("udf('f(x BIGINT) -> BIGINT', (x) => x);").is_ok());
}
