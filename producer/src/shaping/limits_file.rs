//! The limits file: the limits of DSPs, and the handling of cookies above a limit.

use std::sync::Arc;

use limits::rules::{Mode, Rules, Unknown};
use limits_sharing::dsp_limits;
use runtime::reload::{NamedFile, Reloader, Source};

/// The newest valid version of the limits file.
pub type LimitsFile = Arc<Reloader<File>>;

/// A limits file that [`limits::rules`] parses and [`dsp_limits::check`] accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Rules;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Rules, Vec<String>> {
        let with_path = |errors: Vec<String>| -> Vec<String> {
            let errors = errors.iter().map(|error| self.0.error(error));
            errors.collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| with_path(vec!["is not valid UTF-8".to_owned()]))?;
        let rules = Rules::parse(text).map_err(|errors| with_path(errors.0))?;
        let errors = dsp_limits::check(&rules);
        if errors.is_empty() {
            Ok(rules)
        } else {
            Err(with_path(errors))
        }
    }
}

/// Maximum bytes of all queues: `queue_bytes` for each DSP that a shaping limit lists, and once more if that limit applies
/// to all unlisted DSPs.
pub(crate) fn queue_bytes_max(rules: &Rules) -> u64 {
    let unlisted = |index| u64::from(rules.unknown == Unknown::Limit(index));
    let limits = rules.limits.iter().enumerate();
    let shaped = limits.filter(|(_, limit)| limit.handling.mode == Mode::Shape);
    let queues = shaped.map(|(index, limit)| {
        let count = limit.keys.len() as u64 + unlisted(index);
        limit.handling.queue_bytes.saturating_mul(count)
    });
    queues.fold(0, u64::saturating_add)
}
