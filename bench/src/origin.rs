//! `bench origin`: an HTTP server with delays, errors and changing contents, to test clients such as the revalidator.
//!
//! Contents depend on the seed and the path. Temporary errors depend on the seed and the number of the request. A run can
//! therefore be repeated. A request is counted when it arrives, with the response that it will get.

mod args;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Result;
use bytes::Bytes;
use fastrand::Rng;
use futures_util::stream::unfold;
use http::{
    Request, Response,
    header::{CONTENT_LENGTH, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER},
};
use http_body_util::StreamBody;
use hyper::body::{Body, Frame};
use runtime::{http_server, listen, metrics::Registry};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::args::OriginArgs;
use crate::report::{Report, Row, unit::COUNT};

/// No limits, because clients may be slow.
const LIMITS: listen::Limits = listen::Limits {
    connections_max: usize::MAX,
    connections_per_address_max: None,
    request_timeout: None,
    idle_timeout: Duration::from_secs(30 * 24 * 3600),
    write_timeout: None,
};

/// Responds to requests until `stop`.
///
/// # Errors
/// The address is not usable.
pub async fn run(args: &OriginArgs, stop: &CancellationToken) -> Result<Report> {
    let listener = listen::bind(args.listen, "--listen")?;
    let metrics = listen::Metrics::register(&Registry::default(), "origin", "http")?;
    eprintln!("origin    http://{}/", args.listen);
    let origin = Arc::new(Origin {
        args: args.clone(),
        started: Instant::now(),
        counts: Mutex::default(),
    });
    let shared = Arc::clone(&origin);
    let handler = move |request| Arc::clone(&shared).respond(request);
    let stage = listen::Stage::default();
    let serving = http_server::serve(listener, None, LIMITS, metrics, stage.clone(), handler);
    stage.tasks.spawn(serving);
    stop.cancelled().await;
    stage.drain(Instant::now()).await;
    Ok(origin.report())
}

struct Origin {
    args: OriginArgs,
    started: Instant,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    requests: u64,
    /// Requests in progress.
    parallel: u64,
    /// By step or second: maximum of parallel requests, and requests by status.
    intervals: BTreeMap<u64, (u64, BTreeMap<u16, u64>)>,
}

/// A request in progress. It is dropped early if its client disconnects.
struct InProgress<'a>(&'a Origin);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.counts().parallel -= 1;
    }
}

impl Origin {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Random numbers that depend on the seed, `what` and `key`.
    fn random(&self, what: &str, key: impl Hash) -> Rng {
        let mut hasher = DefaultHasher::new();
        (self.args.seed, what, key).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    async fn respond<B>(
        self: Arc<Self>,
        request: Request<B>,
    ) -> Response<impl Body<Data = Bytes, Error = Infallible>> {
        let path = request.uri().to_string();
        let version = self.version(&path, self.started.elapsed());
        let tag = format!("\"{version}\"");
        // Any time that grows with the version.
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(version);
        let modified = httpdate::fmt_http_date(modified);
        let condition = |name| request.headers().get(name)?.to_str().ok();
        let is_known = match condition(IF_NONE_MATCH) {
            Some(tags) => tags.contains(&tag),
            None => condition(IF_MODIFIED_SINCE) == Some(&*modified),
        };
        let (status, delay) = self.arrive(&path, is_known);
        let _in_progress = InProgress(&self);
        sleep(delay).await;
        let (args, response) = (&self.args, Response::builder().status(status));
        let retry_after = args.retry_after.as_secs();
        let response = match status {
            0 => std::future::pending().await,
            200 | 304 => response.header(ETAG, tag).header(LAST_MODIFIED, modified),
            429 | 503 if retry_after > 0 => response.header(RETRY_AFTER, retry_after),
            _ => response,
        };
        // A 304 may state the length of a content that it does not include.
        let has_content = matches!(status, 200 | 304);
        let (text, size) = if args.uids {
            let uid = format!("{{\"uid\":\"{}-{version}\"}}", path.trim_start_matches('/'));
            (uid.clone(), uid.len())
        } else {
            let text = format!("{path} version {version}\n");
            (text, args.body_bytes as usize)
        };
        let size = if has_content { size } else { 0 };
        let body: Bytes = text.bytes().cycle().take(size).collect();
        let interval = args.byte_interval;
        let body = StreamBody::new(unfold(body, move |mut rest| async move {
            sleep(interval).await;
            let length = if interval.is_zero() { rest.len() } else { 1 };
            (!rest.is_empty()).then(|| (Ok(Frame::data(rest.split_to(length))), rest))
        }));
        let response = response.header(CONTENT_LENGTH, size);
        response.body(body).expect("all headers are valid")
    }

    /// Determines the response to a request, and counts it; returns the status (0 for no response) and the delay.
    fn arrive(&self, path: &str, is_known: bool) -> (u16, Duration) {
        let (args, mut counts) = (&self.args, self.counts());
        let mut random = self.random("request", counts.requests);
        let error = args.error(random.f64(), self.random("path", path).f64());
        let status = error.unwrap_or(if is_known { 304 } else { 200 });
        let step = args.step(counts.requests);
        counts.requests += 1;
        counts.parallel += 1;
        let parallel = counts.parallel;
        let second = self.started.elapsed().as_secs();
        let key = if args.by_second { second } else { step };
        let (parallel_max, statuses) = counts.intervals.entry(key).or_default();
        *parallel_max = parallel.max(*parallel_max);
        *statuses.entry(status).or_default() += 1;
        (status, args.delay(step, parallel, &mut random))
    }

    /// The version of a content, a whole number. The first change is at the start, so that a restart with `--changed` changes
    /// contents.
    fn version(&self, path: &str, elapsed: Duration) -> f64 {
        let periods = elapsed.div_duration_f64(self.args.change_every).floor() + 1.0;
        (periods * self.args.changed + self.random("change", path).f64()).floor()
    }

    fn report(&self) -> Report {
        let (args, counts) = (&self.args, self.counts());
        let mut report = Report::new("origin", &format!("Origin on {}", args.listen));
        report.seconds = self.started.elapsed().as_secs_f64();
        report.findings = vec![format!("Seed: {}.", args.seed)];
        let row = |(key, (parallel_max, statuses)): (&u64, &(u64, BTreeMap<u16, u64>))| {
            let errors = args.errors.iter().map(|(status, _)| *status);
            let count = |it: u16| COUNT.of(&it.to_string(), statuses.get(&it).copied());
            let counts = [200, 304].into_iter().chain(errors).map(count);
            let parallel_max = COUNT.of("parallel, max", *parallel_max);
            Row::new((key + 1).to_string(), counts).with([parallel_max])
        };
        let rows = counts.intervals.iter().map(row);
        report.add("Requests", "", rows.collect::<Vec<_>>());
        report
    }
}

#[cfg(test)]
mod tests;
