//! The settings of which DSPs have metrics of their own.

use std::collections::BTreeSet;

use cookiesync::process::settings::{Mistakes, number};

use crate::edge::dsps::{SHOWN_MAX, Shown};

/// The settings as they are written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Metrics")]
pub(super) struct DspsArgs {
    /// DSPs that have metrics of their own from the start, repeatable or comma-separated; others get them as they come
    #[arg(long, value_name = "DSP", value_delimiter = ',')]
    dsps: Vec<String>,

    /// Most DSPs that have metrics of their own; the rest is counted together, as `other`
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
        if named.len() > max {
            mistakes.add(format!(
                "--dsps: {} DSPs, but --dsps-shown is {max}",
                named.len()
            ));
        }
        Shown { named, max }
    }
}

fn parse_dsp(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|dsp_id| *dsp_id > 0)
        .ok_or_else(|| format!("`{text}` is no DSP: a decimal from 1 to 4294967295"))
}
