//! How long the writer's commits take, for what runs beside them.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::super::lock;

/// A commit that ended before that says nothing of now.
const OLD: Duration = Duration::from_secs(10);

/// So many commits tell what is usual.
const LATELY: usize = 64;

/// The commits of one store, one after the other.
#[derive(Debug, Default)]
pub(in super::super) struct CommitTimes(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    began: Option<Instant>,
    /// When the newest one ended, and how long it took.
    ended: Option<(Instant, Duration)>,
    /// How long the newest ones took.
    lately: VecDeque<Duration>,
}

/// A commit under way, to its end.
pub(in super::super) struct Commit<'a>(&'a CommitTimes);

impl CommitTimes {
    pub(in super::super) fn begin(&self) -> Commit<'_> {
        self.times().began = Some(Instant::now());
        Commit(self)
    }

    /// How long the newest took, or takes, if there was one lately.
    pub(super) fn newest(&self) -> Option<Duration> {
        let times = self.times();
        let ended = times.ended.filter(|(at, _)| at.elapsed() < OLD);
        let running = times.began.map(|began| began.elapsed());
        running.max(ended.map(|(_, took)| took))
    }

    /// What half of the commits lately took at most, if there were any.
    pub(super) fn usual(&self) -> Option<Duration> {
        let mut lately: Vec<_> = self.times().lately.iter().copied().collect();
        lately.sort_unstable();
        lately.get(lately.len().checked_sub(1)? / 2).copied()
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.0)
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        let mut times = self.0.times();
        if let Some(began) = times.began.take() {
            let took = began.elapsed();
            times.ended = Some((Instant::now(), took));
            if times.lately.len() == LATELY {
                times.lately.pop_front();
            }
            times.lately.push_back(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn newest_commit_counts_while_it_runs_and_for_a_while_after() {
        let times = CommitTimes::default();
        assert_eq!(times.newest(), None);
        let commit = times.begin();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(times.newest(), Some(Duration::from_secs(3)));
        drop(commit);
        assert_eq!(times.newest(), Some(Duration::from_secs(3)));
        tokio::time::advance(OLD).await;
        assert_eq!(times.newest(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn commits_that_hung_are_not_what_is_usual() {
        let times = CommitTimes::default();
        assert_eq!(times.usual(), None);
        let second = Duration::from_secs(1);
        for (count, took) in [(1, second), (20, second / 50), (19, 30 * second)] {
            for _ in 0..count {
                let commit = times.begin();
                tokio::time::advance(took).await;
                drop(commit);
            }
        }
        assert_eq!(times.usual(), Some(second / 50));
        for _ in 0..LATELY {
            let commit = times.begin();
            tokio::time::advance(second).await;
            drop(commit);
        }
        assert_eq!(times.usual(), Some(second));
    }
}
