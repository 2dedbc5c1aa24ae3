//! The settings of which DSPs there are, which of them have metrics of their own, and what becomes of others.

use std::collections::BTreeSet;

use clap::ArgAction;
use proto::ids;
use runtime::settings::{ConfigErrors, RELOADED, count};

use crate::edge::dsps::{SHOWN_MAX, Shown};

/// The settings, a field for each.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSPs")]
pub(super) struct DspsArgs {
    /// Known DSPs, each with its own metric series (repeatable or comma-separated). Others are counted as `other`
    ///
    /// At most 1024. If unset, the first --dsp-series-max DSPs seen get their own series.
    #[arg(
        long,
        group = RELOADED,
        value_name = "DSP",
        value_delimiter = ',',
        value_parser = parse_dsp
    )]
    dsps: Vec<Option<u32>>,

    /// How to handle cookies of DSPs not listed in --dsps: accept, or reject with 400
    ///
    /// `refuse` requires --dsps.
    #[arg(
        long,
        group = RELOADED,
        value_name = "accept|refuse",
        default_value = "accept",
        action = ArgAction::Set, value_parser = parse_unknown
    )]
    unknown_dsps: bool,

    /// Maximum number of DSPs with their own metric series if --dsps is unset; the rest are counted as `other`
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "64",
        hide_short_help = true,
        value_parser = count(0..=SHOWN_MAX)
    )]
    dsp_series_max: usize,
}

impl DspsArgs {
    /// What they mean; notes what is wrong between them.
    pub(super) fn check(self, errors: &mut ConfigErrors) -> Shown {
        let named: BTreeSet<_> = self.dsps.into_iter().flatten().collect();
        if named.len() > SHOWN_MAX {
            errors.add(format!(
                "--dsps: {} DSPs, but at most {SHOWN_MAX} may be named",
                named.len()
            ));
        }
        if self.unknown_dsps && named.is_empty() {
            errors.add("--unknown-dsps: to refuse needs --dsps, or every request would be refused");
        }
        Shown {
            named,
            max: self.dsp_series_max,
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
