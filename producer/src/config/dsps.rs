//! The settings of which DSPs there are, which of them have metrics of their own, and what becomes of others.

use std::collections::BTreeSet;

use clap::ArgAction;
use proto::ids;
use runtime::settings::{Mistakes, RELOADED, count};

use crate::edge::dsps::{SHOWN_MAX, Shown};

/// The settings, a field for each.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSPs")]
pub(super) struct DspsArgs {
    /// DSPs that are known and have metrics of their own, repeatable or comma-separated; others are counted as `other`
    ///
    /// At most 1024. Without any, those that come first have metrics of their own.
    #[arg(
        long,
        group = RELOADED,
        value_name = "DSP",
        value_delimiter = ',',
        value_parser = parse_dsp
    )]
    dsps: Vec<Option<u32>>,

    /// What becomes of cookies of DSPs that --dsps does not name: accept, or refuse with 400
    ///
    /// To refuse needs a list.
    #[arg(
        long,
        group = RELOADED,
        value_name = "accept|refuse",
        default_value = "accept",
        action = ArgAction::Set, value_parser = parse_unknown
    )]
    unknown_dsps: bool,

    /// Most DSPs that have metrics of their own where --dsps names none; the rest is counted together, as `other`
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "64",
        hide_short_help = true,
        value_parser = count(0..=SHOWN_MAX)
    )]
    dsps_shown: usize,
}

impl DspsArgs {
    /// What they mean; notes what is wrong between them.
    pub(super) fn check(self, mistakes: &mut Mistakes) -> Shown {
        let named: BTreeSet<_> = self.dsps.into_iter().flatten().collect();
        if named.len() > SHOWN_MAX {
            mistakes.add(format!(
                "--dsps: {} DSPs, but at most {SHOWN_MAX} may be named",
                named.len()
            ));
        }
        if self.unknown_dsps && named.is_empty() {
            mistakes
                .add("--unknown-dsps: to refuse needs --dsps, or every request would be refused");
        }
        Shown {
            named,
            max: self.dsps_shown,
            refuses_others: self.unknown_dsps,
        }
    }
}

/// Whether they are refused.
fn parse_unknown(text: &str) -> Result<bool, String> {
    match text {
        "accept" => Ok(false),
        "refuse" => Ok(true),
        _ => Err(format!("{text:?} is neither accept nor refuse")),
    }
}

/// None for an empty part of a list.
fn parse_dsp(text: &str) -> Result<Option<u32>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(dsp_id) if ids::is_dsp_id(dsp_id) => Ok(Some(dsp_id)),
        _ => Err(format!(
            "`{text}` is not a DSP: a decimal from 1 to 4294967295"
        )),
    }
}
