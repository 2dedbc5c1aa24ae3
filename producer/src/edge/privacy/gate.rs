//! The decision. The first signal that refuses a match decides its outcome.

use std::num::NonZeroU16;

use super::{
    Malformed, Signals,
    config::{Action, Config, Country, GdprWhenAbsent, GpcScope, Sections},
    gpp::{self, SectionIds},
    tcf, us,
};

/// What the signals of a request mean for its match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The match may be stored.
    Allowed,
    /// The request has the opt-out cookie.
    OptedOut,
    /// The header `Sec-GPC` forbids it.
    Gpc,
    /// A signal does not follow its format.
    Malformed,
    /// GDPR applies, and the request has no consent string.
    ConsentMissing,
    /// The consent string is not of version 2.
    ConsentVersion,
    /// The user did not consent to purpose 1.
    ConsentPurpose,
    /// The user did not consent to the exchange, or the exchange has no vendor id.
    ConsentVendorHost,
    /// The user did not consent to the DSP, or the DSP has no vendor id.
    ConsentVendorDsp,
    /// The publisher forbids purpose 1 to the exchange or the DSP.
    ConsentRestricted,
    /// The exchange or the DSP was not disclosed to the user.
    ConsentUndisclosed,
    /// The user opted out under a law of the US.
    UsOptOut,
}

impl Outcome {
    /// The values of the metric label, by discriminant.
    pub const LABELS: [&'static str; 12] = [
        "allowed",
        "opted_out",
        "gpc",
        "malformed",
        "consent_missing",
        "consent_version",
        "consent_purpose",
        "consent_vendor_host",
        "consent_vendor_dsp",
        "consent_restricted",
        "consent_undisclosed",
        "us_opt_out",
    ];

    /// Value of the metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

impl Config {
    /// Decides whether a match of a DSP with this vendor id may be stored. The mode has no effect.
    #[must_use]
    pub fn decide(&self, signals: &Signals<'_>, dsp_vendor: Option<NonZeroU16>) -> Outcome {
        let outcome = self.first_refusal(signals, dsp_vendor);
        outcome.unwrap_or(Outcome::Malformed)
    }

    fn first_refusal(
        &self,
        signals: &Signals<'_>,
        dsp_vendor: Option<NonZeroU16>,
    ) -> Result<Outcome, Malformed> {
        if signals.opted_out {
            return Ok(Outcome::OptedOut);
        }
        if signals.gpc && self.gpc == GpcScope::Deny {
            return Ok(Outcome::Gpc);
        }
        let ids = self.tolerate(SectionIds::parse(signals.gpp_sid))?;
        let is_us = || {
            signals.country == Some(Country::US)
                || us::SECTIONS.into_iter().any(|id| ids.contains(id))
        };
        if signals.gpc && self.gpc == GpcScope::Us && is_us() {
            return Ok(Outcome::Gpc);
        }
        let gpp = match signals.gpp {
            "" => None,
            text => self.tolerate(gpp::Sections::parse(text).map(Some))?,
        };
        if self.gdpr_applies(signals, ids)? {
            let section = gpp.as_ref().map_or("", |gpp| gpp.section(gpp::TCF_EU));
            let text = match section {
                "" => signals.gdpr_consent,
                text => text,
            };
            let outcome = self.consent(text, dsp_vendor)?;
            if outcome != Outcome::Allowed {
                return Ok(outcome);
            }
        }
        if self.us_opts_out(signals, ids, gpp.as_ref())? {
            return Ok(Outcome::UsOptOut);
        }
        Ok(Outcome::Allowed)
    }

    fn gdpr_applies(&self, signals: &Signals<'_>, ids: SectionIds) -> Result<bool, Malformed> {
        if !ids.is_empty() {
            return Ok(ids.contains(gpp::TCF_EU));
        }
        let parameter = match signals.gdpr {
            "" => Ok(None),
            "0" => Ok(Some(false)),
            "1" => Ok(Some(true)),
            _ => Err(Malformed),
        };
        let when_absent = || match self.gdpr_when_absent {
            GdprWhenAbsent::No => false,
            GdprWhenAbsent::Yes => true,
            GdprWhenAbsent::Country => signals.country.is_some_and(Country::has_gdpr),
        };
        Ok(self.tolerate(parameter)?.unwrap_or_else(when_absent))
    }

    fn consent(&self, text: &str, dsp: Option<NonZeroU16>) -> Result<Outcome, Malformed> {
        if text.is_empty() {
            return Ok(Outcome::ConsentMissing);
        }
        let vendors = [self.host_vendor, dsp].map(|vendor| vendor.map_or(0, NonZeroU16::get));
        let outcome = self.tolerate(tcf::judge(text, self, vendors).map(Some))?;
        Ok(outcome.unwrap_or(Outcome::ConsentMissing))
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

    /// Replaces a malformed signal by that of an absent one, if so configured.
    fn tolerate<T: Default>(&self, signal: Result<T, Malformed>) -> Result<T, Malformed> {
        match self.malformed {
            Action::Deny => signal,
            Action::Ignore => Ok(signal.unwrap_or_default()),
        }
    }
}
