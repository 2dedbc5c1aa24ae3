//! Settings of an application, as in the file.

use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;
use url::Host;

use super::{
    cookies::Cookies,
    values::{hosts, optional_duration, size},
};
use crate::{concurrency, messages::AllowDelete, outcome::Reading};

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

/// Settings of an application, as in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSettings {
    /// `list`, for files or metadata of objects that are stored elsewhere, or `cookies`, for matches of a DSP.
    pub(super) kind: String,
    /// Settings of matches.
    pub cookies: Option<Cookies>,
    /// File of its assets, one JSON object per line; without it, each job provides its assets.
    pub assets: Option<PathBuf>,
    pub(super) contents: Option<String>,
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
    pub(super) gone_on: Vec<u16>,
    #[serde(default)]
    pub(super) normalize: Vec<String>,
    /// Maximum bytes of a body.
    #[serde(default = "default_max_body", deserialize_with = "size")]
    pub max_body: usize,
    /// Workers per job.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Limit and counter that restrict the requests, with a slash between.
    pub limit: Option<String>,
    pub(super) schedule: Option<String>,
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

impl AppSettings {
    /// Whether a setting is there that matches do not have.
    pub(super) fn is_of_list(&self) -> bool {
        self.assets.is_some()
            || self.contents.is_some()
            || !self.normalize.is_empty()
            || self.prune_after.is_some()
            || self.on_failure == OnFailure::Drop
    }
}
