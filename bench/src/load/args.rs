//! The command line of a load.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Args;
use http::Uri;

use super::plan::Plan;
use crate::{
    report::ReportArgs,
    traffic::{DSPS, Traffic},
    values::{parse_rate, parse_share, parse_time},
};

const DURATION_MIN: Duration = Duration::from_millis(1);
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Sends sync requests to a producer's HTTP port and checks every answer.
///
/// Users are random 20-digit hexadecimal ids, DSPs 1 to 20, buyer uids random; every request differs. Ctrl-C
/// ends it early, with its report. The exit code is 1 when an answer was wrong or missing, or when requests that were due
/// had not left at the end.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Where to send the requests; given more than once, connections go to each in turn.
    #[arg(long, default_value = "http://127.0.0.1:8080/")]
    pub url: Vec<Uri>,
    /// Number of connections.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection [default: 1; with a rate as many as it takes to keep it, up to 1048576 over all connections or 4096 on each].
    #[arg(short, long)]
    pub pipeline: Option<NonZeroUsize>,
    /// How long to send, at most 30 days [default: 10 s; with a count until it is reached, or until no answer came for 30 s].
    #[arg(short, long, value_parser = |text: &str| parse_time(text, DURATION_MIN))]
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// Requests a second, over all connections; they leave on time whether or not answers come, and latency counts from the
    /// time a request should have left. They leave on the ticks of a timer, up to 1 ms late, and that is in the latency too.
    /// Without it, each connection sends as soon as its last burst is answered.
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Threads to send from [default: 2, or 1 on a single core].
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Which cookies.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// Where its report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Which cookies a load consists of.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traffic")]
pub struct TrafficArgs {
    /// Seed of the cookies: the same seed, connections and counts send the same cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Draw the users from this many distinct ids [default: a new user for every request].
    #[arg(long)]
    pub users: Option<NonZeroU64>,
    /// Share of the requests that repeat a user and DSP, 0 to 1, whose buyer uid differs from the one before. Buyers seldom
    /// change an id they have given, except where a browser forgets theirs.
    #[arg(long, requires = "users", default_value_t = 0.1, value_parser = parse_share, value_name = "SHARE")]
    pub repeat_changed: f64,
    /// Number of DSPs, each as frequent as any other.
    #[arg(long, default_value_t = NonZeroU32::new(DSPS).unwrap_or(NonZeroU32::MIN))]
    pub dsps: NonZeroU32,
    /// Number of the first DSP: --dsps 1 --first-dsp 17 is DSP 17 alone.
    #[arg(long, default_value = "1", value_name = "NUMBER")]
    pub first_dsp: NonZeroU32,
}

impl TrafficArgs {
    fn traffic(&self) -> Traffic {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let traffic = Traffic::new(seed, self.users)
            .with_dsps(self.dsps)
            .with_first_dsp(self.first_dsp);
        match self.users {
            None => traffic,
            Some(_) => traffic.with_repeats_changed(self.repeat_changed),
        }
    }
}

impl LoadArgs {
    /// The plan these arguments stand for.
    ///
    /// # Errors
    /// When arguments contradict each other.
    pub fn plan(&self) -> Result<Plan> {
        self.check()?;
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
            keeps_history: false,
        })
    }

    /// What arguments cannot say of each other by themselves.
    fn check(&self) -> Result<()> {
        let traffic = &self.traffic;
        let dsps_before = traffic.first_dsp.get() - 1;
        ensure!(
            dsps_before.checked_add(traffic.dsps.get()).is_some(),
            "with --first-dsp {}, not all DSPs have a number of 32 bits",
            traffic.first_dsp
        );
        let (urls, connections) = (self.url.len(), self.connections);
        ensure!(
            urls <= connections.get(),
            "{connections} connections cannot go to {urls} addresses: raise --connections"
        );
        Ok(())
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
    fn flags_make_a_plan_with_an_end() {
        check("", None, Some(10), 1);
        check("-r 5", None, None, 1);
        check("-r 5 --first-dsp 4294967276", None, None, 1);
        check("-p 16 -d 3s", None, Some(3), 16);
        check("-l 40000", Some(40_000), Some(10), 32_768);
        check("-l 40000 -c 5000", Some(40_000), Some(10), 4_096);
        check("-d 30days", None, Some(30 * 24 * 60 * 60), 1);
        check("-l 40000 -p 2 -r 9", Some(40_000), None, 2);
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            "-l 0",
            "-c 1 --url http://a/ --url http://b/",
            "-d 0s",
            "-d 31days",
            "--repeat-changed 0.5",
            "--users 10 --repeat-changed 1.5",
            "--first-dsp 0",
            "--first-dsp 4294967277",
            "--first-dsp 4294967295 --dsps 2",
        ] {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }
}
