//! Writes changes of the state to the journal, and makes them once more at the start.

use std::time::Duration;

use limits::{Decision, Refusal};

use super::{
    Refused, State, Target,
    calls::Call,
    from_call,
    journal::{Change, Event},
};

impl State {
    /// Writes down what a call changed.
    ///
    /// # Errors
    /// When it is not written: then the answer must not be given.
    pub(super) fn write_down(
        &mut self,
        call: &Call,
        change: Change<'_>,
        now: u64,
    ) -> Result<(), Refused> {
        let of = call.of.iter().map(|(place, counter)| {
            let limit = self.catalog.get(*place);
            (&*limit.name, &**counter)
        });
        self.journal.append(&Event {
            of: of.collect(),
            requests: call.requests,
            now,
            change,
        });
        match self.journal.error() {
            None => Ok(()),
            Some(_) => Err(Refused::NotSaved),
        }
    }

    /// Writes down where the limits in force come from.
    pub(super) fn write_sources(&mut self, now: u64) {
        self.journal.append(&Event {
            of: Vec::new(),
            requests: 0,
            now,
            change: Change::Sources(&self.sources),
        });
    }

    /// Makes a change once more, in the state that it was made in. Of limits that are gone nothing is known any more.
    pub(super) fn replay(&mut self, event: &Event<'_>) -> Result<(), Refused> {
        let known = |limit: &str| {
            let made = from_call::parts(limit);
            self.catalog.place(limit).is_some()
                || made.is_some_and(|(base, _)| self.is_from_call(base))
        };
        let targets = event.of.iter().filter(|(limit, _)| known(limit));
        let targets: Vec<Target<'_>> = targets
            .map(|(limit, counter)| Target { limit, counter })
            .collect();
        let Event { requests, now, .. } = *event;
        let call = self.call(&targets, requests, now)?;
        match event.change {
            Change::Reserved { at } => {
                let demands = &call.demands;
                // Where a rule has it later, as limits have changed or a stepped bucket forgot when its steps began, the others do not follow it.
                let next = self.core.peek_from(demands, at, now);
                let is_same = next.is_ok_and(|(next, _)| next == at);
                let together = if is_same { demands.len().max(1) } else { 1 };
                for demands in demands.chunks(together) {
                    let decision = self.core.reserve_from(demands, at, now, Duration::MAX);
                    if let Decision::Refused { why, .. } = decision {
                        if why == Refusal::NoRoom {
                            return Err(Refused::NoRoom);
                        }
                        // Under limits that have changed since it counts as made.
                        let recorded = self.core.record_all(demands, now, now);
                        recorded.map_err(|_| Refused::NoRoom)?;
                    }
                }
                self.learned.take(&call.of, requests, at);
            }
            Change::Refused => {
                // It was refused whatever the limits said, also by what a partner left.
                let later = now.saturating_add(1);
                let demands = &call.demands;
                self.core.reserve_from(demands, later, now, Duration::ZERO);
            }
            Change::Counted { at } => {
                let recorded = self.core.record_all(&call.demands, at, now);
                recorded.map_err(|_| Refused::NoRoom)?;
                self.learned.take(&call.of, requests, now);
            }
            Change::Heard(said) => {
                if let Some(of) = call.of.first()
                    && !self.learned.hear(of, said, now)
                {
                    // There was room for it.
                    self.learned.forget(now);
                    self.learned.hear(of, said, now);
                }
            }
            Change::LetGo { at, is_counted } => {
                if is_counted {
                    let recorded = self.core.record_all(&call.demands, now, now);
                    recorded.map_err(|_| Refused::NoRoom)?;
                }
                self.learned.take(&call.of, requests, at);
            }
            // The start began with the newest.
            Change::Sources(_) => {}
        }
        Ok(())
    }
}
