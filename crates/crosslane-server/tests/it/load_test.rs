//! The load generator against a server that works, and against servers that do not.

use crate::common::{options, server, start, unix};
use crosslane_server::Address;
use crosslane_server::load_test::{self, Asked, Event, Plan};
use crosslane_server::wire::{CONTROL, Tell, control, prefix};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

fn asked(function: &str, argument: i64) -> Asked {
    Asked { function: function.into(), arguments: vec![json!(argument)] }
}

fn plan(address: &Address) -> Plan {
    Plan {
        address: address.to_string(),
        token: None,
        light: asked("double", 4),
        heavy: Vec::new(),
        heavy_share: 0.1,
        rates: vec![1000],
        poisson: false,
        seconds: 0.3,
        warm_up: 0.1,
        patience: 60.0,
        connections: 2,
        seed: 1,
    }
}

/// The reports of the steps, and the outcome of the measurement.
fn measure(plan: &Plan) -> (Vec<Value>, Result<(), String>) {
    let mut steps = Vec::new();
    let outcome = load_test::measure(plan, &AtomicBool::new(false), &mut |told| {
        if let Event::Step(report) = told {
            steps.push(report);
        }
        Ok(())
    });
    (steps, outcome.map_err(|error| format!("{error:#}")))
}

fn refusal(plan: &Plan) -> String {
    let (steps, outcome) = measure(plan);
    assert!(steps.is_empty());
    outcome.unwrap_err()
}

#[test]
fn every_planned_call_is_made_and_answered_over_every_kind_of_socket() {
    let server = start(options(&[unix(), "crosslane://127.0.0.1:0".parse().unwrap()])).unwrap();
    for address in server.addresses() {
        let (steps, outcome) = measure(&Plan { rates: vec![1000, 4000], ..plan(address) });
        outcome.unwrap();
        let rates: Vec<_> = steps.iter().map(|step| step["rate"].as_u64().unwrap()).collect();
        assert_eq!(rates, [1000, 4000]);
        for step in steps {
            let due = step["rate"].as_u64().unwrap() * 3 / 10;
            assert_eq!(step["answers"], due, "{step}");
            assert_eq!((&step["failed"], &step["lost"], &step["pending"]), (&json!(0), &json!(0), &json!(0)));
            assert_eq!(step["first_failure"], Value::Null);
            assert_eq!(step["latency"]["count"], due);
            assert_eq!(step["light"], step["latency"]);
            assert_eq!(step["heavy"], Value::Null);
            let counts =
                step["distribution"].as_array().unwrap().iter().map(|part| part[1].as_u64().unwrap());
            assert_eq!(counts.sum::<u64>(), due);
        }
    }
}

/// A call takes 2 ms on each of two workers. At 4,000 calls per second, the queue of waiting calls only
/// grows.
#[test]
fn latencies_count_from_the_planned_times() {
    let (_server, address) = server();
    let slow = Plan { light: asked("wait", 2), rates: vec![4000], connections: 1, ..plan(&address) };
    let slow = Plan { seconds: 0.1, warm_up: 0.05, ..slow };
    let (steps, outcome) = measure(&slow);
    outcome.unwrap();
    let (latency, qps) = (&steps[0]["latency"], steps[0]["qps"].as_f64().unwrap());
    assert_eq!(latency["count"], 400);
    assert!(qps < 1100.0, "{qps}");
    // All 600 calls need at least 0.6 s. The last call was planned at 0.15 s.
    assert!(latency["max_us"].as_f64().unwrap() > 0.4e6, "{latency}");
    assert!(latency["p50_us"].as_f64().unwrap() > 0.2e6, "{latency}");
}

#[test]
fn heavy_calls_have_their_own_figures() {
    let (_server, address) = server();
    let mixed = Plan { heavy: vec![asked("wait", 1), asked("wait", 2)], heavy_share: 0.05, ..plan(&address) };
    let (steps, outcome) = measure(&mixed);
    outcome.unwrap();
    let count = |which: &str| steps[0][which]["count"].as_u64().unwrap();
    assert_eq!(count("light") + count("heavy"), 300);
    assert!((1..60).contains(&count("heavy")), "{}", count("heavy"));
    assert!(steps[0]["heavy"]["p50_us"].as_f64().unwrap() >= 1000.0, "{}", steps[0]);
}

#[test]
fn failures_are_counted_and_the_first_one_is_told() {
    let (_server, address) = server();
    let (steps, outcome) = measure(&Plan { light: asked("fail", 1), ..plan(&address) });
    outcome.unwrap();
    assert_eq!((&steps[0]["failed"], &steps[0]["answers"]), (&json!(300), &json!(0)));
    assert_eq!(steps[0]["first_failure"], "Oops: it fails");
    assert_eq!(steps[0]["latency"], Value::Null);
    // The end of a worker is a failure of its calls. The other calls go on, on more lanes than a
    // connection has at once.
    let ending = Plan { light: asked("end", 1), rates: vec![400], connections: 1, ..plan(&address) };
    let (steps, outcome) = measure(&ending);
    outcome.unwrap();
    assert_eq!(steps[0]["failed"], 120, "{}", steps[0]);
    assert!(steps[0]["first_failure"].as_str().unwrap().contains("was ended"), "{}", steps[0]);
}

#[test]
fn what_cannot_be_measured_is_told_before_anything_is() {
    let mut options = options(&[unix()]);
    options.token = Some("secret".into());
    let server = start(options).unwrap();
    let known = Plan { token: Some("secret".into()), ..plan(&server.addresses()[0]) };
    measure(&known).1.unwrap();
    for (plan, what) in [
        (Plan { token: None, ..known.clone() }, "refused: it needs a token"),
        (Plan { token: Some("public".into()), ..known.clone() }, "refused: its token is another"),
        (
            Plan { light: asked("triple", 1), ..known.clone() },
            "the server has no function triple; it has double",
        ),
        (Plan { heavy: vec![asked("triple", 1)], ..known.clone() }, "no function triple"),
        (Plan { light: asked("numbers", 1), ..known.clone() }, "numbers is of the kind table"),
        (Plan { connections: 0, ..known.clone() }, "at least one connection"),
        (Plan { rates: vec![0], ..known.clone() }, "at least one request"),
        (Plan { heavy: vec![asked("wait", 1)], heavy_share: 1.5, ..known.clone() }, "between 0 and 1"),
        (Plan { seconds: 1e6, ..known.clone() }, "are the most"),
        (Plan { seconds: -1.0, ..known.clone() }, "the time: -1 seconds"),
        (Plan { address: "crosslane+unix:///nowhere".into(), ..known.clone() }, "cannot connect"),
        (Plan { address: "nowhere".into(), ..known.clone() }, "no address of a server"),
    ] {
        let error = refusal(&plan);
        assert!(error.contains(what), "{error}");
    }
    let text = Asked { function: "double".into(), arguments: vec![json!("four")] };
    let error = refusal(&Plan { light: text, ..known });
    assert!(error.starts_with("double(x BIGINT) -> BIGINT cannot be called with these arguments"), "{error}");
}

#[test]
fn a_stopped_measurement_gives_its_results_until_then() {
    let (_server, address) = server();
    let long = Plan { rates: vec![1000, 2000], seconds: 3000.0, warm_up: 0.0, ..plan(&address) };
    let (stop, mut steps) = (AtomicBool::new(false), Vec::new());
    let measured = load_test::measure(&long, &stop, &mut |told| {
        match told {
            Event::Progress { step, part } => {
                assert_eq!(step, 0);
                stop.store(part > 0.0001, Relaxed);
            }
            Event::Step(report) => steps.push(report),
        }
        Ok(())
    });
    measured.unwrap();
    assert_eq!(steps.len(), 1);
    assert_eq!((&steps[0]["stopped"], &steps[0]["lost"]), (&json!(true), &json!(0)));
    let answers = steps[0]["answers"].as_u64().unwrap();
    assert!((100..1_000_000).contains(&answers), "{answers}");
    // An error of the function that takes the reports ends the measurement, too.
    let deaf = load_test::measure(&long, &AtomicBool::new(false), &mut |_| anyhow::bail!("nobody listens"));
    assert_eq!(deaf.unwrap_err().to_string(), "nobody listens");
}

/// A server that welcomes each client, and then does this with the connection.
fn liar(then: impl Fn(&mut dyn Write, &mut dyn Read) + Copy + Send + 'static) -> Address {
    let address = unix();
    let Address::Unix(path) = &address else { unreachable!("it is one") };
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let (mut reader, mut writer) = (&stream, &stream);
                let mut length = [0; 8];
                reader.read_exact(&mut length).unwrap();
                let mut hello = vec![0; u32::from_le_bytes(length[..4].try_into().unwrap()) as usize];
                reader.read_exact(&mut hello).unwrap();
                let double = crosslane::FunctionSpec::new("double(x BIGINT) -> BIGINT".into());
                let welcome = Tell::Welcome {
                    protocol: 1,
                    server: "a liar".into(),
                    functions: vec![double],
                    text: None,
                    largest: 1 << 20,
                    reloads: false,
                    contexts: false,
                };
                writer.write_all(&control(&welcome).unwrap()).unwrap();
                then(&mut writer, &mut reader);
            });
        }
    });
    address
}

#[test]
fn a_server_that_lies_or_goes_ends_the_step_and_is_told_of() {
    let first_bytes = |reader: &mut dyn Read| {
        let mut some = [0; 16];
        reader.read_exact(&mut some).unwrap();
    };
    let goes = liar(move |_, reader| first_bytes(reader));
    let lies = liar(move |writer, reader| {
        first_bytes(reader);
        writer.write_all(&[&prefix(9, 64)[..], &[0; 64]].concat()).unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap();
    });
    let floods = liar(move |writer, reader| {
        first_bytes(reader);
        writer.write_all(&prefix(1, 1 << 30)).unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap();
    });
    let mumbles = liar(move |writer, reader| {
        first_bytes(reader);
        writer.write_all(&[&prefix(CONTROL, 2)[..], b"[]"].concat()).unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap();
    });
    for (address, what) in [
        (goes, "closed a connection"),
        (lies, "an answer on lane 9"),
        (floods, "a message of 1073741824 bytes"),
        (mumbles, "cannot be read"),
    ] {
        let (steps, outcome) = measure(&Plan { seconds: 60.0, warm_up: 0.0, ..plan(&address) });
        let error = outcome.unwrap_err();
        // If the server has reset the connection, the error says that instead.
        assert!(error.contains(what) || error.contains("reset"), "{error}");
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0]["error"], error);
        assert_eq!(steps[0]["answers"], 0);
    }
}

/// The server reads all calls, and answers none.
#[test]
fn what_is_not_answered_is_lost_and_counts_with_its_time() {
    let silent = liar(|_, reader| drop(reader.read_to_end(&mut Vec::new())));
    let (steps, outcome) = measure(&Plan { patience: 0.5, ..plan(&silent) });
    outcome.unwrap();
    assert_eq!((&steps[0]["answers"], &steps[0]["lost"]), (&json!(0), &json!(300)));
    assert!(steps[0]["latency"]["p50_us"].as_f64().unwrap() > 5e5, "{}", steps[0]);
}
