//! Reservation of sequence numbers before their use, so that the number of cookies lost in a crash is bounded.

use std::fmt::Debug;

use proto::units::Sequence;

/// Records the progress of a log. Called under the lock of the log, so implementations must not block.
pub trait Progress: Debug + Send {
    /// Reserves the sequence numbers up to `last`, before they are used. Returns the last reserved number, at least `last`. No
    /// further call is needed up to that number.
    fn reserve(&mut self, last: Sequence) -> Sequence;

    /// Reports `last` as the last used sequence number so far. Returns the last reserved one, like [`reserve`](Self::reserve).
    fn settle(&mut self, last: Sequence) -> Sequence;

    /// Reports `last` as the last sequence number of this epoch.
    fn end(&mut self, last: Sequence);
}

#[cfg(test)]
#[cfg(not(interleavings))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::{Duration, Instant},
    };

    use proto::{
        units::{DspId, Epoch},
        wire::CookieRef,
    };

    use super::{
        super::{AppendBatch, Config, Log},
        *,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    /// Stores the last reported sequence number.
    #[derive(Debug, Default, Clone)]
    struct Recorded {
        last: Arc<AtomicU64>,
    }

    impl Recorded {
        fn last(&self) -> Sequence {
            Sequence(self.last.load(Ordering::Relaxed))
        }
    }

    impl Progress for Recorded {
        fn reserve(&mut self, last: Sequence) -> Sequence {
            assert!(last > self.last(), "reserved already");
            self.last.store(last.0 + 100, Ordering::Relaxed);
            last + 100
        }
        fn settle(&mut self, last: Sequence) -> Sequence {
            self.last.store(last.0, Ordering::Relaxed);
            last
        }
        fn end(&mut self, last: Sequence) {
            self.last.store(last.0, Ordering::Relaxed);
        }
    }

    #[test]
    fn sequences_are_reserved_before_use_and_an_idle_log_reports_its_last_one() {
        let recorded = Recorded::default();
        let config = Config {
            epoch: Epoch(1),
            bytes_max: 1 << 20,
            chunk_bytes: 4096,
            chunk_age: HOUR,
            idle_after: HOUR,
        };
        let log = Log::with_progress(config, Some(Box::new(recorded.clone())));
        for round in 1..=2_000_u64 {
            let mut batch = AppendBatch::default();
            for _ in 0..=round % 7 {
                batch.push(&CookieRef {
                    user_id: "u",
                    dsp_id: DspId(1),
                    buyer_uid: "b",
                    age_micros: 0,
                });
            }
            log.append(&mut batch).unwrap();
            let appended = log.stats().appended;
            assert!((appended..=appended + 100).contains(&recorded.last().0));
            if round % 50 == 0 {
                log.seal_due(Instant::now() + 3 * HOUR);
                assert_eq!(recorded.last().0, appended);
            }
        }
        let appended = log.stats().appended;
        log.close();
        assert_eq!(recorded.last().0, appended);
    }
}
