//! What was counted of a limit, over all of its rooms.

use limits::rules::Mode;

use crate::shaping::figures::{Figures, Holding};

/// What was counted of a limit, and what is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Summary {
    /// Of all its rooms.
    pub(crate) figures: Figures,
    /// The same.
    pub(crate) holding: Holding,
    /// What the file says of it; none when the file does not name it any more.
    pub(crate) mode: Option<Mode>,
}
