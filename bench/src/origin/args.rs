//! Command-line options of `bench origin`.

use std::{net::SocketAddr, time::Duration};

use clap::{Args, value_parser};
use fastrand::Rng;

use crate::{
    report::ReportArgs,
    values::{parse_fraction, parse_time},
};

/// Serve HTTP content with delays, errors and changes, to test a client.
///
/// Every path has content with validators, so a conditional request can return 304. Ctrl-C ends the server, which then prints its report.
/// Fractions are from 0 to 1.
#[derive(Debug, Clone, Args)]
pub struct OriginArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// Seed of content, delays and errors.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time to the first byte of a response. Several times, separated by commas, apply to successive steps (see --step-requests).
    #[arg(long, default_value = "0s", value_name = "TIME", value_delimiter = ',', value_parser = time)]
    pub delay: Vec<Duration>,
    /// Standard deviation of the delays. They are normally distributed around --delay, and differ from it by at most three deviations.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time)]
    pub deviation: Duration,
    /// Number of concurrent requests above which the delay grows in proportion to their number. Takes several values, like --delay.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = value_parser!(u32).range(1..))]
    pub capacity: Vec<u32>,
    /// Requests per step; the last step has no end. The report contains a row for each step.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub step_requests: u64,
    /// Report a row for each second instead of each step.
    #[arg(long)]
    pub by_second: bool,
    /// Fractions of errors, such as 500=0.1,404=0.05; 0 means no response. 0, 429 and 5xx are drawn for each request, others for each path.
    #[arg(long, value_name = "STATUS=FRACTION", value_delimiter = ',', value_parser = error)]
    pub errors: Vec<(u16, f64)>,
    /// Value of Retry-After in responses with 429 or 503, in whole seconds; 0s for none.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = time)]
    pub retry_after: Duration,
    /// Size of each body, in bytes.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = value_parser!(u32).range(..=1 << 30))]
    pub body_bytes: u32,
    /// Serve content like {"uid": "PATH-VERSION"}, as a cookie-sync partner does, instead of bodies of --body-bytes.
    #[arg(long)]
    pub uids: bool,
    /// Time before each byte of a body.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time)]
    pub byte_interval: Duration,
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

fn time(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::ZERO)
}

fn error(text: &str) -> Result<(u16, f64), String> {
    let (status, fraction) = text.split_once('=').unwrap_or((text, ""));
    let status = status.parse().ok().filter(|it| matches!(it, 0 | 201..=599));
    let status = status.ok_or("expected 0 or a status from 201 to 599")?;
    Ok((status, parse_fraction(fraction)?))
}

impl OriginArgs {
    /// The error of a request, if any, from random numbers of the request and of its path.
    pub(super) fn error(&self, of_request: f64, of_path: f64) -> Option<u16> {
        let mut random = [of_request, of_path];
        let found = self.errors.iter().find(|(status, fraction)| {
            let is_of_path = !matches!(status, 0 | 429 | 500..);
            random[usize::from(is_of_path)] -= fraction;
            random[usize::from(is_of_path)] < 0.0
        });
        found.map(|(status, _)| *status)
    }

    /// The step of a request. The last step has no end.
    pub(super) fn step(&self, number: u64) -> u64 {
        let last = self.delay.len().max(self.capacity.len()) as u64 - 1;
        last.min(number / self.step_requests)
    }

    /// The delay of a request of a step, while `parallel` requests are in progress.
    pub(super) fn delay(&self, step: u64, parallel: u64, random: &mut Rng) -> Duration {
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        // The sum of twelve is almost normal with a variance of 1.
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let deviation = self.deviation.as_secs_f64() * normal.clamp(-3.0, 3.0);
        let delay = self.delay.get(step).or(self.delay.last());
        let delay = delay.map_or(0.0, Duration::as_secs_f64) + deviation;
        let capacity = self.capacity.get(step).or(self.capacity.last());
        let load = capacity.map_or(1.0, |capacity| parallel as f64 / f64::from(*capacity));
        Duration::from_secs_f64(delay.max(0.0) * load.max(1.0))
    }
}
