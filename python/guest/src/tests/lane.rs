//! A lane and its engine.

use super::{evaluate, python};
use crate::serve;
use crosslane::Address;
use crosslane::lane::Lane;
use crosslane_process::testing::{both_ends, fill};
use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// A lane whose engine takes no replies holds up only itself, whatever it answers.
#[test]
fn other_threads_run_while_a_lane_waits_for_room() {
    static CALLED: AtomicBool = AtomicBool::new(false);
    const FUNCTION: &str = "__import__('types').SimpleNamespace(signature='f() -> BIGINT', shapes=[], \
        result_shape=None, table=None, kind='row', callee=lambda: WHAT, on_error='raise', admits_null=[], retries=0, \
        memory_limit=None)";
    // A result, a failed call, and a function that cannot be prepared.
    let functions = [
        FUNCTION.replace("WHAT", "lambda: called(1)"),
        FUNCTION.replace("WHAT", "lambda: 1 / 0"),
        FUNCTION.replace("WHAT", "None").replace("BIGINT", "NOTHING"),
    ];
    for text in functions {
        let (mut engine, mut guest) = both_ends(4096);
        fill(&mut engine, &mut guest);
        engine.submit(Address::call(0), 1, &()).expect("a lane").expect("room");
        CALLED.store(false, Relaxed);
        let engine = thread::spawn(move || {
            while !CALLED.load(Relaxed) {
                thread::yield_now();
            }
            // The guest holds the interpreter's lock, and is about to answer.
            Python::attach(|_| ());
            while engine.in_flight() > 0 {
                engine.try_collect().expect("a sound reply");
            }
        });
        python(|py, names| {
            // The lock is given up only in waits.
            py.run(c"import sys; sys.setswitchinterval(1000)", None, None).expect("an interval");
            let called = PyCFunction::new_closure(py, None, None, |arguments, _| {
                CALLED.store(true, Relaxed);
                arguments.get_item(0).map(Bound::unbind)
            });
            names.set_item("called", called.expect("a function")).expect("room");
            // A failure is described right before the answer.
            py.run(c"describe = lambda error: called(('', '', ''))", Some(names), None).expect("a function");
            let errors = py.import("crosslane._runtime.errors").expect("the package");
            let described = errors.getattr("describe").expect("a function");
            errors.setattr("describe", names.get_item("describe").expect("a name")).expect("a module");
            let served = serve::answer_all(py, &mut guest, vec![evaluate(py, names, &text)]);
            errors.setattr("describe", described).expect("a module");
            served.expect("the end of the engine");
        });
        engine.join().expect("an engine");
    }
}
