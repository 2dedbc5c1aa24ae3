//! Decides whether a match may be stored. The first signal that refuses it determines the outcome.

use std::{iter, num::NonZeroU16};

use super::{
    bits::Malformed,
    config::{
        Action, Config, Coppa, Country, GdprWhenAbsent, GpcScope, Mode, RefuseWhen, Sections,
    },
    gpp::{self, SectionIds},
    outcome::Outcome,
    signals::Signals,
    tcf::{self, Vendor},
    us,
};

impl Signals<'_> {
    /// Whether the signals in a query are well-formed, and contain a consent string if GDPR applies. The string is not
    /// evaluated.
    pub fn are_complete(&self) -> bool {
        let config = Config::default();
        let consent_string = || {
            let ids = SectionIds::parse(self.gpp_sid)?;
            let gpp = config.sections(self)?;
            config.consent_string(self, ids, gpp.as_ref())
        };
        consent_string().is_ok_and(|text| text != Some(""))
    }
}

impl Config {
    /// Decides whether a match of a DSP with this vendor id and rule may be stored. In mode `off`, only the rule counts.
    pub fn decide(
        &self,
        signals: &Signals<'_>,
        dsp_vendor: Option<NonZeroU16>,
        dsp_rule: &RefuseWhen,
    ) -> Outcome {
        if signals.opted_out {
            return Outcome::OptedOut;
        }
        if self.has_rule_for(dsp_rule, signals) {
            return Outcome::DspRule;
        }
        let mut vendors = [self.host_vendor, dsp_vendor].map(Vendor::new);
        self.judge(signals, &mut vendors);
        let [_, Vendor { outcome, .. }] = vendors;
        outcome
    }

    /// Whether matches of DSPs with these vendor ids and without rules may be stored, in the order of the ids. The consent string
    /// is read once.
    pub(crate) fn permits(
        &self,
        signals: &Signals<'_>,
        dsp_vendors: impl Iterator<Item = Option<NonZeroU16>>,
    ) -> Vec<bool> {
        let exchange = iter::once(self.host_vendor);
        let mut vendors: Vec<_> = exchange.chain(dsp_vendors).map(Vendor::new).collect();
        self.judge(signals, &mut vendors);
        vendors.iter().skip(1).map(Vendor::is_permitted).collect()
    }

    /// Whether one of the conditions of a rule applies. A malformed signal counts as each of them.
    pub(crate) fn has_rule_for(&self, rule: &RefuseWhen, signals: &Signals<'_>) -> bool {
        self.applies(rule, signals).unwrap_or(true)
    }

    /// Whether the exchange itself may store anything in the browser.
    pub(crate) fn decide_for_host(&self, signals: &Signals<'_>) -> Outcome {
        self.decide(signals, self.host_vendor, &RefuseWhen::default())
    }

    /// Whether a match with this outcome is refused, unless it is that of a rule. Matches with the opt-out cookie have their own
    /// response, in every mode.
    pub fn refuses(&self, outcome: Outcome) -> bool {
        self.mode == Mode::Enforce && !matches!(outcome, Outcome::Allowed | Outcome::OptedOut)
    }

    /// Decides about the exchange and DSPs without rules.
    fn judge(&self, signals: &Signals<'_>, vendors: &mut [Vendor]) {
        let of_all = match self.mode {
            _ if signals.opted_out => Some(Outcome::OptedOut),
            Mode::Off => Some(Outcome::Allowed),
            _ => {
                let refusal = self.refusal_of_all(signals, vendors);
                refusal.unwrap_or(Some(Outcome::Malformed))
            }
        };
        if let Some(outcome) = of_all {
            tcf::set_all(vendors, outcome);
        }
    }

    /// The outcome for all vendors, if they have the same; otherwise sets that of each.
    fn refusal_of_all(
        &self,
        signals: &Signals<'_>,
        vendors: &mut [Vendor],
    ) -> Result<Option<Outcome>, Malformed> {
        if signals.gpc && self.gpc == GpcScope::Deny {
            return Ok(Some(Outcome::Gpc));
        }
        let gpc_of_us = signals.gpc && self.gpc == GpcScope::Us;
        if gpc_of_us && signals.country == Some(Country::US) {
            return Ok(Some(Outcome::Gpc));
        }
        let ids = self.tolerate(SectionIds::parse(signals.gpp_sid))?;
        if gpc_of_us && us::SECTIONS.into_iter().any(|id| ids.contains(id)) {
            return Ok(Some(Outcome::Gpc));
        }
        if self.coppa == Coppa::Deny && self.tolerate(flag(signals.coppa))? == Some(true) {
            return Ok(Some(Outcome::Coppa));
        }
        let gpp = self.sections(signals)?;
        match self.consent_string(signals, ids, gpp.as_ref())? {
            Some(text) => self.consent(text, vendors)?,
            None => tcf::set_all(vendors, Outcome::Allowed),
        }
        if vendors.iter().skip(1).any(Vendor::is_permitted)
            && self.us_opts_out(signals, ids, gpp.as_ref())?
        {
            let permitted = vendors.iter_mut().filter(|it| it.is_permitted());
            permitted.for_each(|it| it.outcome = Outcome::UsOptOut);
        }
        Ok(None)
    }

    /// Whether one of the conditions of a DSP's rule applies.
    fn applies(&self, rule: &RefuseWhen, signals: &Signals<'_>) -> Result<bool, Malformed> {
        if *rule == RefuseWhen::default() {
            return Ok(false);
        }
        let ids = self.tolerate(SectionIds::parse(signals.gpp_sid))?;
        if rule.gdpr && self.gdpr_applies(signals, ids)? {
            return Ok(true);
        }
        let mut refused = rule.gpp_sid.iter();
        if ids.is_empty() && self.us.without_sid == Sections::All {
            let gpp = self.sections(signals)?;
            return Ok(gpp.is_some_and(|gpp| refused.any(|id| !gpp.section(id).is_empty())));
        }
        Ok(refused.any(|id| ids.contains(id)))
    }

    fn sections<'a>(&self, signals: &Signals<'a>) -> Result<Option<gpp::Sections<'a>>, Malformed> {
        match signals.gpp {
            "" => Ok(None),
            text => self.tolerate(gpp::Sections::parse(text).map(Some)),
        }
    }

    /// The consent string, empty if it is missing; `None` if GDPR does not apply.
    fn consent_string<'a>(
        &self,
        signals: &Signals<'a>,
        ids: SectionIds,
        gpp: Option<&gpp::Sections<'a>>,
    ) -> Result<Option<&'a str>, Malformed> {
        let section = gpp.map_or("", |gpp| gpp.section(gpp::TCF_EU));
        let text = match section {
            "" => signals.gdpr_consent,
            text => text,
        };
        Ok(self.gdpr_applies(signals, ids)?.then_some(text))
    }

    fn gdpr_applies(&self, signals: &Signals<'_>, ids: SectionIds) -> Result<bool, Malformed> {
        if !ids.is_empty() {
            return Ok(ids.contains(gpp::TCF_EU));
        }
        let when_absent = || match self.gdpr_when_absent {
            GdprWhenAbsent::No => false,
            GdprWhenAbsent::Yes => true,
            GdprWhenAbsent::Country => signals.country.is_some_and(Country::has_gdpr),
        };
        Ok(self
            .tolerate(flag(signals.gdpr))?
            .unwrap_or_else(when_absent))
    }

    fn consent(&self, text: &str, vendors: &mut [Vendor]) -> Result<(), Malformed> {
        let judged = match text {
            "" => None,
            text => self.tolerate(tcf::judge(text, self, vendors).map(Some))?,
        };
        if judged.is_none() {
            tcf::set_all(vendors, Outcome::ConsentMissing);
        }
        Ok(())
    }

    fn us_opts_out(
        &self,
        signals: &Signals<'_>,
        ids: SectionIds,
        gpp: Option<&gpp::Sections<'_>>,
    ) -> Result<bool, Malformed> {
        if let Some(gpp) = gpp {
            let counts_gpc = self.gpc != GpcScope::Ignore;
            let judges_all = ids.is_empty() && self.us.without_sid == Sections::All;
            for id in us::SECTIONS.filter(|&id| judges_all || ids.contains(id)) {
                let text = gpp.section(id);
                if !text.is_empty()
                    && self.tolerate(us::opts_out(id, text, &self.us, counts_gpc))?
                {
                    return Ok(true);
                }
            }
        }
        match signals.us_privacy {
            "" => Ok(false),
            text => self.tolerate(us::us_privacy_opts_out(text, &self.us)),
        }
    }

    /// Replaces a malformed signal with the value of an absent signal, if so configured.
    fn tolerate<T: Default>(&self, signal: Result<T, Malformed>) -> Result<T, Malformed> {
        match self.malformed {
            Action::Deny => signal,
            Action::Ignore => Ok(signal.unwrap_or_default()),
        }
    }
}

/// The value of a flag; `None` if it is absent.
fn flag(signal: &str) -> Result<Option<bool>, Malformed> {
    match signal {
        "" => Ok(None),
        "0" => Ok(Some(false)),
        "1" => Ok(Some(true)),
        _ => Err(Malformed),
    }
}
