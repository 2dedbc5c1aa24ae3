//! Whether new cookies of a DSP are inserted at once, or looked for first. Pure.
//!
//! Inserting a cookie whose user is there already costs mongod eight times as much as inserting a new one, and it has
//! to be replaced all the same; looking for it first costs less than inserting it. So looking pays from about one
//! repeat in eleven on (see the costs in `command.rs`).

/// From this share of repeats on cookies are looked for first.
const FIND_FROM: f64 = 0.10;

/// Below this share they are inserted at once again.
const INSERT_BELOW: f64 = 0.05;

/// How much of what was seen still counts after the next batch.
const MEMORY: f64 = 0.8;

/// What one DSP's latest cookies were, the newest counting most.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InsertStrategy {
    cookies: f64,
    repeats: f64,
    finds_first: bool,
}

impl InsertStrategy {
    /// Whether to look before inserting.
    pub(super) fn finds_first(&self) -> bool {
        self.finds_first
    }

    /// Notes how many of so many cookies were there already.
    pub(super) fn observe(&mut self, cookies: usize, repeats: usize) {
        let as_f64 = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        self.cookies = self.cookies * MEMORY + as_f64(cookies);
        self.repeats = self.repeats * MEMORY + as_f64(repeats);
        let share = self.repeats / self.cookies.max(1.0);
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
    fn strategy_changes_with_the_share_and_not_between_its_bounds() {
        let mut strategy = InsertStrategy::default();
        assert!(!strategy.finds_first());
        for _ in 0..50 {
            strategy.observe(1_000, 70);
        }
        assert!(!strategy.finds_first(), "7 % do not turn it");
        strategy.observe(1_000, 800);
        assert!(strategy.finds_first());
        for _ in 0..50 {
            strategy.observe(1_000, 70);
        }
        assert!(strategy.finds_first(), "nor back");
        for _ in 0..10 {
            strategy.observe(1_000, 0);
        }
        assert!(!strategy.finds_first());
        strategy.observe(0, 0);
        assert!(!strategy.finds_first());
    }
}
