//! The command line of a load.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use http::Uri;

use super::{
    plan::Plan,
    profile::Profile,
    recording::{Recording, Replay},
    values::{
        Daily, DspShares, Ramp, TIME_MAX, parse_day, parse_exponent, parse_factor, parse_rate,
        parse_share, parse_time,
    },
};
use crate::{
    report::ReportArgs,
    traffic::{DSPS, Draw, Traffic},
};

const DURATION_DEFAULT: Duration = Duration::from_secs(10);
const ZIPF_EXPONENT_DEFAULT: f64 = 1.0;
const STEP_DEFAULT: Duration = Duration::from_secs(30);
const DAY_DEFAULT: Duration = Duration::from_secs(120);
const BURST_EVERY_DEFAULT: Duration = Duration::from_secs(10);
const BURST_FOR_DEFAULT: Duration = Duration::from_secs(1);

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
    /// Most requests without an answer on each connection [default: 1; with a rate or other schedule as many as it takes to keep
    /// it, up to 1048576 over all connections or 4096 on each].
    #[arg(short, long)]
    pub pipeline: Option<NonZeroUsize>,
    /// How long to send, at most 30 days as all times here [default: 10 s, or a ramp, one day, or a replay to its end; with a
    /// count until it is reached, or until no answer came for 30 s].
    #[arg(short, long, value_parser = parse_time)]
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// Requests a second, over all connections; they leave on time whether or not answers come, and latency counts from the
    /// time a request should have left. They leave on the ticks of a timer, up to 1 ms late, and that is in the latency too.
    /// Without it, each connection sends as soon as its last burst is answered.
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Rates one after the other, with a result for each.
    #[arg(long, value_name = "RATE:RATE:…", conflicts_with_all = ["rate", "duration"])]
    pub ramp: Option<Ramp>,
    /// How long each rate of a ramp is held [default: 30s].
    #[arg(long, requires = "ramp", value_parser = parse_time)]
    pub step: Option<Duration>,
    /// A day in fast-forward: from LOW requests a second, at its quietest, to PEAK half a day later, and back.
    #[arg(long, value_name = "LOW:PEAK", conflicts_with_all = ["rate", "ramp"])]
    pub daily: Option<Daily>,
    /// How long the 24 hours of a day take [default: 2m].
    #[arg(long, requires = "daily", value_parser = parse_day)]
    pub day: Option<Duration>,
    /// Multiply the rate by this again and again: 5x.
    #[arg(long, value_name = "FACTOR", requires = "rate", value_parser = parse_factor)]
    pub burst: Option<f64>,
    /// How long it takes from one burst to the next [default: 10s].
    #[arg(long, requires = "burst", value_parser = parse_time)]
    pub burst_every: Option<Duration>,
    /// How long a burst is [default: 1s].
    #[arg(long, requires = "burst", value_parser = parse_time)]
    pub burst_for: Option<Duration>,
    /// Threads to send from [default: 2, or 1 on a single core].
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Which cookies.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// Share of the requests, 0 to 1, that break one of the edge's rules and must be refused with 4xx.
    #[arg(long, default_value_t = 0.0, value_parser = parse_share, value_name = "SHARE")]
    pub malformed: f64,
    /// Write what was sent to this file, after the load.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Send what is in this file: a recording, or lines made from an access log (their form is in the first line of a recording).
    /// Of --url, host and port are used.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["seed", "users", "draw", "zipf_exponent", "repeat_changed", "dsps", "dsp_shares", "first_dsp", "first_connection", "malformed"]
    )]
    pub replay: Option<PathBuf>,
    /// Replay so many times as fast as it was recorded [default: 1].
    #[arg(
        long,
        requires = "replay",
        value_parser = parse_factor,
        value_name = "FACTOR",
        conflicts_with_all = ["rate", "ramp", "daily", "unlimited"]
    )]
    pub speed: Option<f64>,
    /// Replay as fast as answers come.
    #[arg(long, requires = "replay", conflicts_with_all = ["rate", "ramp", "daily"])]
    pub unlimited: bool,
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
    /// How users are drawn: each as often as any other, or few often and most seldom.
    #[arg(long, requires = "users", value_enum, default_value_t = DrawKind::Uniform)]
    pub draw: DrawKind,
    /// With --draw zipf: the user of rank r comes in proportion to 1 / r to the power of this [default: 1].
    #[arg(long, requires = "users", value_parser = parse_exponent)]
    pub zipf_exponent: Option<f64>,
    /// Share of the requests that repeat a user and DSP, 0 to 1, whose buyer uid differs from the one before. Buyers seldom
    /// change an id they have given, except where a browser forgets theirs.
    #[arg(long, requires = "users", default_value_t = 0.1, value_parser = parse_share, value_name = "SHARE")]
    pub repeat_changed: f64,
    /// Number of DSPs, each as frequent as any other [default: 20].
    #[arg(long, conflicts_with = "dsp_shares")]
    pub dsps: Option<NonZeroU32>,
    /// Shares of DSP 1, 2 and so on: 50:30:20.
    #[arg(long, value_name = "SHARE:SHARE:…")]
    pub dsp_shares: Option<DspShares>,
    /// Number of the first DSP: --dsps 1 --first-dsp 17 is DSP 17 alone.
    #[arg(long, default_value = "1", value_name = "NUMBER")]
    pub first_dsp: NonZeroU32,
    /// Number of the first connection. What connections send depends on the seed and their number, so processes with the
    /// same seed and other numbers send other cookies of the same users.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub first_connection: u64,
}

/// A way to draw users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DrawKind {
    /// Each as often as any other.
    Uniform,
    /// In proportion to a power of their rank.
    Zipf,
}

impl TrafficArgs {
    fn traffic(&self) -> Traffic {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let draw = match self.draw {
            DrawKind::Uniform => Draw::Uniform,
            DrawKind::Zipf => Draw::Zipf(self.zipf_exponent.unwrap_or(ZIPF_EXPONENT_DEFAULT)),
        };
        let traffic = match self.users {
            None => Traffic::new(seed, None),
            users => Traffic::new(seed, users)
                .with_draw(draw)
                .with_repeats_changed(self.repeat_changed),
        };
        let traffic = traffic.with_first_dsp(self.first_dsp);
        match &self.dsp_shares {
            Some(DspShares(shares)) => traffic.with_dsp_shares(shares),
            None => traffic.with_dsps(self.equal_dsps()),
        }
    }

    fn equal_dsps(&self) -> NonZeroU32 {
        let default = NonZeroU32::new(DSPS).expect("there are some by default");
        self.dsps.unwrap_or(default)
    }

    /// Whether the last DSP has a number.
    fn has_all_dsps(&self) -> bool {
        let dsps = match &self.dsp_shares {
            Some(DspShares(shares)) => u32::try_from(shares.len()).unwrap_or(u32::MAX),
            None => self.equal_dsps().get(),
        };
        (self.first_dsp.get() - 1).checked_add(dsps).is_some()
    }
}

impl LoadArgs {
    /// The plan these arguments stand for.
    ///
    /// # Errors
    /// When arguments contradict each other, or the file to replay is none.
    pub fn plan(&self) -> Result<Plan> {
        self.check()?;
        let schedule = self.schedule()?;
        let replay = self.replay.as_deref().map(Recording::read).transpose()?;
        let replay = replay.map(|recording| Replay {
            recording: Arc::new(recording),
            speed: (schedule.is_none() && !self.unlimited).then(|| self.speed.unwrap_or(1.0)),
        });
        let has_end = self.duration.is_some()
            || self.requests.is_some()
            || self.ramp.is_some()
            || replay.is_some();
        let default = if self.daily.is_some() {
            self.day.unwrap_or(DAY_DEFAULT)
        } else {
            DURATION_DEFAULT
        };
        Ok(Plan {
            urls: self.url.clone(),
            connections: self.connections,
            pipeline: self.pipeline,
            duration: self.duration.or_else(|| (!has_end).then_some(default)),
            requests: self.requests,
            schedule,
            threads: self.threads.unwrap_or_else(Plan::default_threads),
            traffic: self.traffic.traffic(),
            first_connection: self.traffic.first_connection,
            malformed: self.malformed,
            replay,
            keeps_history: self.record.is_some(),
        })
    }

    /// What arguments cannot say of each other by themselves.
    fn check(&self) -> Result<()> {
        let traffic = &self.traffic;
        ensure!(
            traffic.zipf_exponent.is_none() || traffic.draw == DrawKind::Zipf,
            "--zipf-exponent says nothing without --draw zipf"
        );
        ensure!(
            traffic.has_all_dsps(),
            "with --first-dsp {}, not all DSPs have a number of 32 bits",
            traffic.first_dsp
        );
        let (urls, connections) = (self.url.len(), self.connections);
        ensure!(
            urls <= connections.get(),
            "{connections} connections cannot go to {urls} addresses: raise --connections"
        );
        if let (Some(replay), Some(record)) = (&self.replay, &self.record) {
            let [from, to] = [replay, record].map(|path| path.canonicalize().ok());
            ensure!(
                from.is_none() || from != to,
                "--record would replace {}, which --replay reads",
                replay.display()
            );
        }
        Ok(())
    }

    fn schedule(&self) -> Result<Option<Profile>> {
        if let Some(Ramp(rates)) = &self.ramp {
            let each = self.step.unwrap_or(STEP_DEFAULT);
            let steps = u32::try_from(rates.len()).unwrap_or(u32::MAX);
            ensure!(
                each.checked_mul(steps).is_some_and(|all| all <= TIME_MAX),
                "the steps of --ramp take longer than 30 days"
            );
            return Ok(Some(Profile::steps(rates.clone(), each)));
        }
        if let Some(Daily { low, peak }) = self.daily {
            let day = self.day.unwrap_or(DAY_DEFAULT);
            return Ok(Some(Profile::daily(low, peak, day)));
        }
        let Some(rate) = self.rate else {
            return Ok(None);
        };
        let Some(factor) = self.burst else {
            return Ok(Some(Profile::constant(rate)));
        };
        let every = self.burst_every.unwrap_or(BURST_EVERY_DEFAULT);
        let lasting = self.burst_for.unwrap_or(BURST_FOR_DEFAULT);
        ensure!(
            lasting < every,
            "--burst-for is not shorter than --burst-every: that is one long burst"
        );
        Ok(Some(Profile::bursts(rate, factor, every, lasting)))
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
    fn check(flags: &str, schedule: Option<&str>, seconds: Option<u64>, pipeline: usize) {
        let plan = parse(flags).unwrap();
        let words = plan.schedule.as_ref().map(ToString::to_string);
        assert_eq!(words.as_deref(), schedule, "{flags}");
        assert_eq!(
            plan.ends_after().map(|end| end.as_secs()),
            seconds,
            "{flags}"
        );
        assert_eq!(plan.pipeline_max(), pipeline, "{flags}");
    }

    #[test]
    fn flags_make_a_schedule_with_an_end() {
        check("", None, Some(10), 1);
        check("-r 5", None, None, 1);
        check("-r 5 --first-dsp 4294967276", None, None, 1);
        check("-p 16 -d 3s", None, Some(3), 16);
        check("-l 40000", Some("40 000/s"), Some(10), 32_768);
        check("-l 40000 -c 5000", Some("40 000/s"), Some(10), 4_096);
        check("-d 30days", None, Some(30 * 24 * 60 * 60), 1);
        check("-l 40000 -p 2 -r 9", Some("40 000/s"), None, 2);
        let ramp = "10, 20/s for 5s each";
        check("--ramp 10:20 --step 5s", Some(ramp), Some(10), 32_768);
        let day = "1 to 9/s and back within 2m";
        check("--daily 1:9", Some(day), Some(120), 32_768);
        check("--daily 1:9 -d 7m", Some(day), Some(420), 32_768);
        let bursts = "10/s, every 10s 50/s for 2s";
        check(
            "-l 10 --burst 5x --burst-for 2s",
            Some(bursts),
            Some(10),
            32_768,
        );
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            "-l 0",
            "-l 10 --ramp 1:2",
            "-l 10 --daily 1:2",
            "--ramp 1:2 --daily 1:2",
            "--ramp 1:2 -d 5s",
            "--ramp 1::2",
            "--step 5s",
            "--daily 5",
            "--daily 5:1",
            "--day 5s",
            "--daily 1:2 --day 10ms",
            "--burst 5x",
            "-l 10 --burst 0x",
            "-l 10 --burst 5x --burst-for 10s",
            "-l 10 --burst-every 3s",
            "--draw zipf",
            "--zipf-exponent 1.1",
            "--users 10 --zipf-exponent 1.1",
            "-c 1 --url http://a/ --url http://b/",
            "-d 0s",
            "-d 31days",
            "--ramp 1:2 --step 300y",
            "--ramp 1:2 --step 20days",
            "--replay Cargo.toml --record ./Cargo.toml",
            "--repeat-changed 0.5",
            "--users 10 --repeat-changed 1.5",
            "--users 10 --draw zipf --zipf-exponent -1",
            "--dsps 5 --dsp-shares 1:2",
            "--dsp-shares 1:0",
            "--first-dsp 0",
            "--first-dsp 4294967277",
            "--first-dsp 4294967295 --dsp-shares 1:1",
            "--malformed 2",
            "--speed 2",
            "--unlimited",
            "--replay file --users 5",
            "--replay file --speed 2 -l 10",
            "--replay file --speed 2 --unlimited",
            "--replay /does/not/exist",
        ] {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }
}
