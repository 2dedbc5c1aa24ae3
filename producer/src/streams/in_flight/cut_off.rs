//! Which streams are cut off when all together exceed the budget of in-flight bytes.
//!
//! The worst go first, until the others are within the budget. The worst is a stream that has released nothing for
//! `STALLED_AFTER`; among those, the one that holds most; and among equals, which differ by less than `EQUAL_BYTES`,
//! the one that has been stalled for longest. A stream that is cut off ends with `RESOURCE_EXHAUSTED`. Its queue stays:
//! the subscriber resumes by its cursor or its name.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{InFlight, Shared};

/// A stream that has released nothing for this long is cut off before one that makes progress.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Streams whose bytes differ by less than this count as equal; a chunk of the default size.
const EQUAL_BYTES: u64 = 64 * 1024;

/// At most this many streams that were cut off are logged in one interval.
pub(super) const LINES_MAX: u32 = 50;
pub(super) const LINES_INTERVAL: Duration = Duration::from_secs(10);

impl InFlight {
    /// The greater, the worse; `None` for a stream with nothing in flight.
    fn badness(&self, now: u64) -> Option<(bool, u64, u64)> {
        let bytes = self.bytes();
        let stood = now.saturating_sub(self.progress_millis.load(Ordering::Relaxed));
        let stalled = u128::from(stood) >= STALLED_AFTER.as_millis();
        (bytes > 0).then_some((stalled, bytes / EQUAL_BYTES, stood))
    }
}

impl Shared {
    /// Cuts off the worst until the others are within the budget; `now` is in this clock's milliseconds.
    pub(super) fn enforce(&self, bytes_max: u64, now: u64) {
        let mut streams = self.streams();
        streams.cut.retain(|stream| stream.strong_count() > 0);
        let cut = streams.cut.iter().filter_map(Weak::upgrade);
        let going: u64 = cut.map(|stream| stream.bytes()).sum();
        let mut held = self.total().saturating_sub(going);
        if held <= bytes_max {
            return;
        }
        let rest = streams.all.iter().filter_map(Weak::upgrade);
        let mut rest: Vec<_> = rest
            .filter(|stream| !stream.cut.is_cancelled())
            .filter_map(|stream| stream.badness(now).map(|badness| (badness, stream)))
            .collect();
        rest.sort_unstable_by_key(|&(badness, _)| badness);
        while held > bytes_max {
            let Some(((_, _, stood_millis), worst)) = rest.pop() else {
                return;
            };
            let bytes = worst.bytes();
            if let Some(more_cut_off) = streams.log_gate.admit(Instant::now()) {
                let (subscriber, call) = worst.queue.name();
                tracing::warn!(
                    subscriber,
                    call,
                    in_flight_bytes = bytes,
                    stood_millis,
                    all_in_flight_bytes = held,
                    in_flight_bytes_max = bytes_max,
                    more_cut_off,
                    "disconnected slow subscriber: too many bytes in flight"
                );
            }
            worst.queue.cuts.fetch_add(1, Ordering::Relaxed);
            worst.cut.cancel();
            streams.cut.push(Arc::downgrade(&worst));
            held = held.saturating_sub(bytes);
        }
    }
}
