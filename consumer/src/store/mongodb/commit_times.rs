//! Durations of the writer's commits, for pacing concurrent sweeps.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Age from which a commit is ignored.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Number of commits that determine the median.
const RECENT_MAX: usize = 64;

/// Durations of the sequential commits of one store.
#[derive(Debug, Default)]
pub(super) struct CommitTimes(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    began: Option<Instant>,
    /// End and duration of the newest commit.
    ended: Option<(Instant, Duration)>,
    /// Durations of recent commits.
    recent: VecDeque<Duration>,
}

/// A running commit; it ends when this is dropped.
pub(super) struct Commit<'a>(&'a CommitTimes);

impl CommitTimes {
    pub(super) fn begin(&self) -> Commit<'_> {
        self.0.lock().began = Some(Instant::now());
        Commit(self)
    }

    /// Duration of the newest commit, if it is running or recent.
    pub(super) fn newest(&self) -> Option<Duration> {
        let times = self.0.lock();
        let ended = times.ended.filter(|(at, _)| at.elapsed() < MAX_AGE);
        let running = times.began.map(|began| began.elapsed());
        running.max(ended.map(|(_, took)| took))
    }

    /// Median duration of recent commits; `None` without commits.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut recent: Vec<_> = self.0.lock().recent.iter().copied().collect();
        recent.sort_unstable();
        recent.get(recent.len().checked_sub(1)? / 2).copied()
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        let mut times = self.0.0.lock();
        if let Some(began) = times.began.take() {
            let took = began.elapsed();
            times.ended = Some((Instant::now(), took));
            if times.recent.len() == RECENT_MAX {
                times.recent.pop_front();
            }
            times.recent.push_back(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn newest_commit_is_reported_while_it_runs_and_up_to_the_maximum_age() {
        let times = CommitTimes::default();
        assert_eq!(times.newest(), None);
        let commit = times.begin();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(times.newest(), Some(Duration::from_secs(3)));
        drop(commit);
        assert_eq!(times.newest(), Some(Duration::from_secs(3)));
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(times.newest(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_commits_do_not_change_the_median() {
        let times = CommitTimes::default();
        assert_eq!(times.median(), None);
        let second = Duration::from_secs(1);
        for (count, took) in [(1, second), (20, second / 50), (19, 30 * second)] {
            for _ in 0..count {
                let commit = times.begin();
                tokio::time::advance(took).await;
                drop(commit);
            }
        }
        assert_eq!(times.median(), Some(second / 50));
        for _ in 0..RECENT_MAX {
            let commit = times.begin();
            tokio::time::advance(second).await;
            drop(commit);
        }
        assert_eq!(times.median(), Some(second));
    }
}
