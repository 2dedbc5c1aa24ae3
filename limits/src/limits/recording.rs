//! Calls that were made without having been asked for here.

use std::hash::{BuildHasher, Hash};

use super::{Limits, concerns::Concern};
use crate::{
    DEMANDS_MAX,
    decision::{Demand, RecordError, Recorded, TooEarly},
};

impl<K: Hash + Eq + Clone, S: BuildHasher> Limits<K, S> {
    /// Counts calls that were made at `at` without having been asked for here. A step window counts them when they were made, if that
    /// is within it; all others count them as made now.
    ///
    /// # Errors
    /// When `at` is in the future (of a step window: by more than a step), or there is no room for the key.
    ///
    /// # Panics
    /// When the limit is of another [`Limits`].
    pub fn record(&mut self, demand: Demand<K>, at: u64, now: u64) -> Result<(), RecordError> {
        let now = self.pass_to(now);
        let demands = [demand];
        let mut concerns = self.concerns::<1>(&demands);
        self.make_entries(&mut concerns, &demands, now)
            .map_err(|_| RecordError::NoRoom)?;
        for concern in concerns.all() {
            let (rule, state) = self.at(concern);
            rule.meter.record(state, concern.requests, at, now)?;
        }
        Ok(())
    }

    /// The same for a call under several limits: all of them count it, or none. What was made so long ago that it does not matter
    /// to a limit any more has no effect on that one; and a time that is ahead by no more than a step of any of the limits is now. Calls
    /// that a bucket would not have let go leave it empty, and its queue full.
    ///
    /// # Errors
    /// When `at` is farther in the future, or there is no room for a key.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    pub fn record_all(
        &mut self,
        demands: &[Demand<K>],
        at: u64,
        now: u64,
    ) -> Result<Recorded, RecordError> {
        let now = self.pass_to(now);
        let mut concerns = self.concerns::<DEMANDS_MAX>(demands);
        let steps = concerns.all().iter();
        let steps = steps.map(|it| self.rules[it.limit.index()].meter.step());
        if at > now.saturating_add(steps.max().unwrap_or(0)) {
            return Err(TooEarly.into());
        }
        let at = at.min(now);
        let matters = |it: &Concern| self.rules[it.limit.index()].meter.matters(at, now);
        if !concerns.all().iter().any(matters) {
            return Ok(Recorded::TooOld);
        }
        self.make_entries(&mut concerns, demands, now)
            .map_err(|_| RecordError::NoRoom)?;
        let mut recorded = Recorded::TooOld;
        for concern in concerns.all() {
            let (rule, state) = self.at(concern);
            if rule.meter.matters(at, now) {
                recorded = Recorded::Counted;
                let made = rule.meter.at_or_now(at, now);
                rule.meter.tell(state, concern.requests, made);
            }
        }
        Ok(recorded)
    }
}
