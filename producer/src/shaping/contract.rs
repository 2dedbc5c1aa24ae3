//! The file of limits: which DSPs are under which, and what is done with what is over them.

use std::sync::Arc;

use limits::rules::{Mode, Rules, Unknown};
use limits_sharing::dsp_limits;
use runtime::reload::{NamedFile, Reloader, Source};

/// The newest good version of the file.
pub type LimitsFile = Arc<Reloader<File>>;

/// A file of limits, in the form that [`limits::rules`] reads and [`dsp_limits::check`] accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Rules;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Rules, Vec<String>> {
        let wrong = |errors: Vec<String>| -> Vec<String> {
            let named = errors.iter().map(|error| self.0.error(error));
            named.collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| wrong(vec!["is not text".to_owned()]))?;
        let rules = Rules::parse(text).map_err(|errors| wrong(errors.0))?;
        let errors = dsp_limits::check(&rules);
        if errors.is_empty() {
            Ok(rules)
        } else {
            Err(wrong(errors))
        }
    }
}

/// Most bytes that all waiting rooms may take: the bound of each, one for each DSP that is named, and one for all others.
pub(crate) fn held_bytes_max(rules: &Rules) -> u64 {
    let others = |index| u64::from(rules.unknown == Unknown::Limit(index));
    let limits = rules.limits.iter().enumerate();
    let shaped = limits.filter(|(_, limit)| limit.handling.mode == Mode::Shape);
    let rooms = shaped.map(|(index, limit)| {
        let count = limit.keys.len() as u64 + others(index);
        limit.handling.queue_bytes.saturating_mul(count)
    });
    rooms.fold(0, u64::saturating_add)
}
