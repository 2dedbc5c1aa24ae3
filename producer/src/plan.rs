//! Sync plans: to which DSPs a browser is sent next.
//!
//! A page asks for a plan (`POST /cookie_sync`, as Prebid Server's), and calls the URLs in it. Each DSP returns to `/setuid`
//! with its id. [`plan()`] chooses the DSPs from the [contracts](crate::contracts), the [`Request`], the privacy signals, and the
//! [`Hints`] that the browser keeps in a cookie: nothing is stored here. It does no I/O; [`edge`](crate::edge) does.

pub mod hints;
pub mod metrics;
pub mod request;

use std::{borrow::Cow, collections::HashSet};

use fastrand::Rng;
use foldhash::fast::RandomState;
use proto::units::DspId;

pub use self::{
    hints::Hints,
    request::{Filter, Request},
};
use crate::contracts::{
    Contract, Contracts, State,
    privacy::Signals,
    redirect::{URL_BYTES_MAX, Values, encode},
    sync::Sync,
};

/// Usual bytes of a URL without its URL to return to: buffers of this size rarely grow.
const URL_BYTES_USUAL: usize = 1_024;

/// Bytes in an answer for each offer, and for the answer itself, besides URL and name.
pub const OFFER_BYTES: usize = 80;

/// How a browser calls a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As an image.
    Image,
    /// In a frame.
    Iframe,
}

/// A DSP that a plan contains.
#[derive(Debug)]
pub struct Offer<'a> {
    /// The DSP.
    pub dsp_id: DspId,
    /// Its settings.
    pub sync: &'a Sync,
    /// How to call the URL.
    pub kind: Kind,
    /// The URL.
    pub url: String,
}

/// Why a plan does not contain a DSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No DSP has this name.
    Unknown,
    /// The DSP has no settings of syncs.
    NoSync,
    /// Its contract blocks it.
    Blocked,
    /// The request excludes it, or each kind for which it has a URL.
    Filter,
    /// A law applies under which it is not offered.
    Scope,
    /// The country is not one of its countries.
    Country,
    /// The privacy signals do not permit it.
    Privacy,
    /// Its last match is newer than its time of refresh.
    InSync,
    /// It was offered often enough today.
    DailyLimit,
    /// Its sample does not contain this plan.
    NotSampled,
    /// Its URL would be too long.
    UrlTooLong,
    /// The plan has enough DSPs.
    OverLimit,
    /// The browser has no user id.
    NoUserId,
}

impl Reason {
    /// The text for a publisher's engineer.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unknown => "Unsupported bidder",
            Self::NoSync => "No sync config",
            Self::Blocked => "Sync disabled by config",
            Self::Filter => "Rejected by request filter",
            Self::Scope => "Rejected by regulation scope",
            Self::Country => "Rejected by country",
            Self::Privacy => "Rejected by privacy",
            Self::InSync => "Already in sync",
            Self::DailyLimit => "Daily limit reached",
            Self::NotSampled => "Not sampled",
            Self::UrlTooLong => "URL too long",
            Self::OverLimit => "Limit reached",
            Self::NoUserId => "No user id",
        }
    }
}

/// A DSP that a plan does not contain: its name, its id if it is known, and the reason.
pub type LeftOut<'a> = (Cow<'a, str>, Option<DspId>, Reason);

/// A plan.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// The DSPs, in the order in which to call them.
    pub offers: Vec<Offer<'a>>,
    /// The other DSPs that the request is about.
    pub left_out: Vec<LeftOut<'a>>,
    /// Whether the browser has a match that is new enough with any DSP.
    pub is_in_sync: bool,
}

/// A DSP that a plan may contain.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    dsp_id: DspId,
    contract: &'a Contract,
    sync: &'a Sync,
}

/// What a plan depends on, apart from the hints.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The contracts, with settings of plans.
    pub contracts: &'a Contracts,
    /// What the page asks for.
    pub request: &'a Request<'a>,
    /// The privacy signals of the request.
    pub signals: &'a Signals<'a>,
    /// The day since 1970 in UTC, modulo 256.
    pub day: u8,
    /// Maximum bytes of all URLs, with [`OFFER_BYTES`] and a name each.
    pub bytes_max: usize,
}

/// Chooses the DSPs for a browser with a user id, and counts their offers in `hints`.
pub fn plan<'a>(context: &Context<'a>, hints: &mut Hints, rng: &mut Rng) -> Plan<'a> {
    let Context { contracts, day, .. } = *context;
    let mut plan = Plan {
        left_out: Vec::with_capacity(contracts.synced.len()),
        ..Plan::default()
    };
    plan.is_in_sync = hints.has_any_in_sync(day, contracts);
    let limit = context.limit();
    let return_signals = return_signals(context.signals);
    let mut bytes_left = context.bytes_max.saturating_sub(OFFER_BYTES);
    if return_signals.is_none() {
        // No URL would be short enough, and the checks of such long signals take time.
        plan.left_out = nothing(context, Reason::UrlTooLong, rng).left_out;
        return plan;
    }
    let candidates = context.candidates(&mut plan.left_out, rng);
    let vendors = candidates.iter().map(|it| it.contract.vendor);
    let permitted = contracts.privacy.permits(context.signals, vendors);
    for (candidate, is_permitted) in candidates.into_iter().zip(permitted) {
        let is_full = plan.offers.len() >= limit;
        let offered = context
            .check(&candidate, is_permitted, hints, rng)
            .and_then(|kind| {
                // A URL that will not be needed costs more than all checks.
                if is_full && !context.request.debug {
                    return Err(Reason::OverLimit);
                }
                let url = candidate.url(kind, context.signals, return_signals.as_deref());
                let url = url.ok_or(Reason::UrlTooLong)?;
                let bytes = url.len() + candidate.sync.json_name.len() + OFFER_BYTES;
                if is_full || bytes > bytes_left {
                    return Err(Reason::OverLimit);
                }
                bytes_left -= bytes;
                Ok((kind, url))
            });
        match offered {
            Ok((kind, url)) => {
                hints.offer(candidate.dsp_id, day);
                plan.offers.push(Offer {
                    dsp_id: candidate.dsp_id,
                    sync: candidate.sync,
                    kind,
                    url,
                });
            }
            Err(reason) => plan.left_out.push(candidate.left_out(reason)),
        }
    }
    plan
}

/// A plan without DSPs, for the same reason for each.
pub fn nothing<'a>(context: &Context<'a>, reason: Reason, rng: &mut Rng) -> Plan<'a> {
    let mut plan = Plan::default();
    for candidate in context.candidates(&mut plan.left_out, rng) {
        plan.left_out.push(candidate.left_out(reason));
    }
    plan
}

impl<'a> Context<'a> {
    /// Maximum number of DSPs.
    fn limit(&self) -> usize {
        let Some(plan) = &self.contracts.plan else {
            return 0;
        };
        match self.request.limit.map(usize::try_from) {
            None => plan.limit,
            Some(Ok(limit)) if (1..=plan.limit_max).contains(&limit) => limit,
            Some(_) => plan.limit_max,
        }
    }

    /// The DSPs that the request is about, in the order in which they are considered: first those that it names, then each group,
    /// then all others. Within these steps, the order is random, as if DSPs were drawn one by one with their weights.
    fn candidates(&self, left_out: &mut Vec<LeftOut<'a>>, rng: &mut Rng) -> Vec<Candidate<'a>> {
        let Self {
            contracts, request, ..
        } = *self;
        let mut ranked = Vec::with_capacity(contracts.synced.len());
        let mut rank = |step: u8, dsp_id, contract: &'a Contract, sync: &'a Sync| {
            // Of times with exponential distributions, the smallest is that of a DSP with a probability in proportion to its weight.
            let time = -(1.0 - rng.f64()).ln() / f64::from(sync.weight);
            let candidate = Candidate {
                dsp_id,
                contract,
                sync,
            };
            ranked.push((step, time, candidate));
        };
        let mut named: HashSet<DspId, RandomState> = HashSet::default();
        let mut unknown: HashSet<&str, RandomState> = HashSet::default();
        for name in &request.bidders {
            let dsp_id = contracts.by_name.get(&name.to_lowercase());
            match dsp_id.map(|dsp_id| (*dsp_id, contracts.of(*dsp_id))) {
                None if unknown.insert(name) => {
                    left_out.push((Cow::Borrowed(name), None, Reason::Unknown));
                }
                Some((dsp_id, contract)) if named.insert(dsp_id) => match &contract.sync {
                    Some(sync) => rank(0, dsp_id, contract, sync),
                    None => {
                        let name = Cow::Borrowed(&*contract.name);
                        left_out.push((name, Some(dsp_id), Reason::NoSync));
                    }
                },
                _ => {}
            }
        }
        let takes_others = contracts.plan.as_ref().is_some_and(|plan| plan.others);
        if request.bidders.is_empty() || request.coop_sync.unwrap_or(takes_others) {
            for dsp_id in contracts.synced.iter().filter(|it| !named.contains(it)) {
                let contract = contracts.of(*dsp_id);
                if let Some(sync) = &contract.sync {
                    rank(sync.group, *dsp_id, contract, sync);
                }
            }
        }
        ranked.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        ranked
            .into_iter()
            .map(|(_, _, candidate)| candidate)
            .collect()
    }

    /// Checks a DSP, apart from its URL and the limit. `is_permitted`: the user permits its vendor to store something.
    ///
    /// # Errors
    /// The first reason to leave it out.
    fn check(
        &self,
        candidate: &Candidate<'_>,
        is_permitted: bool,
        hints: &Hints,
        rng: &mut Rng,
    ) -> Result<Kind, Reason> {
        let Self {
            signals, request, ..
        } = self;
        let Candidate {
            dsp_id,
            contract,
            sync,
        } = *candidate;
        let privacy = &self.contracts.privacy;
        if contract.state == State::Blocked {
            return Err(Reason::Blocked);
        }
        let permits = |filter: &Filter| filter.permits(dsp_id);
        let kind = if sync.image.is_some() && permits(&request.image) {
            Kind::Image
        } else if sync.iframe.is_some() && permits(&request.iframe) {
            Kind::Iframe
        } else {
            return Err(Reason::Filter);
        };
        let has_country = || {
            signals
                .country
                .is_some_and(|it| sync.countries.contains(&it))
        };
        let reason = if privacy.has_rule_for(&sync.skip, signals) {
            Reason::Scope
        } else if !(sync.countries.is_empty() || has_country()) {
            Reason::Country
        } else if !is_permitted || privacy.has_rule_for(&contract.refuse_when, signals) {
            Reason::Privacy
        } else if hints.is_in_sync(dsp_id, self.day, sync.refresh) {
            Reason::InSync
        } else if hints.offers(dsp_id, self.day) >= sync.per_day {
            Reason::DailyLimit
        } else if rng.f64() >= sync.sample {
            Reason::NotSampled
        } else {
            return Ok(kind);
        };
        Err(reason)
    }
}

impl<'a> Candidate<'a> {
    fn left_out(&self, reason: Reason) -> LeftOut<'a> {
        (
            Cow::Borrowed(&*self.contract.name),
            Some(self.dsp_id),
            reason,
        )
    }

    /// The URL; `None` if it is too long. `return_signals` are too long if they are `None`.
    fn url(
        &self,
        kind: Kind,
        signals: &Signals<'_>,
        return_signals: Option<&str>,
    ) -> Option<String> {
        let (template, format) = match kind {
            Kind::Image => (self.sync.image.as_ref(), "i"),
            Kind::Iframe => (self.sync.iframe.as_ref(), "b"),
        };
        let values = Values {
            return_url: &self.sync.return_url(return_signals?, format),
            signals: *signals,
            ..Values::default()
        };
        let mut url = Vec::with_capacity(values.return_url.len() + URL_BYTES_USUAL);
        let is_rendered = template?.render(&values, &mut url);
        is_rendered.then(|| String::from_utf8(url).ok()).flatten()
    }
}

/// The parameters of the signals in a URL to return to, with the name of the parameter that follows them, percent-encoded twice;
/// `None` if they are too long for a URL.
fn return_signals(signals: &Signals<'_>) -> Option<String> {
    let bytes = 2 * (signals.gdpr_consent.len() + signals.gpp.len()) + URL_BYTES_USUAL;
    let mut query = Vec::with_capacity(bytes);
    let mut encoded = Vec::with_capacity(bytes);
    for (name, value) in [
        ("&gdpr=", signals.gdpr),
        ("&gdpr_consent=", signals.gdpr_consent),
        ("&us_privacy=", signals.us_privacy),
        ("&gpp=", signals.gpp),
        ("&gpp_sid=", signals.gpp_sid),
        ("&f=", ""),
    ] {
        query.extend_from_slice(name.as_bytes());
        encode(value, URL_BYTES_MAX, &mut query);
    }
    encode(str::from_utf8(&query).ok()?, URL_BYTES_MAX, &mut encoded);
    (encoded.len() <= URL_BYTES_MAX).then(|| String::from_utf8(encoded).ok())?
}

#[cfg(test)]
mod tests;
