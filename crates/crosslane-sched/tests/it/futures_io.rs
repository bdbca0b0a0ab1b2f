//! Sockets as the traits of `futures-io` see them.

use crosslane_sched::{Io, Scheduler, spawn, timeout};
use futures_io::{AsyncRead, AsyncWrite};
use std::future::poll_fn;
use std::io::{Result, pipe};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::time::Duration;

async fn write_all(mut to: impl AsyncWrite + Unpin, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|context| Pin::new(&mut to).poll_write(context, bytes)).await?;
        bytes = &bytes[written..];
    }
    poll_fn(|context| Pin::new(&mut to).poll_flush(context)).await?;
    poll_fn(|context| Pin::new(&mut to).poll_close(context)).await
}

async fn read_to_end(mut from: impl AsyncRead + Unpin) -> Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
    loop {
        match poll_fn(|context| Pin::new(&mut from).poll_read(context, &mut buffer)).await? {
            0 => return Ok(all),
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Both sides wait for each other many times: the kernel buffers less.
#[test]
fn a_stream_is_read_and_written_and_closed() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let task = scheduler.handle().spawn(async {
        let sent: Vec<u8> = (0..10_000_000_u32).map(|number| (number % 251) as u8).collect();
        let listener = Io::new(TcpListener::bind("127.0.0.1:0")?)?;
        let stream = Io::<TcpStream>::connect(listener.get_ref().local_addr()?).await?;
        let (mut accepted, _) = listener.accept().await?;
        let bytes = sent.clone();
        // The other side reads to the end although the stream is still open here, for reading.
        let writing = spawn(async move { write_all(&mut accepted, &bytes).await.map(|()| accepted) });
        let got = read_to_end(stream).await?;
        drop(writing.await.unwrap()?);
        Result::Ok(got == sent)
    });
    let equal = scheduler.block_on(timeout(Duration::from_secs(60), task));
    assert!(equal.unwrap().unwrap().unwrap());
}

#[test]
fn a_pipe_is_closed_when_it_is_dropped() {
    let scheduler = Scheduler::builder().workers(1).start().unwrap();
    let (ours, theirs) = pipe().unwrap();
    let (ours, theirs) = (scheduler.handle().io(ours).unwrap(), scheduler.handle().io(theirs).unwrap());
    let writing = scheduler.handle().spawn(async move { write_all(theirs, b"text").await });
    let reading = timeout(Duration::from_secs(60), read_to_end(ours));
    assert_eq!(scheduler.block_on(reading).unwrap().unwrap(), b"text");
    scheduler.block_on(writing).unwrap().unwrap();
}
