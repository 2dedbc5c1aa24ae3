//! Losses at the end of a producer's epoch, reported when its next epoch begins or when its cursor is deleted.
//!
//! - A received `Goodbye` confirms that no cookie of that epoch follows the cursor.
//! - `Hello.tail` of the next epoch covers the rest of that epoch *and* the epochs in between that this consumer
//!   missed. A tail of 0 confirms that no cookie is missing, even after a crash.
//! - Cookies before the cursor were received or declared in a gap. "Nothing lost" therefore requires that there was no gap.
//!   This statement covers only the range that this process observed: an earlier process reported its own gaps.
//!
//! A loss is reported before the *received* cookies are stored. They are stored in the order of receipt, before the cursor of
//! the next epoch. If this process dies earlier, the next process resumes from the store's cursor and reports the same loss.

use proto::{units::Epoch, v1::Tail};

use crate::{batch::Cursor, metrics, producers::ObservedRange};

/// A restart of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// The received position of the previous epoch.
    pub previous: Cursor,
    /// The `Hello.tail` of the new epoch.
    pub tail: Option<Tail>,
    /// What this process has observed of the previous epoch.
    pub observed: ObservedRange,
    /// The new epoch.
    pub new_epoch: Epoch,
}

impl Restart {
    /// Whether cookies may be lost.
    pub fn may_lose(&self) -> bool {
        self.tail.is_none_or(|tail| tail.cookies_max > 0)
    }

    /// Logs and counts the loss, of which an archive had `found` cookies.
    pub fn report(&self, metrics: &metrics::Subscription, found: u64) {
        let rest = |tail: Tail| Tail {
            cookies_max: tail.cookies_max.saturating_sub(found),
            ..tail
        };
        report(
            metrics,
            &self.previous,
            self.tail.map(rest),
            self.observed,
            self.new_epoch,
        );
    }
}

/// Logs and counts the cookies lost after `cursor`, whose epoch is followed by `new_epoch`, including those of missed epochs after
/// it. `tail` is the `Hello.tail` of the new epoch.
fn report(
    metrics: &metrics::Subscription,
    cursor: &Cursor,
    tail: Option<Tail>,
    observed: ObservedRange,
    new_epoch: Epoch,
) {
    let (producer, epoch, sequence) = (&*cursor.producer, cursor.epoch.0, cursor.sequence.0);
    let (new_epoch, observed_from) = (new_epoch.0, observed.from.0);
    let lost_in_gaps = observed.lost_in_gaps;
    let count = |loss| metrics.restarts.with_label_values(&[loss]).inc();
    macro_rules! log {
        ($level:ident, $($more:tt)*) => {
            tracing::$level!(producer, epoch, sequence, new_epoch, observed_from, lost_in_gaps, $($more)*)
        };
    }
    match (tail, cursor.complete) {
        (Some(Tail { cookies_max: 0, .. }), _) | (None, true) if lost_in_gaps > 0 => {
            count("exact");
            log!(
                warn,
                lost = 0_u64,
                tail_known = tail.is_some(),
                "producer restarted; nothing lost at the end of `epoch`, but some cookies were lost in gaps"
            );
        }
        (Some(Tail { cookies_max: 0, .. }), _) => {
            count("none");
            log!(info, lost = 0_u64, "producer restarted; nothing lost");
        }
        // Whether later epochs were missed is unknown.
        (None, true) => {
            count("none");
            log!(
                info,
                lost = 0_u64,
                "producer restarted after a clean shutdown; nothing lost in `epoch`, but losses between `epoch` and `new_epoch` are unknown"
            );
        }
        (
            Some(Tail {
                cookies_max: lost,
                exact: true,
            }),
            _,
        ) => {
            count("exact");
            metrics
                .lost
                .with_label_values(&["producer_ended"])
                .inc_by(lost);
            log!(
                warn,
                lost,
                "producer restarted; cookies after this sequence number are lost, and their exact number is known"
            );
        }
        (Some(Tail { cookies_max, .. }), _) => {
            count("bounded");
            metrics.uncertain_restarts.inc();
            metrics.uncertain_loss_cookies.inc_by(cookies_max);
            log!(
                warn,
                cookies_max,
                "producer restarted after an unclean shutdown; up to cookies_max cookies after this sequence number are lost"
            );
        }
        (None, false) => {
            count("unknown");
            metrics.uncertain_restarts.inc();
            log!(
                warn,
                "producer restarted, and the end of `epoch` is not recorded; number of lost cookies is unknown"
            );
        }
    }
}

/// Logs and counts a producer that never returned and whose shutdown was not observed.
pub fn report_gone(metrics: &metrics::Subscription, cursor: &Cursor) {
    metrics.restarts.with_label_values(&["unknown"]).inc();
    metrics.uncertain_restarts.inc();
    let (producer, epoch, sequence) = (&*cursor.producer, cursor.epoch.0, cursor.sequence.0);
    tracing::warn!(
        producer,
        epoch,
        sequence,
        "producer did not return, and its shutdown was not observed; number of lost cookies is unknown"
    );
}

#[cfg(test)]
mod tests {
    use proto::units::Sequence;
    use runtime::metrics::Registry;

    use super::*;
    use crate::metrics::Metrics;

    #[track_caller]
    fn check(complete: bool, tail: Option<(u64, bool)>, lost_in_gaps: u64, expected: &str) {
        let cursor = Cursor {
            producer: "p".into(),
            epoch: Epoch(1),
            sequence: Sequence(9),
            complete,
        };
        let tail = tail.map(|(cookies_max, exact)| Tail { cookies_max, exact });
        let observed = ObservedRange {
            lost_in_gaps,
            ..ObservedRange::after(&cursor)
        };
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        report(&metrics, &cursor, tail, observed, Epoch(2));
        for loss in ["none", "exact", "bounded", "unknown"] {
            let count = metrics.restarts.with_label_values(&[loss]).get();
            let is_expected = loss == expected;
            assert_eq!(count, u64::from(is_expected), "{loss}: {complete} {tail:?}");
        }
        let lost = |bounded| {
            tail.filter(|it| it.exact != bounded)
                .map_or(0, |it| it.cookies_max)
        };
        let exact = metrics.lost.with_label_values(&["producer_ended"]).get();
        assert_eq!(
            (exact, metrics.uncertain_loss_cookies.get()),
            (lost(false), lost(true))
        );
        let is_uncertain = matches!(expected, "bounded" | "unknown");
        assert_eq!(metrics.uncertain_restarts.get(), u64::from(is_uncertain));
    }

    #[test]
    fn only_a_goodbye_or_the_epoch_history_rules_out_a_loss() {
        check(false, None, 0, "unknown");
        check(true, None, 0, "none");
        check(true, None, 3, "exact");
        for complete in [false, true] {
            check(complete, Some((0, true)), 0, "none");
            check(complete, Some((0, false)), 0, "none");
            check(complete, Some((0, true)), 3, "exact");
            // After a `Goodbye`, only cookies of epochs that were missed completely are lost.
            check(complete, Some((5, true)), 0, "exact");
            check(complete, Some((5, false)), 0, "bounded");
        }
    }
}
