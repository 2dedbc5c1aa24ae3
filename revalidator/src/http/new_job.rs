//! Creation of jobs by clients: from the source of an application, from assets in the body, or a single check of a few assets.

use std::{sync::PoisonError, time::Duration};

use http::{HeaderValue, StatusCode, header, request::Parts};
use percent_encoding::percent_decode_str;
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
    create::{NewJob, OPEN_JOBS_MAX, create},
    engine::Engine,
    messages::{
        ASSET_BYTES_MAX, AllowDelete, Asset, BATCH_ASSETS_MAX, Filter, JobBatch, WORKERS_NEEDED_MAX,
    },
    problem::{self, Problem, broker, invalid},
    source::{ASSETS_MAX, parse_asset},
};

/// Maximum assets of a single check, and of all single checks in a second.
const CHECK_ASSETS_MAX: usize = 100;
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
}

/// A single check.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CheckRequest {
    app: String,
    assets: Vec<Value>,
    #[serde(default)]
    allow_delete: AllowDelete,
    #[serde(default)]
    force_update: bool,
}

/// Budget of single checks; it is full again after two seconds.
#[derive(Debug, Default)]
pub(super) struct Tickets(Option<(Instant, f64)>);

impl Tickets {
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
    /// Parses the query of a request with assets as its body.
    fn from_query(query: &str) -> Result<Self, Problem> {
        let mut request = Self::default();
        for (name, value) in query.split('&').filter_map(|it| it.split_once('=')) {
            let value = percent_decode_str(value).decode_utf8_lossy();
            match name {
                "app" => request.app = value.into_owned(),
                "allowDelete" => {
                    request.allow_delete = serde_json::from_value(Value::from(&*value))
                        .map_err(|error| invalid(format!("allowDelete: {error}")))?
                }
                "forceUpdate" => request.force_update = parse_value(name, &value)?,
                "revalidatorsNeeded" => {
                    request.revalidators_needed = Some(parse_value(name, &value)?)
                }
                "confirm" => request.confirm = Some(value.into_owned()),
                _ => return Err(invalid(format!("unknown query parameter {name:?}"))),
            }
        }
        Ok(request)
    }

    /// The new job.
    fn job(self, app: &App) -> Result<NewJob, Problem> {
        let workers = self.revalidators_needed.unwrap_or(app.workers);
        if !(1..=WORKERS_NEEDED_MAX).contains(&workers) {
            return Err(invalid(format!(
                "revalidatorsNeeded: use 1 to {WORKERS_NEEDED_MAX}"
            )));
        }
        if self.allow_delete > app.allow_delete {
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
        Ok(NewJob {
            id: format!("{}-{now}-{:06x}", app.name, fastrand::u32(..0x100_0000)),
            allow_delete: self.allow_delete,
            force_update: self.force_update,
            workers,
            filter: self.filter,
            created_at: now,
            ..NewJob::of(app)
        })
    }
}

fn parse_value<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    value
        .parse()
        .map_err(|_| invalid(format!("{name}: invalid value")))
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
    pub(super) async fn create_job(
        &self,
        head: &Parts,
        body: &mut BodyReader,
    ) -> Result<Reply, Problem> {
        let request = match &*media_type(head) {
            "application/json" => parse(&body.whole().await?)?,
            "application/x-ndjson" => JobRequest::from_query(head.uri.query().unwrap_or_default())?,
            _ => return Err(Problem::new(problem::MEDIA_TYPE, "")),
        };
        let app = self.app(&request.app)?;
        let has_assets = media_type(head) == "application/x-ndjson";
        if !has_assets && app.assets.is_none() {
            return Err(invalid(
                "app: it has no assets; send them as application/x-ndjson",
            ));
        }
        let mut job = request.job(&app)?;
        self.check_open_jobs()?;
        if has_assets {
            let published = self.publish_lines(&job.id, body).await;
            job.published = Some(self.or_purge(&job.id, published).await?);
        }
        self.create(job).await
    }

    /// Creates a job of a few assets, which does not wait for other jobs.
    pub(super) async fn revalidate(
        &self,
        head: &Parts,
        body: &mut BodyReader,
    ) -> Result<Reply, Problem> {
        if media_type(head) != "application/json" {
            return Err(Problem::new(problem::MEDIA_TYPE, ""));
        }
        let request: CheckRequest = parse(&body.whole().await?)?;
        let app = self.app(&request.app)?;
        if request.allow_delete == AllowDelete::All {
            return Err(invalid(
                "allowDelete: a single check cannot remove all objects",
            ));
        }
        if !(1..=CHECK_ASSETS_MAX).contains(&request.assets.len()) {
            return Err(invalid(format!("assets: use 1 to {CHECK_ASSETS_MAX}")));
        }
        let mut assets = Vec::new();
        for (index, asset) in request.assets.iter().enumerate() {
            let asset = parse_asset(asset.to_string().as_bytes());
            assets.push(asset.map_err(|error| invalid(format!("assets[{index}]: {error:#}")))?);
        }
        let has_budget = self
            .tickets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(assets.len());
        if !has_budget {
            return Err(Problem::new(problem::TOO_MANY, "").retry_after(2));
        }
        self.check_open_jobs()?;
        let described = JobRequest {
            allow_delete: request.allow_delete,
            force_update: request.force_update,
            ..JobRequest::default()
        };
        let mut job = described.job(&app)?;
        job.published = Some((assets.len() as u64, 1));
        let sent = self.send(&job.id, 0, assets).await;
        self.or_purge(&job.id, sent).await?;
        self.create(job).await
    }

    fn app(&self, name: &str) -> Result<std::sync::Arc<App>, Problem> {
        (self.apps)()
            .get(name)
            .ok_or_else(|| invalid(format!("app: unknown application {name:?}")))
    }

    fn check_open_jobs(&self) -> Result<(), Problem> {
        self.engine()?;
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
        Ok(())
    }

    async fn create(&self, job: NewJob) -> Result<Reply, Problem> {
        let engine = self.engine()?;
        let status = job.clone().status();
        let created = create(engine, job).await.map_err(|error| broker(&error))?;
        if !created {
            return Err(Problem::new(problem::CONFLICT, "a job with this id exists"));
        }
        tracing::info!(job = status.job_id, "job created");
        Ok(json(StatusCode::CREATED, &status))
    }

    /// Publishes the assets of a body, one a line; returns their number and that of the batches.
    async fn publish_lines(&self, id: &str, body: &mut BodyReader) -> Result<(u64, u64), Problem> {
        let (mut assets, mut lines, mut count, mut batches) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        loop {
            let line = body.line(ASSET_BYTES_MAX).await.map_err(|mut problem| {
                if problem.detail.contains("line") {
                    problem.detail =
                        format!("line {}: longer than {ASSET_BYTES_MAX} bytes", lines + 1);
                }
                problem
            })?;
            let is_end = line.is_none();
            if let Some(line) = line {
                lines += 1;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let asset = parse_asset(&line)
                    .map_err(|error| invalid(format!("line {lines}: {error:#}")))?;
                assets.push(asset);
                count += 1;
                if count > ASSETS_MAX {
                    return Err(Problem::new(problem::TOO_LARGE, ""));
                }
            }
            if assets.len() == BATCH_ASSETS_MAX || (is_end && !assets.is_empty()) {
                self.send(id, batches, std::mem::take(&mut assets)).await?;
                batches += 1;
            }
            if is_end {
                return Ok((count, batches));
            }
        }
    }

    async fn send(&self, id: &str, batch: u64, assets: Vec<Asset>) -> Result<(), Problem> {
        let batch = JobBatch {
            assets,
            job_id: id.to_owned(),
            batch,
            attempt: 1,
        };
        let payload = serde_json::to_vec(&batch).unwrap_or_default();
        let message_id = batch.id();
        let sent = self.engine()?.send_batch(id, &message_id, payload.into());
        let sent = timeout(SEND_TIMEOUT, sent).await;
        sent.unwrap_or_else(|_| Err(anyhow::anyhow!("timeout")))
            .map_err(|error| broker(&error))
    }

    /// Removes the published batches of a job that is not created.
    async fn or_purge<T>(&self, id: &str, published: Result<T, Problem>) -> Result<T, Problem> {
        if published.is_err()
            && let Ok(engine) = self.engine()
            && let Err(error) = engine.purge(id, true).await
        {
            tracing::debug!(
                error = format!("{error:#}"),
                "batches not removed; they expire"
            );
        }
        published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn single_checks_have_a_budget() {
        let mut tickets = Tickets::default();
        assert!(tickets.take(100) && !tickets.take(1));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(tickets.take(25) && !tickets.take(1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(tickets.take(100) && !tickets.take(1));
    }

    #[test]
    fn query_describes_a_job_with_assets() {
        let query =
            "app=shop&allowDelete=partial&forceUpdate=true&revalidatorsNeeded=3&confirm=sh%6Fp";
        let request = JobRequest::from_query(query).unwrap();
        assert_eq!(
            (&*request.app, request.allow_delete, request.force_update),
            ("shop", AllowDelete::Partial, true)
        );
        assert_eq!(
            (request.revalidators_needed, request.confirm.as_deref()),
            (Some(3), Some("shop"))
        );
        for query in [
            "colour=red",
            "forceUpdate=maybe",
            "revalidatorsNeeded=-1",
            "allowDelete=some",
        ] {
            let problem = JobRequest::from_query(query).unwrap_err();
            assert_eq!(problem.kind, problem::INVALID, "{query}");
        }
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
