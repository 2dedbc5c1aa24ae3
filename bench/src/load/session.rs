//! Requests and responses of one connection, up to its pipeline depth.
//!
//! A response that equals the previous one needs one comparison; only a different one (usually with a new `Date`) is
//! parsed. Without a schedule, the connection sends a burst of requests, and the next burst when all responses have
//! arrived; filling the pipeline earlier made no measurable difference. A burst takes one write and usually one read.
//!
//! With a schedule, a full pipeline or socket buffer can delay requests. The delay counts as latency. Delayed requests are
//! not encoded, so a stalled server costs 16 bytes per outstanding request, or up to 32 because the queue grows by doubling.

use std::{cell::RefCell, collections::VecDeque, io, net::SocketAddr, rc::Rc};

use tokio::{io::Interest, net::TcpStream, task::yield_now, time::Instant};

use super::{
    history::History, lookups::Lookups, pacer::Pacer, plan::Task, recorder::Recorder,
    response::MalformedResponse,
};
use crate::verify::RequestOutcome;

const RECEIVE_BYTES: usize = 16 * 1024;

/// With a schedule, no request is encoded while this many bytes are unsent: several hundred requests.
const OUTGOING_BYTES_MAX: usize = 64 * 1024;

/// Requests sent together, or with one intended send time.
#[derive(Debug)]
struct Burst {
    at_nanos: u64,
    requests: u64,
}

/// The connection can no longer be used.
#[derive(Debug)]
pub(super) struct BrokenConnection;

impl From<io::Error> for BrokenConnection {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// State of a connection, without its stream.
pub(super) struct Session {
    task: Task,
    pacer: Rc<Pacer>,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    parsed: usize,
    received: usize,
    /// Last response 200 that keeps the connection open, for comparison.
    last_accepted: Vec<u8>,
    bursts: VecDeque<Burst>,
    sent: u64,
    outstanding: u64,
    /// Whether the pipeline or the socket delays requests.
    is_blocked: bool,
    /// End of the last such delay.
    unblocked_nanos: u64,
    history: History,
    recorder: Rc<RefCell<Recorder>>,
}

impl Session {
    pub(super) fn new(
        task: Task,
        started: Instant,
        pacer: Rc<Pacer>,
        recorder: Rc<RefCell<Recorder>>,
    ) -> Self {
        Self {
            pacer,
            outgoing: Vec::new(),
            written: 0,
            incoming: vec![0; RECEIVE_BYTES],
            parsed: 0,
            received: 0,
            last_accepted: Vec::new(),
            bursts: VecDeque::new(),
            sent: 0,
            outstanding: 0,
            is_blocked: false,
            unblocked_nanos: 0,
            history: History::new(task.connection, started, task.keeps_history),
            recorder,
            task,
        }
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

    /// Continues over a new stream. Until now, requests could not be sent.
    pub(super) fn reconnected(&mut self) {
        self.task.lookups.iter_mut().for_each(Lookups::reconnected);
        self.recorder.borrow_mut().counts.reconnects += 1;
        self.is_blocked = false;
        self.unblocked_nanos = self.now_nanos();
    }

    /// Exchanges requests and responses until all requests are settled.
    pub(super) async fn exchange(
        &mut self,
        stream: &mut TcpStream,
    ) -> Result<(), BrokenConnection> {
        loop {
            let due_nanos = self.fill();
            let has_more_due = self.outgoing.len() >= OUTGOING_BYTES_MAX;
            self.write(stream)?;
            if self.outstanding == 0 && self.has_sent_all() {
                return Ok(());
            }
            if has_more_due && self.outgoing.is_empty() {
                // More requests may be due, but responses and other connections come first.
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
                tokio::select! {
                    biased;
                    ready = stream.ready(interest) => ready?,
                    due = self.pacer.wait(due_nanos, self.task.connection) => {
                        due?;
                        continue;
                    }
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
                    self.is_blocked |= self.outgoing.len() >= OUTGOING_BYTES_MAX;
                    return Ok(());
                }
                Err(_) => return Err(BrokenConnection),
            }
        }
        if self.is_blocked && self.outgoing.len() >= OUTGOING_BYTES_MAX {
            self.unblock(self.now_nanos());
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads until nothing is left: otherwise the next call of `ready` would return at once, and a server that responds in the
    /// meantime would keep the other connections waiting.
    fn read(&mut self, stream: &TcpStream) -> Result<(), BrokenConnection> {
        loop {
            match stream.try_read(&mut self.incoming[self.received..]) {
                Ok(0) => return Err(BrokenConnection),
                Ok(bytes) => {
                    self.received += bytes;
                    self.take_responses()?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(BrokenConnection),
            }
        }
    }

    /// Stops sending, and counts the requests that are due but unsent.
    pub(super) fn stop_sending(&mut self) {
        let due = match &self.task.schedule {
            Some(schedule) => schedule.due_by(self.now_nanos()),
            None => 0,
        };
        let unsent = due.min(self.task.requests).saturating_sub(self.sent);
        self.recorder.borrow_mut().counts.unsent += unsent;
        self.task.requests = self.sent;
    }

    /// Counts outstanding requests as unanswered, after the connection broke.
    pub(super) fn abandon_outstanding(&mut self) {
        let now = self.now_nanos();
        {
            let mut recorder = self.recorder.borrow_mut();
            for burst in self.bursts.drain(..) {
                recorder.abandoned(now, burst.at_nanos, burst.requests);
            }
        }
        self.history
            .settle(self.outstanding, RequestOutcome::Unknown, now);
        self.outstanding = 0;
        self.outgoing.clear();
        self.written = 0;
        self.parsed = 0;
        self.received = 0;
        self.unblock(now);
    }

    /// Ends the session.
    pub(super) fn end(mut self) -> History {
        let now = self.now_nanos();
        self.history.end(now);
        self.history
    }

    fn now_nanos(&self) -> u64 {
        self.recorder.borrow().now_nanos()
    }

    /// Records that requests are no longer delayed.
    fn unblock(&mut self, now_nanos: u64) {
        if self.is_blocked {
            self.is_blocked = false;
            self.unblocked_nanos = now_nanos;
        }
    }

    /// Encodes requests as far as pipeline, socket and schedule allow. Returns the send time of the next request if only the
    /// schedule delays it.
    fn fill(&mut self) -> Option<u64> {
        let capacity = self.task.pipeline - self.outstanding;
        if capacity == 0 {
            self.is_blocked = true;
            return None;
        }
        let capacity = capacity.min(self.task.requests - self.sent);
        if capacity == 0 {
            return None;
        }
        if self.task.schedule.is_some() {
            return self.fill_on_schedule(capacity);
        }
        if self.outstanding == 0 {
            let now = self.now_nanos();
            self.put(now, capacity);
            self.count_sent(now, capacity);
        }
        None
    }

    fn fill_on_schedule(&mut self, capacity: u64) -> Option<u64> {
        let recorder = Rc::clone(&self.recorder);
        let mut recorder = recorder.borrow_mut();
        let now = recorder.now_nanos();
        let (mut count, mut next) = (0, None);
        while count < capacity {
            if self.outgoing.len() >= OUTGOING_BYTES_MAX {
                break;
            }
            let schedule = self.task.schedule.as_ref();
            let intended = schedule.map_or(now, |of| of.intended_nanos(self.sent));
            if intended > now {
                next = Some(intended);
                break;
            }
            recorder.late(now, intended.max(self.unblocked_nanos));
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
        self.recorder.borrow_mut().counts.sent += requests;
    }

    /// Takes all complete responses from the receive buffer.
    fn take_responses(&mut self) -> Result<(), BrokenConnection> {
        let now = self.now_nanos();
        let mut accepted = 0;
        let has_equal_responses =
            self.task.hostile.is_none() && self.task.lookups.is_none() && !self.task.plans;
        while self.parsed < self.received {
            let bytes = &self.incoming[self.parsed..self.received];
            if !self.last_accepted.is_empty() && bytes.starts_with(&self.last_accepted) {
                self.parsed += self.last_accepted.len();
                accepted += 1;
                continue;
            }
            let response = match self.task.parse(bytes) {
                Ok(Some(response)) => response,
                Ok(None) => break,
                Err(MalformedResponse) => {
                    self.settle(accepted, 200, now)?;
                    self.recorder.borrow_mut().counts.malformed += 1;
                    return Err(BrokenConnection);
                }
            };
            if response.status == 200 && has_equal_responses {
                accepted += 1;
                // A response that closes the connection must not be compared with one that does not.
                if !response.closes {
                    self.last_accepted.clear();
                    self.last_accepted
                        .extend_from_slice(&bytes[..response.bytes]);
                }
            } else {
                self.settle(accepted, 200, now)?;
                accepted = 0;
                self.recorder.borrow_mut().counts.hits += response.hits;
                self.settle(1, response.status, now)?;
            }
            self.parsed += response.bytes;
            if response.closes {
                self.settle(accepted, 200, now)?;
                return Err(BrokenConnection);
            }
        }
        self.settle(accepted, 200, now)?;
        self.unblock(now);
        self.compact();
        Ok(())
    }

    /// Settles the oldest `count` outstanding requests with this status.
    fn settle(&mut self, count: u64, status: u16, now_nanos: u64) -> Result<(), BrokenConnection> {
        let expected = self.task.expected_status(self.sent - self.outstanding);
        let rejected = Some(status).filter(|status| *status != expected);
        let mut recorder = self.recorder.borrow_mut();
        let mut remaining = count;
        while remaining > 0 {
            let Some(burst) = self.bursts.front_mut() else {
                // Responses without a request.
                recorder.counts.malformed += remaining;
                break;
            };
            let requests = burst.requests.min(remaining);
            recorder.responded(rejected, now_nanos, burst.at_nanos, requests);
            burst.requests -= requests;
            remaining -= requests;
            self.outstanding -= requests;
            if burst.requests == 0 {
                self.bursts.pop_front();
            }
        }
        let outcome = match status {
            200 => RequestOutcome::Accepted,
            _ => RequestOutcome::Rejected,
        };
        self.history.settle(count - remaining, outcome, now_nanos);
        if remaining > 0 {
            Err(BrokenConnection)
        } else {
            Ok(())
        }
    }

    fn compact(&mut self) {
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
