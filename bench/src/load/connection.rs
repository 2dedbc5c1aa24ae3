//! One keep-alive connection: keeps up to its pipeline depth of requests outstanding and checks every answer.
//!
//! An answer that equals the one before it byte for byte is that answer again, so a run of equal answers costs
//! one comparison each; only a new one (usually: a new `Date`) is parsed. Requests leave in one write and
//! answers arrive in one read per burst. Without a rate, the next burst leaves when the last one is answered:
//! where filling the pipeline earlier was tried, the differences were within noise, so the simplest was kept.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use hdrhistogram::Histogram;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};

use super::{
    request::Template,
    response::{self, Malformed},
    schedule::Schedule,
};
use crate::{report::micros_histogram, traffic::Traffic};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a lost connection is tried again before its remaining requests are given up.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(30);
const RECEIVE_BYTES: usize = 16 * 1024;

/// What a connection is to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// Its index among all connections.
    pub(super) index: u64,
    pub(super) address: SocketAddr,
    pub(super) template: Arc<Template>,
    pub(super) traffic: Traffic,
    /// Most requests without an answer.
    pub(super) pipeline: usize,
    /// When requests leave; without one, as soon as the pipeline allows.
    pub(super) schedule: Option<Schedule>,
    /// How many requests to send; `u64::MAX` for no end.
    pub(super) requests: u64,
}

/// What a connection saw.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) accepted: u64,
    pub(super) refused: BTreeMap<u16, u64>,
    pub(super) malformed: u64,
    pub(super) unanswered: u64,
    pub(super) unsent: u64,
    pub(super) reconnects: u64,
    pub(super) last_answer_at: Option<Instant>,
    pub(super) latency_micros: Histogram<u64>,
    pub(super) send_delay_micros: Histogram<u64>,
}

/// Requests that left together, or that had one intended time.
#[derive(Debug)]
struct Burst {
    at_nanos: u64,
    requests: u64,
}

/// The connection cannot be used any more.
#[derive(Debug)]
struct Broken;

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// A connection, or what is left of it between two streams.
pub(super) struct Connection {
    stream: Option<TcpStream>,
    session: Session,
}

impl Connection {
    /// Connects.
    pub(super) async fn open(task: Task) -> io::Result<Self> {
        Ok(Self {
            stream: Some(connect(task.address).await?),
            session: Session::new(task),
        })
    }

    /// Starts the clock from which intended times count.
    pub(super) fn start(&mut self, at: Instant) {
        self.session.started = at;
    }

    /// Sends all requests and reads all answers. May be dropped at any point and continued by
    /// [`finish`](Self::finish).
    pub(super) async fn run(&mut self) {
        let mut timer = Box::pin(sleep_until(self.session.started));
        loop {
            let Some(stream) = &mut self.stream else {
                if self.reconnect().await {
                    continue;
                }
                return;
            };
            match self.session.exchange(stream, timer.as_mut()).await {
                Ok(()) => return,
                Err(Broken) => {
                    self.stream = None;
                    self.session.give_up_outstanding();
                }
            }
        }
    }

    /// Waits for the answers that are outstanding after [`run`](Self::run) was dropped, within `patience`.
    pub(super) async fn finish(mut self, patience: Duration) -> Tally {
        self.session.send_no_more();
        if self.session.outstanding > 0 && timeout(patience, self.run()).await.is_err() {
            self.session.give_up_outstanding();
        }
        self.session.tally
    }

    /// True when there is a new connection; false when there is nothing left to do with one.
    async fn reconnect(&mut self) -> bool {
        if self.session.has_sent_all() {
            return false;
        }
        let deadline = Instant::now() + RECONNECT_PATIENCE;
        loop {
            sleep(RECONNECT_PAUSE).await;
            if let Ok(stream) = connect(self.session.task.address).await {
                self.stream = Some(stream);
                self.session.tally.reconnects += 1;
                return true;
            }
            if Instant::now() >= deadline {
                self.session.send_no_more();
                return false;
            }
        }
    }
}

/// Everything of a connection but its stream.
struct Session {
    task: Task,
    started: Instant,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    parsed: usize,
    received: usize,
    /// The last whole 200, for comparison.
    last_accepted: Vec<u8>,
    bursts: VecDeque<Burst>,
    outstanding: u64,
    tally: Tally,
}

impl Session {
    fn new(task: Task) -> Self {
        Self {
            started: Instant::now(),
            outgoing: Vec::with_capacity(task.template.request_bytes_max() * task.pipeline),
            written: 0,
            incoming: vec![0; RECEIVE_BYTES],
            parsed: 0,
            received: 0,
            last_accepted: Vec::new(),
            bursts: VecDeque::new(),
            outstanding: 0,
            tally: Tally::new(),
            task,
        }
    }

    async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        mut timer: Pin<&mut Sleep>,
    ) -> Result<(), Broken> {
        loop {
            let due_nanos = self.fill();
            self.write(stream)?;
            if self.outstanding == 0 && self.has_sent_all() {
                return Ok(());
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

    fn write(&mut self, stream: &TcpStream) -> Result<(), Broken> {
        while self.written < self.outgoing.len() {
            match stream.try_write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(Broken),
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Broken),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    fn read(&mut self, stream: &TcpStream) -> Result<(), Broken> {
        match stream.try_read(&mut self.incoming[self.received..]) {
            Ok(0) => Err(Broken),
            Ok(bytes) => {
                self.received += bytes;
                self.take_answers()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Broken),
        }
    }

    fn has_sent_all(&self) -> bool {
        self.tally.sent == self.task.requests
    }

    /// Makes what is sent all there is, and counts what should have left by now.
    fn send_no_more(&mut self) {
        if let Some(schedule) = self.task.schedule {
            let now = self.now_nanos();
            let due = (self.tally.sent..self.task.requests)
                .take_while(|&number| schedule.intended_nanos(number) <= now);
            self.tally.unsent += due.count() as u64;
        }
        self.task.requests = self.tally.sent;
    }

    fn give_up_outstanding(&mut self) {
        self.tally.unanswered += self.outstanding;
        self.outstanding = 0;
        self.bursts.clear();
        self.outgoing.clear();
        self.written = 0;
        self.parsed = 0;
        self.received = 0;
    }

    fn now_nanos(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.started))
    }

    /// Puts requests into the send buffer as far as pipeline and schedule allow; returns when the next one is
    /// due if only the schedule keeps it back.
    fn fill(&mut self) -> Option<u64> {
        let room = self.task.pipeline as u64 - self.outstanding;
        let room = room.min(self.task.requests - self.tally.sent);
        if room == 0 {
            return None;
        }
        let Some(schedule) = self.task.schedule else {
            if self.outstanding == 0 {
                let now = self.now_nanos();
                self.put(now, room);
            }
            return None;
        };
        let now = self.now_nanos();
        for _ in 0..room {
            let intended = schedule.intended_nanos(self.tally.sent);
            if intended > now {
                return Some(intended);
            }
            let delay = (now - intended) / 1_000;
            record(&mut self.tally.send_delay_micros, delay, 1);
            self.put(intended, 1);
        }
        None
    }

    fn put(&mut self, at_nanos: u64, requests: u64) {
        for _ in 0..requests {
            let cookie = self.task.traffic.cookie(self.task.index, self.tally.sent);
            self.task.template.put(&mut self.outgoing, &cookie);
            self.tally.sent += 1;
        }
        self.outstanding += requests;
        self.bursts.push_back(Burst { at_nanos, requests });
    }

    /// Takes all whole answers out of the receive buffer.
    fn take_answers(&mut self) -> Result<(), Broken> {
        let now = self.now_nanos();
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
                Err(Malformed) => {
                    self.accept(accepted, now)?;
                    self.tally.malformed += 1;
                    self.outstanding = self.outstanding.saturating_sub(1);
                    return Err(Broken);
                }
            };
            if answer.status == 200 {
                accepted += 1;
                self.last_accepted.clear();
                self.last_accepted.extend_from_slice(&bytes[..answer.bytes]);
            } else {
                self.accept(accepted, now)?;
                accepted = 0;
                self.answered(1, |_, _| {})?;
                *self.tally.refused.entry(answer.status).or_default() += 1;
            }
            self.parsed += answer.bytes;
            if answer.closes {
                self.accept(accepted, now)?;
                return Err(Broken);
            }
        }
        self.accept(accepted, now)?;
        self.make_room();
        Ok(())
    }

    fn accept(&mut self, count: u64, now_nanos: u64) -> Result<(), Broken> {
        if count == 0 {
            return Ok(());
        }
        self.tally.last_answer_at = Some(self.started + Duration::from_nanos(now_nanos));
        self.answered(count, |tally, burst| {
            tally.accepted += burst.requests;
            let micros = now_nanos.saturating_sub(burst.at_nanos) / 1_000;
            record(&mut tally.latency_micros, micros, burst.requests);
        })
    }

    /// Takes the oldest `count` requests off the outstanding ones, calling `count_burst` for each run of them
    /// that has one time.
    fn answered(
        &mut self,
        mut count: u64,
        count_burst: impl Fn(&mut Tally, &Burst),
    ) -> Result<(), Broken> {
        while count > 0 {
            let Some(burst) = self.bursts.front_mut() else {
                // Answers that nobody asked for.
                self.tally.malformed += count;
                return Err(Broken);
            };
            let answered = Burst {
                at_nanos: burst.at_nanos,
                requests: burst.requests.min(count),
            };
            count_burst(&mut self.tally, &answered);
            burst.requests -= answered.requests;
            count -= answered.requests;
            self.outstanding -= answered.requests;
            if burst.requests == 0 {
                self.bursts.pop_front();
            }
        }
        Ok(())
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

impl Tally {
    fn new() -> Self {
        Self {
            sent: 0,
            accepted: 0,
            refused: BTreeMap::new(),
            malformed: 0,
            unanswered: 0,
            unsent: 0,
            reconnects: 0,
            last_answer_at: None,
            latency_micros: micros_histogram(),
            send_delay_micros: micros_histogram(),
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn record(histogram: &mut Histogram<u64>, micros: u64, count: u64) {
    histogram
        .record_n(micros, count)
        .expect("the histogram grows to any value");
}
