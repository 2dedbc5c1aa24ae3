//! Calls that were made without having been asked for here.

use std::hash::Hash;

use super::{Limits, concerns::Concern};
use crate::{
    DEMANDS_MAX,
    decision::{Demand, RecordError, RecordOutcome},
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Counts calls that were made at `at` without having been asked for here: all of their limits count them, or none. A step window
    /// counts them when they were made, all others as made now. What was made so long ago that it does not matter to a limit any more
    /// has no effect on that one; and a time that is ahead by no more than a step of any of the limits is now. Calls
    /// that a bucket would not have let go leave it empty, and its queue full.
    ///
    /// # Errors
    /// When `at` is farther in the future, or there is no room for a key.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    pub fn record(
        &mut self,
        demands: &[Demand<K>],
        at: u64,
        now: u64,
    ) -> Result<RecordOutcome, RecordError> {
        let now = self.pass_to(now);
        let mut concerns = self.concerns::<DEMANDS_MAX>(demands);
        let steps = concerns.all().iter();
        let steps = steps.map(|it| self.rules[it.limit.index()].meter.step());
        if at > now.saturating_add(steps.max().unwrap_or(0)) {
            return Err(RecordError::TooEarly);
        }
        let at = at.min(now);
        let matters = |it: &Concern| self.rules[it.limit.index()].meter.matters(at, now);
        if !concerns.all().iter().any(matters) {
            return Ok(RecordOutcome::TooOld);
        }
        self.make_entries(&mut concerns, demands, now)
            .map_err(|_| RecordError::TableFull)?;
        let mut recorded = RecordOutcome::TooOld;
        for concern in concerns.all() {
            let meter = &self.rules[concern.limit.index()].meter;
            if meter.matters(at, now) {
                recorded = RecordOutcome::Counted;
                let made = meter.at_or_now(at, now);
                self.update(concern, |meter, state| {
                    meter.tell(state, concern.requests, made)
                });
            }
        }
        Ok(recorded)
    }
}
