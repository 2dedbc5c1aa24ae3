//! State and counts of the archive, for metrics and `/readyz`.

use std::{sync::Arc, time::Duration};

use metric_defs::producer;
use parking_lot::Mutex;
use runtime::{
    connect::ArchiveError,
    metrics::{Family, as_f64, family},
};

use crate::log::Stats;

/// Time without an acknowledgement after which the archive is stalled.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Age of the oldest sealed cookie that is not archived, above which the archive is behind.
const BEHIND_AFTER: Duration = Duration::from_secs(5);

/// State of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The connection is being established.
    Connecting,
    /// Every cookie is archived within seconds.
    Current,
    /// Messages are acknowledged, but older cookies are waiting.
    Behind,
    /// The archive refuses messages until somebody changes a setting.
    Refused,
    /// No message was acknowledged for 10 seconds.
    Stalled,
}

/// State and counts; clones share them. Empty without an archive.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<Option<Progress>>>);

#[derive(Debug, Clone)]
struct Progress {
    state: State,
    /// The last error, until a message is acknowledged.
    error: String,
    archived: u64,
    lost: u64,
    retries: u64,
}

impl State {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Connecting, "connecting"),
        (Self::Current, "current"),
        (Self::Behind, "behind"),
        (Self::Refused, "refused"),
        (Self::Stalled, "stalled"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl Status {
    /// The status of an archive without messages.
    pub fn begin() -> Self {
        Self(Arc::new(Mutex::new(Some(Progress {
            state: State::Connecting,
            error: String::new(),
            archived: 0,
            lost: 0,
            retries: 0,
        }))))
    }

    /// Records a failed attempt to publish a message, `since` the first one.
    pub(super) fn failed(&self, error: &ArchiveError, since: Duration) {
        let state = match error {
            ArchiveError::Refused(_) => State::Refused,
            ArchiveError::Unavailable(_) if since >= STALLED_AFTER => State::Stalled,
            ArchiveError::Unavailable(_) => State::Connecting,
        };
        self.change(state, error.to_string(), |it| it.retries += 1);
    }

    /// Records an acknowledged message. `lag` is the age of the oldest cookie that waits.
    pub(super) fn acknowledged(&self, cookies: u64, lost: u64, lag: Duration) {
        let state = if lag > BEHIND_AFTER {
            State::Behind
        } else {
            State::Current
        };
        self.change(state, String::new(), |it| {
            it.archived += cookies;
            it.lost += lost;
        });
    }

    /// Logs each change once.
    fn change(&self, state: State, error: String, update: impl FnOnce(&mut Progress)) {
        let mut progress = self.0.lock();
        let Some(progress) = progress.as_mut() else {
            return;
        };
        update(progress);
        let has_changed = progress.state != state || progress.error.is_empty() != error.is_empty();
        let has_new_reason = state == State::Refused && progress.error != error;
        if has_changed || has_new_reason {
            let state = state.name();
            if error.is_empty() {
                tracing::info!(state, "archive acknowledges messages");
            } else {
                tracing::warn!(state, error, "archive does not acknowledge messages");
            }
        }
        (progress.state, progress.error) = (state, error);
    }

    /// The state in one line; `None` without an archive.
    pub(crate) fn describe(&self) -> Option<String> {
        let progress = self.0.lock();
        let progress = progress.as_ref()?;
        let state = progress.state.name();
        Some(match &*progress.error {
            "" => state.to_owned(),
            error => format!("{state}: {error}"),
        })
    }

    /// Reads the counts. The result computes metrics that balance with statistics of the log that are read later.
    pub(crate) fn families(&self) -> impl FnOnce(&Stats) -> Vec<Family> {
        let progress = self.0.lock().clone();
        move |stats| {
            let value = |of: fn(&Progress, u64) -> u64| {
                let progress = progress.iter();
                progress.map(move |it| ([], as_f64(of(it, stats.appended))))
            };
            let states = progress.iter().flat_map(|it| {
                State::ALL.map(|(state, name)| ([name], f64::from(u8::from(state == it.state))))
            });
            vec![
                family(producer::ARCHIVED, value(|it, _| it.archived)),
                family(producer::ARCHIVE_LOST, value(|it, _| it.lost)),
                family(producer::ARCHIVE_QUEUED, value(Progress::queued)),
                family(producer::ARCHIVE_RETRIES, value(|it, _| it.retries)),
                family(producer::ARCHIVE_STATE, states),
            ]
        }
    }
}

impl Progress {
    fn queued(&self, appended: u64) -> u64 {
        appended.saturating_sub(self.archived + self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_shortened() {
        let status = Status::begin();
        let error = ArchiveError::Refused("é".repeat(100_000));
        status.failed(&error, Duration::ZERO);
        let text = status.describe().unwrap();
        assert_eq!(text.chars().count(), "refused: ".len() + 500);
    }
}
