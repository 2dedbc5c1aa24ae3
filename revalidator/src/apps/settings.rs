//! Settings of an application, as in the applications file.

use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use regex::bytes::Regex;
use serde::Deserialize;
use url::Host;

use super::cookies::{Cookies, one_day};
use crate::{
    concurrency,
    contents::Contents,
    messages::{AllowDelete, BATCH_ASSETS_MAX, WORKERS_NEEDED_MAX},
    schedule::Schedule,
    servers::Servers,
    values::{duration, hosts, optional_duration, patterns, size},
};

/// Maximum bytes of the name of an application, which is part of keys and subjects.
const NAME_BYTES_MAX: usize = 32;

const KIND_ERROR: &str = "kind: `cookies` requires the table `cookies`; `list` does not permit it";
const LIST_ERROR: &str =
    "`assets`, `contents`, `purge`, `normalize` and `prune_after` are only for kind `list`";
const DELETE_ERROR: &str = "allow_delete: with kind `cookies`, use `none` or `partial`";
const CONCURRENCY_ERROR: &str = "concurrency: requires 1 <= min <= max <= 100 and step >= 1";

/// Settings of an application, as in the applications file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSettings {
    /// `list` for files, or for metadata of objects stored elsewhere; `cookies` for matches of a DSP.
    #[serde(default)]
    pub(super) kind: String,
    /// Settings of kind `cookies`.
    pub cookies: Option<Cookies>,
    /// File of its assets, one JSON object per line; `None` if each job provides its assets.
    pub assets: Option<PathBuf>,
    /// Where its objects are stored; `None` for metadata only.
    pub contents: Option<Contents>,
    /// Servers that purge replaced and removed objects from a CDN; one must confirm each request.
    pub purge: Option<Servers>,
    /// Hosts to which requests are allowed.
    #[serde(default, deserialize_with = "hosts")]
    pub hosts: Vec<Host>,
    /// Hosts that are allowed without TLS.
    #[serde(default, deserialize_with = "hosts")]
    pub http_hosts: Vec<Host>,
    /// PEM file with additional CA certificates.
    pub ca_file: Option<PathBuf>,
    /// Networks that are allowed although they are not public.
    #[serde(default)]
    pub allow_networks: Vec<IpNet>,
    /// Which objects a job may remove.
    #[serde(default)]
    pub allow_delete: AllowDelete,
    /// Maximum fraction of the objects of a batch that a job removes.
    #[serde(default = "default_max_removals")]
    pub max_removals: f64,
    /// Patterns of text that is removed from bodies before computing the digest.
    #[serde(default, deserialize_with = "patterns")]
    pub normalize: Vec<Regex>,
    /// Maximum bytes of a body.
    #[serde(default = "default_max_body", deserialize_with = "size")]
    pub max_body: usize,
    /// Workers per job.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Limit and counter of the requests at the limiter: `LIMIT/COUNTER`.
    pub limit: Option<String>,
    /// Maximum pause that the origin can demand with `Retry-After`.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub retry_after_max: Duration,
    /// When jobs are created, unless an earlier job of the application is open.
    pub schedule: Option<Schedule>,
    /// Age of `requestedAt` beyond which an object is removed without a check.
    #[serde(default, deserialize_with = "optional_duration")]
    pub prune_after: Option<Duration>,
    /// Control of parallel requests.
    #[serde(default)]
    pub concurrency: concurrency::Settings,
}

fn default_max_removals() -> f64 {
    0.2
}

fn default_max_body() -> usize {
    1 << 20
}

fn default_workers() -> u32 {
    1
}

impl AppSettings {
    /// Errors of an application with this name, each with the name of its setting.
    pub(super) fn errors(&self, name: &str) -> Vec<String> {
        let (has_matches, parallel) = (self.cookies.is_some(), &self.concurrency);
        let mut errors = Vec::new();
        let mut check = |is_valid: bool, error: &str| {
            errors.extend((!is_valid).then(|| error.to_owned()));
        };
        let kind = if has_matches { "cookies" } else { "list" };
        let is_of_list = self.assets.is_some()
            || self.contents.is_some()
            || self.purge.is_some()
            || !self.normalize.is_empty()
            || self.prune_after.is_some();
        let can_delete = !has_matches || self.allow_delete < AllowDelete::All;
        let has_bounds = (1..=parallel.max).contains(&parallel.min)
            && parallel.max <= BATCH_ASSETS_MAX
            && parallel.step > 0;
        let is_listed = |host: &Host| self.hosts.is_empty() || self.hosts.contains(host);
        let is_counter = |it: &str| it.split('/').take(2).filter(|it| !it.is_empty()).count() == 2;
        let has_assets = self.assets.is_some() || has_matches;
        check(is_name(name), "name: use 1 to 32 characters (a-z, 0-9, -)");
        check(self.kind == kind, KIND_ERROR);
        check(!has_matches || !is_of_list, LIST_ERROR);
        check(can_delete, DELETE_ERROR);
        check(has_bounds, CONCURRENCY_ERROR);
        check(
            (0.0..=1.0).contains(&self.max_removals),
            "max_removals: use 0 to 1",
        );
        let needed = 1..=WORKERS_NEEDED_MAX;
        check(needed.contains(&self.workers), "workers: use 1 to 64");
        check(!self.hosts.is_empty(), "hosts: list at least one host");
        let are_listed = self.http_hosts.iter().all(is_listed);
        check(are_listed, "http_hosts: also list each host in `hosts`");
        let can_fire = self.schedule.is_none() || has_assets;
        check(can_fire, "schedule: requires `assets`");
        let pauses = Duration::from_secs(1)..=one_day();
        let is_pause = pauses.contains(&self.retry_after_max);
        check(is_pause, "retry_after_max: use 1s to 24h");
        let is_limit = self.limit.as_deref().is_none_or(is_counter);
        check(is_limit, "limit: use LIMIT/COUNTER");
        let found = self.cookies.as_ref();
        let found = found.map(|it| it.errors(|url| self.allowed(url)));
        // Without hosts, every URL is rejected.
        let is_cause = |it: &String| !self.hosts.is_empty() || !it.starts_with("cookies.url");
        errors.extend(found.into_iter().flatten().filter(is_cause));
        errors
    }
}

fn is_name(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_valid)
}
