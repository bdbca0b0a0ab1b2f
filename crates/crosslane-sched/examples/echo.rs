//! An echo server for frames of 64 bytes: `echo [workers=N] [dispatchers=N] [priority=false]`.
//! It ends when its standard input does.

use async_lock::Mutex;
use crosslane_sched::{Io, Scheduler, foreground, spawn};
use std::io::{Read, Result};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FRAME: usize = 64;

async fn answer(connection: Arc<(Io<TcpStream>, Mutex<()>)>, frames: Vec<u8>) -> Result<()> {
    for frame in frames.chunks(FRAME) {
        // A heavy request says for how many microseconds it keeps the processor busy.
        let micros = u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]]);
        let (time, start) = (Duration::from_micros(micros.into()), Instant::now());
        while !time.is_zero() && start.elapsed() < time {}
    }
    let _one_at_a_time = connection.1.lock().await;
    connection.0.write_all(&frames).await
}

async fn serve(stream: Io<TcpStream>) -> Result<()> {
    let connection = Arc::new((stream, Mutex::new(())));
    let (mut buffer, mut filled) = ([0; 64 * FRAME], 0);
    loop {
        match connection.0.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            length => filled += length,
        }
        let whole = filled - filled % FRAME;
        // The answer begins at once. If it takes long, another worker goes on here.
        foreground(answer(connection.clone(), buffer[..whole].to_vec())).await;
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

fn main() -> Result<()> {
    let builder =
        std::env::args().skip(1).fold(Scheduler::builder(), |builder, option| match option.split_once('=') {
            Some(("workers", workers)) => builder.workers(workers.parse().expect("a number")),
            Some(("dispatchers", dispatchers)) => builder.dispatchers(dispatchers.parse().expect("a number")),
            Some(("priority", priority)) => builder.priority(priority.parse().expect("true or false")),
            _ => panic!("there is no option {option}"),
        });
    let scheduler = builder.start()?;
    let listener = scheduler.block_on(async { Io::new(TcpListener::bind("127.0.0.1:0")?) })?;
    println!("listening on {}", listener.get_ref().local_addr()?);
    scheduler.handle().spawn(async move {
        loop {
            let accepted = listener.accept().await.map(|(stream, _)| drop(spawn(serve(stream))));
            accepted.unwrap_or_else(|error| eprintln!("a connection was not accepted: {error}"));
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
