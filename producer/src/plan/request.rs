//! The body of a request for a plan, as Prebid.js sends it to Prebid Server.
//!
//! Unknown members are ignored. A member that is `null` counts as absent.

use std::{borrow::Cow, collections::HashSet, fmt, marker::PhantomData};

use foldhash::fast::RandomState;
use proto::units::DspId;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::contracts::{Contracts, privacy::Signals};

/// Maximum number of names in a list.
const NAMES_MAX: usize = 256;

/// Maximum length of an error.
const ERROR_CHARS_MAX: usize = 200;

/// What a page asks for.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// Names of DSPs; empty for all DSPs.
    pub bidders: Vec<Cow<'a, str>>,
    /// Maximum number of DSPs; zero or less for the largest permitted number.
    pub limit: Option<i64>,
    /// Whether DSPs that are not named follow those that are.
    pub coop_sync: Option<bool>,
    /// The DSPs that may be called as an image.
    pub image: Filter,
    /// The DSPs that may be called in a frame.
    pub iframe: Filter,
    /// Whether the answer names the DSPs that it leaves out.
    pub debug: bool,
    gdpr: &'static str,
    gdpr_consent: Cow<'a, str>,
    us_privacy: Cow<'a, str>,
    gpp: Cow<'a, str>,
    gpp_sid: Cow<'a, str>,
}

/// Which DSPs are permitted.
#[derive(Debug, Default)]
pub struct Filter {
    /// `None` for all DSPs.
    dsps: Option<HashSet<DspId, RandomState>>,
    /// Whether all DSPs but these are permitted, instead of only these.
    excludes: bool,
}

impl Filter {
    /// Whether a DSP is permitted.
    pub fn permits(&self, dsp_id: DspId) -> bool {
        let is_listed = self.dsps.as_ref().is_none_or(|it| it.contains(&dsp_id));
        is_listed != self.excludes
    }
}

impl<'a> Request<'a> {
    /// Parses a body. A filter may list a DSP under any of its names.
    ///
    /// # Errors
    /// What is invalid, in one line.
    pub fn parse(body: &'a [u8], contracts: &Contracts) -> Result<Self, String> {
        let object: Result<Object<Body<'a>>, _> = serde_json::from_slice(body);
        // An unknown filter is quoted as it was sent.
        let one_line = |error: serde_json::Error| {
            let text = error.to_string().replace(char::is_control, " ");
            text.chars().take(ERROR_CHARS_MAX).collect::<String>()
        };
        let Object(body) = object.map_err(one_line)?;
        let Body {
            bidders,
            limit,
            coop_sync,
            debug,
            ..
        } = body;
        let gdpr = match body.gdpr {
            None => "",
            Some(0) => "0",
            Some(1) => "1",
            Some(_) => return Err("gdpr is neither 0 nor 1".to_owned()),
        };
        let filters = body
            .filter_settings
            .map_or_else(Filters::default, |it| it.0);
        let text = |text: Option<Text<'a>>| text.unwrap_or_default().0;
        let filter = |filter: Option<Object<FilterBody<'a>>>| {
            filter.map_or_else(Filter::default, |Object(filter)| Filter {
                dsps: match filter.bidders.unwrap_or_default() {
                    Names::All => None,
                    Names::List(List(names)) => {
                        let of = |name: &Cow<'_, str>| contracts.by_name.get(&name.to_lowercase());
                        Some(names.iter().filter_map(of).copied().collect())
                    }
                },
                excludes: matches!(filter.filter, Some(Mode::Exclude)),
            })
        };
        Ok(Self {
            bidders: bidders.unwrap_or_default().0,
            limit,
            coop_sync,
            image: filter(filters.image),
            iframe: filter(filters.iframe),
            debug: debug.unwrap_or_default(),
            gdpr,
            gdpr_consent: text(body.gdpr_consent),
            us_privacy: text(body.us_privacy),
            gpp: text(body.gpp),
            gpp_sid: text(body.gpp_sid),
        })
    }

    /// The privacy signals in the body.
    pub fn signals(&self) -> Signals<'_> {
        Signals {
            gdpr: self.gdpr,
            gdpr_consent: &self.gdpr_consent,
            us_privacy: &self.us_privacy,
            gpp: &self.gpp,
            gpp_sid: &self.gpp_sid,
            ..Signals::default()
        }
    }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    bidders: Option<List<'a>>,
    limit: Option<i64>,
    #[serde(rename = "coopSync")]
    coop_sync: Option<bool>,
    gdpr: Option<u8>,
    #[serde(borrow)]
    gdpr_consent: Option<Text<'a>>,
    #[serde(borrow)]
    us_privacy: Option<Text<'a>>,
    #[serde(borrow)]
    gpp: Option<Text<'a>>,
    #[serde(borrow)]
    gpp_sid: Option<Text<'a>>,
    #[serde(borrow, rename = "filterSettings")]
    filter_settings: Option<Object<Filters<'a>>>,
    debug: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Filters<'a> {
    #[serde(borrow)]
    image: Option<Object<FilterBody<'a>>>,
    #[serde(borrow)]
    iframe: Option<Object<FilterBody<'a>>>,
}

#[derive(Deserialize)]
struct FilterBody<'a> {
    #[serde(borrow)]
    bidders: Option<Names<'a>>,
    filter: Option<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Include,
    Exclude,
}

/// A text, borrowed if it has no escapes.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Up to [`NAMES_MAX`] names.
#[derive(Default)]
struct List<'a>(Vec<Cow<'a, str>>);

/// The DSPs of a filter.
#[derive(Default)]
enum Names<'a> {
    #[default]
    All,
    List(List<'a>),
}

/// An object; serde would also accept an array of the members.
struct Object<T>(T);

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("\"*\" or an array of names")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Names<'de>, E> {
        match text {
            "*" => Ok(Names::All),
            _ => Err(E::custom("invalid names: use \"*\" or an array of names")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Names<'de>, A::Error> {
        let mut list = List::default();
        while let Some(Text(name)) = names.next_element()? {
            if list.0.len() == NAMES_MAX {
                let what = format!("too many names: the maximum is {NAMES_MAX}");
                return Err(A::Error::custom(what));
            }
            list.0.push(name);
        }
        Ok(Names::List(list))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Names<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for List<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(NamesVisitor)? {
            Names::List(list) => Ok(list),
            Names::All => Err(D::Error::custom("invalid names: use an array of names")),
        }
    }
}

#[cfg(test)]
mod tests;
