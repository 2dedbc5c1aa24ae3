//! Command-line options of `bench load`.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Args;
use http::Uri;
use runtime::settings::time;

use super::plan::Plan;
use crate::{
    report::ReportArgs,
    traffic::{DSPS, REPEATS_CHANGED, Traffic},
    values::{TIME_MAX, parse_rate},
};

const DURATION_MIN: Duration = Duration::from_millis(1);
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Send sync requests to the HTTP port of a producer, and check every response.
///
/// By default, every request has a new random user id (20 hexadecimal digits), a DSP from 1 to 20 and a new random buyer uid.
/// Ctrl-C ends the load early; its report is still printed. The exit code is 1 if a response was wrong or missing, or if requests were
/// not sent on schedule.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// URL of a producer's sync port; repeatable. Connections are spread over all URLs.
    #[arg(long, default_value = "http://127.0.0.1:8080/")]
    pub url: Vec<Uri>,
    /// Number of connections.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Maximum outstanding requests per connection [default: 1; with --rate, 1048576 over all connections or 4096 per connection,
    /// whichever is more].
    #[arg(short, long)]
    pub pipeline: Option<NonZeroUsize>,
    /// Duration of the load, up to 30 days [default: 10s; with --requests, until all are sent].
    #[arg(short, long, value_parser = time(DURATION_MIN..=TIME_MAX))]
    pub duration: Option<Duration>,
    /// Number of requests over all connections.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// Requests per second over all connections, as an open loop: requests are sent on schedule whether or not responses
    /// arrive, and latency counts from the intended send time. Above 20,000, requests are grouped by the millisecond [default: each
    /// connection sends when the previous responses have arrived].
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Send hostile requests instead of cookies: unexpanded macros, placeholder uids, missing and oversized consent strings, unknown
    /// DSPs. The producer must have the contracts in examples/hostile.toml, which refuse all of them. The report counts requests by reason.
    #[arg(long)]
    pub hostile: bool,
    /// Send requests for sync plans instead of cookies, each for another user: POST /cookie_sync. The producer must have contracts with
    /// a table `plan`; otherwise, all responses have status 404.
    #[arg(long, conflicts_with = "hostile")]
    pub plan: bool,
    /// Number of sending threads [default: 2, or 1 on a single core].
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Cookies to send.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Cookies of a load.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traffic")]
pub struct TrafficArgs {
    /// Seed of the cookies. The same seed and number of connections send the same cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of distinct users [default: a new user for every request]. One in ten repeated pairs of user and DSP has a new buyer
    /// uid.
    #[arg(long)]
    pub users: Option<NonZeroU64>,
    /// Number of DSPs, uniformly distributed.
    #[arg(long, default_value_t = NonZeroU32::new(DSPS).unwrap_or(NonZeroU32::MIN))]
    pub dsps: NonZeroU32,
}

impl TrafficArgs {
    fn traffic(&self) -> Traffic {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let traffic = Traffic::new(seed, self.users).with_dsps(self.dsps);
        match self.users {
            None => traffic,
            Some(_) => traffic.with_repeats_changed(REPEATS_CHANGED),
        }
    }
}

impl LoadArgs {
    /// The plan of these arguments.
    ///
    /// # Errors
    /// Arguments contradict each other.
    pub fn plan(&self) -> Result<Plan> {
        let (urls, connections) = (self.url.len(), self.connections);
        ensure!(
            urls <= connections.get(),
            "{connections} connections cannot cover {urls} URLs; increase --connections"
        );
        let default = self.requests.is_none().then_some(DURATION_DEFAULT);
        Ok(Plan {
            urls: self.url.clone(),
            connections: self.connections,
            pipeline: self.pipeline,
            duration: self.duration.or(default),
            requests: self.requests,
            rate: self.rate,
            threads: self.threads.unwrap_or_else(Plan::default_threads),
            traffic: self.traffic.traffic(),
            first_connection: 0,
            hostile: self.hostile,
            plans: self.plan,
            lookups: None,
            keeps_history: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn parse(flags: &str) -> Result<Plan> {
        let words = ["load"].into_iter().chain(flags.split_whitespace());
        Cli::try_parse_from(words)?.load.plan()
    }

    #[track_caller]
    fn check(flags: &str, rate: Option<u64>, seconds: Option<u64>, pipeline: usize) {
        let plan = parse(flags).unwrap();
        assert_eq!(plan.rate.map(NonZeroU64::get), rate, "{flags}");
        let duration = plan.duration.map(|end| end.as_secs());
        assert_eq!(duration, seconds, "{flags}");
        assert_eq!(plan.pipeline_max(), pipeline, "{flags}");
    }

    #[test]
    fn flags_become_a_plan_with_an_end() {
        check("", None, Some(10), 1);
        check("-r 5", None, None, 1);
        check("-p 16 -d 3s", None, Some(3), 16);
        check("-l 40000", Some(40_000), Some(10), 32_768);
        check("-l 40000 -c 5000", Some(40_000), Some(10), 4_096);
        check("-d 30days", None, Some(30 * 24 * 60 * 60), 1);
        check("-l 40000 -p 2 -r 9", Some(40_000), None, 2);
    }

    #[test]
    fn contradictory_flags_are_rejected() {
        for flags in [
            "-l 0",
            "-c 1 --url http://a/ --url http://b/",
            "-d 0s",
            "-d 31days",
            "--users 0",
            "--dsps 0",
        ] {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }
}
