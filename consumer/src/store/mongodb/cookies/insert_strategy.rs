//! Chooses between inserting unknown cookies of a DSP directly and finding existing users first. Does no I/O.
//!
//! If the user exists, an insert fails and costs mongod eight times as much as for a new user. The stored cookie must
//! then still be replaced. A find costs less than an insert. So finding first pays off from about one existing user in
//! eleven (see the costs in `command.rs`).

/// Minimum share of existing users at which users are found first.
const FIND_FROM: f64 = 0.10;

/// Share below which cookies are inserted directly again.
const INSERT_BELOW: f64 = 0.05;

/// Decay of earlier observations per batch.
const DECAY: f64 = 0.8;

/// Weighted counts of a DSP's recent cookies.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct InsertStrategy {
    cookies: f64,
    existing: f64,
    finds_first: bool,
}

impl InsertStrategy {
    /// Whether to find existing users before inserting.
    pub(super) fn finds_first(&self) -> bool {
        self.finds_first
    }

    /// Records how many of `cookies` had existing users.
    pub(super) fn observe(&mut self, cookies: usize, existing: usize) {
        let as_f64 = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        self.cookies = self.cookies * DECAY + as_f64(cookies);
        self.existing = self.existing * DECAY + as_f64(existing);
        let share = self.existing / self.cookies.max(1.0);
        if share >= FIND_FROM {
            self.finds_first = true;
        } else if share < INSERT_BELOW {
            self.finds_first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategy_changes_only_outside_its_hysteresis() {
        let mut strategy = InsertStrategy::default();
        assert!(!strategy.finds_first());
        for _ in 0..50 {
            strategy.observe(1_000, 70);
        }
        assert!(!strategy.finds_first(), "7 % does not change it");
        strategy.observe(1_000, 800);
        assert!(strategy.finds_first());
        for _ in 0..50 {
            strategy.observe(1_000, 70);
        }
        assert!(strategy.finds_first(), "nor change it back");
        for _ in 0..10 {
            strategy.observe(1_000, 0);
        }
        assert!(!strategy.finds_first());
        strategy.observe(0, 0);
        assert!(!strategy.finds_first());
    }
}
