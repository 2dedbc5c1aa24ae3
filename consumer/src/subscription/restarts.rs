//! What is known of how a producer's epoch ended for this consumer, once its next one answers, or when its cursor is deleted.
//!
//! # What proves what
//!
//! A goodbye, received after everything before it, proves that nothing of that epoch follows the cursor. The next epoch's
//! `Hello.tail` speaks of the rest of that epoch *and* of epochs in between that this consumer never saw; 0 proves that
//! there is nothing, also after a crash. Both speak of what follows the cursor. What lies before it was received or
//! declared a gap, so "nothing was lost" needs that no gap was seen; and it is reported only of the sequences that this process has
//! watched: of what a process before it saw, only that process could tell.
//!
//! It is reported when everything was *received*. Cookies are stored in the order of their coming, and before the cursor of the next
//! epoch; should this process die before that, the next one stands where the store does, and reports the same end by that.

use proto::v1::Tail;

use crate::{batch::Cursor, metrics, producers::Watched};

/// What is known to be missing at the end of an epoch, and of epochs since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Nothing,
    /// Nothing of the epoch that said goodbye; whether there were others since is not known.
    NothingOfIt,
    /// So many cookies.
    Exactly(u64),
    /// Not more than so many.
    AtMost(u64),
    /// Nothing is known.
    Unknown,
}

/// Judges by where the consumer stood, and by what the next epoch says.
#[must_use]
pub fn missing(before: &Cursor, tail: Option<Tail>) -> Missing {
    match tail {
        Some(Tail { cookies_max: 0, .. }) => Missing::Nothing,
        Some(Tail {
            cookies_max,
            exact: true,
        }) => Missing::Exactly(cookies_max),
        Some(Tail { cookies_max, .. }) => Missing::AtMost(cookies_max),
        None if before.complete => Missing::NothingOfIt,
        None => Missing::Unknown,
    }
}

/// Logs and counts how the epoch ended that came before `new_epoch`, which has answered.
pub fn report(
    metrics: &metrics::Subscription,
    before: &Cursor,
    tail: Option<Tail>,
    seen: Watched,
    new_epoch: u64,
) {
    let (producer, epoch, sequence) = (&*before.producer, before.epoch, before.sequence);
    let (watched_from, lost_in_gaps) = (seen.from, seen.lost_in_gaps);
    macro_rules! log {
        ($level:ident, $($more:tt)*) => {
            tracing::$level!(producer, epoch, sequence, new_epoch, watched_from, lost_in_gaps, $($more)*)
        };
    }
    match missing(before, tail) {
        Missing::Nothing | Missing::NothingOfIt if lost_in_gaps > 0 => {
            metrics.restarts.with_label_values(&["lost"]).inc();
            log!(
                warn,
                lost = 0_u64,
                tail_known = tail.is_some(),
                "producer restarted; nothing lost at its end, but some cookies were lost in gaps"
            );
        }
        Missing::Nothing => {
            metrics.restarts.with_label_values(&["proved"]).inc();
            log!(info, lost = 0_u64, "producer restarted; nothing lost");
        }
        Missing::NothingOfIt => {
            metrics.restarts.with_label_values(&["proved"]).inc();
            log!(
                info,
                lost = 0_u64,
                "producer restarted after a clean shutdown; nothing of that epoch lost, later epochs unknown"
            );
        }
        Missing::Exactly(lost) => {
            metrics.restarts.with_label_values(&["lost"]).inc();
            metrics
                .lost
                .with_label_values(&["producer_ended"])
                .inc_by(lost);
            log!(
                warn,
                lost,
                "producer restarted; exactly this many cookies after this sequence are lost"
            );
        }
        Missing::AtMost(cookies_max) => {
            metrics.restarts.with_label_values(&["bounded"]).inc();
            metrics.uncertain_restarts.inc();
            metrics.uncertain_loss_cookies.inc_by(cookies_max);
            log!(
                warn,
                cookies_max,
                "producer restarted after an unclean shutdown; at most cookies_max cookies after this sequence are lost"
            );
        }
        Missing::Unknown => {
            metrics.restarts.with_label_values(&["unknown"]).inc();
            metrics.uncertain_restarts.inc();
            log!(
                warn,
                "producer restarted after an unclean shutdown; number of lost cookies is unknown"
            );
        }
    }
}

/// Logs and counts that a producer that did not say goodbye never came back.
pub fn report_gone(metrics: &metrics::Subscription, stood: &Cursor) {
    metrics.restarts.with_label_values(&["unknown"]).inc();
    metrics.uncertain_restarts.inc();
    let (producer, epoch, sequence) = (&*stood.producer, stood.epoch, stood.sequence);
    tracing::warn!(
        producer,
        epoch,
        sequence,
        "producer disappeared after an unclean shutdown; number of lost cookies is unknown"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(complete: bool, tail: Option<(u64, bool)>, expected: Missing) {
        let before = Cursor {
            producer: "p".into(),
            epoch: 1,
            sequence: 9,
            complete,
        };
        let tail = tail.map(|(cookies_max, exact)| Tail { cookies_max, exact });
        assert_eq!(missing(&before, tail), expected, "{complete} {tail:?}");
    }

    #[test]
    fn nothing_is_proved_by_a_goodbye_or_by_the_record_and_by_nothing_else() {
        check(false, None, Missing::Unknown);
        check(true, None, Missing::NothingOfIt);
        for complete in [false, true] {
            check(complete, Some((0, true)), Missing::Nothing);
            check(complete, Some((0, false)), Missing::Nothing);
            // After a goodbye: epochs between that were missed wholly.
            check(complete, Some((5, true)), Missing::Exactly(5));
            check(complete, Some((5, false)), Missing::AtMost(5));
        }
    }
}
