//! What was decided, how long it took, and what was wrong.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Decisions of one way, or calls of one kind.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// How long they took; of decisions in process only some are timed.
    pub(super) nanos: Histogram<u64>,
    /// How many there were in each second.
    pub(super) seconds: Vec<u64>,
    /// How many did not let the call go, or were answered wrongly.
    pub(super) wrong: u64,
    /// Why the first of these.
    pub(super) first_wrong: Option<String>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            nanos: Histogram::new(3).expect("three digits are within the crate's range"),
            seconds: Vec::new(),
            wrong: 0,
            first_wrong: None,
        }
    }
}

impl Tally {
    /// Counts decisions that were made so long after the start.
    pub(super) fn decided(&mut self, after: Duration, count: u64) {
        let second = usize::try_from(after.as_secs()).unwrap_or(usize::MAX);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += count;
    }

    pub(super) fn took(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let recorded = self.nanos.record(nanos);
        recorded.expect("the histogram grows to any value");
    }

    pub(super) fn wrong(&mut self, count: u64, why: impl FnOnce() -> String) {
        if count > 0 {
            self.wrong += count;
            self.first_wrong.get_or_insert_with(why);
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        let added = self.nanos.add(&other.nanos);
        added.expect("the histogram grows to any value");
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0);
        }
        for (sum, count) in self.seconds.iter_mut().zip(&other.seconds) {
            *sum += count;
        }
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }

    /// Decisions in all.
    pub(super) fn count(&self) -> u64 {
        self.seconds.iter().sum()
    }

    /// Decisions in each second that was whole, of a run of this length.
    pub(super) fn whole_seconds(&self, length: Duration) -> Vec<f64> {
        let whole = usize::try_from(length.as_secs()).unwrap_or(usize::MAX);
        let seconds = self.seconds.iter().take(whole);
        seconds.map(|count| *count as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_counted_by_their_second() {
        let millis = Duration::from_millis;
        let mut all = Tally::default();
        let mut one = Tally::default();
        all.decided(millis(100), 3);
        one.decided(millis(1_900), 5);
        one.decided(millis(2_100), 7);
        one.took(millis(2));
        one.wrong(0, || "none".to_owned());
        one.wrong(2, || "first".to_owned());
        one.wrong(1, || "second".to_owned());
        all.add(one);
        assert_eq!(all.seconds, [3, 5, 7]);
        assert_eq!((all.count(), all.wrong), (15, 3));
        assert_eq!(all.whole_seconds(millis(2_500)), [3.0, 5.0]);
        assert_eq!(all.first_wrong.as_deref(), Some("first"));
        assert_eq!(all.nanos.len(), 1);
    }
}
