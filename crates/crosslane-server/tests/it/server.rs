//! Functions of a server, called by engines that have attached it.

use crate::common::{
    BEGUN, Client, DOUBLE, END, FAIL, LARGE, WAIT, eventually, options, server, start, unix,
};
use crosslane::Error;
use crosslane_server::Address;
use crosslane_server::client::Remote;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

#[test]
fn calls_come_back_over_every_kind_of_socket() {
    let addresses =
        [unix(), "crosslane://127.0.0.1:0".parse().unwrap(), "crosslane://localhost:0".parse().unwrap()];
    let server = start(options(&addresses)).unwrap();
    assert_eq!(server.addresses().len(), 3);
    for address in server.addresses() {
        let client = Client::new(address);
        let values: Vec<i64> = (0..50_000).collect();
        let due: Vec<i64> = values.iter().map(|value| value * 2).collect();
        assert_eq!(client.call(DOUBLE, &values).unwrap(), due, "{address}");
        assert!(client.call(DOUBLE, &[]).unwrap().is_empty());
    }
}

#[test]
fn many_clients_share_few_workers() {
    let (_server, address) = server();
    thread::scope(|scope| {
        for number in 0..6 {
            let address = &address;
            scope.spawn(move || {
                let client = Client::new(address);
                for round in 0..50 {
                    let value = number * 1000 + round;
                    assert_eq!(client.call(DOUBLE, &[value]).unwrap(), [value * 2]);
                }
            });
        }
    });
}

#[test]
fn a_batch_that_outgrows_every_ring_travels() {
    let (_server, address) = server();
    let client = Client::new(&address);
    assert_eq!(client.call(LARGE, &[3 << 20]).unwrap(), [3 << 20]);
    let values: Vec<i64> = vec![7; 200_000];
    assert_eq!(client.call(DOUBLE, &values).unwrap(), vec![14; 200_000]);
}

#[test]
fn a_failure_is_that_of_the_function_and_its_worker_goes_on() {
    let (_server, address) = server();
    let client = Client::new(&address);
    for _ in 0..3 {
        let error = client.call(FAIL, &[5]).unwrap_err();
        assert!(matches!(error, Error::Raised { .. }), "{error:?}");
        assert!(error.to_string().starts_with("fail: Oops: it fails"), "{error}");
        assert!(error.to_string().contains("in row 1 of the batch, with x = 5"), "{error}");
        assert_eq!(client.call(DOUBLE, &[4]).unwrap(), [8]);
    }
}

#[test]
fn a_worker_that_ends_is_told_of_and_replaced() {
    let (_server, address) = server();
    let client = Client::new(&address);
    for _ in 0..3 {
        let error = client.call(END, &[5]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("the server at {address}: the thread that ran it was ended")),
            "{error}"
        );
        assert_eq!(client.call(DOUBLE, &[4]).unwrap(), [8]);
    }
}

#[test]
fn a_table_streams_and_a_limit_gives_the_worker_back() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let client = Client::new(&server.addresses()[0]);
    let all = client.scan(12_345, usize::MAX).unwrap();
    assert_eq!(all, (0..12_345).collect::<Vec<i64>>());
    for _ in 0..5 {
        let some = client.scan(1_000_000_000, 250).unwrap();
        assert_eq!(some[..250], (0..250).collect::<Vec<i64>>());
        // There is only one worker, so the scan has given it back.
        assert_eq!(client.call(DOUBLE, &[4]).unwrap(), [8]);
    }
}

#[test]
fn a_query_that_scans_and_calls_needs_no_second_worker_to_be_set() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::new(address);
                let calls = || assert_eq!(client.call(DOUBLE, &[4]).unwrap(), [8]);
                assert_eq!(client.scan_and(2000, usize::MAX, calls).unwrap().len(), 2000);
            });
        }
    });
}

#[test]
fn a_cancelled_call_ends_and_its_worker_is_free_for_others() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let client = Client::new(&server.addresses()[0]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                client.cancel();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let error = client.call(WAIT, &[60_000]).unwrap_err();
        over.store(true, Relaxed);
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    });
    let other = Client::new(&server.addresses()[0]);
    assert_eq!(other.call(DOUBLE, &[4]).unwrap(), [8]);
}

#[test]
fn a_token_is_asked_for() {
    let mut options = options(&[unix()]);
    options.token = Some("secret".into());
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    let refused = |token: Option<&str>| Client::attach(address, token).err().map(|error| error.to_string());
    assert!(refused(None).unwrap().contains("it needs a token"));
    assert!(refused(Some("secreT")).unwrap().contains("its token is another"));
    assert!(refused(Some("secret ")).unwrap().contains("its token is another"));
    assert_eq!(Client::attach(address, Some("secret")).unwrap().call(DOUBLE, &[1]).unwrap(), [2]);
}

#[test]
fn a_server_for_other_machines_needs_a_token() {
    let everywhere: Address = "crosslane://0.0.0.0:0".parse().unwrap();
    let error = start(options(std::slice::from_ref(&everywhere))).unwrap_err().to_string();
    assert!(error.contains("give the server a token"), "{error}");
    let mut options = options(&[everywhere]);
    options.token = Some("secret".into());
    start(options).unwrap();
}

#[test]
fn a_socket_is_the_user_s_own_and_no_other_file_is_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let address = unix();
    let Address::Unix(path) = &address else { unreachable!() };
    std::fs::write(path, "precious").unwrap();
    let error = start(options(std::slice::from_ref(&address))).unwrap_err().to_string();
    assert!(error.contains("cannot listen at"), "{error}");
    assert_eq!(std::fs::read(path).unwrap(), b"precious");
    std::fs::remove_file(path).unwrap();
    // A server replaces a socket that an earlier server has left.
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let server = start(options(std::slice::from_ref(&address))).unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    // A server that cannot start leaves a socket that another server uses. It removes its own other
    // sockets.
    let other = unix();
    let error = start(options(&[other.clone(), address.clone()])).unwrap_err().to_string();
    assert!(error.contains("cannot listen at"), "{error}");
    assert_eq!(Client::new(&address).call(DOUBLE, &[1]).unwrap(), [2]);
    let Address::Unix(other) = &other else { unreachable!() };
    assert!(!other.exists());
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_client_recognizes_addresses_without_a_server() {
    let error = |address: &Address| Client::attach(address, None).err().unwrap().to_string();
    assert!(error(&unix()).contains("cannot connect to"));
    let address = unix();
    let Address::Unix(path) = &address else { unreachable!() };
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    let other = thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(stream);
    });
    assert!(error(&address).contains("is no server of crosslane"));
    assert!(error(&address).contains("no server of crosslane answered"));
    other.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_server_lets_calls_end_before_it_does() {
    let (server, address) = server();
    let client = Client::new(&address);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.call(WAIT, &[301]));
        eventually("it has begun", || BEGUN.lock().unwrap().contains(&301));
        assert!(server.shut_down(Duration::MAX), "it did not end by itself");
        assert_eq!(call.join().unwrap().unwrap(), [301]);
    });
    let error = client.call(DOUBLE, &[1]).unwrap_err().to_string();
    assert!(error.contains("cannot connect to"), "{error}");
    let Address::Unix(path) = &address else { unreachable!() };
    assert!(!path.exists());
}

#[test]
fn a_server_ends_calls_that_do_not_end() {
    let (server, address) = server();
    let client = Client::new(&address);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.call(WAIT, &[60_001]));
        eventually("it has begun", || BEGUN.lock().unwrap().contains(&60_001));
        assert!(!server.shut_down(Duration::from_millis(50)));
        let error = call.join().unwrap().unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) || error.contains("cannot connect"), "{error}");
    });
}

#[test]
fn a_server_that_comes_back_serves_the_clients_that_it_had() {
    let (server, address) = server();
    let client = Client::new(&address);
    assert_eq!(client.call(DOUBLE, &[1]).unwrap(), [2]);
    drop(server);
    let _server = start(options(std::slice::from_ref(&address))).unwrap();
    // The lane that the client had kept is lost. The client makes a call that had not begun on another
    // lane.
    let again = (0..3).map(|_| client.call(DOUBLE, &[1])).find_map(Result::ok);
    assert_eq!(again, Some(vec![2]));
}

#[test]
fn several_servers_take_turns_and_one_that_is_gone_is_left_out() {
    let addresses = [unix(), unix()];
    let servers = addresses.each_ref().map(|address| start(options(std::slice::from_ref(address))).unwrap());
    let both = format!("{}, {}", addresses[0], addresses[1]);
    let clients: Vec<_> = (0..2).map(|_| Client::of(Remote::new(&both, None).unwrap()).unwrap()).collect();
    thread::scope(|scope| {
        // A client takes another lane while its first lane is busy. The calls are so long that the
        // second one begins meanwhile.
        for client in &clients {
            scope.spawn(|| client.call(WAIT, &[1500]).unwrap());
            scope.spawn(|| client.call(WAIT, &[1500]).unwrap());
        }
        eventually("both servers are used", || servers.iter().all(|server| server.load().0 == 2));
    });
    let [first, second] = servers;
    drop(first);
    for client in &clients {
        let again = (0..4).map(|_| client.call(DOUBLE, &[1])).filter_map(Result::ok).last();
        assert_eq!(again, Some(vec![2]));
    }
    drop(second);
    assert!(Remote::new(&format!("{both},"), None).is_err());
}
