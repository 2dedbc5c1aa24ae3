//! Settings of [sync plans](crate::plan): which DSPs a browser may be sent to, from which pages, and how often.

use std::{collections::HashSet, fmt, time::Duration};

use foldhash::fast::RandomState;
use runtime::settings::format_time;

use super::{
    privacy::{Country, RefuseWhen},
    redirect::Template,
};

/// The group of DSPs without one: after all groups.
pub(super) const LAST_GROUP: u8 = 10;

/// `[plan]`.
#[derive(Debug, Clone)]
pub struct PlanSettings {
    /// The public URL of the producers, without a slash at its end.
    pub base: String,
    /// The pages that may ask for a plan.
    pub(super) origins: Origins,
    /// Maximum number of syncs in a plan, unless the request states another number.
    pub limit: usize,
    /// Maximum number that a request may state.
    pub limit_max: usize,
    /// Whether a plan contains DSPs that the request does not name, unless the request states it.
    pub others: bool,
}

impl PlanSettings {
    /// Whether pages of this origin may ask for a plan.
    pub fn permits(&self, origin: &[u8]) -> bool {
        str::from_utf8(origin).is_ok_and(|origin| self.origins.contain(origin))
    }
}

impl fmt::Display for PlanSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            base,
            origins,
            limit,
            limit_max,
            ..
        } = self;
        let others = if self.others { "and" } else { "but not" };
        let origins = origins.exact.len() + origins.parents.len();
        write!(
            formatter,
            "plans of {limit} DSPs (up to {limit_max} on request), named ones {others} others, for {origins} origins, at {base}"
        )
    }
}

/// Origins of pages.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    /// As browsers send them.
    pub(super) exact: HashSet<String, RandomState>,
    /// Hosts, with a port other than the default one, whose subdomains are permitted with `https`.
    pub(super) parents: HashSet<String, RandomState>,
}

/// Maximum bytes of an origin: scheme, host and port.
const ORIGIN_BYTES_MAX: usize = "https://".len() + 253 + ":65535".len();

impl Origins {
    fn contain(&self, origin: &str) -> bool {
        // Each parent of a host is looked up.
        if origin.len() > ORIGIN_BYTES_MAX {
            return false;
        }
        let mut host = origin.strip_prefix("https://").unwrap_or_default();
        if self.exact.contains(origin) {
            return true;
        }
        while let Some((label, parent)) = host.split_once('.') {
            if label.is_empty() {
                return false;
            }
            if self.parents.contains(parent) {
                return true;
            }
            host = parent;
        }
        false
    }
}

/// `[dsp.ID.sync]`: how a browser is sent to a DSP.
#[derive(Debug, Clone)]
pub struct Sync {
    /// URL for an image.
    pub image: Option<Template>,
    /// URL for a frame.
    pub iframe: Option<Template>,
    /// The name of the DSP as JSON.
    pub json_name: String,
    /// The URL to return to, before and after the signals, percent-encoded.
    pub(super) return_url: [String; 2],
    /// The time after a match before the next sync.
    pub refresh: Duration,
    /// Lower groups are first.
    pub group: u8,
    /// The weight within the group.
    pub weight: u16,
    /// The share of plans that consider the DSP.
    pub sample: f64,
    /// Maximum number of syncs on one day (UTC) without a match.
    pub per_day: u8,
    /// Where the DSP is not offered.
    pub skip: RefuseWhen,
    /// The countries in which the DSP is offered; empty for all.
    pub countries: Vec<Country>,
}

impl fmt::Display for Sync {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = [("image", &self.image), ("iframe", &self.iframe)];
        for (kind, template) in urls {
            if let Some(template) = template {
                write!(formatter, "{kind} at {}, ", template.host())?;
            }
        }
        let Self {
            weight, per_day, ..
        } = self;
        match self.group {
            LAST_GROUP => write!(formatter, "no group")?,
            group => write!(formatter, "group {group}")?,
        }
        let refresh = format_time(self.refresh);
        write!(
            formatter,
            ", weight {weight}, {per_day} a day, again after {refresh}"
        )
    }
}

impl Sync {
    /// The URL to which the DSP returns, percent-encoded as a whole. `signals` are the parameters of the signals, with the name of
    /// the parameter that follows them, percent-encoded twice; `format` is the value of that parameter.
    pub fn return_url(&self, signals: &str, format: &str) -> String {
        let [before, after] = &self.return_url;
        [before, signals, format, after].concat()
    }
}
