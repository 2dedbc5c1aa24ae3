//! `bench origin`: an HTTP server with delays, errors and changing contents, to test clients such as the revalidator.
//!
//! Contents depend on the path. Temporary errors depend on the number of the request. A run can therefore be repeated. A request
//! is counted when it arrives, with the response that it will get.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher as _},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Args;
use fastrand::Rng;
use http::{
    Request, Response,
    header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER},
};
use http_body_util::Full;
use launcher::http_server::HttpServer;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    report::{Report, ReportArgs, Row, unit::COUNT},
    values::{parse_fraction, parse_time},
};

/// Requests per step, the size of a batch of a revalidator.
const STEP_REQUESTS: u64 = 100;

/// Size of each body.
const BODY_BYTES: usize = 1000;

/// Value of Retry-After in responses with 429 or 503, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Serve HTTP content with delays, errors and changes, to test a client.
///
/// Every path has content with validators, so a conditional request can return 304. Ctrl-C ends the server, which then prints its report.
/// Fractions are from 0 to 1.
#[derive(Debug, Clone, Args)]
pub struct OriginArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// Time to the first byte of a response. Several times, separated by commas, apply to successive steps of 100 requests; the last step
    /// has no end. The report contains a row for each step.
    #[arg(long, default_value = "0s", value_name = "TIME", value_delimiter = ',', value_parser = |text: &str| parse_time(text, Duration::ZERO))]
    pub delay: Vec<Duration>,
    /// Standard deviation of the delays. They are normally distributed around --delay, and differ from it by at most three deviations.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = |text: &str| parse_time(text, Duration::ZERO))]
    pub deviation: Duration,
    /// Fractions of errors, such as 500=0.1,404=0.05; 0 means no response. 0, 429 and 5xx are drawn for each request, others for each path.
    #[arg(long, value_name = "STATUS=FRACTION", value_delimiter = ',', value_parser = error)]
    pub errors: Vec<(u16, f64)>,
    /// Fraction of paths whose content changes at the start, and again in each period (--change-every).
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION", value_parser = parse_fraction)]
    pub changed: f64,
    /// Period of --changed.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = |text: &str| parse_time(text, Duration::from_secs(1)))]
    pub change_every: Duration,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn error(text: &str) -> Result<(u16, f64), String> {
    let (status, fraction) = text.split_once('=').unwrap_or((text, ""));
    let status = status.parse().ok().filter(|it| matches!(it, 0 | 201..=599));
    let status = status.ok_or("expected 0 or a status from 201 to 599")?;
    Ok((status, parse_fraction(fraction)?))
}

/// Responds to requests until `stop`.
///
/// # Errors
/// The address is not usable.
pub async fn run(args: &OriginArgs, stop: &CancellationToken) -> Result<Report> {
    let origin = Arc::new(Origin {
        args: args.clone(),
        started: Instant::now(),
        counts: Mutex::default(),
    });
    let shared = Arc::clone(&origin);
    let respond = move |request| Arc::clone(&shared).respond(request);
    let server = HttpServer::start(args.listen, respond).await;
    let server = server.with_context(|| format!("--listen={}", args.listen))?;
    eprintln!("origin    http://{}/", args.listen);
    stop.cancelled().await;
    drop(server);
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
    /// By step: maximum of parallel requests, and requests by status.
    steps: BTreeMap<usize, (u64, BTreeMap<u16, u64>)>,
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

    async fn respond<B>(self: Arc<Self>, request: Request<B>) -> Response<Full<Bytes>> {
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
        let response = Response::builder().status(status.max(200));
        let response = match status {
            0 => std::future::pending().await,
            200 | 304 => response.header(ETAG, tag).header(LAST_MODIFIED, modified),
            429 | 503 => response.header(RETRY_AFTER, RETRY_AFTER_SECONDS),
            _ => response,
        };
        let size = if status == 200 { BODY_BYTES } else { 0 };
        let text = format!("{path} version {version}\n");
        let body: Bytes = text.bytes().cycle().take(size).collect();
        let response = response.body(Full::new(body));
        response.expect("all headers are valid")
    }

    /// Determines the response to a request, and counts it; returns the status (0 for no response) and the delay.
    fn arrive(&self, path: &str, is_known: bool) -> (u16, Duration) {
        let (delays, mut counts) = (&self.args.delay, self.counts());
        let number = counts.requests;
        let error = self.error(number, path);
        let status = error.unwrap_or(if is_known { 304 } else { 200 });
        let step = usize::try_from(number / STEP_REQUESTS).unwrap_or(usize::MAX);
        let step = step.min(delays.len() - 1);
        counts.requests += 1;
        counts.parallel += 1;
        let parallel = counts.parallel;
        let (parallel_max, statuses) = counts.steps.entry(step).or_default();
        *parallel_max = parallel.max(*parallel_max);
        *statuses.entry(status).or_default() += 1;
        let mut random = random("delay", number);
        // The sum of twelve is almost normal with a variance of 1.
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let deviation = self.args.deviation.as_secs_f64() * normal.clamp(-3.0, 3.0);
        let delay = delays[step].as_secs_f64() + deviation;
        (status, Duration::from_secs_f64(delay.max(0.0)))
    }

    /// The error of a request, if any.
    fn error(&self, number: u64, path: &str) -> Option<u16> {
        let mut draws = [random("request", number).f64(), random("path", path).f64()];
        let found = self.args.errors.iter().find(|(status, share)| {
            let draw = &mut draws[usize::from(!matches!(status, 0 | 429 | 500..))];
            *draw -= share;
            *draw < 0.0
        });
        found.map(|(status, _)| *status)
    }

    /// The version of a content, a whole number. The first change is at the start, so that a restart with `--changed` changes
    /// contents.
    fn version(&self, path: &str, elapsed: Duration) -> f64 {
        let periods = elapsed.div_duration_f64(self.args.change_every).floor() + 1.0;
        (periods * self.args.changed + random("change", path).f64()).floor()
    }

    fn report(&self) -> Report {
        let (args, counts) = (&self.args, self.counts());
        let mut report = Report::new("origin", &format!("Origin on {}", args.listen));
        report.seconds = self.started.elapsed().as_secs_f64();
        let row = |(step, (parallel_max, statuses)): (&usize, &(u64, BTreeMap<u16, u64>))| {
            let errors = args.errors.iter().map(|(status, _)| *status);
            let count = |it: u16| COUNT.of(&it.to_string(), statuses.get(&it).copied());
            let counts = [200, 304].into_iter().chain(errors).map(count);
            let parallel_max = COUNT.of("parallel, max", *parallel_max);
            Row::new((step + 1).to_string(), counts).with([parallel_max])
        };
        report.add(
            "Requests",
            "",
            counts.steps.iter().map(row).collect::<Vec<_>>(),
        );
        report
    }
}

/// Random numbers that depend on `what` and `key`.
fn random(what: &str, key: impl Hash) -> Rng {
    let mut hasher = DefaultHasher::new();
    (what, key).hash(&mut hasher);
    Rng::with_seed(hasher.finish())
}

#[cfg(test)]
mod tests;
