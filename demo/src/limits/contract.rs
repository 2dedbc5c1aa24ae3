//! What the DSP may send: the file of limits, as it is first and after its change.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::running::flags;

/// The DSP that sends.
pub(super) const DSP_ID: u32 = 1;
/// Its limit's name.
pub(super) const LIMIT: &str = "dsp-1";
/// What it may send, a second.
pub(super) const RATE: u64 = 300;
/// What it may send from half time on, a second.
pub(super) const CHANGED_RATE: u64 = 450;

/// The file of limits, and where what waits at the end is kept.
pub(super) struct Contract {
    pub(super) file: PathBuf,
    spool: PathBuf,
    /// How long is sent.
    pub(super) sending: Duration,
    /// The longest wait that is planned.
    pub(super) horizon: Duration,
    /// What is older is a dead letter.
    pub(super) max_age: Duration,
}

impl Contract {
    /// Of 180 s of sending, the horizon is 30 s and the greatest age 60 s, as is the default; of less, less.
    pub(super) fn new(folder: &Path, seconds: u64) -> Self {
        let sending = Duration::from_secs(seconds);
        Self {
            file: folder.join("limits.toml"),
            spool: folder.join("limits.spool"),
            sending,
            horizon: sending / 6,
            max_age: sending / 3,
        }
    }

    /// What a producer under this contract is told.
    pub(super) fn flags(&self) -> Vec<String> {
        flags([
            ("--limits", self.file.display().to_string()),
            ("--limits-spool", self.spool.display().to_string()),
        ])
    }

    /// Writes the file with this rate; a reader sees either all of it or what was before.
    ///
    /// # Errors
    /// When that is not possible.
    pub(super) fn write(&self, rate: u64) -> Result<()> {
        let [horizon, max_age] = [self.horizon, self.max_age].map(|time| time.as_millis());
        let text = format!(
            "# Change it while the producer runs, and look at what it does: a second later it is in force.\n\
             unknown = \"unlimited\"\n\n\
             [limits.{LIMIT}]\n\
             keys = [{DSP_ID}]\n\
             rules = [ {{ id = \"peak\", rate = \"{rate}/s\", burst = 5 }} ]\n\
             mode = \"shape\"\n\
             shape = {{ horizon = \"{horizon}ms\", max_age = \"{max_age}ms\" }}\n\
             dead_letter = {{ base = \"{horizon}ms\" }}\n"
        );
        let new = self.file.with_extension("new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        written.with_context(|| format!("cannot write {}", self.file.display()))
    }

    /// Says where what waited is, now that the producer has ended.
    pub(super) fn tell_spool(&self) {
        if self.spool.exists() {
            let spool = self.spool.display();
            println!("what still waited is kept in {spool}, for a next start");
        }
    }
}
