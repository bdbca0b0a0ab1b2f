//! Lanes of two kinds in one wait and in one call. A thread waits for a lane over rings on a word of
//! memory. It waits for a lane over a socket on the lane's descriptor.

use crosslane::batch::{self, BATCH, Column, Encode, Header, LAST, Plan};
use crosslane::call::{CallGroup, Caller, Input, Output, call};
use crosslane::lane::{Lane, LaneError, Patience, Waiter, wait_any};
use crosslane::pool::{self, Pool, PoolOptions};
use crosslane::{Address, ColumnBuilder, DataType, Error, Exchanges, Function, FunctionSpec, Library};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{GuestLane, RowCounts};
use crosslane_process::testing::both_ends;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

const NUMBER: DataType = DataType::BigInt;
const LONG: Duration = Duration::from_secs(60);
/// The size of the largest message in these tests, in bytes.
const MOST: usize = 1 << 14;

fn numbers(values: &[i64]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&NUMBER);
    column.fixed_all(values);
    column
}

fn encoded(content: &dyn Encode, header: Header) -> Vec<u8> {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    let mut bytes = vec![0; plan.size()];
    content.write(&mut plan.start(&mut bytes, header));
    bytes
}

/// Each message is a datagram.
struct SocketLane {
    socket: UnixDatagram,
    exchanges: Exchanges,
    reply: Vec<u64>,
    length: usize,
}

enum Mixed {
    Ring(Box<ProcessLane>),
    Socket(SocketLane),
}

impl SocketLane {
    fn collect(&mut self) -> Result<Option<Header>, LaneError> {
        match self.socket.recv(bytemuck::cast_slice_mut(&mut self.reply)) {
            Ok(length) => self.length = length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(LaneError::Died(error.to_string())),
        }
        let header = batch::header(self.frame()).map_err(|error| LaneError::Corrupt(error.to_string()))?;
        self.exchanges.received(&header).map(|wanted| wanted.then_some(header))
    }

    fn frame(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.reply)[..self.length]
    }
}

impl Lane for Mixed {
    fn id(&self) -> u64 {
        u64::from(matches!(self, Mixed::Socket(_)))
    }

    fn process(&self) -> i32 {
        0
    }

    fn submit(
        &mut self,
        address: Address,
        rows: usize,
        arguments: &dyn Encode,
    ) -> Result<Option<u64>, LaneError> {
        match self {
            Mixed::Ring(lane) => lane.submit(address, rows, arguments),
            Mixed::Socket(lane) => {
                let Some(header) = lane.exchanges.header(address, rows) else { return Ok(None) };
                let sent = lane.socket.send(&encoded(arguments, header));
                sent.map_err(|error| LaneError::Died(error.to_string()))?;
                Ok(Some(lane.exchanges.sent(address)))
            }
        }
    }

    fn cancel(&mut self) -> Result<(), LaneError> {
        Err(LaneError::System("a lane for calls alone".into()))
    }

    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        match self {
            Mixed::Ring(lane) => lane.try_collect(),
            Mixed::Socket(lane) => lane.collect(),
        }
    }

    fn frame(&self) -> &[u8] {
        match self {
            Mixed::Ring(lane) => lane.frame(),
            Mixed::Socket(lane) => lane.frame(),
        }
    }

    fn in_flight(&self) -> usize {
        match self {
            Mixed::Ring(lane) => lane.in_flight(),
            Mixed::Socket(lane) => lane.exchanges.in_flight(),
        }
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn progress(&self) -> (u32, u32) {
        (0, u32::MAX)
    }

    fn halt(&mut self) -> bool {
        false
    }

    fn check(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn has_news(&self) -> bool {
        match self {
            Mixed::Ring(lane) => lane.has_news(),
            Mixed::Socket(lane) => {
                let mut descriptors = [PollFd::new(&lane.socket, PollFlags::IN)];
                rustix::event::poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
        }
    }

    fn waiter(&self) -> Waiter<'_> {
        match self {
            Mixed::Ring(lane) => lane.waiter(),
            Mixed::Socket(lane) => Waiter::Descriptor(lane.socket.as_fd()),
        }
    }
}

/// A guest that doubles its argument. It calls `turn` before it answers.
fn ring(turn: impl Fn() + Send + 'static) -> Mixed {
    let (lane, mut guest): (_, GuestLane) = both_ends(1 << 16);
    thread::spawn(move || {
        while let Ok(Some(call)) = guest.next_call() {
            let column = guest.columns(std::iter::once(&NUMBER)).unwrap().remove(0);
            let doubled: Vec<i64> = (0..column.rows).map(|row| 2 * column.value::<i64>(row)).collect();
            turn();
            guest.succeed(call, &numbers(&doubled), RowCounts::default()).unwrap();
        }
    });
    Mixed::Ring(Box::new(lane))
}

/// The same guest over a socket.
fn socket(turn: impl Fn() + Send + 'static) -> Mixed {
    let (socket, guest) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let mut words = vec![0u64; MOST / 8];
        while let Ok(length @ 1..) = guest.recv(bytemuck::cast_slice_mut(&mut words)) {
            let frame = &bytemuck::cast_slice(&words)[..length];
            let header = batch::header(frame).unwrap();
            let column = batch::column(frame, &NUMBER).unwrap();
            let doubled: Vec<i64> = (0..column.rows).map(|row| 2 * column.value::<i64>(row)).collect();
            turn();
            let reply = Header { kind: BATCH, flags: LAST, ..header };
            if guest.send(&encoded(&numbers(&doubled), reply)).is_err() {
                break;
            }
        }
    });
    let (exchanges, reply) = (Exchanges::default(), vec![0; MOST / 8]);
    Mixed::Socket(SocketLane { socket, exchanges, reply, length: 0 })
}

/// The wait has no short limit. So if a lane did not end the wait, nothing would.
#[test]
fn a_wait_ends_with_the_first_of_lanes_of_any_make() {
    type Make = fn(Receiver<()>) -> Mixed;
    let makes: [Make; 2] = [
        |go| ring(move || go.recv().unwrap_or_default()),
        |go| socket(move || go.recv().unwrap_or_default()),
    ];
    for patience in [Patience::Sleep, Patience::Spin, Patience::SpinLonger] {
        for order in [[0, 1], [1, 0]] {
            let (go, gates): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..2).map(|_| channel()).unzip();
            let (told, answer) = channel();
            thread::spawn(move || {
                let mut lanes: Vec<Mixed> = makes.iter().zip(gates).map(|(make, gate)| make(gate)).collect();
                for lane in &mut lanes {
                    assert_eq!(lane.submit(Address::call(0), 1, &numbers(&[21])).unwrap(), Some(1));
                }
                for _ in 0..2 {
                    let found = loop {
                        if let Some(at) = lanes.iter().position(Lane::has_news) {
                            break at;
                        }
                        let waiting: Vec<_> = lanes.iter_mut().filter(|lane| lane.in_flight() > 0).collect();
                        wait_any(&waiting, patience, LONG);
                    };
                    assert!(lanes[found].try_collect().unwrap().is_some());
                    let column = batch::column(lanes[found].frame(), &NUMBER).unwrap();
                    told.send((found, column.value::<i64>(0))).unwrap();
                }
            });
            for at in order {
                // After this time, the other thread sleeps.
                thread::sleep(Duration::from_millis(5));
                go[at].send(()).unwrap();
                assert_eq!(answer.recv_timeout(LONG / 2).expect("it sleeps on"), (at, 42), "{patience:?}");
            }
        }
    }
}

/// Counts the answers of each lane. The late lane waits for the first answer of the other one.
struct Turns {
    answered: Mutex<[usize; 2]>,
    news: Condvar,
    late: usize,
}

impl Turns {
    fn take(&self, who: usize) {
        let answered = self.answered.lock().unwrap();
        let waits = |answered: &mut [usize; 2]| who == self.late && answered[1 - who] == 0;
        let (mut answered, outcome) = self.news.wait_timeout_while(answered, LONG, waits).unwrap();
        assert!(!outcome.timed_out(), "the other lane has no part in the call");
        answered[who] += 1;
        self.news.notify_all();
    }
}

struct Makers(Arc<Turns>, usize);

impl pool::Zygote for Makers {
    type Lane = Mixed;

    fn boot(&mut self) -> Result<Mixed, Error> {
        let (turns, who) = (Arc::clone(&self.0), self.1 % 2);
        self.1 += 1;
        let turn = move || turns.take(who);
        Ok(if who == 0 { ring(turn) } else { socket(turn) })
    }
}

struct Values(Vec<i64>);

impl Input for Values {
    fn rows(&self) -> usize {
        self.0.len()
    }
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&numbers(&self.0[rows]));
        Ok(())
    }
}

struct Results(Vec<Option<i64>>);

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        (0..results.rows).for_each(|row| self.0[first + row] = Some(results.value(row)));
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

#[test]
fn a_call_goes_over_lanes_of_any_make() {
    for late in 0..2 {
        let turns = Arc::new(Turns { answered: Mutex::default(), news: Condvar::new(), late });
        let spec = serde_json::json!({ "signature": "f(x BIGINT) -> BIGINT", "admits_null": [false] });
        let spec: FunctionSpec = serde_json::from_value(spec).unwrap();
        let function = Arc::new(Function::new(0, spec).unwrap());
        // A row costs a millisecond, so that both lanes share the rows.
        function.learn(4096, 4096 * 1_000_000);
        let makers = Makers(Arc::clone(&turns), 0);
        let options = PoolOptions { warm: 2, idle_timeout: Duration::from_secs(600) };
        let (pool, ()) = Pool::start(options, move |_| Ok((makers, ()))).unwrap();
        let library =
            Library { name: "mixed".into(), version: 1, functions: vec![Arc::clone(&function)], pool };
        while library.pool.stats().idle < 2 {
            thread::yield_now();
        }
        let (input, mut results) = (Values((0..64).collect()), Results(vec![None; 64]));
        let group = CallGroup::default();
        call(&library, &function, Caller::new(&group, 2), &input, &mut results).unwrap();
        assert_eq!(results.0, (0..64).map(|x| Some(2 * x)).collect::<Vec<_>>());
        let answered = *turns.answered.lock().unwrap();
        assert!(answered.iter().all(|times| *times > 0), "{answered:?}");
        let stats = library.pool.stats();
        assert_eq!((stats.idle, stats.discarded), (2, 0));
    }
}
