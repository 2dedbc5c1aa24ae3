//! The file of limits: which DSPs are under which, and what is done with what is over them.

use std::sync::Arc;

use limits::rules::{Mode, Rules, Unknown};
use proto::ids;
use runtime::reload::{NamedFile, Reloaded, Source};

use super::{shaper::DSPS_MAX, sharing};

/// The newest good version of the file.
pub type LimitsFile = Arc<Reloaded<File>>;

/// A file of limits, in the form that [`limits::rules`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Rules;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Rules, Vec<String>> {
        let wrong = |mistakes: Vec<String>| -> Vec<String> {
            let named = mistakes.iter().map(|mistake| self.0.mistake(mistake));
            named.collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| wrong(vec!["is not text".to_owned()]))?;
        let rules = Rules::parse(text).map_err(|mistakes| wrong(mistakes.0))?;
        let mistakes = check(&rules);
        if mistakes.is_empty() {
            Ok(rules)
        } else {
            Err(wrong(mistakes))
        }
    }
}

/// What a producer cannot go by, though the rules are in order.
pub(super) fn check(rules: &Rules) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut dsps = 0;
    for limit in &rules.limits {
        for key in &limit.keys {
            dsps += 1;
            // The number as it is written elsewhere too: `017` would be another key.
            let is_dsp = |dsp: &u32| ids::is_dsp_id(*dsp) && dsp.to_string() == *key;
            if key.parse().ok().filter(is_dsp).is_none() {
                mistakes.push(format!(
                    "limits.{}: `{}` is not a DSP, which is a number from 1 to 4294967295: name them, as in keys = [17]",
                    limit.name,
                    key.escape_debug()
                ));
            }
        }
    }
    if rules.unknown == Unknown::Refuse {
        mistakes.push(
            "unknown: name the limit that all other DSPs share, or \"unlimited\"; \
             who is to refuse unknown DSPs sets --unknown-dsps"
                .to_owned(),
        );
    }
    if let Some(whole) = rules.limits.iter().find(|limit| limit.every_call)
        && rules.unknown == Unknown::Unlimited
    {
        mistakes.push(format!(
            "unknown: what is unlimited would not count under {}, which is of every cookie: name the limit that all other DSPs share",
            whole.name
        ));
    }
    if let Some(shared) = &rules.sharing {
        mistakes.extend(sharing::check(rules, shared));
    }
    if dsps > DSPS_MAX {
        mistakes.push(format!("{dsps} DSPs are more than {DSPS_MAX}"));
    }
    mistakes
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
