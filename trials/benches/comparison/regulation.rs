//! Producers that release cookies at the rate of a contract while twice as many arrive, until all are released.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bench::report::{
    Measurement, Plot, Report, ReportArgs, Row, Series,
    unit::{COUNT, DECIMAL, RATE, SECONDS},
};
use clap::Args;
use proto::{
    client,
    v1::GetCookiesRequest,
    wire::{Record, decode_record},
};
use testkit::{
    admin,
    http::HttpClient,
    producer::{Addresses, Launch, Producer},
    programs::{ServerProcess, find, installed},
    redis,
    scrape::names,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::{IntoRequest as _, transport::Endpoint};

const DSP: u32 = 17;
/// Cookies per second: the limit, and the load.
const LIMIT: u64 = 300;
const OFFERED: u64 = 600;
/// Percentage of the load for each of four producers.
const SKEWED: [u64; 4] = [70, 20, 7, 3];
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// In the first seconds, producers that share a limit release nothing, and queues are empty.
const START: Duration = Duration::from_secs(15);
/// Maximum delay for which a late sender catches up.
const LATE_MAX: Duration = Duration::from_millis(100);

/// A limit of 300 cookies per second under a load of 600 for three minutes.
#[derive(Debug, Args)]
pub(crate) struct RegulationArgs {
    /// Share the limit among four producers, with 70, 20, 7 and 3 % of the load.
    #[arg(long)]
    shared: bool,
    /// Mode of the limit: shape (release the excess later) or police (drop it).
    #[arg(long, default_value = "shape", value_parser = ["shape", "police"])]
    mode: String,
    /// Duration of the load.
    #[arg(short, long, default_value = "3m", value_parser = humantime::parse_duration)]
    duration: Duration,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Counts over all producers, at one time.
#[derive(Clone, Copy)]
struct Sample {
    at: f64,
    sent: u64,
    received: u64,
    waiting: u64,
}

/// Sent cookies, and cookies received by the subscribers.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    is_over: AtomicBool,
}

pub(crate) async fn run(args: &RegulationArgs, stop: &CancellationToken) -> Result<Report> {
    let dir = tempfile::tempdir()?;
    let redis = if args.shared {
        let program = installed("redis-server").context("redis-server is not installed")?;
        Some(redis::start(&program, dir.path()).await?)
    } else {
        None
    };
    let percents: &[u64] = if args.shared { &SKEWED } else { &[100] };
    let mut producers = start(dir.path(), &args.mode, redis.as_ref(), percents.len()).await?;
    let counts: Arc<Counts> = Arc::default();
    let (mut readers, mut senders) = (JoinSet::new(), JoinSet::new());
    for producer in &producers {
        let messages = open(&producer.grpc).await?;
        readers.spawn(read(messages, Arc::clone(&counts)));
    }
    let began = Instant::now();
    for (number, (producer, percent)) in producers.iter().zip(percents).enumerate() {
        let client = HttpClient::connect(&producer.http).await?;
        senders.spawn(send(number, client, *percent, Arc::clone(&counts)));
    }
    let mut samples = Vec::new();
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let mut sample = Sample {
            at: began.elapsed().as_secs_f64(),
            sent: counts.sent.load(Relaxed),
            received: counts.received.load(Relaxed),
            waiting: 0,
        };
        for producer in &producers {
            let metrics = admin::metrics(&producer.admin).await?;
            let of = |name| metrics.count(name, &[]);
            sample.waiting += of(names::DSP_LIMITS_QUEUED) + of(names::DSP_LIMITS_OVERDUE);
        }
        samples.push(sample);
        if began.elapsed() >= args.duration || stop.is_cancelled() {
            counts.is_over.store(true, Relaxed);
            if sample.waiting == 0 || stop.is_cancelled() {
                break;
            }
        }
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    // Longer than a chunk waits for more cookies.
    sleep(Duration::from_secs(1)).await;
    for producer in &mut producers {
        producer.process.drain(STOP_TIMEOUT).await?;
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    Ok(report(args, &counts, &samples, began))
}

async fn start(
    dir: &Path,
    mode: &str,
    redis: Option<&ServerProcess>,
    count: usize,
) -> Result<Vec<Producer>> {
    let sharing = redis.map_or_else(String::new, |redis| {
        let uri = redis.uri();
        format!("[sharing]\nmode = \"lease\"\nredis = \"{uri}\"\ngroup = \"bench\"\n")
    });
    let shape = match mode {
        "shape" => "shape = { max_wait = \"1h\", max_age = \"1h\" }\n",
        _ => "",
    };
    let limits = format!(
        "unknown = \"unlimited\"\n{sharing}[limits.peak]\nkeys = [{DSP}]\nmode = \"{mode}\"\n{shape}\
         rules = [ {{ id = \"peak\", rate = \"{LIMIT}/s\", burst = {} }} ]\n",
        if mode == "shape" { 1 } else { 30 }
    );
    let file = dir.join("contracts.toml");
    fs::write(&file, limits)?;
    let [program] = find(["producer"])?;
    let mut producers = Vec::new();
    for number in 0..count {
        let name = format!("producer-{number}");
        let launch = Launch {
            program: &program,
            addresses: Addresses::free()?,
            dir,
            flags: vec![
                format!("--contracts={}", file.display()),
                format!("--id={name}"),
                format!("--state={}", dir.join(&name).display()),
            ],
            name,
        };
        let mut producer = launch.start()?;
        producer.wait_ready(READY_TIMEOUT).await?;
        producers.push(producer);
    }
    Ok(producers)
}

async fn open(grpc: &str) -> Result<tonic::Streaming<bytes::Bytes>> {
    let channel = Endpoint::from_shared(format!("http://{grpc}"))?
        .connect()
        .await?;
    let request = GetCookiesRequest {
        host: "bench".to_owned(),
        supports_age: true,
        deletions: false,
    };
    let opened = client::get_cookies(channel, request.into_request()).await?;
    Ok(opened.into_inner())
}

/// Counts cookies until the producer has drained. An idle stream ends with a repetition of its last cookie.
async fn read(mut messages: tonic::Streaming<bytes::Bytes>, counts: Arc<Counts>) -> Result<()> {
    let mut last = String::new();
    while let Ok(Some(message)) = messages.message().await {
        if let Record::Set(cookie) = decode_record(&message)?
            && cookie.user_id != last
        {
            cookie.user_id.clone_into(&mut last);
            counts.received.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}

/// Sends cookies of new users, one at a time, at this percentage of the load.
async fn send(
    number: usize,
    mut client: HttpClient,
    percent: u64,
    counts: Arc<Counts>,
) -> Result<()> {
    let pause = Duration::from_secs(100) / u32::try_from(OFFERED * percent)?;
    let (mut due, mut user) = (Instant::now(), 0);
    while !counts.is_over.load(Relaxed) {
        due += pause;
        due += due.elapsed().saturating_sub(LATE_MAX);
        sleep_until(due).await;
        let cookie = format!("uid=user-{number}-{user}");
        user += 1;
        let path = format!("/?d={DSP}&b=buyer-{user}");
        let response = client.get(&path, &[("Cookie", &cookie)]).await?;
        ensure!(response.status == 200, "{response:?}");
        counts.sent.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn report(args: &RegulationArgs, counts: &Counts, samples: &[Sample], began: Instant) -> Report {
    let mut report = Report::new("regulation", "A limit of 300/s under a load of 600/s");
    let pairs: Vec<_> = samples
        .windows(2)
        .map(|pair| (pair[1], pair[1].at - pair[0].at, pair[0]))
        .collect();
    let line = |name: &str, of: &dyn Fn(&(Sample, f64, Sample)) -> f64| Series {
        name: name.to_owned(),
        points: pairs.iter().map(|pair| (pair.0.at, of(pair))).collect(),
    };
    let out = |(now, seconds, before): &(Sample, f64, Sample)| {
        (now.received - before.received) as f64 / seconds
    };
    let arrived =
        |(now, seconds, before): &(Sample, f64, Sample)| (now.sent - before.sent) as f64 / seconds;
    let accuracy = |pair: &(Sample, f64, Sample)| 100.0 * out(pair) / LIMIT as f64;
    let under_load = |(_, _, before): &&(Sample, f64, Sample)| {
        before.at >= START.as_secs_f64() && before.at + 1.0 < args.duration.as_secs_f64()
    };
    let mut accuracies: Vec<f64> = pairs.iter().filter(under_load).map(accuracy).collect();
    accuracies.sort_unstable_by(f64::total_cmp);
    let loaded: Vec<_> = pairs.iter().filter(under_load).collect();
    let used = loaded.first().zip(loaded.last()).map(|(first, last)| {
        let cookies = last.0.received - first.2.received;
        100.0 * cookies as f64 / ((last.0.at - first.2.at) * LIMIT as f64)
    });
    let middle = accuracies.get(accuracies.len() / 2).copied();
    let (sent, received) = (counts.sent.load(Relaxed), counts.received.load(Relaxed));
    let facts: [Measurement; 8] = [
        COUNT.of("sent", sent),
        COUNT.of("received", received),
        RATE.of("sent per second", sent as f64 / args.duration.as_secs_f64()),
        DECIMAL.of("used under load, %", used),
        DECIMAL.of(
            "received in a second, % of the limit: minimum",
            accuracies.first().copied(),
        ),
        DECIMAL.of("median", middle),
        DECIMAL.of("maximum", accuracies.last().copied()),
        DECIMAL.of(
            "cookies over the limit in any whole seconds",
            worst_excess(samples),
        ),
    ];
    let seconds = [SECONDS.of("until all were released", samples.last().map(|it| it.at))];
    report.add("Regulation", "", [Row::new("", facts).with(seconds)]);
    report.plots = vec![
        Plot::new(
            "Cookies",
            "per second",
            vec![line("in", &arrived), line("out", &out)],
        ),
        Plot::new(
            "Waiting",
            "cookies",
            vec![line("waiting", &|(now, ..)| now.waiting as f64)],
        ),
        Plot::new(
            "Accuracy",
            "% of the limit in a second",
            vec![line("out", &accuracy)],
        ),
    ];
    report.seconds = began.elapsed().as_secs_f64();
    if args.mode == "shape" && sent != received {
        let failure = format!("{sent} cookies were sent, but {received} received");
        report.failures.push(failure);
    }
    report
}

/// The maximum over all pairs of samples of the cookies received above the limit.
fn worst_excess(samples: &[Sample]) -> f64 {
    let (mut least, mut worst) = (f64::INFINITY, 0.0_f64);
    for sample in samples {
        let above = sample.received as f64 - LIMIT as f64 * sample.at;
        least = least.min(above);
        worst = worst.max(above - least);
    }
    worst
}
