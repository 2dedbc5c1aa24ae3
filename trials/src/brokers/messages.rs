//! Messages of [`BATCH`] cookies, in the format of the producer's chunks, and the count of received cookies.

use std::{
    num::NonZeroU64,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use bench::{
    report::{Micros, Percentiles},
    traffic::Traffic,
};
use bytes::Bytes;
use proto::{
    units::{Epoch, Sequence, UnixMicros},
    wire::{ChunkHeader, FRAME_PREFIX_BYTES, HEADROOM_BYTES, StreamMessage, put_cookie, seal},
};
use runtime::unix_micros;
use tokio::time::{Instant, sleep};

/// Cookies per message.
const BATCH: u32 = 500;

/// Number of publishing connections. Each numbers its messages separately.
pub(super) const LANES: usize = 4;

/// Messages passed to a client at once: about 1 MiB. Larger bursts would exceed the duration of the load.
const BURST: u64 = 30;

/// Minimum time between two bursts of a load with a rate.
const PAUSE: Duration = Duration::from_millis(1);

/// The messages of one publishing connection.
pub(super) struct Lane {
    number: u64,
    /// The encoded cookies of every message, after the space for its header.
    cookies: Vec<u8>,
    rate: Option<NonZeroU64>,
    duration: Duration,
    began: Instant,
    messages: u64,
}

impl Lane {
    /// Messages for `duration`, which begins now. All lanes together publish `rate` cookies per second.
    pub(super) fn new(number: u64, rate: Option<NonZeroU64>, duration: Duration) -> Self {
        let (traffic, mut cookies) = (Traffic::new(number, None), vec![0; HEADROOM_BYTES]);
        for cookie in 0..u64::from(BATCH) {
            put_cookie(&mut cookies, &traffic.cookie(number, cookie).to_wire());
        }
        Self {
            number,
            cookies,
            rate,
            duration,
            began: Instant::now(),
            messages: 0,
        }
    }

    /// Cookies in all messages so far.
    pub(super) fn published(&self) -> u64 {
        self.messages * u64::from(BATCH)
    }

    /// The next due messages; `None` at the end of the load.
    pub(super) async fn burst(&mut self) -> Option<Vec<Bytes>> {
        while self.began.elapsed() < self.duration {
            let due = due(self.rate, self.began.elapsed()).saturating_sub(self.messages);
            if due > 0 {
                return Some((0..due.min(BURST)).map(|_| self.message()).collect());
            }
            sleep(PAUSE).await;
        }
        None
    }

    fn message(&mut self) -> Bytes {
        let mut buffer = self.cookies.clone();
        let header = ChunkHeader {
            epoch: Epoch(self.number),
            first_sequence: Sequence(self.published()),
            count: BATCH,
            accepted: UnixMicros(unix_micros()),
        };
        self.messages += 1;
        let at = seal(&mut buffer, &header) + FRAME_PREFIX_BYTES;
        Bytes::from(buffer).slice(at..)
    }
}

/// Messages due in each lane after `elapsed`.
fn due(rate: Option<NonZeroU64>, elapsed: Duration) -> u64 {
    rate.map_or(u64::MAX, |rate| {
        let cookies = u128::from(rate.get()) * elapsed.as_nanos() / 1_000_000_000;
        let messages = cookies / (u128::from(BATCH) * LANES as u128);
        u64::try_from(messages).unwrap_or(u64::MAX)
    })
}

/// Distinct cookies received by all subscribers.
#[derive(Default)]
pub(super) struct Total {
    cookies: AtomicU64,
    /// Times from the creation of a message to its arrival.
    delivery: Mutex<Micros>,
}

impl Total {
    pub(super) fn cookies(&self) -> u64 {
        self.cookies.load(Relaxed)
    }

    /// Delivery times of all cookies.
    pub(super) fn delivery(&self) -> Option<Percentiles> {
        let delivery = self.delivery.lock();
        delivery
            .unwrap_or_else(PoisonError::into_inner)
            .percentiles()
    }
}

/// Counts the distinct cookies of one subscriber.
pub(super) struct Received {
    total: Arc<Total>,
    /// Next sequence number of each lane.
    next: [Sequence; LANES],
}

impl Received {
    pub(super) fn new(total: Arc<Total>) -> Self {
        let next = [Sequence::default(); LANES];
        Self { total, next }
    }

    /// Decodes and counts a message. Repeated messages do not count; these servers preserve the order of a connection.
    ///
    /// # Errors
    /// If it is not a message of a lane.
    pub(super) fn message(&mut self, message: Bytes) -> Result<()> {
        let StreamMessage::Chunk(chunk) = StreamMessage::decode(message)? else {
            bail!("a message is not a chunk");
        };
        let mut cookies = 0;
        for record in chunk.records() {
            std::hint::black_box(record?);
            cookies += 1;
        }
        let header = chunk.header();
        ensure!(cookies == header.count, "a message is incomplete");
        let next = usize::try_from(header.epoch.0).map(|lane| self.next.get_mut(lane));
        let Ok(Some(next)) = next else {
            bail!("a message has an unknown lane");
        };
        if header.first_sequence >= *next {
            *next = header.first_sequence + u64::from(cookies);
            self.total.cookies.fetch_add(cookies.into(), Relaxed);
            let micros = UnixMicros(unix_micros()).since(header.accepted);
            let delivery = self.total.delivery.lock();
            let mut delivery = delivery.unwrap_or_else(PoisonError::into_inner);
            delivery.record(micros, cookies.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_do_not_count() {
        let [mut first, mut last, mut stray] =
            [0, 3, 4].map(|number| Lane::new(number, None, Duration::MAX));
        let total: Arc<Total> = Arc::default();
        let mut received = Received::new(Arc::clone(&total));
        let [a, b] = [first.message(), first.message()];
        for message in [&a, &a, &last.message(), &b, &a] {
            received.message(message.clone()).unwrap();
        }
        assert_eq!(total.cookies(), 3 * u64::from(BATCH));
        assert!(total.delivery().is_some());
        assert_eq!(first.published(), 2 * u64::from(BATCH));
        assert!(received.message(stray.message()).is_err());
        assert!(received.message(Bytes::from_static(b"?")).is_err());
    }

    #[test]
    fn message_is_due_when_its_last_cookie_is() {
        let due = |millis| due(NonZeroU64::new(20_000), Duration::from_millis(millis));
        assert_eq!([0, 99, 100, 1_000].map(due), [0, 0, 1, 10]);
    }
}
