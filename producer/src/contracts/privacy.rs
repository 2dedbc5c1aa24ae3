//! The privacy check, or gate: decides whether the signals of a request allow a match to be stored.
//!
//! [`Signals`] are the parts of a request that the gate reads: the opt-out cookie, `Sec-GPC`, the country that a trusted
//! proxy reports, and the query parameters `coppa`, `gdpr`, `gdpr_consent`, `gpp`, `gpp_sid` and `us_privacy`. [`Config::decide`]
//! is a pure function from signals to an [`Outcome`]. Only the outcome leaves the gate. `Signals` has no `Debug`, so that
//! it cannot be logged.
//!
//! # Formats
//!
//! - [TCF 2](https://github.com/InteractiveAdvertisingBureau/GDPR-Transparency-and-Consent-Framework) consent strings
//! - [GPP](https://github.com/InteractiveAdvertisingBureau/Global-Privacy-Platform) strings, with the sections 2 (TCF), 6
//!   (`us_privacy`), and 7 to 27 (US states)
//!
//! All are bit fields in base64url. The gate reads only the bits that affect the decision, directly from the
//! characters. An invalid character makes a string malformed wherever it is.
//!
//! # Cost
//!
//! The gate allocates nothing and reads each character a bounded number of times. The time for a hostile string is thus
//! proportional to its length, which the maximum request size bounds. Benchmark: `privacy` in `benches/contracts.rs`.

mod bits;
mod config;
mod gate;
mod gpp;
mod outcome;
mod signals;
mod tcf;
mod us;

pub use self::{
    config::{
        Action, Config, Coppa, Country, DisclosedVendors, GdprWhenAbsent, GpcScope, Mode,
        RefuseWhen, Sections, Us,
    },
    gpp::SectionIds,
    outcome::Outcome,
    signals::Signals,
};

#[cfg(test)]
mod tests;
