//! What was counted of a limit, over all of its rooms.

use crate::shaping::counters::{Figures, Holding};

/// What was counted of a limit, and what is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Summary {
    /// Of all its rooms.
    pub(crate) figures: Figures,
    /// The same.
    pub(crate) holding: Holding,
}
