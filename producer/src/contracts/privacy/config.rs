//! The table `[privacy]` of the contracts file.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::gpp::SectionIds;

/// The table, with the defaults of its keys.
///
/// ```
/// use producer::contracts::privacy::{Config, Mode};
///
/// let config: Config = serde_json::from_str(r#"{"mode": "observe", "host_vendor": 999}"#)?;
/// assert_eq!(config.mode, Mode::Observe);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether a refused match is stored.
    pub mode: Mode,
    /// Id of the exchange in the vendor list of the IAB. Without one, no consent string permits a match.
    pub host_vendor: Option<NonZeroU16>,
    /// Name of the header in which a proxy reports the country of the client. The proxy must replace a header that the client
    /// sent.
    pub country_header: Option<String>,
    /// Whether GDPR applies to a request without `gdpr` and `gpp_sid`.
    pub gdpr_when_absent: GdprWhenAbsent,
    /// Which consent strings must disclose both vendors.
    pub disclosed_vendors: DisclosedVendors,
    /// Publisher countries in which purpose 1 needs no consent if the consent string says so.
    pub purpose_one_treatment: Vec<Country>,
    /// Which US opt-outs count.
    pub us: Us,
    /// Whether Global Privacy Control counts.
    pub gpc: GpcScope,
    /// Whether COPPA counts.
    pub coppa: Coppa,
    /// Effect of a malformed signal.
    pub malformed: Action,
}

/// Where a DSP must not sync, in its contract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RefuseWhen {
    /// If GDPR applies.
    pub(super) gdpr: bool,
    /// If one of these GPP sections applies.
    pub(super) gpp_sid: SectionIds,
}

impl RefuseWhen {
    /// If GDPR applies, or one of these sections.
    pub(crate) fn new(gdpr: bool, gpp_sid: SectionIds) -> Self {
        Self { gdpr, gpp_sid }
    }

    /// The conditions, for operators.
    pub(crate) fn names(self) -> impl Iterator<Item = String> {
        let gdpr = self.gdpr.then(|| "gdpr".to_owned());
        let sections = self.gpp_sid.iter().map(|id| format!("section {id}"));
        gdpr.into_iter().chain(sections)
    }
}

/// Whether a match that the gate refuses is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Signals are not read.
    Off,
    /// It is stored; only the outcome is counted.
    Observe,
    /// It is not stored.
    #[default]
    Enforce,
}

/// Whether GDPR applies to a request without `gdpr` and `gpp_sid`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GdprWhenAbsent {
    /// GDPR does not apply.
    No,
    /// GDPR applies.
    Yes,
    /// GDPR applies in the EEA, the United Kingdom and Switzerland, but not in an unknown country.
    #[default]
    Country,
}

/// Which consent strings must disclose both vendors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DisclosedVendors {
    /// The strings created or updated since 2026-03-01, as TCF 2.3 requires.
    #[default]
    ByDate,
    /// All.
    Always,
    /// None.
    Never,
}

/// Effect of a signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The match is refused.
    #[default]
    Deny,
    /// The signal counts as absent.
    Ignore,
}

/// Whether `coppa=1` counts: the page is directed to children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Coppa {
    /// The match is refused.
    Deny,
    /// It does not count.
    #[default]
    Ignore,
}

/// Where Global Privacy Control counts: the header `Sec-GPC`, and the bit in US sections of GPP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GpcScope {
    /// Everywhere.
    #[default]
    Deny,
    /// If the country is the US, or `gpp_sid` contains a section of the US.
    Us,
    /// Nowhere.
    Ignore,
}

/// US opt-outs: sections 6 to 27 of GPP, and `us_privacy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Us {
    /// Opt-out from sale.
    pub sale: Action,
    /// Opt-out from sharing.
    pub sharing: Action,
    /// Opt-out from targeted advertising.
    pub targeted: Action,
    /// Which sections count without `gpp_sid`.
    pub without_sid: Sections,
}

/// Which US sections of GPP count without `gpp_sid`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sections {
    /// All.
    #[default]
    All,
    /// None.
    None,
}

/// A country: two capital letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Country([u8; 2]);

impl Country {
    pub(super) const US: Self = Self(*b"US");

    /// The EEA, with the regions that have their own codes, the United Kingdom and Switzerland.
    const GDPR: &'static [u8] =
        b"AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK \
        IS LI NO AX GF GP MF MQ RE YT GB CH";

    /// Reads a header value such as `DE` or `US-CA`; `None` if it does not begin with a country.
    pub fn from_header(value: &[u8]) -> Option<Self> {
        let (&country, rest) = value.split_first_chunk()?;
        let is_country = country.iter().all(u8::is_ascii_alphabetic)
            && !rest.first().is_some_and(u8::is_ascii_alphanumeric);
        is_country.then(|| Self(country.map(|letter| letter.to_ascii_uppercase())))
    }

    /// Whether its law is the GDPR or an equal one.
    pub fn has_gdpr(self) -> bool {
        Self::GDPR
            .chunks(3)
            .any(|country| country.starts_with(&self.0))
    }

    /// The number of this country in a consent string: six bits for each letter.
    pub(super) fn tcf_number(self) -> u64 {
        let [first, second] = self.0.map(|letter| u64::from(letter - b'A'));
        first << 6 | second
    }
}

impl TryFrom<String> for Country {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match *text.as_bytes() {
            [first @ b'A'..=b'Z', second @ b'A'..=b'Z'] => Ok(Self([first, second])),
            _ => Err(format!("invalid country {text:?}: use two capital letters")),
        }
    }
}

impl From<Country> for String {
    fn from(Country(letters): Country) -> Self {
        letters.into_iter().map(char::from).collect()
    }
}
