//! Creation of jobs.

use anyhow::Result;

use crate::{
    apps::App,
    engine::{Bucket, Engine},
    messages::JobStatus,
};

/// Maximum number of open jobs.
pub const OPEN_JOBS_MAX: usize = 1000;

/// A job with the defaults of an application that does not exist yet. Times are Unix milliseconds.
#[must_use]
pub fn new_job(app: &App, id: String, now: u64) -> JobStatus {
    JobStatus {
        app_name: app.name.clone(),
        job_id: id,
        revalidators_needed: app.settings.workers,
        created_at: now,
        ..JobStatus::default()
    }
}

/// Creates a job; false if one with this id exists.
///
/// # Errors
/// When the engine fails.
pub async fn create<E: Engine>(engine: &E, job: &JobStatus) -> Result<bool> {
    let value = serde_json::to_vec(job)?.into();
    let created = engine.compare_and_set(Bucket::Jobs, &job.job_id, value, None);
    Ok(created.await?.is_some())
}
