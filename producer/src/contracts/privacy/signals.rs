//! The parts of a request that decide whether its match may be stored.

use super::config::Country;

/// The privacy signals of a request. An empty text means that the signal is absent.
#[derive(Clone, Copy, Default)]
pub struct Signals<'a> {
    /// The request has the opt-out cookie.
    pub opted_out: bool,
    /// The value of the header `Sec-GPC` is exactly `1`.
    pub gpc: bool,
    /// The country in the header that [`Config::country_header`](super::Config::country_header) names.
    pub country: Option<Country>,
    /// Whether the page is directed to children: `0` or `1`.
    pub coppa: &'a str,
    /// Whether GDPR applies: `0` or `1`.
    pub gdpr: &'a str,
    /// A TCF string.
    pub gdpr_consent: &'a str,
    /// A GPP string.
    pub gpp: &'a str,
    /// The ids of the GPP sections that apply, comma-separated.
    pub gpp_sid: &'a str,
    /// A US privacy string, such as `1YNN`.
    pub us_privacy: &'a str,
}
