//! The settings of which DSPs there are, which of them have metrics of their own, and what becomes of others.

use std::collections::BTreeSet;

use proto::ids;
use runtime::settings::{Mistakes, number};

use crate::edge::dsps::{SHOWN_MAX, Shown};

/// The settings as they are written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSPs")]
pub(super) struct DspsArgs {
    /// DSPs that are known and have metrics of their own, repeatable or comma-separated; others are counted as `other`
    ///
    /// At most 1024. Without any, those that come first have metrics of their own.
    #[arg(long, value_name = "DSP", value_delimiter = ',')]
    dsps: Vec<String>,

    /// What becomes of cookies of DSPs that --dsps does not name: accept, or refuse with 400
    ///
    /// To refuse needs a list.
    #[arg(long, value_name = "accept|refuse", default_value = "accept")]
    unknown_dsps: String,

    /// Most DSPs that have metrics of their own where --dsps names none; the rest is counted together, as `other`
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "64",
        hide_short_help = true
    )]
    dsps_shown: String,
}

impl DspsArgs {
    /// Notes all that is wrong.
    pub(super) fn check(&self, mistakes: &mut Mistakes) -> Shown {
        let max = number(mistakes, "--dsps-shown", &self.dsps_shown, (0, SHOWN_MAX));
        let parts = self.dsps.iter().map(|part| part.trim());
        let named: BTreeSet<_> = parts
            .filter(|part| !part.is_empty())
            .filter_map(|part| mistakes.good("--dsps", parse_dsp(part)))
            .collect();
        if named.len() > SHOWN_MAX {
            mistakes.add(format!(
                "--dsps: {} DSPs, but at most {SHOWN_MAX} may be named",
                named.len()
            ));
        }
        let refuses_others = mistakes.check("--unknown-dsps", parse_unknown(&self.unknown_dsps));
        if refuses_others && self.dsps.iter().all(|part| part.trim().is_empty()) {
            mistakes
                .add("--unknown-dsps: to refuse needs --dsps, or every request would be refused");
        }
        Shown {
            named,
            max,
            refuses_others,
        }
    }
}

fn parse_unknown(text: &str) -> Result<bool, String> {
    match text {
        "accept" => Ok(false),
        "refuse" => Ok(true),
        _ => Err(format!("{text:?} is neither accept nor refuse")),
    }
}

fn parse_dsp(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|dsp_id| ids::is_dsp_id(*dsp_id))
        .ok_or_else(|| format!("`{text}` is no DSP: a decimal from 1 to 4294967295"))
}
