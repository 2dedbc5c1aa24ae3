//! What goes over one connection: keeps up to its pipeline depth of requests outstanding and checks every answer.
//!
//! An answer that equals the one before it byte for byte is that answer again, so a run of equal answers costs
//! one comparison each; only a new one (usually: a new `Date`) is parsed. Requests leave in one write and
//! answers arrive in one read per burst. Without a schedule, the next burst leaves when the last one is answered:
//! where filling the pipeline earlier was tried, the differences were within noise, so the simplest was kept.
//!
//! With a schedule, requests leave at their times. What keeps one back is a full pipeline or a system that takes no
//! more bytes; until then its latency counts, and a request that is kept back is not even written into memory, which is
//! why a server that stands still costs the sender 16 bytes for each request it has under way (up to 32, since the queue of them
//! grows by doubling).

use std::{
    cell::RefCell, collections::VecDeque, io, net::SocketAddr, pin::Pin, rc::Rc, time::Duration,
};

use tokio::{
    io::Interest,
    net::TcpStream,
    task::yield_now,
    time::{Instant, Sleep},
};

use super::{
    history::History,
    plan::Task,
    recorder::Recorder,
    response::{self, MalformedResponse},
};
use crate::verify::RequestOutcome;

const RECEIVE_BYTES: usize = 16 * 1024;

/// With a schedule, no further request is written into memory while so many bytes wait there: some hundred requests.
const OUTGOING_BYTES_MAX: usize = 64 * 1024;

/// Requests that left together, or that had one intended time.
#[derive(Debug)]
struct Burst {
    at_nanos: u64,
    requests: u64,
}

/// The connection cannot be used any more.
#[derive(Debug)]
pub(super) struct BrokenConnection;

impl From<io::Error> for BrokenConnection {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Everything of a connection but its stream.
pub(super) struct Session {
    task: Task,
    started: Instant,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    parsed: usize,
    received: usize,
    /// The last whole 200 after which the connection stays, for comparison.
    last_accepted: Vec<u8>,
    bursts: VecDeque<Burst>,
    sent: u64,
    outstanding: u64,
    /// Requests are kept back by the pipeline or the socket.
    is_held: bool,
    /// Since when they are not.
    free_nanos: u64,
    history: History,
    recorder: Rc<RefCell<Recorder>>,
}

impl Session {
    pub(super) fn new(task: Task, started: Instant, recorder: Rc<RefCell<Recorder>>) -> Self {
        Self {
            started,
            outgoing: Vec::new(),
            written: 0,
            incoming: vec![0; RECEIVE_BYTES],
            parsed: 0,
            received: 0,
            last_accepted: Vec::new(),
            bursts: VecDeque::new(),
            sent: 0,
            outstanding: 0,
            is_held: false,
            free_nanos: 0,
            history: History::new(task.connection, started, task.keeps_history),
            recorder,
            task,
        }
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.task.address
    }

    pub(super) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    pub(super) fn has_sent_all(&self) -> bool {
        self.sent == self.task.requests
    }

    /// Goes on over a new stream. Nobody could have sent before it was there.
    pub(super) fn reconnected(&mut self) {
        self.recorder.borrow_mut().counts().reconnects += 1;
        self.is_held = false;
        self.free_nanos = self.now_nanos();
    }

    /// Sends and reads until all is done.
    pub(super) async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        mut timer: Pin<&mut Sleep>,
    ) -> Result<(), BrokenConnection> {
        loop {
            let due_nanos = self.fill();
            let has_more_due = self.outgoing.len() >= OUTGOING_BYTES_MAX;
            self.write(stream)?;
            if self.outstanding == 0 && self.has_sent_all() {
                return Ok(());
            }
            if has_more_due && self.outgoing.is_empty() {
                // More may be due already; but answers, and other connections, have their turn before it.
                self.read(stream)?;
                yield_now().await;
                continue;
            }
            let interest = if self.outgoing.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            if let Some(due_nanos) = due_nanos {
                let due = self.started + Duration::from_nanos(due_nanos);
                if timer.deadline() != due {
                    timer.as_mut().reset(due);
                }
                tokio::select! {
                    biased;
                    ready = stream.ready(interest) => ready?,
                    () = timer.as_mut() => continue,
                };
            } else {
                stream.ready(interest).await?;
            }
            self.read(stream)?;
        }
    }

    fn write(&mut self, stream: &TcpStream) -> Result<(), BrokenConnection> {
        while self.written < self.outgoing.len() {
            match stream.try_write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(BrokenConnection),
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_held |= self.outgoing.len() >= OUTGOING_BYTES_MAX;
                    return Ok(());
                }
                Err(_) => return Err(BrokenConnection),
            }
        }
        if self.is_held && self.outgoing.len() >= OUTGOING_BYTES_MAX {
            self.release(self.now_nanos());
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    fn read(&mut self, stream: &TcpStream) -> Result<(), BrokenConnection> {
        match stream.try_read(&mut self.incoming[self.received..]) {
            Ok(0) => Err(BrokenConnection),
            Ok(bytes) => {
                self.received += bytes;
                self.take_answers()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(BrokenConnection),
        }
    }

    /// Makes what is sent all there is, and counts what should have left by now.
    pub(super) fn send_no_more(&mut self) {
        let due = match &self.task.schedule {
            Some(schedule) => schedule.due_by(self.now_nanos()),
            None if self.task.is_counted => self.task.requests,
            None => 0,
        };
        let unsent = due.min(self.task.requests).saturating_sub(self.sent);
        self.recorder.borrow_mut().counts().unsent += unsent;
        self.task.requests = self.sent;
    }

    /// Counts what is outstanding as unanswered; the connection is lost.
    pub(super) fn give_up_outstanding(&mut self) {
        let now = self.now_nanos();
        {
            let mut recorder = self.recorder.borrow_mut();
            recorder.roll(now);
            for burst in self.bursts.drain(..) {
                recorder.lost(now, burst.at_nanos, burst.requests);
            }
        }
        self.history
            .settle(self.outstanding, RequestOutcome::Unknown, now);
        self.outstanding = 0;
        self.outgoing.clear();
        self.written = 0;
        self.parsed = 0;
        self.received = 0;
        self.release(now);
    }

    /// What there is to tell of it.
    pub(super) fn end(mut self) -> History {
        let now = self.now_nanos();
        self.history.end(now);
        self.history
    }

    fn now_nanos(&self) -> u64 {
        self.recorder.borrow().now_nanos()
    }

    /// Notes that what kept requests back does so no longer.
    fn release(&mut self, now_nanos: u64) {
        if self.is_held {
            self.is_held = false;
            self.free_nanos = now_nanos;
        }
    }

    /// Puts requests into the send buffer as far as pipeline, socket and schedule allow; returns when the next one is
    /// due if only the schedule keeps it back.
    fn fill(&mut self) -> Option<u64> {
        let room = self.task.pipeline - self.outstanding;
        if room == 0 {
            self.is_held = true;
            return None;
        }
        let room = room.min(self.task.requests - self.sent);
        if room == 0 {
            return None;
        }
        if self.task.schedule.is_some() {
            return self.fill_on_schedule(room);
        }
        if self.outstanding == 0 {
            let now = self.now_nanos();
            self.put(now, room);
            self.count_sent(now, room);
        }
        None
    }

    fn fill_on_schedule(&mut self, room: u64) -> Option<u64> {
        let recorder = Rc::clone(&self.recorder);
        let mut recorder = recorder.borrow_mut();
        let now = recorder.now_nanos();
        recorder.roll(now);
        let (mut count, mut next) = (0, None);
        while count < room {
            if self.outgoing.len() >= OUTGOING_BYTES_MAX {
                break;
            }
            let schedule = self.task.schedule.as_ref();
            let intended = schedule.map_or(now, |of| of.intended_nanos(self.sent));
            if intended > now {
                next = Some(intended);
                break;
            }
            recorder.late(now, intended, intended.max(self.free_nanos));
            self.put(intended, 1);
            count += 1;
        }
        drop(recorder);
        if count > 0 {
            self.count_sent(now, count);
        }
        next
    }

    fn put(&mut self, at_nanos: u64, requests: u64) {
        for _ in 0..requests {
            self.task.put(&mut self.outgoing, self.sent);
            self.sent += 1;
        }
        self.bursts.push_back(Burst { at_nanos, requests });
    }

    fn count_sent(&mut self, now_nanos: u64, requests: u64) {
        self.outstanding += requests;
        self.history.send(requests, now_nanos);
        let mut recorder = self.recorder.borrow_mut();
        recorder.roll(now_nanos);
        recorder.sent(requests);
    }

    /// Takes all whole answers out of the receive buffer.
    fn take_answers(&mut self) -> Result<(), BrokenConnection> {
        let now = self.now_nanos();
        self.recorder.borrow_mut().roll(now);
        let mut accepted = 0;
        while self.parsed < self.received {
            let bytes = &self.incoming[self.parsed..self.received];
            if !self.last_accepted.is_empty() && bytes.starts_with(&self.last_accepted) {
                self.parsed += self.last_accepted.len();
                accepted += 1;
                continue;
            }
            let answer = match response::parse(bytes) {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(MalformedResponse) => {
                    self.settle(accepted, 200, now)?;
                    self.recorder.borrow_mut().counts().malformed += 1;
                    return Err(BrokenConnection);
                }
            };
            if answer.status == 200 {
                accepted += 1;
                // One that closes is never repeated, and must not be taken for one that does not.
                if !answer.closes {
                    self.last_accepted.clear();
                    self.last_accepted.extend_from_slice(&bytes[..answer.bytes]);
                }
            } else {
                self.settle(accepted, 200, now)?;
                accepted = 0;
                self.settle(1, answer.status, now)?;
            }
            self.parsed += answer.bytes;
            if answer.closes {
                self.settle(accepted, 200, now)?;
                return Err(BrokenConnection);
            }
        }
        self.settle(accepted, 200, now)?;
        self.release(now);
        self.make_room();
        Ok(())
    }

    /// Takes the oldest `count` requests off the outstanding ones, which were answered with this status.
    fn settle(&mut self, count: u64, status: u16, now_nanos: u64) -> Result<(), BrokenConnection> {
        let mut recorder = self.recorder.borrow_mut();
        let mut left = count;
        while left > 0 {
            let Some(burst) = self.bursts.front_mut() else {
                // Answers that nobody asked for.
                recorder.counts().malformed += left;
                break;
            };
            let requests = burst.requests.min(left);
            recorder.answered(status, now_nanos, burst.at_nanos, requests);
            burst.requests -= requests;
            left -= requests;
            self.outstanding -= requests;
            if burst.requests == 0 {
                self.bursts.pop_front();
            }
        }
        let outcome = match status {
            200 => RequestOutcome::Accepted,
            _ => RequestOutcome::Rejected,
        };
        self.history.settle(count - left, outcome, now_nanos);
        if left > 0 {
            Err(BrokenConnection)
        } else {
            Ok(())
        }
    }

    fn make_room(&mut self) {
        if self.parsed == self.received {
            self.parsed = 0;
            self.received = 0;
        } else if self.received == self.incoming.len() {
            self.incoming.copy_within(self.parsed..self.received, 0);
            self.received -= self.parsed;
            self.parsed = 0;
            if self.received == self.incoming.len() {
                self.incoming.resize(2 * self.received, 0);
            }
        }
    }
}
