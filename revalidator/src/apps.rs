//! The applications file: which objects are checked, at which origin, and how.
//!
//! The file is reloaded when it changes; an invalid version is rejected completely.

mod cookies;
mod network;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use regex::bytes::Regex;
use runtime::{
    reload::{NamedFile, Source},
    settings,
};
use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

pub use self::cookies::Cookies;
use crate::{
    concurrency,
    contents::Contents,
    messages::{AllowDelete, BATCH_ASSETS_MAX, URL_BYTES_MAX, WORKERS_NEEDED_MAX},
    outcome::Reading,
    schedule::Schedule,
};

/// Maximum bytes of the name of an application, which is part of keys and subjects.
const NAME_BYTES_MAX: usize = 32;

const CONCURRENCY_ERROR: &str = "concurrency: requires 1 <= min <= max <= 100 and step >= 1";
const GONE_ERROR: &str = "gone_on: use statuses from 400 to 499, except 401, 403, 407, 408 and 429";

/// Maximum bytes of a response body.
const BODY_BYTES_MAX: usize = 16 << 20;

/// What happens to an object whose requests failed twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It is kept.
    #[default]
    Keep,
    /// It is removed, if the job may remove objects.
    Drop,
}

/// What a schedule does while an earlier job of the application is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It creates no job.
    #[default]
    Skip,
    /// It creates a job that waits.
    Queue,
}

/// Kind of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Files, or metadata of objects that are stored elsewhere.
    List,
    /// Matches of a DSP.
    Cookies,
}

/// Settings of an application, as in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSettings {
    kind: Kind,
    /// Settings of matches.
    pub cookies: Option<Cookies>,
    /// File of its assets, one JSON object per line; without it, each job provides its assets.
    pub assets: Option<PathBuf>,
    contents: Option<String>,
    /// Allowed hosts.
    #[serde(deserialize_with = "hosts")]
    pub hosts: Vec<Host>,
    /// Hosts that are allowed without TLS.
    #[serde(default, deserialize_with = "hosts")]
    pub http_hosts: Vec<Host>,
    /// Certificates of further authorities.
    pub ca_file: Option<PathBuf>,
    /// Networks that are allowed although they are not public.
    #[serde(default)]
    pub allow_networks: Vec<IpNet>,
    /// Which objects a job may remove.
    #[serde(default)]
    pub allow_delete: AllowDelete,
    /// Maximum fraction of a batch whose objects are removed.
    #[serde(default = "default_brake")]
    pub brake: f64,
    /// What happens to an object whose requests failed twice.
    #[serde(default)]
    pub on_failure: OnFailure,
    #[serde(default = "default_gone_on")]
    gone_on: Vec<u16>,
    #[serde(default)]
    normalize: Vec<String>,
    /// Maximum bytes of a body.
    #[serde(default = "default_max_body", deserialize_with = "size")]
    pub max_body: usize,
    /// Workers per job.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Limit and counter that restrict the requests, with a slash between.
    pub limit: Option<String>,
    schedule: Option<String>,
    /// What the schedule does while an earlier job is open.
    #[serde(default)]
    pub overlap: Overlap,
    /// Time without a request after which an object is removed before a job.
    #[serde(default, deserialize_with = "optional_duration")]
    pub prune_after: Option<Duration>,
    /// Bounds of parallel requests.
    #[serde(default)]
    pub concurrency: concurrency::Settings,
}

fn default_brake() -> f64 {
    0.2
}

fn default_gone_on() -> Vec<u16> {
    Reading::default().gone_on
}

fn default_max_body() -> usize {
    1 << 20
}

fn default_workers() -> u32 {
    1
}

/// Deserializes a time like `350ms`.
///
/// # Errors
/// When the text is not a time.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parse = settings::time(Duration::ZERO..=settings::TIME_MAX);
    parse(&text).map_err(de::Error::custom)
}

fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// Names in the form that URLs have: lower case, with other characters than ASCII encoded.
fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Host>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        let host = Host::parse(text).ok().filter(|_| !text.contains('*'));
        host.ok_or_else(|| de::Error::custom(format!("{text:?} is not a host, or has a port")))
    };
    texts.iter().map(parse).collect()
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let text = String::deserialize(deserializer)?;
    settings::size(1..=BODY_BYTES_MAX)(&text).map_err(de::Error::custom)
}

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
        let bounds = it.concurrency;
        let cookies = it.cookies.as_ref();
        let found = cookies.map(|cookies| cookies.errors(it));
        let mut errors = Errors(found.unwrap_or_default());
        let is_kind = (it.kind == Kind::Cookies) == cookies.is_some();
        errors.check(
            is_kind,
            "kind: `cookies` requires the table `cookies`; `list` does not permit it",
        );
        errors.check(is_name(name), "name: use 1 to 32 characters of a-z, 0-9, -");
        let is_range = (1..=bounds.max).contains(&bounds.min) && bounds.max <= BATCH_ASSETS_MAX;
        errors.check(is_range && bounds.step >= 1, CONCURRENCY_ERROR);
        errors.check((0.0..=1.0).contains(&it.brake), "brake: use 0 to 1");
        let are_workers = (1..=WORKERS_NEEDED_MAX).contains(&it.workers);
        errors.check(are_workers, "workers: use 1 to 64");
        errors.check(!it.hosts.is_empty(), "hosts: list at least one host");
        let are_hosts = it.http_hosts.iter().all(|host| it.hosts.contains(host));
        errors.check(are_hosts, "http_hosts: also list each host in hosts");
        errors.check(it.gone_on.iter().all(is_gone_status), GONE_ERROR);
        let has_assets = it.schedule.is_none() || it.assets.is_some() || cookies.is_some();
        errors.check(has_assets, "schedule: requires assets");
        let mut normalize = Vec::new();
        for pattern in &it.normalize {
            let regex = Regex::new(pattern).map_err(|error| error.to_string());
            normalize.extend(errors.value("normalize", Some(regex)));
        }
        let contents = it.contents.as_deref().map(Contents::parse);
        let contents = errors.value("contents", contents);
        let is_counter = |it: &str| it.split('/').take(2).filter(|it| !it.is_empty()).count() == 2;
        let has_counter = it.limit.as_deref().is_none_or(is_counter);
        errors.check(has_counter, "limit: use LIMIT/COUNTER");
        let schedule = it.schedule.as_deref().map(Schedule::parse);
        let schedule = errors.value("schedule", schedule);
        let null_means = cookies.map(|it| it.null_means);
        let settings = Arc::new(settings);
        let client = errors.value("client", Some(network::client(&settings)));
        let Some(client) = client.filter(|_| errors.0.is_empty()) else {
            return Err(errors.0);
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

/// Errors in the settings of an application.
#[derive(Default)]
struct Errors(Vec<String>);

impl Errors {
    fn check(&mut self, is_valid: bool, error: &str) {
        if !is_valid {
            self.0.push(error.to_owned());
        }
    }

    /// The value of a setting that is there and valid.
    fn value<T>(&mut self, setting: &str, value: Option<Result<T, String>>) -> Option<T> {
        let error = |error| self.0.push(format!("{setting}: {error}"));
        value.and_then(|value| value.map_err(error).ok())
    }
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
    text.len() <= URL_BYTES_MAX
        && Url::parse(text)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
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
        let file: File = toml::from_str(text).map_err(|error| vec![error.to_string()])?;
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
        let text = text.map_err(|_| vec![self.0.error("not UTF-8")])?;
        let errors = |errors: Vec<String>| {
            errors
                .iter()
                .map(|it| self.0.error(it.trim_end()))
                .collect()
        };
        Apps::parse(text).map_err(errors)
    }
}

#[cfg(test)]
mod tests {
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
