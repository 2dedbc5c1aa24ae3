//! Where, when and with what a report was made.

use serde::{Deserialize, Serialize};

/// What one needs to know to repeat a run, or to doubt it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Environment {
    /// When the run began, in UTC: RFC 3339.
    pub started_at: String,
    /// The command line.
    pub command: Vec<String>,
    /// This program's version.
    pub version: String,
    /// The git revision it was built from, with `-dirty` for changes that were not committed; `unknown` where there was none.
    pub revision: String,
    /// `release`, or `dev` for a build whose figures say nothing.
    pub profile: String,
    /// Processor model.
    pub cpu: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub system: String,
    /// Versions of other programs that took part, by name: `mongod`, `redis-server`.
    pub programs: Vec<(String, String)>,
}
