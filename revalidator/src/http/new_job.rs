//! Creation of jobs by clients: from the source of an application, from assets in the body, or a single check of a few assets.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use anyhow::anyhow;
use http::{HeaderValue, StatusCode, header, request::Parts};
use runtime::{
    reply::{Reply, json},
    unix_micros,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{Api, body::BodyReader, parse};
use crate::{
    apps::App,
    create::{OPEN_JOBS_MAX, create, new_job},
    engine::Engine,
    messages::{
        ASSET_BYTES_MAX, AllowDelete, Asset, BATCH_ASSETS_MAX, Filter, JobBatch, JobStatus,
        ServerState, WORKERS_NEEDED_MAX,
    },
    problem::{self, Problem, broker, invalid},
    source::{ASSETS_MAX, parse_asset},
};

/// Maximum assets of all single checks in a second.
const CHECKS_PER_SECOND: f64 = 50.0;

/// Maximum time to publish a batch while the stream is full.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Description of a job by a client.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct JobRequest {
    app: String,
    filter: Filter,
    allow_delete: AllowDelete,
    force_update: bool,
    revalidators_needed: Option<u32>,
    /// Name of the application again, to remove all objects.
    confirm: Option<String>,
    /// Assets of a single check.
    assets: Vec<Value>,
}

/// Budget of single checks; it is full again after two seconds.
#[derive(Debug, Default)]
pub struct Budget(Option<(Instant, f64)>);

impl Budget {
    fn take(&mut self, count: usize) -> bool {
        let now = Instant::now();
        let full = 2.0 * CHECKS_PER_SECOND;
        let (at, left) = self.0.unwrap_or((now, full));
        let left = (left + (now - at).as_secs_f64() * CHECKS_PER_SECOND).min(full);
        let count = u32::try_from(count).map_or(f64::MAX, f64::from);
        let is_taken = count <= left;
        self.0 = Some((now, if is_taken { left - count } else { left }));
        is_taken
    }
}

impl JobRequest {
    /// The new job.
    fn job(&self, app: &App) -> Result<JobStatus, Problem> {
        let workers = self.revalidators_needed.unwrap_or(app.settings.workers);
        if !(1..=WORKERS_NEEDED_MAX).contains(&workers) {
            return Err(invalid("revalidatorsNeeded: use 1 to 64"));
        }
        if self.allow_delete > app.settings.allow_delete {
            return Err(invalid("allowDelete: the application does not permit it"));
        }
        if self.allow_delete == AllowDelete::All && self.confirm.as_deref() != Some(&app.name) {
            return Err(invalid(
                "confirm: name the application again to remove all its objects",
            ));
        }
        if self
            .filter
            .sample
            .is_some_and(|share| !(0.0..=1.0).contains(&share))
        {
            return Err(invalid("filter.sample: use 0 to 1"));
        }
        let now = unix_micros() / 1000;
        let id = format!("{}-{now}-{:06x}", app.name, fastrand::u32(..0x100_0000));
        Ok(JobStatus {
            allow_delete: self.allow_delete,
            force_update: self.force_update,
            revalidators_needed: workers,
            filter: self.filter.clone(),
            ..new_job(app, id, now)
        })
    }
}

/// Media type of a body, without parameters.
fn media_type(head: &Parts) -> String {
    let value = head
        .headers
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    let essence = value.and_then(|it| it.split(|byte| *byte == b';').next());
    String::from_utf8_lossy(essence.unwrap_or_default().trim_ascii()).to_ascii_lowercase()
}

impl<E: Engine> Api<E> {
    /// Creates a job. The first line of an NDJSON body describes it, and each further line is an asset. `is_check` is a single check,
    /// whose assets are part of the description.
    pub(super) async fn create_job(
        &self,
        head: &Parts,
        body: &mut BodyReader,
        is_check: bool,
    ) -> Result<Reply, Problem> {
        let (described, has_lines) = match &*media_type(head) {
            "application/json" => (body.whole().await?, false),
            "application/x-ndjson" if !is_check => {
                (body.line(ASSET_BYTES_MAX).await?.unwrap_or_default(), true)
            }
            _ => return Err(Problem::new(problem::MEDIA_TYPE, "")),
        };
        let request: JobRequest = parse(&described)?;
        let app = (self.apps)().get(&request.app);
        let app: Arc<App> =
            app.ok_or_else(|| invalid(format!("app: unknown application {:?}", request.app)))?;
        let mut job = request.job(&app)?;
        if !has_lines && !is_check && app.settings.assets.is_none() {
            return Err(invalid(
                "app: it has no assets; send them as application/x-ndjson",
            ));
        }
        if is_check == request.assets.is_empty() {
            return Err(invalid("assets: use 1 to 100, and only for a single check"));
        }
        let engine = self.engine()?;
        let open = self
            .mirror
            .jobs()
            .iter()
            .filter(|job| job.is_open())
            .count();
        if open >= OPEN_JOBS_MAX {
            return Err(
                Problem::new(problem::TOO_MANY, format!("{open} jobs are open")).retry_after(60),
            );
        }
        if has_lines || is_check {
            let published = if is_check {
                self.publish_check(&request, &mut job).await
            } else {
                self.publish_lines(body, &mut job).await
            };
            if published.is_err() {
                let purged = engine.purge(&job.job_id, true).await;
                purged.unwrap_or_else(
                    |error| tracing::debug!(%error, "batches not removed; they expire"),
                );
            }
            published?;
            job.server_state = ServerState::WaitForResults;
        }
        if !create(engine, &job).await.map_err(|error| broker(&error))? {
            return Err(Problem::new(problem::CONFLICT, "a job with this id exists"));
        }
        tracing::info!(job = job.job_id, "job created");
        Ok(json(StatusCode::CREATED, &job))
    }

    /// Publishes the assets of a single check, which does not wait for other jobs.
    async fn publish_check(
        &self,
        request: &JobRequest,
        job: &mut JobStatus,
    ) -> Result<(), Problem> {
        if request.assets.len() > BATCH_ASSETS_MAX || request.allow_delete == AllowDelete::All {
            return Err(invalid(
                "assets: a single check has 1 to 100, and cannot remove all objects",
            ));
        }
        let mut assets = Vec::new();
        for (index, asset) in request.assets.iter().enumerate() {
            let asset = parse_asset(asset.to_string().as_bytes());
            assets.push(asset.map_err(|error| invalid(format!("assets[{index}]: {error:#}")))?);
        }
        let count = assets.len();
        let has_budget = self
            .budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(count);
        if !has_budget {
            return Err(Problem::new(problem::TOO_MANY, "").retry_after(2));
        }
        job.push = true;
        self.send(job, assets).await
    }

    /// Publishes the assets of a body, one a line.
    async fn publish_lines(
        &self,
        body: &mut BodyReader,
        job: &mut JobStatus,
    ) -> Result<(), Problem> {
        let (mut assets, mut number) = (Vec::new(), 1_u64);
        loop {
            number += 1;
            let line = body.line(ASSET_BYTES_MAX).await.map_err(|mut problem| {
                problem.detail.insert_str(0, &format!("line {number}: "));
                problem
            })?;
            let is_end = line.is_none();
            if let Some(line) = line.filter(|line| !line.trim_ascii().is_empty()) {
                let asset = parse_asset(&line);
                assets.push(asset.map_err(|error| invalid(format!("line {number}: {error:#}")))?);
            }
            if assets.len() == BATCH_ASSETS_MAX || (is_end && !assets.is_empty()) {
                self.send(job, std::mem::take(&mut assets)).await?;
            }
            if job.asset_count > ASSETS_MAX {
                return Err(Problem::new(problem::TOO_LARGE, ""));
            }
            if is_end {
                return Ok(());
            }
        }
    }

    async fn send(&self, job: &mut JobStatus, assets: Vec<Asset>) -> Result<(), Problem> {
        let count = assets.len() as u64;
        let batch = JobBatch {
            assets,
            job_id: job.job_id.clone(),
            batch: job.batch_count,
            attempt: 1,
        };
        let (id, payload) = (batch.id(), serde_json::to_vec(&batch).unwrap_or_default());
        let sent = timeout(
            SEND_TIMEOUT,
            self.engine()?.send_batch(&job.job_id, &id, payload.into()),
        )
        .await;
        let sent = sent.unwrap_or_else(|_| Err(anyhow!("timeout")));
        sent.map_err(|error| broker(&error))?;
        job.batch_count += 1;
        job.asset_count += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn single_checks_have_a_budget() {
        let mut budget = Budget::default();
        assert!(budget.take(100) && !budget.take(1));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(budget.take(25) && !budget.take(1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(budget.take(100) && !budget.take(1));
    }

    #[test]
    fn job_is_limited_by_its_application() {
        let apps = "[apps.a]\nkind = \"list\"\nhosts = [\"a.example\"]\nallow_delete = \"all\"\n[apps.b]\nkind = \"list\"\nhosts = [\"a.example\"]\n";
        let apps = crate::apps::Apps::parse(apps).unwrap();
        let job = |app: &str, text: &str| {
            let request: JobRequest = serde_json::from_str(text).unwrap();
            request
                .job(&apps.get(app).unwrap())
                .map_err(|problem| problem.detail)
        };
        assert!(job("a", "{\"allowDelete\": \"all\", \"confirm\": \"a\"}").is_ok());
        for (app, text, what) in [
            ("a", "{\"allowDelete\": \"all\"}", "confirm"),
            (
                "a",
                "{\"allowDelete\": \"all\", \"confirm\": \"b\"}",
                "confirm",
            ),
            ("b", "{\"allowDelete\": \"partial\"}", "allowDelete"),
            ("b", "{\"revalidatorsNeeded\": 0}", "revalidatorsNeeded"),
            ("b", "{\"revalidatorsNeeded\": 65}", "revalidatorsNeeded"),
            ("b", "{\"filter\": {\"sample\": 2}}", "sample"),
        ] {
            let error = job(app, text).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert!(serde_json::from_str::<JobRequest>("{\"filter\": {\"colour\": 1}}").is_err());
    }
}
