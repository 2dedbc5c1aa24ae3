//! Calls to a limiter over HTTP/1.1 from one thread: on a schedule, or as many at once as there may be; every answer is checked.
//!
//! The thread waits in `poll` for answers and for the next moment when a call is due, which is finer than the ticks of a timer wheel.

use std::{
    fs,
    net::SocketAddr,
    num::NonZeroU64,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use hdrhistogram::Histogram;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tokio_util::sync::CancellationToken;

use super::{
    Mix,
    answer::check,
    connection::{Connection, Cut, ReadError},
    tally::Tally,
};
use crate::load::{Profile, parse_rate};

/// How long answers are waited for after the last call.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The thread looks so often whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// With a schedule, most calls without an answer on one connection; later ones are kept back, and their latency counts.
const UNDER_WAY_MAX: usize = 1024;

/// When calls leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// So many a second, on schedule.
    Rate(NonZeroU64),
    /// As soon as one of those before is answered.
    Max,
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            _ => parse_rate(text).map(Self::Rate),
        }
    }
}

/// What is sent.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// Most calls without an answer on each, where there is no schedule.
    pub(super) pipeline: usize,
    pub(super) pace: Pace,
    pub(super) mix: Mix,
    pub(super) counters: u64,
    pub(super) duration: Duration,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Sent {
    /// Of each kind of call, in the order of [`Call::ALL`](super::Call::ALL).
    pub(super) calls: [Tally; 3],
    /// From when calls were due until they left.
    pub(super) late_nanos: Histogram<u64>,
    pub(super) sent: u64,
    /// That were due, and did not leave.
    pub(super) unsent: u64,
    /// That had no answer in the end, or whose connection was cut.
    pub(super) unanswered: u64,
    /// For how long calls were sent.
    pub(super) length: Duration,
}

impl Sent {
    /// All calls together, those without an answer among the wrong ones.
    pub(super) fn all(&self) -> Tally {
        let mut all = Tally::default();
        for tally in &self.calls {
            all.add(tally.clone());
        }
        all.wrong(self.unanswered, || "there was no answer".to_owned());
        all
    }
}

/// Sends calls until their time is over or `stop`, and waits for their answers. Blocks.
///
/// # Errors
/// When a connection cannot be opened, also anew after it was cut, or when something comes that is no answer.
pub(super) fn run(plan: &Plan, stop: &CancellationToken) -> Result<Sent> {
    // Timers of this thread may else be 50 µs late. Not every system lets one say so.
    fs::write("/proc/thread-self/timerslack_ns", "1").ok();
    let mut generator = Generator::new(plan);
    let connections = (0..plan.connections).map(|_| Connection::open(plan.address));
    let mut connections: Vec<Connection> = connections.collect::<Result<_>>()?;
    let began = Instant::now();
    let mut end = plan.duration;
    loop {
        let now = began.elapsed();
        if stop.is_cancelled() {
            end = end.min(now);
        }
        let due = generator.fill(&mut connections, now, end);
        for connection in &mut connections {
            generator.write(connection)?;
        }
        let is_idle = connections.iter().all(|it| it.under_way.is_empty());
        if now >= end && (is_idle || now >= end + ANSWER_PATIENCE) {
            break;
        }
        let until = due.unwrap_or(Duration::MAX);
        let until = until.min(if now < end {
            end
        } else {
            end + ANSWER_PATIENCE
        });
        if plan.pace == Pace::Max {
            // More answers come meanwhile, and one turn then serves several connections.
            thread::yield_now();
        }
        let wait = until.saturating_sub(began.elapsed()).min(LOOK_INTERVAL);
        for at in wait_for_any(&connections, wait)? {
            generator.read(&mut connections[at], began)?;
        }
    }
    let unanswered = connections.iter().map(|it| it.under_way.len() as u64);
    generator.sent.unanswered += unanswered.sum::<u64>();
    generator.sent.unsent = generator.unsent(end);
    generator.sent.length = end;
    Ok(generator.sent)
}

/// The places of the connections that have something to read, or that have room again for what is to be written.
fn wait_for_any(connections: &[Connection], wait: Duration) -> Result<Vec<usize>> {
    let interest = |connection: &Connection| {
        if connection.outgoing.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    };
    let polled = connections.iter();
    let mut polled: Vec<_> = polled
        .map(|connection| PollFd::new(&connection.stream, interest(connection)))
        .collect();
    let wait = Timespec::try_from(wait).context("a short time")?;
    match poll(&mut polled, Some(&wait)) {
        Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(error) => return Err(error).context("cannot wait for answers"),
    }
    let ready = polled.iter().enumerate();
    let ready = ready.filter(|(_, it)| !it.revents().is_empty() && it.revents() != PollFlags::OUT);
    Ok(ready.map(|(at, _)| at).collect())
}

/// What all connections share.
struct Generator<'a> {
    plan: &'a Plan,
    schedule: Option<Profile>,
    random: Rng,
    sent: Sent,
}

impl<'a> Generator<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            schedule: match plan.pace {
                Pace::Rate(rate) => Some(Profile::constant(rate)),
                Pace::Max => None,
            },
            random: Rng::new(),
            sent: Sent {
                calls: Default::default(),
                late_nanos: Tally::default().nanos,
                sent: 0,
                unsent: 0,
                unanswered: 0,
                length: Duration::ZERO,
            },
        }
    }

    /// Makes the requests that are due until `now`, or that may be under way; when the next one is due, if any is.
    fn fill(
        &mut self,
        connections: &mut [Connection],
        now: Duration,
        end: Duration,
    ) -> Option<Duration> {
        let Some(schedule) = self.schedule.clone() else {
            for connection in connections.iter_mut().filter(|_| now < end) {
                while connection.under_way.len() < self.plan.pipeline {
                    self.put(connection, now, now);
                }
            }
            return None;
        };
        loop {
            let due = Duration::from_nanos(schedule.intended_nanos(self.sent.sent));
            if due >= end {
                return None;
            }
            if due > now {
                return Some(due);
            }
            let count = connections.len();
            let turn = usize::try_from(self.sent.sent % count as u64).unwrap_or(0);
            let mut places = (0..count).map(|at| (turn + at) % count);
            let free = places.find(|at| connections[*at].under_way.len() < UNDER_WAY_MAX)?;
            self.put(&mut connections[free], due, now);
        }
    }

    fn put(&mut self, connection: &mut Connection, due: Duration, now: Duration) {
        let call = self.plan.mix.draw(&mut self.random);
        let counter = self.random.u64(..self.plan.counters);
        call.write(&mut connection.outgoing, self.plan.address, counter);
        connection.under_way.push_back((call, due));
        self.sent.sent += 1;
        if self.schedule.is_some() {
            let late = u64::try_from((now - due).as_nanos()).unwrap_or(u64::MAX);
            let recorded = self.sent.late_nanos.record(late);
            recorded.expect("the histogram grows to any value");
        }
    }

    /// How many were due before `end` and did not leave.
    fn unsent(&self, end: Duration) -> u64 {
        let Some(schedule) = &self.schedule else {
            return 0;
        };
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        let due = schedule.requests_before(nanos);
        due.saturating_sub(self.sent.sent)
    }

    fn write(&mut self, connection: &mut Connection) -> Result<()> {
        match connection.write() {
            Ok(()) => Ok(()),
            Err(Cut) => self.open_again(connection),
        }
    }

    fn read(&mut self, connection: &mut Connection, began: Instant) -> Result<()> {
        let calls = &mut self.sent.calls;
        let taken = connection.read(|call, due, status, body| {
            let now = began.elapsed();
            let tally = &mut calls[call as usize];
            tally.decided(now, 1);
            tally.took(now.saturating_sub(due));
            if let Err(why) = check(call, status, body) {
                tally.wrong(1, || why);
            }
        });
        match taken {
            Ok(()) => Ok(()),
            Err(ReadError::Cut) => self.open_again(connection),
            Err(ReadError::NoAnswer) => bail!("what the limiter sent is not an answer to a call"),
        }
    }

    /// The calls under way have no answer then.
    fn open_again(&mut self, connection: &mut Connection) -> Result<()> {
        self.sent.unanswered += connection.under_way.len() as u64;
        *connection = Connection::open(self.plan.address)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::{super::Call, *};

    const BODY: &str = r#"{"at":"1","now":"1","wait":0.0,"binding":null}"#;

    fn plan(address: SocketAddr, pace: Pace) -> Plan {
        Plan {
            address,
            connections: 1,
            pipeline: 3,
            pace,
            mix: Mix::of(Call::Delay),
            counters: 10,
            duration: Duration::from_millis(20),
        }
    }

    /// Answers requests of one connection with `answer`, and leaves after so many.
    fn server(answer: &'static str, requests: usize) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
            let mut answered = 0;
            while answered < requests {
                let bytes = stream.read(&mut buffer).unwrap();
                if bytes == 0 {
                    return;
                }
                read.extend_from_slice(&buffer[..bytes]);
                while let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") {
                    read.drain(..end + 4);
                    let text = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}",
                        answer.len()
                    );
                    stream.write_all(text.as_bytes()).unwrap();
                    answered += 1;
                }
            }
        };
        (address, thread::spawn(serve))
    }

    #[test]
    fn answers_are_checked_whether_calls_leave_on_schedule_or_not() {
        for (pace, answer, is_right) in [
            (Pace::Max, BODY, true),
            ("1000".parse().unwrap(), BODY, true),
            (Pace::Max, "{}", false),
        ] {
            let (address, server) = server(answer, usize::MAX);
            let sent = run(&plan(address, pace), &CancellationToken::new()).unwrap();
            server.join().unwrap();
            let delays = &sent.calls[Call::Delay as usize];
            assert!(sent.sent > 0);
            assert_eq!((sent.unanswered, sent.unsent), (0, 0));
            assert_eq!(delays.count(), sent.sent);
            assert_eq!(delays.wrong, if is_right { 0 } else { sent.sent });
            if pace != Pace::Max {
                assert_eq!((sent.sent, sent.late_nanos.len()), (20, 20));
            }
        }
    }

    #[test]
    fn server_that_leaves_is_an_error_and_no_calls_are_due_after_a_stop() {
        let (address, server) = server(BODY, 1);
        assert!(run(&plan(address, Pace::Max), &CancellationToken::new()).is_err());
        server.join().unwrap();

        let (address, server) = self::server(BODY, usize::MAX);
        let stop = CancellationToken::new();
        stop.cancel();
        let sent = run(&plan(address, Pace::Max), &stop).unwrap();
        server.join().unwrap();
        assert_eq!((sent.sent, sent.unanswered), (0, 0));
    }
}
