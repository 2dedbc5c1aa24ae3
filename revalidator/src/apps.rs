//! Applications: the file that says whose objects are checked, where, and how.
//!
//! The file is reloaded when it changes; an invalid version is rejected as a whole.

mod network;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use regex::bytes::Regex;
use runtime::{
    reload::{NamedFile, Source},
    settings,
};
use serde::{Deserialize, Deserializer, de};
use tokio::{sync::watch, time::Instant};
use url::Url;

pub use self::network::is_public;
use crate::{
    concurrency,
    contents::Contents,
    limiter::Counter,
    messages::{AllowDelete, WORKERS_NEEDED_MAX},
    origin,
    outcome::Reading,
    schedule::Schedule,
};

/// Maximum bytes of the name of an application, which is part of keys and subjects.
const NAME_BYTES_MAX: usize = 32;

/// Maximum of parallel requests.
const CONCURRENCY_MAX: usize = 256;

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
    List,
}

/// Settings of an application, as in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSettings {
    #[expect(dead_code, reason = "only one kind; the file must name it")]
    kind: Kind,
    /// File of its assets, one JSON object a line; without it, jobs bring their assets.
    pub assets: Option<PathBuf>,
    contents: Option<String>,
    /// Allowed hosts.
    pub hosts: Vec<String>,
    /// Hosts that are allowed without TLS.
    #[serde(default)]
    pub http_hosts: Vec<String>,
    /// Networks that are allowed although they are not public.
    #[serde(default)]
    pub allow_networks: Vec<IpNet>,
    /// Most that a job may remove.
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
    limit: Option<String>,
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
    /// The counter that limits its requests.
    pub limit: Option<Counter>,
    /// When jobs are created.
    pub schedule: Option<Schedule>,
    /// Client of its origin.
    pub client: reqwest::Client,
    throttled_until: watch::Sender<Option<Instant>>,
}

impl App {
    /// Stops all requests of this process to the origin for some time.
    pub fn throttle(&self, time: Duration) {
        let end = Some(Instant::now() + time);
        self.throttled_until
            .send_modify(|until| *until = (*until).max(end));
    }

    /// End of the time without requests, if it is not over.
    #[must_use]
    pub fn throttled_until(&self) -> Option<Instant> {
        let until = *self.throttled_until.borrow();
        until.filter(|until| *until > Instant::now())
    }

    fn build(name: &str, settings: AppSettings) -> Result<Self, Vec<String>> {
        let it = &settings;
        let bounds = it.concurrency;
        let mut errors = Vec::new();
        for (is_valid, error) in [
            (is_name(name), "invalid name: use 1 to 32 of a-z, 0-9 and -"),
            (
                bounds.min >= 1
                    && bounds.min <= bounds.max
                    && bounds.max <= CONCURRENCY_MAX
                    && bounds.step >= 1,
                "concurrency: requires 1 <= min <= max <= 256 and step >= 1",
            ),
            ((0.0..=1.0).contains(&it.brake), "brake: use 0 to 1"),
            (
                (1..=WORKERS_NEEDED_MAX).contains(&it.workers),
                "workers: use 1 to 64",
            ),
            (!it.hosts.is_empty(), "hosts: name the hosts of the origin"),
            (
                it.http_hosts.iter().all(|host| it.hosts.contains(host)),
                "http_hosts: each must also be one of hosts",
            ),
            (
                it.gone_on.iter().all(|it| (400..500).contains(it)),
                "gone_on: use 400 to 499",
            ),
            (
                it.schedule.is_none() || it.assets.is_some(),
                "schedule: requires assets",
            ),
        ] {
            if !is_valid {
                errors.push(error.to_owned());
            }
        }
        let patterns = it.normalize.iter().map(|pattern| {
            let regex = Regex::new(pattern).map_err(|error| error.to_string());
            valid(&mut errors, "normalize", Some(regex))
        });
        let normalize: Vec<_> = patterns.collect::<Vec<_>>().into_iter().flatten().collect();
        let contents = valid(
            &mut errors,
            "contents",
            it.contents.as_deref().map(Contents::parse),
        );
        let limit = valid(
            &mut errors,
            "limit",
            it.limit.as_deref().map(Counter::parse),
        );
        let schedule = valid(
            &mut errors,
            "schedule",
            it.schedule.as_deref().map(Schedule::parse),
        );
        let settings = Arc::new(settings);
        let client = origin::client(&settings).map_err(|error| error.to_string());
        let client = valid(&mut errors, "client", Some(client));
        let Some(client) = client.filter(|_| errors.is_empty()) else {
            return Err(errors);
        };
        Ok(Self {
            name: name.to_owned(),
            contents,
            reading: Reading {
                gone_on: settings.gone_on.clone(),
                normalize,
            },
            limit,
            schedule,
            client,
            settings,
            throttled_until: watch::Sender::default(),
        })
    }
}

/// The value of a setting that is there and valid; otherwise records its error.
fn valid<T>(
    errors: &mut Vec<String>,
    setting: &str,
    value: Option<Result<T, String>>,
) -> Option<T> {
    let error = |error| errors.push(format!("{setting}: {error}"));
    value.and_then(|value| value.map_err(error).ok())
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
    text.len() <= crate::messages::URL_BYTES_MAX
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
pub struct File(NamedFile);

impl File {
    /// The file with this name.
    #[must_use]
    pub fn new(file: NamedFile) -> Self {
        Self(file)
    }
}

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
            limit = "x"
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
            "invalid name",
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
    fn longest_throttle_wins() {
        let apps = Apps::parse("[apps.a]\nkind = \"list\"\nhosts = [\"a.example\"]\n").unwrap();
        let app = apps.get("a").unwrap();
        assert_eq!(app.throttled_until(), None);
        app.throttle(Duration::from_secs(60));
        app.throttle(Duration::from_secs(1));
        assert!(app.throttled_until().unwrap() > Instant::now() + Duration::from_secs(30));
    }
}
