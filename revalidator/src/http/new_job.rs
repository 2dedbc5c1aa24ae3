//! Creation of jobs by clients: from the source of an application, from assets in the body, or a single check of a few assets.

use std::{
    fs,
    sync::{Arc, PoisonError},
};

use http::{StatusCode, header, request::Parts};
use hyper::body::Incoming;
use runtime::{
    reply::{Reply, json},
    unix_micros,
};
use serde::Deserialize;
use serde_json::Value;
use tempfile::{NamedTempFile, TempPath};
use tokio::{task::spawn_blocking, time::Instant};

use super::{Api, body, large_request, parse};
use crate::{
    apps::App,
    create::{OPEN_JOBS_MAX, create, new_job},
    engine::Engine,
    lease::Lease,
    maker::bodies::{self, Body, LARGE_BODIES},
    messages::{
        AllowDelete, BATCH_ASSETS_MAX, Filter, JobStatus, URL_BYTES_MAX, WORKERS_NEEDED_MAX,
    },
    problem::{self, Problem, broker, invalid},
    source::{self, TooLarge},
};

/// Maximum assets of all single checks in a second.
const CHECKS_PER_SECOND: f64 = 50.0;

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
            return Err(invalid("confirm: use the name of the application"));
        }
        if !(0.0..=1.0).contains(&self.filter.sample.unwrap_or(0.0)) {
            return Err(invalid("filter.sample: use 0 to 1"));
        }
        if let Some(unknown) = self.filter.other.keys().next() {
            return Err(invalid(format!("filter.{unknown}: unknown field")));
        }
        let prefix = self.filter.prefix.as_deref().unwrap_or_default();
        if prefix.len() > URL_BYTES_MAX {
            return Err(invalid("filter.prefix: use up to 2048 bytes"));
        }
        let now = unix_micros() / 1000;
        let id = format!("{}-{now}-{:06x}", app.name, fastrand::u32(..0x100_0000));
        Ok(JobStatus {
            allow_delete: self.allow_delete,
            force_update: self.force_update,
            revalidators_needed: workers,
            filter: self.filter.clone(),
            confirm: self.confirm.clone(),
            ..new_job(app, id, now)
        })
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
    /// Creates a job. The first line of an NDJSON body describes it, and each further line is an asset. `is_check` is a single check,
    /// whose assets are part of the description.
    pub(super) async fn create_job(
        &self,
        head: &Parts,
        body: &mut Incoming,
        is_check: bool,
    ) -> Result<Reply, Problem> {
        let _permit;
        let (described, mut received) = match &*media_type(head) {
            "application/json" => {
                _permit = large_request().await;
                (body::whole(body).await?.to_vec(), None)
            }
            "application/x-ndjson" if !is_check => {
                let permit = LARGE_BODIES.try_acquire();
                let many = |_| Problem::new(problem::TOO_MANY, "assets").retry_after(60);
                let permit = permit.map_err(many)?;
                let (described, start, file) = check(body::file(body).await?).await?;
                (described, Some((start, Body::new(file, Some(permit)))))
            }
            _ => return Err(Problem::new(problem::MEDIA_TYPE, "")),
        };
        let request: JobRequest = parse(&described)?;
        let app = (self.apps)().get(&request.app);
        let app: Arc<App> =
            app.ok_or_else(|| invalid(format!("app: unknown application {:?}", request.app)))?;
        let mut job = request.job(&app)?;
        if app.settings.cookies.is_some() {
            if is_check || received.is_some() {
                return Err(invalid("app: kind cookies reads its assets from nodes"));
            }
        } else if is_check {
            received = Some((0, Body::new(self.check_assets(&request)?, None)));
            job.push = true;
        } else if !request.assets.is_empty() {
            return Err(invalid("assets: only for POST /v1/revalidate"));
        } else if received.is_none() {
            let path = app.settings.assets.as_deref();
            let none = || invalid("app: it has no assets file; use application/x-ndjson");
            let checked = source::check_size(path.ok_or_else(none)?);
            checked.map_err(|error| invalid(format!("app: {error}")))?;
        }
        let engine = self.engine()?;
        let jobs = self.mirror.jobs();
        if jobs.iter().filter(|job| job.is_open()).count() >= OPEN_JOBS_MAX {
            return Err(Problem::new(problem::TOO_MANY, "open jobs").retry_after(60));
        }
        if received.is_some() && self.bodies.is_none() {
            return Err(invalid("this process has no maker: send assets to another"));
        }
        let exists = || Problem::new(problem::CONFLICT, "a job with this id exists");
        if let Some((start, body)) = &mut received {
            (job.has_body, job.cursor) = (true, start.to_string());
            let key = format!("maker.{}", job.job_id);
            let lease = Lease::acquire(engine, &self.mirror, key, &job.job_id).await;
            body.lease = Some(lease.map_err(|error| broker(&error))?.ok_or_else(exists)?);
        }
        if !create(engine, &job).await.map_err(|error| broker(&error))? {
            return Err(exists());
        }
        if let (Some((_, body)), Some(bodies)) = (received, &self.bodies) {
            bodies::lock(bodies).insert(job.job_id.clone(), body);
        }
        tracing::info!(job = job.job_id, "job created");
        Ok(json(StatusCode::CREATED, &job))
    }

    /// A file with the assets of a single check.
    fn check_assets(&self, request: &JobRequest) -> Result<TempPath, Problem> {
        let count = request.assets.len();
        if !(1..=BATCH_ASSETS_MAX).contains(&count) || request.allow_delete == AllowDelete::All {
            return Err(invalid("assets: use 1 to 100; allowDelete: not `all`"));
        }
        let budget = self.budget.lock();
        if !budget.unwrap_or_else(PoisonError::into_inner).take(count) {
            return Err(Problem::new(problem::TOO_MANY, "").retry_after(2));
        }
        let lines: Vec<_> = request.assets.iter().map(Value::to_string).collect();
        for (index, line) in lines.iter().enumerate() {
            let parsed = source::parse(line.as_bytes());
            parsed.map_err(|error| invalid(format!("assets[{index}]: {error:#}")))?;
        }
        let file = NamedTempFile::new().map(NamedTempFile::into_temp_path);
        let written = file.and_then(|file| fs::write(&file, lines.join("\n")).map(|()| file));
        written.map_err(|error| broker(&error.into()))
    }
}

/// Checks the assets of a body; returns the description before them, and their position.
async fn check(file: TempPath) -> Result<(Vec<u8>, u64, TempPath), Problem> {
    let checked = spawn_blocking(move || anyhow::Ok((source::check(&file)?, file))).await;
    match checked.map_err(Into::into).flatten() {
        Ok(((described, start), file)) => Ok((described, start, file)),
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
                &format!("{{\"filter\": {{\"prefix\": \"{}\"}}}}", "p".repeat(2049)),
                "prefix",
            ),
        ] {
            let error = job(app, text).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
