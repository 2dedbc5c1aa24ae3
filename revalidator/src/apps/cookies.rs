//! Applications of kind `cookies`: the objects are the matches of one DSP, read from nodes and published through producers.

use std::{path::PathBuf, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proto::units::DspId;
use serde::Deserialize;
use url::Url;

use crate::{
    servers::{Servers, token},
    values::duration,
};

/// The placeholder of the user id in the URL template.
const USER: &str = "{user}";

const TEMPLATE_ERROR: &str =
    "url: use a URL whose host is in `hosts`, with {user} in the path or query";

/// All characters except the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Maximum bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// What a response without a uid means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NullMeans {
    /// Nothing: the match is kept.
    #[default]
    Keep,
    /// The match is gone.
    Gone,
}

/// Settings of applications of kind `cookies` only.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cookies {
    /// The DSP.
    #[serde(default)]
    pub dsp: DspId,
    /// Age at which a match is checked.
    #[serde(default, deserialize_with = "duration")]
    pub after: Duration,
    /// Nodes with the matches; `None` only if the settings are invalid.
    pub nodes: Option<Servers>,
    /// Producers that publish changes; `None` only if the settings are invalid.
    pub producers: Option<Servers>,
    #[serde(default)]
    url: String,
    token_file: Option<PathBuf>,
    /// What a response without a uid means.
    #[serde(default)]
    pub null_means: NullMeans,
    /// Minimum time between the two responses that cause the removal of a match.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub sightings_apart: Duration,
}

pub(super) fn one_day() -> Duration {
    Duration::from_secs(24 * 3600)
}

impl Cookies {
    /// Errors of the settings. `allowed` parses a URL if requests to it are permitted.
    pub(super) fn errors(&self, allowed: impl Fn(&str) -> Option<Url>) -> Vec<String> {
        let urls = ["a", "b"].map(|user| allowed(&self.url(user)));
        let is_template = matches!(&urls, [Some(a), Some(b)] if a.origin() == b.origin() && a != b);
        let token = self.token_file.as_deref().map(token);
        let missing = |name: &str| Some(format!("{name}: missing"));
        let errors = [
            missing("dsp").filter(|_| !self.dsp.is_valid()),
            missing("after").filter(|_| self.after.is_zero()),
            missing("nodes").filter(|_| self.nodes.is_none()),
            missing("producers").filter(|_| self.producers.is_none()),
            (!is_template).then(|| TEMPLATE_ERROR.to_owned()),
            token.and_then(|it| Some(format!("token_file: {}", it.err()?))),
        ];
        let errors = errors.into_iter().flatten();
        errors.map(|error| format!("cookies.{error}")).collect()
    }

    /// The URL at the partner for a user.
    pub fn url(&self, user: &str) -> String {
        let encoded = utf8_percent_encode(user, ENCODED).to_string();
        self.url.replace(USER, &encoded)
    }

    /// The token for the partner, if there is one. An unreadable file counts as none; the partner then refuses the request.
    pub fn token(&self) -> Option<String> {
        token(self.token_file.as_deref()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Apps;

    const TOKEN: &str = "a-token-of-16-bytes";

    fn parse(all: &str, cookies: &str) -> Result<Apps, String> {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).unwrap();
        let text = format!(
            "[apps.dsp-17]\nkind = \"cookies\"\nhosts = [\"match.example\"]\n{all}\n[apps.dsp-17.cookies]\n{cookies}\n\
             dsp = 17\nafter = \"10d\"\nproducers = {{ urls = [\"http://10.0.0.1:8081\"] }}\n\
             nodes = {{ urls = [\"http://node-1:9091\", \"https://node-2\"], token_file = {token:?} }}\n"
        );
        Apps::parse(&text).map_err(|errors| errors.join("\n"))
    }

    #[test]
    fn user_id_is_encoded_in_the_url() {
        let url = "url = \"https://match.example/{user}?u={user}&x=1\"";
        let apps = parse("schedule = \"0 2 * * * UTC\"", url).unwrap();
        let app = apps.get("dsp-17").unwrap();
        let cookies = app.settings.cookies.as_ref().unwrap();
        assert_eq!(
            cookies.url("a/b?&=#%+{user}~"),
            "https://match.example/a%2Fb%3F%26%3D%23%25%2B%7Buser%7D~?u=a%2Fb%3F%26%3D%23%25%2B%7Buser%7D~&x=1"
        );
        assert_eq!((app.settings.max_body, cookies.token()), (64 << 10, None));
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let url = "url = \"https://match.example/?u={user}\"";
        for (all, cookies, what) in [
            ("", "url = \"https://match.example/\"", "cookies.url"),
            ("", "url = \"https://other.example/{user}\"", "cookies.url"),
            ("", "url = \"http://match.example/{user}\"", "cookies.url"),
            ("", "url = \"https://{user}.example/\"", "cookies.url"),
            (
                "hosts = [\"a\", \"b\"]",
                "url = \"https://{user}/\"",
                "duplicate",
            ),
            ("allow_delete = \"all\"", url, "allow_delete"),
            ("prune_after = \"1d\"", url, "prune_after"),
            ("assets = \"x\"", url, "kind `list`"),
            ("", &format!("{url}\ncolour = 1"), "colour"),
            (
                "",
                &format!("{url}\ntoken_file = \"/none\""),
                "cookies.token_file",
            ),
            (
                "",
                &format!("{url}\nnull_means = \"drop\""),
                "`keep` or `gone`",
            ),
        ] {
            let error = parse(all, cookies).map(drop).unwrap_err();
            assert!(error.contains(what), "{what}: {error}");
            assert!(!error.contains(TOKEN));
        }
        for (text, what) in [
            ("kind = \"cookies\"", "cookies"),
            ("kind = \"list\"\ncookies = {}", "dsp"),
        ] {
            let text = format!("[apps.a]\nhosts = [\"a.example\"]\n{text}\n");
            let error = Apps::parse(&text).map(drop).unwrap_err().join("\n");
            assert!(error.contains(what), "{error}");
        }
    }
}
