//! Settings of the known DSPs: their metric series, and the handling of unknown DSPs.

use std::collections::BTreeSet;

use clap::ArgAction;
use proto::ids;
use runtime::settings::{ConfigErrors, RELOADED, count};

use crate::edge::dsps::{DspSeries, LISTED_MAX};

/// The settings as written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSPs")]
pub(super) struct DspsArgs {
    /// Known DSPs (comma-separated, up to 1024), each with its own metric series. Others are counted as `other`
    #[arg(
        long,
        group = RELOADED,
        value_name = "DSP",
        value_delimiter = ',',
        value_parser = parse_dsp
    )]
    dsps: Vec<Option<u32>>,

    /// How to handle cookies of DSPs not listed in --dsps: `accept`, or `refuse` with a 400, which requires --dsps
    #[arg(
        long,
        group = RELOADED,
        value_name = "accept|refuse",
        default_value = "accept",
        action = ArgAction::Set, value_parser = parse_unknown
    )]
    unknown_dsps: bool,

    /// Without --dsps, maximum number of DSPs with their own metric series, first come, first served
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "64",
        hide_short_help = true,
        value_parser = count(0..=LISTED_MAX)
    )]
    dsp_series_max: usize,
}

impl DspsArgs {
    /// Validates the settings; adds all errors to `errors`.
    pub(super) fn check(self, errors: &mut ConfigErrors) -> DspSeries {
        let listed: BTreeSet<_> = self.dsps.into_iter().flatten().collect();
        if listed.len() > LISTED_MAX {
            errors.add(format!(
                "--dsps: lists {} DSPs; the maximum is {LISTED_MAX}",
                listed.len()
            ));
        }
        if self.unknown_dsps && listed.is_empty() {
            errors.add("--unknown-dsps: refuse requires --dsps; every request would be rejected");
        }
        DspSeries {
            listed,
            max: self.dsp_series_max,
            rejects_unlisted: self.unknown_dsps,
        }
    }
}

/// Whether unknown DSPs are rejected.
fn parse_unknown(text: &str) -> Result<bool, String> {
    match text {
        "accept" => Ok(false),
        "refuse" => Ok(true),
        _ => Err(format!("{text:?} is neither accept nor refuse")),
    }
}

/// `None` for an empty list item.
fn parse_dsp(text: &str) -> Result<Option<u32>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(dsp_id) if ids::is_dsp_id(dsp_id) => Ok(Some(dsp_id)),
        _ => Err(format!(
            "invalid DSP id {text:?}: must be a decimal number from 1 to 4294967295"
        )),
    }
}
