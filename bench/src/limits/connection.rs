//! A keep-alive connection to a limiter, which never blocks: requests that wait to be written, and calls that wait for an answer.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result};

use super::Call;
use crate::load::response::{self, Malformed};

const RECEIVE_BYTES: usize = 64 * 1024;

/// A keep-alive connection.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    received: usize,
    /// The calls without an answer, and when they were due.
    pub(super) under_way: VecDeque<(Call, Duration)>,
}

/// The limiter has ended the connection.
pub(super) struct Cut;

pub(super) enum ReadError {
    Cut,
    NoAnswer,
}

impl From<Malformed> for ReadError {
    fn from(_: Malformed) -> Self {
        Self::NoAnswer
    }
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address);
        let stream = stream.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            outgoing: Vec::new(),
            written: 0,
            incoming: vec![0; RECEIVE_BYTES],
            received: 0,
            under_way: VecDeque::new(),
        })
    }

    pub(super) fn write(&mut self) -> Result<(), Cut> {
        while self.written < self.outgoing.len() {
            match (&self.stream).write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(Cut),
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Cut),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads what is there; `take` gets each whole answer: its call, when that was due, the status and the body.
    pub(super) fn read(
        &mut self,
        mut take: impl FnMut(Call, Duration, u16, &[u8]),
    ) -> Result<(), ReadError> {
        if self.received == self.incoming.len() {
            self.incoming.resize(2 * self.received, 0);
        }
        match (&self.stream).read(&mut self.incoming[self.received..]) {
            Ok(0) => return Err(ReadError::Cut),
            Ok(bytes) => self.received += bytes,
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) =>
            {
                return Ok(());
            }
            Err(_) => return Err(ReadError::Cut),
        }
        let mut taken = 0;
        while taken < self.received {
            let rest = &self.incoming[taken..self.received];
            let Some(answer) = response::parse(rest)? else {
                break;
            };
            let (call, due) = self.under_way.pop_front().ok_or(ReadError::NoAnswer)?;
            let body = &rest[answer.head_bytes..answer.bytes];
            take(call, due, answer.status, body);
            taken += answer.bytes;
        }
        self.incoming.copy_within(taken..self.received, 0);
        self.received -= taken;
        Ok(())
    }
}
