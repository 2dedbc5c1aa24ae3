//! Creation of jobs.

use anyhow::Result;

use crate::{
    apps::App,
    engine::{Bucket, Engine},
    messages::{AllowDelete, Counts, Filter, JobStatus, RevalidatorState, ServerState},
};

/// Maximum number of open jobs.
pub const OPEN_JOBS_MAX: usize = 1000;

/// A job that does not exist yet.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Unique id.
    pub id: String,
    /// Its application.
    pub app: String,
    /// Which objects may be removed.
    pub allow_delete: AllowDelete,
    /// Whether all objects are replaced.
    pub force_update: bool,
    /// Maximum number of workers.
    pub workers: u32,
    /// Which assets of the source it has.
    pub filter: Filter,
    /// Assets and batches that are already published, if the assets come with the request.
    pub published: Option<(u64, u64)>,
    /// Time of creation, in Unix milliseconds.
    pub created_at: u64,
}

impl NewJob {
    /// A job with the defaults of an application, without an id and a time.
    #[must_use]
    pub fn of(app: &App) -> Self {
        Self {
            id: String::new(),
            app: app.name.clone(),
            allow_delete: AllowDelete::None,
            force_update: false,
            workers: app.workers,
            filter: Filter::default(),
            published: None,
            created_at: 0,
        }
    }

    /// Its first status.
    #[must_use]
    pub fn status(self) -> JobStatus {
        let (asset_count, batch_count) = self.published.unwrap_or_default();
        JobStatus {
            allow_delete: self.allow_delete,
            app_name: self.app,
            asset_count,
            batch_count,
            force_update: self.force_update,
            job_id: self.id,
            revalidators_needed: self.workers,
            revalidator_state: RevalidatorState::Waiting,
            server_state: match self.published {
                Some(_) => ServerState::WaitForResults,
                None => ServerState::Transmitting,
            },
            created_at: self.created_at,
            started_at: None,
            ended_at: None,
            reason: None,
            resume_at: None,
            suspended_at: None,
            failing_since: None,
            suspensions: 0,
            retry_batch_count: None,
            counts: Counts::default(),
            cursor: 0,
            filter: self.filter,
            push: self.published.is_some(),
            foreign: false,
            acknowledged: false,
            other: serde_json::Map::new(),
        }
    }
}

/// Creates a job; false if one with this id exists.
///
/// # Errors
/// When the engine fails.
pub async fn create<E: Engine>(engine: &E, job: NewJob) -> Result<bool> {
    let id = job.id.clone();
    let value = serde_json::to_vec(&job.status())?.into();
    let created = engine.compare_and_set(Bucket::Jobs, &id, value, None);
    Ok(created.await?.is_some())
}
