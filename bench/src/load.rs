//! `bench load`: sends sync requests to an edge and checks every answer.
//!
//! Each thread runs its share of the connections on a runtime of its own; nothing is shared between threads
//! while they run, and each connection counts for itself. With a rate it is an open loop: requests have
//! intended times, and latency counts from those, so a server that stalls cannot hide it.

mod connection;
mod request;
mod response;
mod schedule;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use hdrhistogram::Histogram;
use http::Uri;
use serde::Serialize;
use tokio::{
    net::lookup_host,
    runtime::Builder,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    connection::{Connection, Tally, Task},
    request::Template,
    schedule::Schedule,
};
use crate::{
    cpu::{CpuSeconds, CpuTime},
    report::{self, Percentiles, micros_each, micros_histogram, per_second},
    traffic::Traffic,
};

/// How long answers are waited for after the last request.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// How long a load with a rate may take beyond its duration to send what is late.
const LATE_PATIENCE: Duration = Duration::from_millis(500);

const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Sends sync requests to a producer's HTTP port and checks every answer.
///
/// Users are random 20-digit hexadecimal ids, DSPs 1 to 20, buyer uids random; every request differs. Ctrl-C
/// ends it early, with its report. The exit code is 1 when an answer was wrong or missing.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Where to send the requests.
    #[arg(long, default_value = "http://127.0.0.1:8080/")]
    pub url: Uri,
    /// Number of connections.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection.
    #[arg(short, long, default_value = "1")]
    pub pipeline: NonZeroUsize,
    /// How long to send; 10 s when neither this nor a count is given.
    #[arg(short, long, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// Requests a second, over all connections; latency then counts from the time a request should have left.
    /// Without it, each connection sends as soon as its last burst is answered.
    #[arg(short = 'l', long)]
    pub rate: Option<NonZeroU64>,
    /// Threads to send from [default: 2, or 1 on a single core].
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Seed of the cookies: the same seed, connections and counts send the same cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Draw the users from this many distinct ids [default: a new user for every request].
    #[arg(long)]
    pub users: Option<NonZeroU64>,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    /// The plan these arguments stand for.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let unlimited = self.duration.is_none() && self.requests.is_none();
        Plan {
            url: self.url.clone(),
            connections: self.connections,
            pipeline: self.pipeline,
            duration: self
                .duration
                .or_else(|| unlimited.then_some(DURATION_DEFAULT)),
            requests: self.requests,
            rate: self.rate,
            threads: self.threads.unwrap_or_else(Plan::default_threads),
            traffic: Traffic::new(self.seed.unwrap_or_else(|| fastrand::u64(..)), self.users),
        }
    }
}

/// What a load consists of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where to send the requests: `http://`.
    pub url: Uri,
    /// Number of connections.
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection.
    pub pipeline: NonZeroUsize,
    /// How long to send; without it and without `requests`, until stopped.
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    pub requests: Option<u64>,
    /// Requests a second, over all connections; without it, as fast as answers come.
    pub rate: Option<NonZeroU64>,
    /// Threads to send from.
    pub threads: NonZeroUsize,
    /// Makes the cookies: connection `i` sends numbers 0, 1, … of connection `i`.
    pub traffic: Traffic,
}

impl Plan {
    /// Two threads, or one on a single core: enough to outrun a producer on the same machine.
    #[must_use]
    pub fn default_threads() -> NonZeroUsize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new(cores.min(2)).unwrap_or(NonZeroUsize::MIN)
    }

    /// A plan with one connection for each of a few threads, no pipelining and no limit.
    #[must_use]
    pub fn new(url: Uri, traffic: Traffic) -> Self {
        Self {
            url,
            connections: NonZeroUsize::MIN,
            pipeline: NonZeroUsize::MIN,
            duration: None,
            requests: None,
            rate: None,
            threads: Self::default_threads(),
            traffic,
        }
    }

    /// How many requests connection `index` is to send; `u64::MAX` for no end.
    fn requests_of(&self, index: u64) -> u64 {
        let scheduled = self
            .rate
            .zip(self.duration)
            .map(|(rate, duration)| Schedule::requests_within(rate, duration));
        let Some(total) = [self.requests, scheduled].into_iter().flatten().min() else {
            return u64::MAX;
        };
        let connections = self.connections.get() as u64;
        total / connections + u64::from(index < total % connections)
    }

    fn task(&self, index: u64, address: SocketAddr, template: &Arc<Template>) -> Task {
        Task {
            index,
            address,
            template: Arc::clone(template),
            traffic: self.traffic.clone(),
            pipeline: self.pipeline.get(),
            schedule: self
                .rate
                .map(|rate| Schedule::new(rate, self.connections.get() as u64, index)),
            requests: self.requests_of(index),
        }
    }
}

/// What a load saw.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Where the requests went.
    pub url: String,
    /// Number of connections.
    pub connections: usize,
    /// Most requests without an answer on each connection.
    pub pipeline: usize,
    /// Threads they were sent from.
    pub threads: usize,
    /// Requests a second that were asked for.
    pub rate: Option<u64>,
    /// Seed of the cookies.
    pub seed: u64,
    /// From the start to the last answer.
    pub seconds: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Requests answered otherwise, or not.
    pub errors: Errors,
    /// Requests that should have left, by the rate, and did not.
    pub unsent: u64,
    /// Connections opened again.
    pub reconnects: u64,
    /// `accepted` a second.
    pub accepted_per_second: f64,
    /// From sending, or with a rate from the intended time, to the answer 200.
    pub latency_micros: Option<Percentiles>,
    /// With a rate: from the intended time to the time a request was given to the system.
    pub send_delay_micros: Option<Percentiles>,
    /// CPU time of this process.
    pub cpu_seconds: CpuSeconds,
    /// CPU time of this process for each request, the kernel's included.
    pub cpu_micros_per_request: f64,
    /// CPU time of this process for each request, without the kernel's.
    pub user_cpu_micros_per_request: f64,
    /// How many requests each connection sent: numbers 0 to this of its [`Traffic`].
    #[serde(skip)]
    pub sent_by_connection: Vec<u64>,
}

/// Answers that were not 200, by kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Errors {
    /// All of them.
    pub total: u64,
    /// Answers with another status.
    pub status: BTreeMap<u16, u64>,
    /// Answers that are no HTTP, or that nobody asked for.
    pub malformed: u64,
    /// Requests whose connection ended, or whose answer did not come in time.
    pub unanswered: u64,
}

/// Runs a load to its end, or until `stop`.
///
/// # Errors
/// When the address cannot be resolved or the connections cannot be opened at the start. Anything later is
/// counted in the outcome.
pub async fn run(plan: &Plan, stop: &CancellationToken) -> Result<Outcome> {
    let template = Arc::new(Template::new(&plan.url)?);
    let (host, port) = template.host_and_port();
    let address = lookup_host((host, port))
        .await
        .with_context(|| format!("cannot resolve {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))?;

    let stop = stop.child_token();
    let threads = plan.threads.min(plan.connections).get();
    let (opened_tx, mut opened) = mpsc::channel(threads);
    let (start, started) = watch::channel(None);
    let mut workers = JoinSet::new();
    for thread in 0..threads {
        let tasks = (thread..plan.connections.get())
            .step_by(threads)
            .map(|index| plan.task(index as u64, address, &template))
            .collect();
        let (opened, started, stop) = (opened_tx.clone(), started.clone(), stop.child_token());
        workers.spawn_blocking(move || {
            // Giving the processor away before waiting lets more answers arrive, so that one wake-up serves
            // several connections: 0.85 → 0.47 µs of CPU a request here, and 740 → 810 k/s, on two cores
            // shared with the producer.
            let runtime = Builder::new_current_thread()
                .enable_all()
                .on_thread_park(std::thread::yield_now)
                .build()?;
            anyhow::Ok(runtime.block_on(work(tasks, opened, started, stop)))
        });
    }
    drop((opened_tx, started));
    for _ in 0..threads {
        tokio::select! {
            opened = opened.recv() => opened.context("a thread ended before its connections were open")??,
            () = stop.cancelled() => return Err(anyhow!("stopped before the connections were open")),
        }
    }

    let cpu_before = CpuTime::of_this_process();
    let started_at = Instant::now();
    start.send_replace(Some(started_at));
    let deadline = plan
        .duration
        .map(|duration| match plan.rate {
            Some(_) => duration + LATE_PATIENCE,
            None => duration,
        })
        .unwrap_or(Duration::MAX);
    let mut timer = std::pin::pin!(sleep(deadline));
    let mut tallies = BTreeMap::new();
    loop {
        tokio::select! {
            worker = workers.join_next() => match worker {
                Some(worker) => tallies.extend(worker??),
                None => break,
            },
            () = timer.as_mut(), if !stop.is_cancelled() => stop.cancel(),
        }
    }
    let cpu = CpuTime::of_this_process().since(&cpu_before);
    Ok(summarize(plan, tallies, started_at, cpu))
}

/// One thread: opens its connections, waits for the start, runs them, returns their tallies by index.
async fn work(
    tasks: Vec<Task>,
    opened: mpsc::Sender<Result<()>>,
    mut started: watch::Receiver<Option<Instant>>,
    stop: CancellationToken,
) -> Vec<(u64, Tally)> {
    let connections = match open_all(tasks).await {
        Ok(connections) => connections,
        Err(error) => {
            // When nobody listens any more, another thread has reported the same.
            opened.send(Err(error)).await.ok();
            return Vec::new();
        }
    };
    if opened.send(Ok(())).await.is_err() {
        return Vec::new();
    }
    let Ok(started_at) = started.wait_for(Option::is_some).await.map(|at| *at) else {
        return Vec::new();
    };
    let Some(started_at) = started_at else {
        return Vec::new();
    };
    let mut running = JoinSet::new();
    for (index, mut connection) in connections {
        let stop = stop.clone();
        running.spawn(async move {
            connection.start(started_at);
            tokio::select! {
                biased;
                () = connection.run() => {}
                () = stop.cancelled() => {}
            }
            (index, connection.finish(ANSWER_PATIENCE).await)
        });
    }
    running.join_all().await
}

async fn open_all(tasks: Vec<Task>) -> Result<Vec<(u64, Connection)>> {
    let mut connections = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (index, address) = (task.index, task.address);
        let connection = Connection::open(task)
            .await
            .with_context(|| format!("cannot connect to {address} (connection {})", index + 1))?;
        connections.push((index, connection));
    }
    Ok(connections)
}

fn summarize(
    plan: &Plan,
    tallies: BTreeMap<u64, Tally>,
    started_at: Instant,
    cpu: CpuTime,
) -> Outcome {
    let mut errors = Errors::default();
    let (mut sent, mut accepted, mut unsent, mut reconnects) = (0, 0, 0, 0);
    let (mut latency, mut send_delay) = (micros_histogram(), micros_histogram());
    let mut ended_at = started_at;
    let mut sent_by_connection = Vec::with_capacity(tallies.len());
    for tally in tallies.into_values() {
        sent += tally.sent;
        accepted += tally.accepted;
        unsent += tally.unsent;
        reconnects += tally.reconnects;
        errors.malformed += tally.malformed;
        errors.unanswered += tally.unanswered;
        for (status, count) in tally.refused {
            *errors.status.entry(status).or_default() += count;
        }
        merge(&mut latency, &tally.latency_micros);
        merge(&mut send_delay, &tally.send_delay_micros);
        ended_at = ended_at.max(tally.last_answer_at.unwrap_or(started_at));
        sent_by_connection.push(tally.sent);
    }
    errors.total = errors.malformed + errors.unanswered + errors.status.values().sum::<u64>();
    let seconds = (ended_at - started_at).as_secs_f64();
    Outcome {
        url: plan.url.to_string(),
        connections: plan.connections.get(),
        pipeline: plan.pipeline.get(),
        threads: plan.threads.min(plan.connections).get(),
        rate: plan.rate.map(NonZeroU64::get),
        seed: plan.traffic.seed(),
        seconds,
        sent,
        accepted,
        errors,
        unsent,
        reconnects,
        accepted_per_second: per_second(accepted, seconds),
        latency_micros: Percentiles::of(&latency),
        send_delay_micros: Percentiles::of(&send_delay),
        cpu_seconds: cpu.seconds(),
        cpu_micros_per_request: micros_each(cpu.total().as_secs_f64(), sent),
        user_cpu_micros_per_request: micros_each(cpu.user.as_secs_f64(), sent),
        sent_by_connection,
    }
}

fn merge(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("the histogram grows to any value");
}

impl Outcome {
    /// True when every request that was sent was answered with 200.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.errors.total == 0
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = vec![
            format!(
                "accepted  {} in {:.2} s: {}",
                report::grouped(self.accepted),
                self.seconds,
                report::rate(self.accepted_per_second)
            ),
            format!("errors    {}", self.errors.summary()),
        ];
        if let Some(latency) = &self.latency_micros {
            lines.push(format!("latency   {}", latency.line()));
        }
        if let Some(delay) = &self.send_delay_micros {
            lines.push(format!("send late {}", delay.line()));
        }
        if self.unsent > 0 {
            lines.push(format!(
                "unsent    {} requests were due and not sent: the answers came too slowly for this rate",
                report::grouped(self.unsent)
            ));
        }
        if self.reconnects > 0 {
            lines.push(format!("reconnects {}", self.reconnects));
        }
        lines.push(format!(
            "generator {:.2} s CPU, {:.2} µs a request ({:.2} µs outside the kernel)",
            self.cpu_seconds.user + self.cpu_seconds.system,
            self.cpu_micros_per_request,
            self.user_cpu_micros_per_request
        ));
        lines.join("\n")
    }
}

impl Errors {
    fn summary(&self) -> String {
        if self.total == 0 {
            return "0".to_owned();
        }
        let mut kinds: Vec<_> = self
            .status
            .iter()
            .map(|(status, count)| format!("status {status}: {}", report::grouped(*count)))
            .collect();
        for (kind, count) in [
            ("malformed", self.malformed),
            ("unanswered", self.unanswered),
        ] {
            if count > 0 {
                kinds.push(format!("{kind}: {}", report::grouped(count)));
            }
        }
        format!("{} ({})", report::grouped(self.total), kinds.join(", "))
    }
}
