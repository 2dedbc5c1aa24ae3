//! The responses to valid matches. The contract of a DSP selects one of them.

use serde::{Deserialize, Serialize};

/// What a browser gets for a valid match. Without contracts, it is `Empty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Status 200 without a body.
    #[default]
    Empty,
    /// Status 204.
    None,
    /// A transparent pixel.
    Gif,
    /// A transparent pixel.
    Png,
    /// A constant object, for scripts.
    Json,
    /// A redirect to the DSP.
    Redirect,
    /// An empty page, for frames.
    Html,
}
