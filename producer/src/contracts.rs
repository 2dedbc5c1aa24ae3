//! Contracts of DSPs: a contract defines which buyer uids a DSP may send, and how its requests are answered.
//! [`file`](mod@file) reads contracts, and [`verdict`] decides about a match. Knows neither HTTP nor the log.
//!
//! Contracts cost each request one lookup and the check of its buyer uid. Without a file, all DSPs have the default contract.

pub mod answer;
pub mod file;
pub mod origin;
mod plan;
pub mod privacy;
pub mod redirect;
pub mod rejection;
pub mod sync;
pub mod verdict;

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use limits::rules::Rules;
use proto::{
    ids::hygiene::Flaw,
    limits::BUYER_UID_BYTES_MAX,
    units::DspId,
    v1::{DspTimeToLive, TimesToLive},
};
use regex::Regex;
use serde::{Deserialize, Serialize};

use self::{
    answer::Answer,
    redirect::Template,
    sync::{PlanSettings, Sync},
};

/// The contracts of a file.
#[derive(Debug)]
pub struct Contracts {
    by_dsp: HashMap<DspId, Contract, RandomState>,
    /// The DSPs by name, in lower case.
    pub(crate) by_name: HashMap<String, DspId, RandomState>,
    /// The contract of all other DSPs.
    unlisted: Contract,
    /// The rate limits; empty if the file has none.
    pub(crate) limits: Arc<Rules>,
    /// In mode `off` without a table.
    pub(crate) privacy: privacy::Config,
    /// `None` if browsers cannot ask which DSPs are next.
    pub(crate) plan: Option<PlanSettings>,
    /// The DSPs that a plan can contain.
    pub(crate) synced: Vec<DspId>,
}

/// The contract of one DSP, or of all unlisted DSPs.
#[derive(Debug, Clone)]
pub struct Contract {
    /// The name of the DSP; empty without one.
    pub name: String,
    /// All names of the DSP, for `/setuid`.
    names: Arc<[String]>,
    /// Which matches are recorded.
    pub state: State,
    /// Id in the vendor list of the IAB.
    pub vendor: Option<NonZeroU16>,
    /// Where the DSP must not sync.
    pub(crate) refuse_when: privacy::RefuseWhen,
    uid_bytes_max: usize,
    uid_pattern: Option<Regex>,
    /// Macros of this DSP that look like an id.
    uid_macro: Arc<[String]>,
    refuse: Vec<Flaw>,
    /// Time to live on the nodes, in whole seconds.
    ttl: Option<Duration>,
    /// The response to a recorded match.
    pub answer: Answer,
    /// The response to a refused match.
    pub refused: RefusedAnswer,
    /// Where `answer = "redirect"` leads.
    pub redirect: Option<Arc<Template>>,
    /// Origins whose scripts may read the responses to syncs with a JSON answer.
    origins: Arc<[String]>,
    /// How plans send browsers to the DSP.
    pub sync: Option<Box<Sync>>,
}

/// Which matches of a DSP are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Matches that its contract permits.
    #[default]
    Allowed,
    /// All valid matches. Those that its contract does not permit are counted.
    Observe,
    /// None.
    Blocked,
    /// None, because the DSP is not listed.
    #[serde(skip)]
    Unknown,
}

/// Response to a browser whose match is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusedAnswer {
    /// An error status with the reason.
    #[default]
    Status,
    /// The answer to an accepted match, without ids.
    Answer,
}

impl State {
    /// The name in the contracts file and in the metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Observe => "observe",
            Self::Blocked => "blocked",
            Self::Unknown => "refused",
        }
    }
}

impl Default for Contract {
    fn default() -> Self {
        Self {
            name: String::new(),
            names: Arc::default(),
            state: State::default(),
            vendor: None,
            refuse_when: privacy::RefuseWhen::default(),
            uid_bytes_max: BUYER_UID_BYTES_MAX,
            uid_pattern: None,
            uid_macro: Arc::default(),
            refuse: vec![Flaw::Macro, Flaw::Sentinel],
            ttl: None,
            answer: Answer::default(),
            refused: RefusedAnswer::default(),
            redirect: None,
            origins: Arc::default(),
            sync: None,
        }
    }
}

impl Default for Contracts {
    /// The default contract for all DSPs, without a privacy check.
    fn default() -> Self {
        Self {
            by_dsp: HashMap::default(),
            by_name: HashMap::default(),
            unlisted: Contract::default(),
            limits: Arc::new(file::NO_LIMITS),
            privacy: privacy::Config {
                mode: privacy::Mode::Off,
                ..privacy::Config::default()
            },
            plan: None,
            synced: Vec::new(),
        }
    }
}

impl Contracts {
    /// The contracts without a file. `accept_placeholders` permits macros and sentinels as buyer uids.
    pub fn without_file(accept_placeholders: bool) -> Self {
        let mut contracts = Self::default();
        if accept_placeholders {
            contracts.unlisted.refuse.clear();
        }
        contracts
    }

    /// The contract that applies to a DSP.
    pub fn of(&self, dsp_id: DspId) -> &Contract {
        self.by_dsp.get(&dsp_id).unwrap_or(&self.unlisted)
    }

    /// The settings of the privacy check; `None` if it is off.
    pub fn privacy(&self) -> Option<&privacy::Config> {
        (self.privacy.mode != privacy::Mode::Off).then_some(&self.privacy)
    }

    /// The times to live, for the nodes.
    pub fn times_to_live(&self) -> TimesToLive {
        let seconds = |contract: &Contract| contract.ttl.map_or(0, |ttl| ttl.as_secs());
        let dsps = self.listed().map(|(dsp_id, contract)| DspTimeToLive {
            dsp_id: dsp_id.0,
            seconds: seconds(contract),
        });
        let mut dsps: Vec<_> = dsps.filter(|dsp| dsp.seconds > 0).collect();
        dsps.sort_unstable_by_key(|dsp| dsp.dsp_id);
        TimesToLive {
            dsps,
            other_seconds: seconds(&self.unlisted),
        }
    }

    /// Whether scripts of pages from this origin may read the responses to the syncs of a DSP, which may be missing or invalid.
    pub fn are_readable_by(&self, origin: &[u8], dsp_id: Option<DspId>) -> bool {
        let contract = dsp_id.map_or(&self.unlisted, |dsp_id| self.of(dsp_id));
        let mut listed = contract.origins.iter();
        contract.answer == Answer::Json && listed.any(|listed| listed.as_bytes() == origin)
    }

    /// Whether the contracts file lists the DSP.
    pub fn lists(&self, dsp_id: DspId) -> bool {
        self.by_dsp.contains_key(&dsp_id)
    }

    /// The DSPs that the contracts file lists.
    pub fn listed(&self) -> impl ExactSizeIterator<Item = (DspId, &Contract)> {
        self.by_dsp
            .iter()
            .map(|(dsp_id, contract)| (*dsp_id, contract))
    }
}

#[cfg(test)]
mod tests;
