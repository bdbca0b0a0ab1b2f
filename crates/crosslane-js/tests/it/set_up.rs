//! Stateful functions: their set-up and tear-down, and timers.

use crate::support::{call, load};

/// Any batch may await a promise of a constructor. Timers that a batch leaves running are cleared.
#[test]
fn timers_of_a_set_up_outlive_batches() {
    let text = "const later = (time, value) => new Promise((done) => setTimeout(done, time, value));
        class Ready {
          ready = later(30, 5);
          // Starts its timer when the constructor has ended.
          begun = this.begin();
          ticks = 0;
          constructor() { setInterval(() => { this.ticks++; }, 5); }
          async begin() { await null; return await later(20, 2); }
        }
        udf('f(x BIGINT) -> BIGINT', class extends Ready {
          async call(x) { return x + await this.ready + await this.begun; }
        });
        udf('g(x BIGINT) -> BIGINT', { vectorized: true }, class extends Ready {
          async call(x) { const more = await this.ready; return x.map((one) => one + more); }
        });
        let left = 0;
        udf('leaves(x BIGINT) -> BIGINT', { concurrency: 2 }, async (x) => {
          setTimeout(() => { left++; }, 1);
          return await null ?? x;
        });
        udf('left(x BIGINT) -> BIGINT', async () => (await later(30), left));
        udf('ticks(x BIGINT) -> BIGINT', class extends Ready {
          async call(x) { const before = this.ticks; await later(40); return this.ticks > before ? 1 : 0; }
        });
        udf('fails(x BIGINT) -> BIGINT', class {
          constructor() { setTimeout(() => { left += 1000; }, 1); throw new Error('no'); }
          call(x) { return x; }
        });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    for function in [0, 1, 4] {
        guest.set_up(function).unwrap();
    }
    guest.set_up(5).unwrap_err();
    // Batches of other functions come between.
    for _ in 0..2 {
        assert_eq!(call(guest, 2, &[Some(1)]), Ok(vec![Some(1)]));
        assert_eq!(call(guest, 3, &[Some(1)]), Ok(vec![Some(0)]));
    }
    for _ in 0..2 {
        assert_eq!(call(guest, 0, &[Some(1), Some(2)]), Ok(vec![Some(8), Some(9)]));
        assert_eq!(call(guest, 1, &[Some(1), Some(2)]), Ok(vec![Some(6), Some(7)]));
        assert_eq!(call(guest, 4, &[Some(1)]), Ok(vec![Some(1)]));
    }
}

#[test]
fn the_error_of_a_tear_down_names_its_function() {
    let text = "udf('f(x BIGINT) -> BIGINT', class {\n call(x) { return x; }\n close() { throw new RangeError('no'); } });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    // Nothing was set up, so there is nothing to tear down.
    guest.tear_down(0).unwrap();
    guest.set_up(0).unwrap();
    let failure = guest.tear_down(0).unwrap_err().unwrap().to_string();
    assert!(failure.starts_with("RangeError: no\n  in the tear-down of f, declared at /"), "{failure}");
    assert!(failure.contains(".js:1\n    at ") && failure.contains(".js:3:"), "{failure}");
    assert!(guest.needs_set_up(0));
}

/// Methods that a file adds to all objects are no methods of its functions.
#[test]
fn methods_of_all_objects_are_not_methods_of_functions() {
    let text =
        "Object.prototype.call = Object.prototype.close = () => { throw new Error('of all objects'); };
        Object.prototype.instance = { call: () => 99 };
        Object.prototype.stateful = true;
        udf('f(x BIGINT) -> BIGINT', (x) => x + 1);
        udf('g(x BIGINT) -> BIGINT', function (x) { return x + 2; });
        class Base { call(x) { return x + this.added; } }
        udf('h(x BIGINT) -> BIGINT', class extends Base { static length = 3; added = 3; });";
    let mut fixture = load(text).unwrap();
    let guest = &mut fixture.guest;
    guest.set_up(2).unwrap();
    for (function, added) in [(0, 1), (1, 2), (2, 3)] {
        assert!(!guest.needs_set_up(function));
        assert_eq!(call(guest, function, &[Some(10)]), Ok(vec![Some(10 + added)]));
    }
    guest.tear_down(2).unwrap();
    drop(fixture);
    for (declares, message) in [
        ("udf('f(x BIGINT) -> BIGINT', class Model {})", "Model has no method call"),
        (
            "udaf('f(x BIGINT) -> BIGINT', class Total { update() {} finish() {} })",
            "Total has no method merge",
        ),
    ] {
        let error =
            load(&format!("Object.prototype.call = Object.prototype.merge = () => 1;\n{declares};")).err();
        assert!(error.unwrap().message.contains(message));
    }
}
