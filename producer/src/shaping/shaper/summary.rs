//! What was counted of a limit, over all of its rooms.

use std::collections::BTreeMap;

use limits::rules::Mode;

use super::NamedRoom;
use crate::shaping::figures::{DeadReason, Figures, Holding};

/// What was counted of a limit, and what is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Summary {
    /// Of all its rooms.
    pub(crate) figures: Figures,
    /// The same.
    pub(crate) holding: Holding,
    /// By rule.
    pub(crate) rules: BTreeMap<String, RuleFigures>,
    /// What the file says of it; none when the file does not name it any more.
    pub(crate) mode: Option<Mode>,
}

/// What was counted of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuleFigures {
    /// How often a cookie had to wait for it, and how often for too long.
    pub(crate) over: [u64; 2],
    /// How often one that waited for it became a dead letter, by reason.
    pub(crate) dead_letters: [u64; DeadReason::ALL.len()],
}

impl Summary {
    pub(super) fn add(&mut self, place: &NamedRoom) {
        self.figures.add(&place.room.figures);
        self.add_rules(&place.rules, &place.room.figures);
    }

    pub(super) fn add_rules(&mut self, rules: &[String], figures: &Figures) {
        let counted = figures.over().iter().zip(figures.dead_letters());
        for (rule, (over, dead_letters)) in rules.iter().zip(counted) {
            let known = self.rules.entry(rule.clone()).or_default();
            for (known, more) in known.over.iter_mut().zip(over) {
                *known += more;
            }
            for (known, more) in known.dead_letters.iter_mut().zip(dead_letters) {
                *known += more;
            }
        }
    }
}
