//! The other processes of a step: how they are called, and what they say in the end.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::FanoutArgs;
use crate::{
    producer::{Addresses, Launch, Producer},
    programs::{Process, Programs},
    report::{Percentiles, Report},
    subscribe::Call,
};

/// A child says all it has to say soon after its work.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// Slow readers are named after this, and numbered from 1 on.
pub(super) const SLOW_READER: &str = "slow-reader";

/// Bytes a second that a slow reader reads.
const SLOW_BYTES: u64 = 16 * 1024;

/// Starts a fresh producer.
pub(super) fn start_producer(
    args: &FanoutArgs,
    programs: &Programs,
    folder: &Path,
) -> Result<Producer> {
    let mut flags = Vec::new();
    if let Some(bytes) = &args.log_bytes {
        flags.extend(["--log-bytes".to_owned(), bytes.clone()]);
    }
    let launch = Launch {
        program: &programs.producer,
        name: "producer".to_owned(),
        addresses: Addresses::free()?,
        folder,
        flags,
    };
    launch.start()
}

/// A process of this program, with its JSON object in the end.
pub(super) struct Child {
    pub(super) process: Process,
    log: PathBuf,
}

impl Child {
    /// Reads all streams, each until the producer ends it.
    pub(super) fn readers(
        args: &FanoutArgs,
        call: Call,
        streams: usize,
        grpc: &str,
        folder: &Path,
    ) -> Result<Self> {
        let mut flags = subscribe(call, streams, grpc);
        flags.push("--once".to_owned());
        flags.extend(args.decode.then(|| "--decode".to_owned()));
        Self::start("the readers", &flags, &folder.join("readers.log"))
    }

    /// Reads streams as slowly as [`SLOW_BYTES`] says, until it is stopped.
    pub(super) fn slow_readers(
        call: Call,
        streams: usize,
        grpc: &str,
        folder: &Path,
    ) -> Result<Self> {
        let mut flags = subscribe(call, streams, grpc);
        flags.extend([
            format!("--name={SLOW_READER}"),
            format!("--read-rate={SLOW_BYTES}"),
        ]);
        Self::start("the slow readers", &flags, &folder.join("slow-readers.log"))
    }

    /// Sends the load of one step.
    pub(super) fn load(args: &FanoutArgs, http: &str, folder: &Path) -> Result<Self> {
        let mut flags = vec![
            "load".to_owned(),
            format!("--url=http://{http}/"),
            "--json".to_owned(),
            "--no-report".to_owned(),
        ];
        flags.extend([
            format!("--connections={}", args.connections),
            format!("--pipeline={}", args.pipeline),
            format!("--duration={}", humantime::format_duration(args.duration)),
        ]);
        flags.extend(args.rate.map(|rate| format!("--rate={rate}")));
        Self::start("the load", &flags, &folder.join("load.log"))
    }

    fn start(name: &str, flags: &[String], log: &Path) -> Result<Self> {
        let own = env::current_exe().context("where is this program?")?;
        Ok(Self {
            process: Process::start(name, &own, flags, log)?,
            log: log.to_owned(),
        })
    }

    /// Whether it has written a line that begins so.
    pub(super) fn has_said(&self, beginning: &str) -> bool {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        said.lines().any(|line| line.starts_with(beginning))
    }

    /// Its report, after its end. An exit code of 1 only says that the report names faults.
    pub(super) async fn report(&mut self) -> Result<Report> {
        let status = self.process.wait(END_PATIENCE).await?;
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        match said.lines().rfind(|line| line.starts_with('{')) {
            Some(json) => serde_json::from_str(json)
                .with_context(|| format!("{} said {json}", self.process.name())),
            None => bail!(
                "{} ended ({status}): {}",
                self.process.name(),
                self.process.last_lines(5)
            ),
        }
    }
}

/// What all readers are started with.
fn subscribe(call: Call, streams: usize, grpc: &str) -> Vec<String> {
    vec![
        "subscribe".to_owned(),
        format!("--producer=http://{grpc}"),
        format!("--streams={streams}"),
        format!("--call={}", call.name()),
        "--json".to_owned(),
        "--no-report".to_owned(),
    ]
}

/// What the load says, as far as it is needed here.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) seconds: f64,
    pub(super) sent: u64,
    pub(super) accepted: u64,
    pub(super) unsent: u64,
    pub(super) accepted_per_second: f64,
    pub(super) latency_micros: Option<Percentiles>,
    pub(super) limited_by: String,
    pub(super) cpu_seconds: f64,
}

impl Load {
    pub(super) fn of(report: &Report) -> Self {
        let sent = count(report, "requests sent");
        let cpu_micros = report.value("generator CPU per request").unwrap_or(0.0);
        let mut figures = report.figures();
        let limit = figures.find(|(name, _)| name == "limited by");
        Self {
            seconds: report.seconds,
            sent,
            accepted: count(report, "requests accepted"),
            unsent: count(report, "unsent"),
            accepted_per_second: report.value("accepted").unwrap_or(0.0),
            latency_micros: Percentiles::read(report, "latency: "),
            limited_by: limit.map_or_else(String::new, |(_, limit)| limit.text.clone()),
            cpu_seconds: cpu_micros * sent as f64 / 1e6,
        }
    }
}

/// What slow readers say, as far as it is needed here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SlowReaders {
    pub(super) received: u64,
    pub(super) broken: u64,
}

impl SlowReaders {
    pub(super) fn of(report: &Report) -> Self {
        Self {
            received: count(report, "cookies received"),
            broken: count(report, "ends by an error"),
        }
    }
}

/// What readers say, as far as it is needed here.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    pub(super) received: u64,
    pub(super) lost: Option<u64>,
    pub(super) received_per_second: f64,
    pub(super) violations: u64,
    pub(super) first_violation: Option<String>,
    pub(super) delivery_micros: Option<Percentiles>,
    pub(super) cpu_seconds: f64,
}

impl Readers {
    pub(super) fn of(report: &Report) -> Self {
        let received = count(report, "cookies received");
        let cpu_micros = report.value("reader CPU per cookie").unwrap_or(0.0);
        Self {
            received,
            lost: report.value("lost").map(|_| count(report, "lost")),
            received_per_second: report.value("received a second").unwrap_or(0.0),
            violations: count(report, "violations"),
            first_violation: report.faults.first().cloned(),
            delivery_micros: Percentiles::read(report, "delivery "),
            cpu_seconds: cpu_micros * received as f64 / 1e6,
        }
    }
}

fn count(report: &Report, name: &str) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "it is a count")]
    let count = report.value(name).unwrap_or(0.0) as u64;
    count
}
