//! The same server on tokio, in its usual form: a task per connection, and optionally a task per
//! request.

use crate::frame;
use crate::process::announce;
use anyhow::Result;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// The most frames of a read or a write.
const FRAMES: usize = 256;

/// The task that handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// The connection's task, one request after the other.
    Connection,
    /// A new task, as in a server whose requests may be heavy.
    Task,
}

/// Serves until stdin is closed, with a worker thread per processor.
pub fn serve(handler: Handler) -> Result<()> {
    // By default, the runtime has a worker per processor.
    let runtime = Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        announce(&listener)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            // A client may have gone before its connection was accepted. The server goes on.
            let Ok((stream, _)) = listener.accept().await else { continue };
            stream.set_nodelay(true)?;
            match handler {
                Handler::Connection => tokio::spawn(inline(stream)),
                Handler::Task => tokio::spawn(spawning(stream)),
            };
        }
    })
}

async fn inline(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; FRAMES * frame::SIZE];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let frames = frame::whole(&buffer[..filled]);
        frames.iter().for_each(frame::handle);
        stream.write_all(frames.as_flattened()).await?;
        let handled = frames.len() * frame::SIZE;
        buffer.copy_within(handled..filled, 0);
        filled -= handled;
    }
}

async fn spawning(stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut answered) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut frames = Vec::with_capacity(FRAMES);
        while answered.recv_many(&mut frames, FRAMES).await > 0 {
            writer.write_all(frames.as_flattened()).await?;
            frames.clear();
        }
        io::Result::Ok(())
    });
    let mut buffer = vec![0; FRAMES * frame::SIZE];
    let mut filled = 0;
    loop {
        let read = reader.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let frames = frame::whole(&buffer[..filled]);
        let handled = frames.len() * frame::SIZE;
        for request in frames {
            let (request, answers) = (*request, answers.clone());
            tokio::spawn(async move {
                frame::handle(&request);
                // It fails if the connection is gone.
                answers.send(request).ok();
            });
        }
        buffer.copy_within(handled..filled, 0);
        filled -= handled;
    }
}
