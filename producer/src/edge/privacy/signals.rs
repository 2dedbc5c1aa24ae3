//! The parts of a request that decide whether its match may be stored.

use httparse::Header;

use super::config::{Config, Country};

/// The privacy signals of a request. An empty text means that the signal is absent.
#[derive(Clone, Copy, Default)]
pub struct Signals<'a> {
    /// The request has the opt-out cookie.
    pub opted_out: bool,
    /// The value of the header `Sec-GPC` is exactly `1`.
    pub gpc: bool,
    /// The country in the header that [`Config::country_header`] names.
    pub country: Option<Country>,
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

impl<'a> Signals<'a> {
    /// The signals in a query. Of a repeated parameter, the first value that is not empty counts.
    pub fn in_query(query: &'a str) -> Self {
        let mut signals = Self::default();
        let mut start = 0;
        for end in memchr::memchr_iter(b'&', query.as_bytes()).chain([query.len()]) {
            let parameter = &query[start..end];
            start = end + 1;
            // Excludes most parameters by one comparison.
            if !matches!(parameter.as_bytes(), [b'g' | b'u', ..]) {
                continue;
            }
            let named = [
                ("gdpr=", &mut signals.gdpr),
                ("gdpr_consent=", &mut signals.gdpr_consent),
                ("gpp=", &mut signals.gpp),
                ("gpp_sid=", &mut signals.gpp_sid),
                ("us_privacy=", &mut signals.us_privacy),
            ];
            for (name, signal) in named {
                match parameter.strip_prefix(name) {
                    Some(value) if signal.is_empty() => *signal = value,
                    _ => {}
                }
            }
        }
        signals
    }

    /// The signals in a query and in headers, except the opt-out cookie.
    pub fn new(query: &'a str, headers: &[Header<'a>], config: &Config) -> Self {
        let mut signals = Self::in_query(query);
        let country_header = config.country_header.as_deref().unwrap_or_default();
        for Header { name, value } in headers {
            if name.eq_ignore_ascii_case("sec-gpc") {
                signals.gpc |= *value == b"1";
            } else if name.eq_ignore_ascii_case(country_header) {
                signals.country = Country::from_header(value);
            }
        }
        signals
    }
}
