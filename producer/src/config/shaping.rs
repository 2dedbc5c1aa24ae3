//! The settings of the limits that DSPs have agreed on.

use std::path::PathBuf;

use anyhow::Context as _;
use runtime::{
    connect::credentials::loaded,
    reload::{self, NamedFile},
    settings::{CONTENTS, Mistakes, optional},
    token,
};
use tokio_util::sync::CancellationToken;

use crate::{
    epoch_history::{HeldRecord, LeftBehind},
    log::Log,
    shaping::{
        Shaping, Spool,
        contract::{self, File, LimitsFile},
        feed::{Feed, Url},
    },
};

/// The settings, a field for each; an empty string means not set.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What DSPs have agreed on")]
pub(super) struct LimitsArgs {
    /// TOML file with the limits of DSPs, and what is done with what is over: observe, police or shape
    ///
    /// It is looked at again every second; a version with mistakes changes nothing. `limiter check` says what a file means.
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    limits: String,

    /// Limiter whose limits are followed, as in http://10.0.0.7:9099: --limits is then the file that keeps their newest version
    ///
    /// The producer writes the file, and a start without the limiter goes by it. Only where there is no file yet, the start needs the limiter.
    #[arg(
        long,
        value_name = "URL",
        default_value = "",
        hide_default_value = true,
        value_parser = optional(|text| Url::parse(text).map_err(Into::into))
    )]
    limits_feed: std::option::Option<Url>,

    /// File with the token that the limiter wants, which has the right `feed`
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    limits_feed_token_file: String,

    /// File that keeps what waits for its limits while the producer is stopped [default: released before its time]
    ///
    /// Each producer needs its own.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    limits_spool: String,
}

/// The checked settings, and what the file says.
#[derive(Debug, Clone, Default)]
pub struct LimitsConfig {
    file: Option<LimitsFile>,
    feed: Option<Feed>,
    spool: Option<PathBuf>,
}

impl LimitsArgs {
    /// Reads the file; notes what is wrong with it.
    pub(super) fn check(self, mistakes: &mut Mistakes) -> LimitsConfig {
        let spool = (!self.limits_spool.is_empty()).then(|| PathBuf::from(&self.limits_spool));
        if let Some(spool) = &spool {
            if self.limits.is_empty() {
                mistakes.add("--limits-spool: needs --limits");
            }
            // What cannot be written at the end is said at the start.
            let folder = spool
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            if spool.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                let path = spool.display();
                mistakes.add(format!(
                    "--limits-spool: {path}: names a file in a folder that exists"
                ));
            }
        }
        let feed = self.feed(mistakes);
        if let Some(Err(mistake)) = feed.as_ref().map(Feed::first) {
            mistakes.add(format!("--limits-feed: {mistake}"));
            return LimitsConfig::default();
        }
        let file = NamedFile::given("--limits", &self.limits);
        LimitsConfig {
            feed,
            file: file.and_then(|file| loaded(mistakes, File(file))),
            spool,
        }
    }

    fn feed(&self, mistakes: &mut Mistakes) -> Option<Feed> {
        let token = NamedFile::given("--limits-feed-token-file", &self.limits_feed_token_file);
        let Some(url) = self.limits_feed.clone() else {
            if token.is_some() {
                mistakes.add("--limits-feed-token-file: needs --limits-feed");
            }
            return None;
        };
        if self.limits.is_empty() {
            mistakes.add("--limits-feed: needs --limits, the file that keeps the newest version");
            return None;
        }
        let is_given = token.is_some();
        let token = token.and_then(|file| loaded(mistakes, token::File(file)));
        if is_given && token.is_none() {
            return None;
        }
        Some(Feed::new(url, token, PathBuf::from(&self.limits)))
    }
}

impl LimitsConfig {
    /// The limits of the producer of this name, if there are any; `record` opens the record of how many cookies wait.
    ///
    /// # Errors
    /// When another process uses the file that keeps what waits.
    pub(crate) fn start(
        &self,
        producer: &str,
        log: &Log,
        record: impl FnOnce() -> (Option<HeldRecord>, LeftBehind),
    ) -> anyhow::Result<Option<Shaping>> {
        let Some(file) = self.file.clone() else {
            return Ok(None);
        };
        let take = |path: &PathBuf| {
            let taken = Spool::take(path.clone());
            taken.with_context(|| format!("--limits-spool: {}", path.display()))
        };
        let spool = self.spool.as_ref().map(take).transpose()?;
        if self.feed.as_ref().is_some_and(|feed| !feed.stays_here()) {
            tracing::warn!(
                "the limiter is asked in plain text: others on the way can read its limits, and the token"
            );
        }
        let file = (file, self.feed.clone());
        let shaping = Shaping::start(producer, file, spool, log.clone(), record());
        Ok(Some(shaping))
    }

    /// Looks at the file once, where nothing else does.
    pub fn look(&self) {
        if let Some(file) = &self.file {
            file.look_once();
        }
    }

    /// Most bytes that what waits may take, by the file as it is now.
    pub(crate) fn held_bytes_max(&self) -> u64 {
        let file = self.file.as_ref();
        file.map_or(0, |file| contract::held_bytes_max(&file.current()))
    }

    /// Looks at the file again and again, and follows the limiter, until `stop`.
    pub(crate) async fn watch(self, metrics: reload::Metrics, stop: CancellationToken) {
        let following = async {
            if let Some(feed) = self.feed {
                feed.run(metrics.clone(), stop.clone()).await;
            }
        };
        let watching = async {
            if let Some(file) = self.file {
                file.watch(metrics.clone(), stop.clone()).await;
            }
        };
        tokio::join!(following, watching);
    }
}
