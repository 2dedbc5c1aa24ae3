//! The sweep record of a collection, in `cookiesync.sweeps`: `{_id: <namespace>, began, at, complete: {began, ttl}}`. Does no I/O.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use proto::units::UnixMicros;

use super::super::super::{date, number, time};

/// The sweep record of a collection.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct SweepRecord {
    /// When the first pass began.
    began: Option<UnixMicros>,
    /// When the newest pass began.
    at: UnixMicros,
    /// When the newest complete pass began, and its TTL.
    complete: Option<(UnixMicros, Duration)>,
}

impl SweepRecord {
    /// Whether a complete pass with this TTL or a shorter one began between `since` and `now`. A clock that was ahead may have recorded a
    /// later start.
    pub(super) fn is_done(&self, since: UnixMicros, now: UnixMicros, ttl: Duration) -> bool {
        self.complete.is_some_and(|(began, then)| {
            (date(since)..=date(now)).contains(&date(began)) && then <= ttl
        })
    }

    /// When the newest pass began; 0 if a clock that was ahead recorded a time after `now`.
    pub(super) fn last_pass(&self, now: UnixMicros) -> UnixMicros {
        if self.at > now {
            UnixMicros::NONE
        } else {
            self.at
        }
    }

    /// Records the start of a pass.
    pub(super) fn begin(&mut self, now: UnixMicros) {
        self.began.get_or_insert(now);
        self.at = now;
    }

    /// Records that the newest pass, with this TTL, is complete.
    pub(super) fn complete(&mut self, ttl: Duration) {
        self.complete = Some((self.at, ttl));
    }

    /// Upper bound of the time between the expiry of the collection's oldest cookie and `now`.
    pub(in super::super) fn overdue(&self, now: UnixMicros, ttl: Duration) -> Duration {
        let never = (self.began.unwrap_or(now), ttl);
        let (began, then) = self.complete.unwrap_or(never);
        let since = Duration::from_micros(now.since(began));
        (since + then).saturating_sub(ttl)
    }

    pub(super) fn encode(&self, namespace: &str) -> Document {
        let mut record = doc! { "_id": namespace, "at": date(self.at) };
        if let Some(began) = self.began {
            record.insert("began", date(began));
        }
        if let Some((began, ttl)) = self.complete {
            let ttl = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
            record.insert("complete", doc! { "began": date(began), "ttl": ttl });
        }
        record
    }

    /// Decodes a namespace and its record; `None` if it is invalid.
    pub(super) fn decode(record: &Document) -> Option<(String, Self)> {
        let complete = record.get_document("complete").ok();
        let decoded = Self {
            began: field(record, "began"),
            at: field(record, "at").unwrap_or_default(),
            complete: complete.and_then(|complete| {
                let ttl = complete.get("ttl").and_then(number)?;
                Some((field(complete, "began")?, Duration::from_micros(ttl)))
            }),
        };
        Some((record.get_str("_id").ok()?.to_owned(), decoded))
    }
}

fn field(document: &Document, key: &str) -> Option<UnixMicros> {
    time(*document.get_datetime(key).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;
    const NOW: UnixMicros = UnixMicros(1_000 * MINUTE);
    const TTL: Duration = Duration::from_secs(3600);

    fn begun(now: UnixMicros) -> SweepRecord {
        let mut record = SweepRecord::default();
        record.begin(now);
        record
    }

    #[test]
    fn record_is_decoded_as_encoded() {
        let mut record = begun(NOW);
        for _ in 0..2 {
            let read = SweepRecord::decode(&record.encode("n"));
            assert_eq!(read, Some(("n".to_owned(), record.clone())));
            record.complete(TTL);
        }
    }

    #[test]
    fn overdue_counts_from_the_beginning_of_the_last_complete_pass() {
        let mut done = begun(NOW);
        done.complete(TTL);
        assert!(
            done.is_done(NOW, NOW, TTL) && !done.is_done(NOW.after(MINUTE), NOW.after(MINUTE), TTL)
        );
        assert!(!done.is_done(NOW, NOW, TTL / 2));
        assert!(done.is_done(NOW, NOW, 2 * TTL), "nothing else has expired");
        assert!(
            !done.is_done(UnixMicros::NONE, NOW.before(MINUTE), TTL),
            "recorded by a clock that was ahead"
        );
        let hour = Duration::from_secs(3600);
        assert_eq!(done.overdue(NOW.after(60 * MINUTE), TTL), hour);
        assert_eq!(
            done.overdue(NOW.after(60 * MINUTE), TTL / 2),
            hour + TTL / 2
        );
        assert_eq!(
            done.overdue(NOW.after(60 * MINUTE), 3 * TTL),
            Duration::ZERO
        );
        done.begin(NOW.after(30 * MINUTE));
        let overdue = done.overdue(NOW.after(60 * MINUTE), TTL);
        assert_eq!(overdue, hour, "the new pass is not complete");
    }

    #[test]
    fn overdue_time_without_a_complete_pass_counts_from_the_first_pass() {
        let mut record = begun(NOW);
        record.begin(NOW.after(60 * MINUTE));
        let overdue = record.overdue(NOW.after(60 * MINUTE), TTL);
        assert_eq!(overdue, Duration::from_secs(3600));
        assert_eq!(SweepRecord::default().overdue(NOW, TTL), Duration::ZERO);
    }

    #[test]
    fn pass_recorded_by_a_clock_ahead_does_not_delay_the_next() {
        let record = begun(NOW);
        assert_eq!(record.last_pass(NOW.after(MINUTE)), NOW);
        assert_eq!(record.last_pass(NOW.before(MINUTE)).0, 0);
    }
}
