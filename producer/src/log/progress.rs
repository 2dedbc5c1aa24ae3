//! How a log announces how far it will get before it gets there, so that the number of cookies lost in a crash is
//! bounded.

use std::fmt::Debug;

use super::Sequence;

/// Is told of sequences before they are given out, under the lock of the log: each call takes microseconds and never
/// waits.
pub trait Progress: Debug + Send {
    /// Sequences up to `last` are about to be given out. Returns the sequence up to which it need not be asked again,
    /// at least `last`.
    fn reserve(&mut self, last: Sequence) -> Sequence;

    /// `last` is the last sequence that was given out so far. Returns the same as [`reserve`](Self::reserve).
    fn settle(&mut self, last: Sequence) -> Sequence;

    /// `last` is the last sequence of this epoch.
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

    use proto::wire::CookieRef;

    use super::{
        super::{AppendBatch, Config, Log},
        *,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    /// Keeps what it was told last.
    #[derive(Debug, Default, Clone)]
    struct Recorded {
        last: Arc<AtomicU64>,
    }

    impl Recorded {
        fn last(&self) -> Sequence {
            self.last.load(Ordering::Relaxed)
        }
    }

    impl Progress for Recorded {
        fn reserve(&mut self, last: Sequence) -> Sequence {
            assert!(last > self.last(), "asked without need");
            self.last.store(last + 100, Ordering::Relaxed);
            last + 100
        }
        fn settle(&mut self, last: Sequence) -> Sequence {
            self.last.store(last, Ordering::Relaxed);
            last
        }
        fn end(&mut self, last: Sequence) {
            self.last.store(last, Ordering::Relaxed);
        }
    }

    #[test]
    fn sequences_are_announced_before_they_are_given_out_and_an_idle_log_reports_its_end() {
        let told = Recorded::default();
        let config = Config {
            epoch: 1,
            bytes_max: 1 << 20,
            chunk_bytes: 4096,
            chunk_age: HOUR,
            idle_after: HOUR,
        };
        let log = Log::with_progress(config, Some(Box::new(told.clone())));
        for round in 1..=2_000_u64 {
            let mut batch = AppendBatch::default();
            for _ in 0..=round % 7 {
                batch.push(&CookieRef {
                    user_id: "u",
                    dsp_id: 1,
                    buyer_uid: "b",
                    age_micros: 0,
                });
            }
            log.append(&mut batch).unwrap();
            let appended = log.stats().appended;
            assert!((appended..=appended + 100).contains(&told.last()));
            if round % 50 == 0 {
                log.seal_due(Instant::now() + 3 * HOUR);
                assert_eq!(told.last(), appended);
            }
        }
        let appended = log.stats().appended;
        log.close();
        assert_eq!(told.last(), appended);
    }
}
