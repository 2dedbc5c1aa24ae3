//! Reported calls: calls that were made without a reservation.

use std::hash::Hash;

use super::{Limits, demands::MergedDemand};
use crate::{
    DEMANDS_MAX,
    decision::{Demand, RecordError, RecordOutcome},
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Counts calls that were made at `at` without a reservation. Either all limits count them, or none.
    ///
    /// Step windows count them at `at`, all other algorithms at `now`. A limit ignores calls that are too old to affect it. If `at` is in
    /// the future by up to one step of any of the limits, `now` is used. Calls that a limit would not have admitted leave a token bucket
    /// empty, or the queue of a leaky bucket full.
    ///
    /// # Errors
    /// If `at` is further in the future, or the key table is full.
    ///
    /// # Panics
    /// Like [`reserve`](Self::reserve).
    pub fn record(
        &mut self,
        demands: &[Demand<K>],
        at: u64,
        now: u64,
    ) -> Result<RecordOutcome, RecordError> {
        let now = self.advance_clock(now);
        let mut merged = self.merge::<DEMANDS_MAX>(demands);
        let steps = merged.all().iter();
        let steps = steps.map(|it| self.limits[it.limit.index()].meter.step());
        if at > now.saturating_add(steps.max().unwrap_or(0)) {
            return Err(RecordError::TooEarly);
        }
        let at = at.min(now);
        let is_relevant =
            |it: &MergedDemand| self.limits[it.limit.index()].meter.is_relevant(at, now);
        if !merged.all().iter().any(is_relevant) {
            return Ok(RecordOutcome::TooOld);
        }
        self.create_entries(&mut merged, demands, now)
            .map_err(|_| RecordError::TableFull)?;
        for it in merged.all() {
            let meter = &self.limits[it.limit.index()].meter;
            if meter.is_relevant(at, now) {
                let at = meter.charge_time(at, now);
                self.update(it, |meter, state| {
                    meter.charge_reported(state, it.requests, at);
                });
            }
        }
        Ok(RecordOutcome::Counted)
    }
}
