//! Simulated browsers: HTTP requests to the edges, and a history of all requests and responses.
//!
//! Syncs are numbered in the order of sending. The number of a sync is also its buyer uid, unless it repeats the buyer uid of an
//! earlier sync. So a stored value and its acceptance time identify the request.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use proto::units::DspId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use crate::{
    UNPOISONED,
    hosts::Process,
    network::{HTTP, SimStream},
    plan::Load,
    trace,
};

/// Timeout of a browser for connections and responses.
const TIMEOUT: Duration = Duration::from_secs(3);

/// User and DSP, or the scope of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    /// Number of the user; [`ALL_USERS`](Self::ALL_USERS) in a deletion of a DSP.
    pub(crate) user: u64,
    /// DSP id; 0 in a deletion of a user.
    pub(crate) dsp: DspId,
}

impl Pair {
    pub(crate) const ALL_USERS: u64 = u64::MAX;

    /// The scopes of deletions that concern this pair.
    pub(crate) fn scopes(self) -> [Self; 3] {
        let user = Self::ALL_USERS;
        [
            self,
            Self {
                dsp: DspId::NONE,
                ..self
            },
            Self { user, ..self },
        ]
    }

    /// Whether a deletion with this scope concerns a pair.
    pub(crate) fn concerns(self, pair: Self) -> bool {
        pair.scopes().contains(&self)
    }

    /// The user id; empty for all users.
    pub(crate) fn user_text(self) -> String {
        match self.user {
            Self::ALL_USERS => String::new(),
            user => format!("u{user}"),
        }
    }
}

/// One sync or deletion. Its number is its index in the history.
#[derive(Debug, Clone)]
pub(crate) struct SyncRequest {
    pub(crate) pair: Pair,
    pub(crate) is_deletion: bool,
    /// Number of the first sync with the same buyer uid.
    pub(crate) value: usize,
    /// The past time in the request, in microseconds by the clock of the producer.
    pub(crate) dated: Option<u64>,
    pub(crate) producer: usize,
    /// Incarnation of the producer at the time of the connection.
    pub(crate) incarnation: usize,
    /// Number of the connection, whose requests are accepted in order.
    pub(crate) connection: u64,
    pub(crate) sent_at: Duration,
    /// Time of the successful response. The request may have been accepted without a response.
    pub(crate) answered_at: Option<Duration>,
    /// Time of the append, if later than the acceptance.
    pub(crate) released_at: Option<Duration>,
}

impl SyncRequest {
    /// A sync that is sent now; [`History::send`] numbers it.
    pub(crate) fn new(pair: Pair, producer: usize, incarnation: usize, connection: u64) -> Self {
        Self {
            pair,
            is_deletion: false,
            value: usize::MAX,
            dated: None,
            producer,
            incarnation,
            connection,
            sent_at: now(),
            answered_at: None,
            released_at: None,
        }
    }

    /// Records that a request was accepted at its send time and appended now.
    pub(crate) fn set_released(&mut self, now: Duration) {
        self.answered_at = Some(self.sent_at);
        self.released_at = Some(now);
    }

    /// Acceptance time by the clock of the producer, which is ahead by `clock_ahead`. A deletion begins a chunk and has its exact time.
    pub(crate) fn acceptance(&self, clock_ahead: Duration) -> AcceptanceWindow {
        let micros = |at: Duration| {
            u64::try_from((at + clock_ahead).as_micros()).expect("a run takes some minutes")
        };
        let (earliest, latest) = match self.dated {
            Some(at) => (at, at),
            None => (
                micros(self.sent_at),
                self.answered_at.map_or(u64::MAX, micros),
            ),
        };
        AcceptanceWindow { earliest, latest }
    }

    /// Earliest and, if known, latest time of the append.
    pub(crate) fn append_time(&self) -> (Duration, Option<Duration>) {
        match self.released_at {
            Some(at) => (at, Some(at)),
            None => (self.sent_at, self.answered_at),
        }
    }
}

/// Bounds of the acceptance time of a sync or a deletion, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptanceWindow {
    pub(crate) earliest: u64,
    /// [`u64::MAX`] without a response.
    pub(crate) latest: u64,
}

impl AcceptanceWindow {
    /// The bounds in simulated time, if these are of a clock that is ahead by `clock_ahead`.
    pub(crate) fn simulated(self, clock_ahead: Duration) -> Self {
        let ahead = u64::try_from(clock_ahead.as_micros()).expect("seconds");
        Self {
            earliest: self.earliest.saturating_sub(ahead),
            latest: match self.latest {
                u64::MAX => u64::MAX,
                latest => latest.saturating_sub(ahead),
            },
        }
    }
}

/// All syncs and deletions of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Times by which the clocks of producers are ahead.
    pub(crate) clocks_ahead: Vec<Duration>,
    pub(crate) syncs: Vec<SyncRequest>,
    connections: u64,
    /// Unexpected responses.
    pub(crate) rejections: Vec<String>,
}

impl History {
    /// A history of producers whose clocks are ahead by these times.
    pub(crate) fn new(clocks_ahead: &[Duration]) -> Self {
        Self {
            clocks_ahead: clocks_ahead.to_vec(),
            ..Self::default()
        }
    }

    /// Returns the number of a new connection.
    pub(crate) fn connect(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// Acceptance of a sync or a deletion in simulated time, whatever the clocks of the producers show.
    pub(crate) fn accepted(&self, request: &SyncRequest) -> AcceptanceWindow {
        let clock_ahead = self.clocks_ahead[request.producer];
        request.acceptance(clock_ahead).simulated(clock_ahead)
    }

    /// Records a request and returns its number.
    pub(crate) fn send(&mut self, request: SyncRequest) -> usize {
        let number = self.syncs.len();
        self.syncs.push(SyncRequest {
            value: request.value.min(number),
            ..request
        });
        number
    }
}

impl Load {
    /// Draws user and DSP of a sync.
    pub(crate) fn pair(&self, random: &mut fastrand::Rng) -> Pair {
        Pair {
            user: random.u64(0..self.users),
            dsp: DspId(random.u32(1..=3)),
        }
    }
}

/// Sends syncs to one producer until the end of the load.
pub(crate) async fn browse(
    producer: usize,
    process: Arc<Process>,
    load: Load,
    history: Arc<Mutex<History>>,
    seed: u64,
) {
    let mut browser = Browser {
        producer,
        load,
        history,
        random: fastrand::Rng::with_seed(seed),
    };
    while now() < browser.load.until {
        let address = SocketAddr::new(turmoil::lookup(process.name.as_str()), HTTP);
        if let Ok(Ok(stream)) = timeout(TIMEOUT, SimStream::connect(address)).await {
            let incarnation = process.incarnation();
            if let Err(error) = browser.connection(stream, incarnation).await {
                trace::record("browser", error.to_string());
            }
        }
        sleep(Duration::from_millis(browser.random.u64(20..400))).await;
    }
}

struct Browser {
    producer: usize,
    load: Load,
    history: Arc<Mutex<History>>,
    random: fastrand::Rng,
}

impl Browser {
    async fn connection(&mut self, mut stream: SimStream, incarnation: usize) -> io::Result<()> {
        let connection = self.history.lock().expect(UNPOISONED).connect();
        let bursts = self.random.u32(1..200);
        for _ in 0..bursts {
            if now() >= self.load.until {
                break;
            }
            let (numbers, requests) = self.requests(incarnation, connection);
            let answered = async {
                stream.write_all(requests.as_bytes()).await?;
                self.answers(&mut stream, numbers).await
            };
            timeout(TIMEOUT, answered).await??;
            let pause = self.random.u64(0..=2 * self.load.pause_millis);
            sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    /// The next requests, recorded as sent.
    fn requests(
        &mut self,
        incarnation: usize,
        connection: u64,
    ) -> (std::ops::Range<usize>, String) {
        let mut history = self.history.lock().expect(UNPOISONED);
        let first = history.syncs.len();
        let mut requests = String::new();
        for _ in 0..self.random.usize(1..=self.load.burst) {
            let pair = self.load.pair(&mut self.random);
            let sync = SyncRequest::new(pair, self.producer, incarnation, connection);
            let number = history.send(sync);
            let Pair { user, dsp } = pair;
            requests += &format!(
                "GET /?d={dsp}&b=b{number} HTTP/1.1\r\nHost: edge\r\nCookie: uid=u{user}\r\n\r\n"
            );
        }
        (first..history.syncs.len(), requests)
    }

    async fn answers(
        &self,
        stream: &mut SimStream,
        numbers: std::ops::Range<usize>,
    ) -> io::Result<()> {
        let mut received = Vec::new();
        for number in numbers {
            let end = loop {
                if let Some(at) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                    break at + 4;
                }
                if stream.read_buf(&mut received).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            let mut history = self.history.lock().expect(UNPOISONED);
            let answer = String::from_utf8_lossy(&received[..end]).into_owned();
            if answer.starts_with("HTTP/1.1 200 ") {
                history.syncs[number].answered_at = Some(now());
            } else {
                history.rejections.push(answer);
            }
            received.drain(..end);
        }
        Ok(())
    }
}

pub(crate) fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}
