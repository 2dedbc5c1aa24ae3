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

/// Cookies lost at the end of an epoch, including those of missed epochs after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailLoss {
    /// None.
    None,
    /// None of this epoch, which ended with a clean shutdown. Whether later epochs were missed is unknown.
    NoneOfEpoch,
    /// This number of cookies.
    Exact(u64),
    /// Up to this number of cookies.
    Bounded(u64),
    /// No bound is known.
    Unknown,
}

impl TailLoss {
    /// The loss after `cursor`, given the `Hello.tail` of the next epoch.
    pub fn new(cursor: &Cursor, tail: Option<Tail>) -> Self {
        match tail {
            Some(Tail { cookies_max: 0, .. }) => Self::None,
            Some(Tail {
                cookies_max,
                exact: true,
            }) => Self::Exact(cookies_max),
            Some(Tail { cookies_max, .. }) => Self::Bounded(cookies_max),
            None if cursor.complete => Self::NoneOfEpoch,
            None => Self::Unknown,
        }
    }
}

/// Logs and counts the loss after `cursor`, whose epoch is followed by `new_epoch`.
pub fn report(
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
    match TailLoss::new(cursor, tail) {
        TailLoss::None | TailLoss::NoneOfEpoch if lost_in_gaps > 0 => {
            count("exact");
            log!(
                warn,
                lost = 0_u64,
                tail_known = tail.is_some(),
                "producer restarted; nothing lost at the end of `epoch`, but some cookies were lost in gaps"
            );
        }
        TailLoss::None => {
            count("none");
            log!(info, lost = 0_u64, "producer restarted; nothing lost");
        }
        TailLoss::NoneOfEpoch => {
            count("none");
            log!(
                info,
                lost = 0_u64,
                "producer restarted after a clean shutdown; nothing lost in `epoch`, but losses between `epoch` and `new_epoch` are unknown"
            );
        }
        TailLoss::Exact(lost) => {
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
        TailLoss::Bounded(cookies_max) => {
            count("bounded");
            metrics.uncertain_restarts.inc();
            metrics.uncertain_loss_cookies.inc_by(cookies_max);
            log!(
                warn,
                cookies_max,
                "producer restarted after an unclean shutdown; up to cookies_max cookies after this sequence number are lost"
            );
        }
        TailLoss::Unknown => {
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

    use super::*;

    #[track_caller]
    fn check(complete: bool, tail: Option<(u64, bool)>, expected: TailLoss) {
        let cursor = Cursor {
            producer: "p".into(),
            epoch: Epoch(1),
            sequence: Sequence(9),
            complete,
        };
        let tail = tail.map(|(cookies_max, exact)| Tail { cookies_max, exact });
        assert_eq!(
            TailLoss::new(&cursor, tail),
            expected,
            "{complete} {tail:?}"
        );
    }

    #[test]
    fn only_a_goodbye_or_the_epoch_history_rules_out_a_loss() {
        check(false, None, TailLoss::Unknown);
        check(true, None, TailLoss::NoneOfEpoch);
        for complete in [false, true] {
            check(complete, Some((0, true)), TailLoss::None);
            check(complete, Some((0, false)), TailLoss::None);
            // After a `Goodbye`, only cookies of epochs that were missed completely are lost.
            check(complete, Some((5, true)), TailLoss::Exact(5));
            check(complete, Some((5, false)), TailLoss::Bounded(5));
        }
    }
}
