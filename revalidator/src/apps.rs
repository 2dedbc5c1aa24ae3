//! The applications file: which objects are checked, at which origin, and how.
//!
//! The file is reloaded when it changes; an invalid version is rejected completely.

mod cookies;
mod network;
mod settings;
pub(crate) mod values;

use std::{collections::BTreeMap, sync::Arc};

use regex::bytes::Regex;
use runtime::reload::{NamedFile, Source};
use serde::Deserialize;
use url::Url;

pub use self::{
    cookies::Cookies,
    settings::{AppSettings, OnFailure, Overlap},
};
use crate::{
    client::is_http,
    contents::Contents,
    messages::{AllowDelete, BATCH_ASSETS_MAX, URL_BYTES_MAX, WORKERS_NEEDED_MAX},
    outcome::Reading,
    schedule::Schedule,
};

/// Maximum bytes of the name of an application, which is part of keys and subjects.
const NAME_BYTES_MAX: usize = 32;

const KIND_ERROR: &str = "kind: `cookies` requires the table `cookies`; `list` does not permit it";
const LIST_ERROR: &str =
    "assets, contents, normalize, prune_after and on_failure are only for kind list";
const CONCURRENCY_ERROR: &str = "concurrency: requires 1 <= min <= max <= 100 and step >= 1";
const GONE_ERROR: &str = "gone_on: use statuses from 400 to 499, except 401, 403, 407, 408 and 429";

/// An application.
#[derive(Debug)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: Arc<AppSettings>,
    /// Where its objects are stored; without it, only their metadata are.
    pub contents: Option<Contents>,
    /// How its responses are read.
    pub reading: Reading,
    /// When jobs are created.
    pub schedule: Option<Schedule>,
    /// Client of its origin.
    pub client: reqwest::Client,
}

impl App {
    fn build(name: &str, mut settings: AppSettings) -> Result<Self, Vec<String>> {
        if settings.cookies.is_some() {
            settings.max_body = settings.max_body.min(cookies::BODY_BYTES_MAX);
        }
        let it = &settings;
        let (min, max) = (it.concurrency.min, it.concurrency.max);
        let has_bounds =
            1 <= min && min <= max && max <= BATCH_ASSETS_MAX && it.concurrency.step > 0;
        let cookies = it.cookies.as_ref();
        let found = cookies.map(|cookies| cookies.errors(|url| it.allowed(url)));
        let mut errors = found.unwrap_or_default();
        let kind = if cookies.is_some() { "cookies" } else { "list" };
        let is_counter = |it: &str| it.split('/').take(2).filter(|it| !it.is_empty()).count() == 2;
        let checks = [
            (it.kind == kind, KIND_ERROR),
            (cookies.is_none() || !it.is_of_list(), LIST_ERROR),
            (
                cookies.is_none() || it.allow_delete < AllowDelete::All,
                "allow_delete: with kind cookies, use none or partial",
            ),
            (is_name(name), "name: use 1 to 32 characters of a-z, 0-9, -"),
            (has_bounds, CONCURRENCY_ERROR),
            ((0.0..=1.0).contains(&it.brake), "brake: use 0 to 1"),
            (
                (1..=WORKERS_NEEDED_MAX).contains(&it.workers),
                "workers: use 1 to 64",
            ),
            (!it.hosts.is_empty(), "hosts: list at least one host"),
            (
                it.http_hosts.iter().all(|host| it.hosts.contains(host)),
                "http_hosts: also list each host in hosts",
            ),
            (it.gone_on.iter().all(is_gone_status), GONE_ERROR),
            (
                it.schedule.is_none() || it.assets.is_some() || cookies.is_some(),
                "schedule: requires assets",
            ),
            (
                it.limit.as_deref().is_none_or(is_counter),
                "limit: use LIMIT/COUNTER",
            ),
        ];
        let failed = checks.into_iter().filter(|(is_valid, _)| !is_valid);
        errors.extend(failed.map(|(_, error)| error.to_owned()));
        let mut normalize = Vec::new();
        for pattern in &it.normalize {
            let regex = Regex::new(pattern).map_err(|error| error.to_string());
            normalize.extend(valid(&mut errors, "normalize", Some(regex)));
        }
        let contents = it.contents.as_deref().map(Contents::parse);
        let contents = valid(&mut errors, "contents", contents);
        let schedule = it.schedule.as_deref().map(Schedule::parse);
        let schedule = valid(&mut errors, "schedule", schedule);
        let null_means = cookies.map(|it| it.null_means);
        let settings = Arc::new(settings);
        let client = valid(&mut errors, "client", Some(network::client(&settings)));
        let Some(client) = client.filter(|_| errors.is_empty()) else {
            return Err(errors);
        };
        Ok(Self {
            name: name.to_owned(),
            contents,
            reading: Reading {
                gone_on: settings.gone_on.clone(),
                normalize,
                null_means,
            },
            schedule,
            client,
            settings,
        })
    }
}

/// The value of a setting that is there and valid.
fn valid<T>(
    errors: &mut Vec<String>,
    setting: &str,
    value: Option<Result<T, String>>,
) -> Option<T> {
    let error = |error| errors.push(format!("{setting}: {error}"));
    value.and_then(|value| value.map_err(error).ok())
}

/// Whether a status can mean that an object is gone: others refuse or throttle requests.
fn is_gone_status(status: &u16) -> bool {
    (400..500).contains(status) && ![401, 403, 407, 408, 429].contains(status)
}

/// Whether a text is a valid name of an application.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_valid)
}

/// Whether a URL is one of an asset: absolute, HTTP, without credentials.
#[must_use]
pub fn is_asset_url(text: &str) -> bool {
    text.len() <= URL_BYTES_MAX && Url::parse(text).is_ok_and(|url| is_http(&url))
}

/// All applications by name.
#[derive(Debug, Default)]
pub struct Apps(BTreeMap<String, Arc<App>>);

impl Apps {
    /// Parses the file.
    ///
    /// # Errors
    /// All errors, each with the name of its application.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            apps: BTreeMap<String, toml::Value>,
        }
        // Without the line, which may have a secret.
        let error = |it: toml::de::Error| {
            let before = &text[..it.span().map_or(0, |span| span.start)];
            vec![format!(
                "line {}: {}",
                before.split('\n').count(),
                it.message()
            )]
        };
        let file: File = toml::from_str(text).map_err(error)?;
        let (mut apps, mut errors) = (BTreeMap::new(), Vec::new());
        for (name, value) in file.apps {
            let settings = value.try_into::<AppSettings>();
            let settings = settings.map_err(|error| vec![error.message().to_owned()]);
            match settings.and_then(|settings| App::build(&name, settings)) {
                Ok(app) => drop(apps.insert(name, Arc::new(app))),
                Err(found) => {
                    errors.extend(found.iter().map(|error| format!("apps.{name}: {error}")));
                }
            }
        }
        if errors.is_empty() {
            Ok(Self(apps))
        } else {
            Err(errors)
        }
    }

    /// An application.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<App>> {
        self.0.get(name).cloned()
    }

    /// All applications.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<App>> {
        self.0.values()
    }
}

/// The current applications.
pub type CurrentApps = Arc<dyn Fn() -> Arc<Apps> + Send + Sync>;

/// The file of the applications.
#[derive(Debug)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Apps;
    const NAME: &'static str = "apps";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Apps, Vec<String>> {
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| vec!["not UTF-8".to_owned()]);
        let error = |it: &String| self.0.error(it.trim_end());
        let parsed = text.and_then(Apps::parse);
        parsed.map_err(|errors| errors.iter().map(error).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn minimal_application_has_the_documented_defaults() {
        let apps =
            Apps::parse("[apps.shop]\nkind = \"list\"\nhosts = [\"shop.example\"]\n").unwrap();
        let app = apps.get("shop").unwrap();
        let it = &app.settings;
        assert_eq!(
            (it.allow_delete, it.workers, it.on_failure),
            (AllowDelete::None, 1, OnFailure::Keep)
        );
        assert_eq!(
            (it.concurrency.min, it.concurrency.max, it.concurrency.step),
            (6, 20, 2)
        );
        assert_eq!(it.concurrency.first, Duration::from_millis(350));
        assert_eq!(it.concurrency.worse_by, Duration::from_millis(100));
        assert!((it.brake - 0.2).abs() < 1e-9 && app.reading.gone_on == [404, 410]);
    }

    #[test]
    fn errors_of_all_applications_are_reported_together() {
        let text = r#"
            [apps.Shop]
            kind = "list"
            hosts = []
            http_hosts = ["x"]
            brake = 2.0
            workers = 65
            gone_on = [500]
            normalize = ["("]
            contents = "ftp://x"
            limit = "/x"
            schedule = "daily"
            concurrency = { min = 9, max = 8 }
            [apps.two]
            kind = "list"
            hosts = ["a.example"]
            colour = "red"
            [apps.three]
            kind = "list"
            hosts = ["a.example"]
            max_body = "1TB"
        "#;
        let errors = Apps::parse(text).unwrap_err().join("\n");
        for part in [
            "apps.Shop: name",
            "apps.Shop: hosts",
            "http_hosts",
            "brake",
            "workers",
            "gone_on",
            "normalize",
            "contents",
            "limit",
            "schedule",
            "concurrency",
            "apps.two",
            "colour",
            "apps.three",
        ] {
            assert!(errors.contains(part), "{part}:\n{errors}");
        }
    }

    #[test]
    fn hosts_have_no_port_scheme_or_wildcard() {
        for host in [
            "a.example:8443",
            "https://a.example",
            "*.a.example",
            "",
            "a b",
        ] {
            let text = format!("[apps.a]\nkind = \"list\"\nhosts = [{host:?}]\n");
            let errors = Apps::parse(&text).unwrap_err().join("\n");
            assert!(errors.contains("not a host"), "{host}: {errors}");
        }
    }

    #[test]
    fn refused_and_throttled_requests_are_not_gone() {
        for status in [400, 404, 410, 451, 499] {
            assert!(is_gone_status(&status), "{status}");
        }
        for status in [200, 301, 401, 403, 407, 408, 429, 500] {
            assert!(!is_gone_status(&status), "{status}");
        }
    }
}
