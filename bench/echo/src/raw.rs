//! A minimal server: one thread and one epoll. Frames that arrive together need one read and one
//! write.

use crate::frame;
use crate::process::announce;
use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

/// The most frames of a read.
const FRAMES: usize = 256;

/// A connection. `buffer[sent..handled]` has answers to send, and `buffer[handled..filled]` a part
/// of a frame.
struct Connection {
    stream: TcpStream,
    buffer: [u8; FRAMES * frame::SIZE],
    sent: usize,
    handled: usize,
    filled: usize,
}

/// What a connection waits for.
#[derive(PartialEq)]
enum Waits {
    ToRead,
    ToWrite,
    /// Nothing, because the other side has closed it.
    Never,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection { stream, buffer: [0; _], sent: 0, handled: 0, filled: 0 }
    }

    /// Reads requests and answers them, or sends the rest of the answers.
    fn proceed(&mut self) -> Waits {
        if self.sent == self.handled {
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Waits::Never,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Waits::ToRead,
                Err(_) => return Waits::Never,
            }
            let frames = frame::whole(&self.buffer[..self.filled]);
            frames.iter().for_each(frame::handle);
            self.handled = frames.len() * frame::SIZE;
        }
        while self.sent < self.handled {
            match self.stream.write(&self.buffer[self.sent..self.handled]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Waits::ToWrite,
                Err(_) => return Waits::Never,
            }
        }
        self.buffer.copy_within(self.handled..self.filled, 0);
        self.filled -= self.handled;
        (self.sent, self.handled) = (0, 0);
        Waits::ToRead
    }
}

/// Serves until stdin is closed.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    // The index of a connection is its descriptor. Its events have this number as data.
    let mut connections: Vec<Option<Box<Connection>>> = Vec::new();
    let listening = listener.as_raw_fd() as u64;
    epoll::add(&epoll, &listener, EventData::new_u64(listening), EventFlags::IN)?;
    announce(&listener)?;
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data.u64();
            if data == listening {
                accept(&listener, &epoll, &mut connections)?;
                continue;
            }
            let place = &mut connections[data as usize];
            let connection = place.as_mut().expect("a connection is removed with its descriptor");
            let waited = if connection.sent < connection.handled { Waits::ToWrite } else { Waits::ToRead };
            let waits = connection.proceed();
            if waits == Waits::Never {
                *place = None;
            } else if waits != waited {
                let flags = if waits == Waits::ToRead { EventFlags::IN } else { EventFlags::OUT };
                epoll::modify(&epoll, &connection.stream, event.data, flags)?;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    epoll: &OwnedFd,
    connections: &mut Vec<Option<Box<Connection>>>,
) -> Result<()> {
    // A client may have gone before its connection was accepted. The server goes on.
    let Ok((stream, _)) = listener.accept() else { return Ok(()) };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let number = stream.as_raw_fd() as usize;
    epoll::add(epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
    connections.resize_with(connections.len().max(number + 1), || None);
    connections[number] = Some(Box::new(Connection::new(stream)));
    Ok(())
}
