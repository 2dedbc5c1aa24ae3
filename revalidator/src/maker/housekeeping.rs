//! Work for all jobs: scheduled jobs, removal of ended jobs and of the keys of lost processes.

use anyhow::Result;

use super::Maker;
use crate::{
    apps::Overlap,
    create::{create, new_job},
    engine::{Bucket, Engine},
    jobs::ENDED_MS_MAX,
    messages::AllowDelete,
};

/// Maximum number of ended jobs.
const ENDED_JOBS_MAX: usize = 1000;

impl<E: Engine> Maker<E> {
    pub(super) async fn keep_house(&self) -> Result<()> {
        let now = (self.clock)();
        let jobs = self.mirror.jobs();
        let mut ended: Vec<_> = jobs
            .iter()
            .filter(|job| !job.is_open())
            .filter_map(|job| Some((job.ended_at?, &job.job_id)))
            .collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(ENDED_JOBS_MAX);
        for (index, (at, id)) in ended.into_iter().enumerate() {
            if index < surplus || now.saturating_sub(at) >= ENDED_MS_MAX {
                self.engine.purge(id, true).await?;
                self.engine.delete(Bucket::Jobs, id, None).await?;
            }
        }
        for (key, revision) in self.mirror.lost() {
            // Another maker may delete it first.
            let deleted = self
                .engine
                .delete(Bucket::Subscriptions, &key, Some(revision));
            if let Err(error) = deleted.await {
                tracing::debug!(%error, key, "lost key not deleted");
            }
        }
        for app in (self.apps)().iter() {
            let Some(schedule) = &app.schedule else {
                continue;
            };
            let of_app = || {
                jobs.iter()
                    .filter(|job| job.app_name == app.name && !job.push)
            };
            let last = of_app().map(|job| job.created_at).max();
            let Some(due) = schedule.due(last.unwrap_or(self.started_at), now) else {
                continue;
            };
            if app.settings.overlap == Overlap::Skip && of_app().any(|job| job.is_open()) {
                continue;
            }
            // One job per firing, with any number of makers.
            let mut job = new_job(app, format!("{}-{due}", app.name), now);
            job.allow_delete = app.settings.allow_delete.min(AllowDelete::Partial);
            if create(&self.engine, &job).await? {
                tracing::info!(app = app.name, "scheduled job created");
            }
        }
        Ok(())
    }
}
