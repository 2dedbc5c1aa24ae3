//! Creation of jobs by clients: for the assets of an application's source, for assets in the body, or as a single check of a few assets.

use std::sync::Arc;

use anyhow::Result;
use http::{StatusCode, header, request::Parts};
use hyper::body::Incoming;
use runtime::{
    reply::{Reply, json},
    unix_micros,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{task::spawn_blocking, time::Instant};

use super::{Api, LARGE_REQUESTS, body, parse, permit};
use crate::{
    apps::App,
    engine::Engine,
    jobs::OPEN_JOBS_MAX,
    lease::Lease,
    maker::bodies::{Body, LARGE_BODIES},
    messages::{
        AllowDelete, Asset, BATCH_ASSETS_MAX, Filter, JobBatch, JobStatus, STATUS_BYTES_MAX,
        ServerState, WORKERS_NEEDED_MAX,
    },
    mirror::{create_job, maker_key, new_job},
    problem::{self, Problem, broker, invalid},
    source::{self, TooLarge},
};

/// Maximum number of assets per second in all single checks.
const CHECKS_PER_SECOND: f64 = 50.0;

/// Description of a job by a client.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct JobRequest {
    app: String,
    filter: Filter,
    allow_delete: Option<AllowDelete>,
    force_update: bool,
    revalidators_needed: Option<u32>,
    /// Name of the application, repeated to confirm the removal of all objects.
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
        if self.allow_delete > Some(app.settings.allow_delete) {
            return Err(invalid("allowDelete: not permitted by the application"));
        }
        let removes_all = self.allow_delete == Some(AllowDelete::All);
        if removes_all && self.confirm.as_deref() != Some(&app.name) {
            return Err(invalid("confirm: repeat the name of the application"));
        }
        if !(0.0..=1.0).contains(&self.filter.sample.unwrap_or(0.0)) {
            return Err(invalid("filter.sample: use 0 to 1"));
        }
        if let Some(unknown) = self.filter.other.keys().next() {
            return Err(invalid(format!("filter.{unknown}: unknown field")));
        }
        let now = unix_micros() / 1000;
        let id = format!("{}-{now}-{:06x}", app.name, fastrand::u32(..0x100_0000));
        let new = new_job(app, id, now);
        let job = JobStatus {
            allow_delete: self.allow_delete.unwrap_or(new.allow_delete),
            force_update: self.force_update,
            revalidators_needed: workers,
            filter: self.filter.clone(),
            confirm: self.confirm.clone().filter(|_| removes_all),
            ..new
        };
        // The status grows until the job ends.
        if serde_json::to_vec(&job).is_ok_and(|it| it.len() > STATUS_BYTES_MAX / 2) {
            return Err(invalid("filter.prefix: too long"));
        }
        Ok(job)
    }
}

/// Media type of a body, without parameters.
fn media_type(head: &Parts) -> String {
    let value = head.headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

impl<E: Engine> Api<E> {
    /// Creates a job. The first line of an NDJSON body describes the job, and every other line is an asset. With `is_check`, creates a
    /// single check, whose assets are part of the description.
    pub(super) async fn create_job(
        &self,
        head: &Parts,
        body: &mut Incoming,
        is_check: bool,
    ) -> Result<Reply, Problem> {
        let _permit;
        let (described, mut received) = match &*media_type(head) {
            "application/json" => {
                _permit = permit(&LARGE_REQUESTS).await;
                (body::whole(body).await?.to_vec(), None)
            }
            "application/x-ndjson" if !is_check => {
                let (described, body) = receive(body).await?;
                (described, Some(body))
            }
            _ => return Err(Problem::new(problem::MEDIA_TYPE, "")),
        };
        let request: JobRequest = parse(&described)?;
        let app = (self.apps)().get(&request.app);
        let app: Arc<App> =
            app.ok_or_else(|| invalid(format!("app: unknown application {:?}", request.app)))?;
        let mut job = request.job(&app)?;
        let has_matches = app.settings.cookies.is_some();
        let mut checked = Vec::new();
        if has_matches && (is_check || received.is_some()) {
            return Err(invalid(
                "app: matches are read from nodes only; create a job with `filter.prefix`",
            ));
        } else if is_check {
            checked = self.check_assets(&request)?;
        } else if !request.assets.is_empty() {
            return Err(invalid("assets: permitted only in POST /v1/revalidate"));
        } else if received.is_none() && !has_matches {
            let list = app.settings.assets.as_deref();
            let none = "app: no assets file is set: send the assets as application/x-ndjson";
            let size = source::check_size(list.ok_or_else(|| invalid(none))?);
            size.map_err(|error| invalid(format!("app: {error}")))?;
        }
        let has_keys = received.as_ref().is_some_and(|body| body.has_keys);
        let has_keys = has_keys || checked.iter().any(Asset::has_key);
        if has_keys {
            if request.allow_delete > Some(AllowDelete::None) {
                let keys = "allowDelete: requires that the key of each asset is its URL";
                return Err(invalid(keys));
            }
            job.allow_delete = AllowDelete::None;
        }
        let engine = self.engine()?;
        let jobs = self.mirror.jobs();
        let open = jobs.iter().filter(|it| it.is_open() && it.push == is_check);
        if open.count() >= OPEN_JOBS_MAX {
            return Err(Problem::new(problem::TOO_MANY, "too many open jobs").retry_after(60));
        }
        if received.is_some() && self.bodies.is_none() {
            return Err(invalid("--no-maker is set: send assets to another process"));
        }
        let exists = || Problem::new(problem::CONFLICT, "a job with this id already exists");
        if let Some(body) = &mut received {
            (job.has_body, job.cursor) = (true, body.start.to_string());
            let key = maker_key(&job.job_id);
            let lease = Lease::acquire(engine, &self.mirror, key, &job.job_id).await;
            body.lease = Some(lease.map_err(broker)?.ok_or_else(exists)?);
        }
        if is_check {
            let sent = send_check(engine, &mut job, checked).await;
            sent.map_err(broker)?;
        }
        if !create_job(engine, &job).await.map_err(broker)? {
            return Err(exists());
        }
        if let (Some(body), Some(bodies)) = (received, &self.bodies) {
            bodies.lock().insert(job.job_id.clone(), body);
        }
        tracing::info!(job = job.job_id, "job created");
        Ok(json(StatusCode::CREATED, &job))
    }

    /// The assets of a single check.
    fn check_assets(&self, request: &JobRequest) -> Result<Vec<Asset>, Problem> {
        let count = request.assets.len();
        if !(1..=BATCH_ASSETS_MAX).contains(&count)
            || request.allow_delete == Some(AllowDelete::All)
        {
            return Err(invalid("use 1 to 100 assets; allowDelete cannot be `all`"));
        }
        if !self.budget.lock().take(count) {
            return Err(Problem::new(problem::TOO_MANY, "").retry_after(2));
        }
        let parse = |(index, asset): (usize, &Value)| {
            let line = source::parse(asset.to_string().as_bytes());
            let line = line.map_err(|error| invalid(format!("assets[{index}]: {error:#}")))?;
            Ok(line.asset)
        };
        request.assets.iter().enumerate().map(parse).collect()
    }
}

/// Publishes the only batch of a single check.
async fn send_check<E: Engine>(engine: &E, job: &mut JobStatus, assets: Vec<Asset>) -> Result<()> {
    (job.push, job.asset_count, job.batch_count) = (true, assets.len() as u64, 1);
    job.server_state = ServerState::WaitForResults;
    let batch = JobBatch::new(&job.job_id, 0, 1, assets);
    let (id, payload) = (batch.id(), serde_json::to_vec(&batch)?);
    engine.send_batch(&job.job_id, &id, payload.into()).await
}

/// Receives a body, and checks its assets; returns the description of the job, and the assets.
async fn receive(body: &mut Incoming) -> Result<(Vec<u8>, Body), Problem> {
    let many = |_| Problem::new(problem::TOO_MANY, "too many asset uploads").retry_after(60);
    let permit = LARGE_BODIES.try_acquire().map_err(many)?;
    let file = body::file(body).await?;
    let checked = spawn_blocking(move || anyhow::Ok((source::check(&file)?, file))).await;
    match checked.map_err(Into::into).flatten() {
        Ok(((described, start, has_keys), file)) => {
            let body = Body {
                file,
                start,
                has_keys,
                lease: None,
                at: Instant::now(),
                permit,
            };
            Ok((described, body))
        }
        Err(error) if error.is::<TooLarge>() => {
            Err(Problem::new(problem::TOO_LARGE, error.to_string()))
        }
        Err(error) => Err(invalid(format!("{error:#}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let unused = job("a", "{\"confirm\": \"a\"}").unwrap();
        assert_eq!(unused.confirm, None);
        // Only a request can remove all objects.
        for (app, text, allow_delete) in [
            ("a", "{}", AllowDelete::Partial),
            ("a", "{\"allowDelete\": \"none\"}", AllowDelete::None),
            ("b", "{}", AllowDelete::None),
        ] {
            assert_eq!(job(app, text).unwrap().allow_delete, allow_delete);
        }
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
            ("b", "{\"filter\": {\"colour\": 1}}", "filter.colour"),
            (
                "b",
                &format!(
                    "{{\"filter\": {{\"prefix\": \"{}\"}}}}",
                    "\\u0001".repeat(1400)
                ),
                "prefix",
            ),
        ] {
            let error = job(app, text).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
