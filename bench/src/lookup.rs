//! `bench lookup`: compares lookups from consumers, Redis and MongoDB.
//!
//! All targets get the same lookups, one target after the other, in several turns, so that a change of the machine affects all.
//! [`load`] sends and records them; its `lookups` encode the requests and check the responses.

use std::{
    cmp::Ordering,
    fs,
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use http::Uri;
use runtime::settings::time;
use testkit::{cpu, numbers::per_second};
use tokio_util::sync::CancellationToken;

use crate::{
    load::{self, LoadOutcome, LookupMix, Lookups, Plan},
    report::{
        Report, ReportArgs, Row, micros_per, plural,
        unit::{COUNT, CPU, DECIMAL, MILLIS, RATE},
    },
    traffic::Traffic,
    values::{TIME_MAX, parse_rate},
};

const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "max"];

const NOTE: &str = "CPU: of the process in --pid. Hits: users found.";

const MEDIANS: &str =
    "The median of the turns, for each column. Ratios: to the first redis:// target.";

/// Look up users in consumers, Redis and MongoDB, and check every response.
///
/// First store the users with --fill, in a run of its own. All targets then get the same lookups, in turns. The exit code is 1 if a
/// response was wrong, incomplete or missing, or if lookups were not sent on schedule.
#[derive(Debug, Clone, Args)]
pub struct LookupArgs {
    /// Server to look up users in; repeatable: http://, grpc://, redis:// or mongodb://, with host and port.
    #[arg(long, value_name = "URL", required_unless_present = "fill")]
    pub target: Vec<Uri>,
    /// Process of each target, in the same order, to measure its CPU time.
    #[arg(long, value_name = "ID")]
    pub pid: Vec<u32>,
    /// Server to store all users in first; repeatable: http:// and the sync port of a producer (its consumers store them some
    /// time later), redis:// or mongodb://.
    #[arg(long, value_name = "URL")]
    pub fill: Vec<Uri>,
    /// Number of connections, each with one outstanding lookup.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Duration of each turn of a target, up to 30 days.
    #[arg(short, long, default_value = "10s", value_parser = time(Duration::from_millis(1)..=TIME_MAX))]
    pub duration: Duration,
    /// Lookups per second over all connections, as an open loop: latency counts from the intended send time [default: each
    /// connection sends when the previous response has arrived].
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Turns of each target.
    #[arg(long, default_value = "3")]
    pub turns: NonZeroUsize,
    /// Number of sending threads.
    #[arg(long, default_value = "1")]
    pub threads: NonZeroUsize,
    /// File with the bearer token for http:// and grpc:// targets.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Users and lookups.
    #[command(flatten)]
    pub mix: LookupMix,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Stores the users, and looks them up in all targets in turns, until the end or `stop`.
///
/// # Errors
/// The users cannot be stored, or a target is not reachable.
pub async fn run(args: &LookupArgs, stop: &CancellationToken) -> Result<Report> {
    let (mix, users) = (&args.mix, plural(args.mix.batch.get(), "user"));
    let (connections, dsps) = (args.connections.get() as u64, mix.dsps);
    let title = format!("{connections} connections: lookups of {users}, {dsps} DSPs");
    let mut report = Report::new("lookup", &title);
    for url in &args.fill {
        let fill = Lookups::new(url, None, mix, Some(connections))?;
        let mut plan = args.plan(url, fill)?;
        plan.requests = plan.lookups.as_ref().map(Lookups::requests);
        let failures = load::run(&plan, stop).await?.report().failures.join(" ");
        ensure!(failures.is_empty(), "cannot fill {url}: {failures}");
    }
    let token = args.token_file.as_ref().map(fs::read_to_string).transpose();
    let token = token.context("failed to read --token-file")?;
    let mut rows = Vec::new();
    let turns = (0..args.turns.get()).flat_map(|turn| {
        let targets = args.target.iter().enumerate();
        targets.map(move |(index, url)| (turn, index, url))
    });
    for (turn, index, url) in turns.take_while(|_| !stop.is_cancelled()) {
        let name = format!("{url} turn {}", turn + 1);
        let lookups = Lookups::new(url, token.as_deref().map(str::trim), mix, None)?;
        eprintln!("{name}");
        let plan = Plan {
            duration: Some(args.duration),
            rate: args.rate,
            // Other users in each turn.
            first_connection: turn as u64 * connections,
            ..args.plan(url, lookups)?
        };
        let cpu = || args.pid.get(index).and_then(|id| cpu::of(*id));
        let before = cpu();
        let outcome = load::run(&plan, stop).await?;
        let cpu = cpu()
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        let named = |text| format!("{name}: {text}");
        let failures = outcome.report().failures.into_iter();
        report.failures.extend(failures.map(named));
        report.findings.extend(outcome.generator_limit().map(named));
        report.seconds += outcome.seconds;
        rows.push(args.row(name, &outcome, cpu));
    }
    report.add("Medians", MEDIANS, medians(&args.target, &rows));
    report.add("Turns", NOTE, rows);
    Ok(report)
}

impl LookupArgs {
    fn plan(&self, url: &Uri, lookups: Lookups) -> Result<Plan> {
        let host = url.authority().context("the URL has no host")?;
        Ok(Plan {
            connections: self.connections,
            threads: self.threads,
            pipeline: Some(NonZeroUsize::MIN),
            lookups: Some(lookups),
            keeps_history: false,
            ..Plan::new(format!("http://{host}/").parse()?, Traffic::new(0, None))
        })
    }

    fn row(&self, name: String, outcome: &LoadOutcome, cpu: Option<Duration>) -> Row {
        let (counts, seconds) = (&outcome.counts, outcome.seconds);
        let users = counts.accepted * self.mix.batch.get() as u64;
        let per = |count| cpu.map(|cpu| micros_per(cpu.as_secs_f64(), count));
        let rate = RATE.of("lookups", per_second(counts.accepted, seconds));
        Row::new(name, [rate])
            .with(MILLIS.percentiles("", outcome.latency_micros, &PERCENTILES))
            .with([
                COUNT.of("correct responses", counts.accepted),
                COUNT.of("hits", counts.hits),
                COUNT.of("errors", counts.errors()),
                CPU.of("CPU per lookup", per(counts.accepted)),
                CPU.of("CPU per user", per(users)),
                DECIMAL.of("generator cores", outcome.cpu.as_secs_f64() / seconds),
            ])
    }
}

/// The medians of the turns of each target, or the lower ones of two, and their ratios to those of Redis.
fn medians(targets: &[Uri], turns: &[Row]) -> Vec<Row> {
    let median = |(index, url): (usize, &Uri)| {
        let turns = || turns.iter().skip(index).step_by(targets.len());
        let columns = 0..turns().next()?.measurements.len();
        let medians = columns.map(|column| {
            let mut values: Vec<_> = turns().map(|row| &row.measurements[column]).collect();
            values.sort_by(|a, b| a.value.partial_cmp(&b.value).unwrap_or(Ordering::Equal));
            values[(values.len() - 1) / 2].clone()
        });
        Some(Row::new(url.to_string(), medians))
    };
    let mut rows: Vec<_> = targets.iter().enumerate().filter_map(median).collect();
    let mut named = rows.iter();
    let redis = named.find(|row| row.name.starts_with("redis:")).cloned();
    for row in &mut rows {
        let value = |row: &Row, name| row.measurements.iter().find(|it| it.name == name)?.value;
        let ratios = ["lookups", "p99", "CPU per user"].map(|name| {
            let ratio = value(row, name).zip(redis.as_ref().and_then(|redis| value(redis, name)));
            let ratio = ratio.map(|(value, redis)| value / redis);
            DECIMAL.of(&format!("{name} ratio"), ratio)
        });
        row.measurements.extend(ratios);
    }
    rows
}
