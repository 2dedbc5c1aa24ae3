//! Benchmark of decisions by `limiter serve` over HTTP, compared with decisions in Redis: throughput, latency and CPU cost.
//!
//! `cargo bench -p limiter --bench service -- [SECONDS] [PROGRAM]` runs each backend for SECONDS (default: 5), with
//! random counters of one limit that grants every call. PROGRAM is the path of another build of `limiter` to run
//! instead. One thread runs the 32 clients:
//!
//! | backend | decision |
//! |---|---|
//! | `http` | `limiter serve`: sequential reservations on each of 32 connections |
//! | `http at 5,000/s` | the same as an open loop: latency counts from the time at which a call is scheduled |
//! | `exact` | the script of `limits-sharing` in Redis, 32 concurrent decisions |
//! | `window` | `INCR` and `EXPIRE` in Redis: a fixed window, which is a weaker limit |
//!
//! The last two are skipped without a `redis-server`. `cargo bench -p limits` measures decisions without a server.
//!
//! With `calls=RATE`, clients instead send RATE requests per second: `delay` and, if a call is permitted now, `increment`, with a
//! rule of 100 calls per minute. Some counters get more calls than their rule permits.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use limits::Algorithm;
use limits_sharing::{
    Address,
    exact::{Config, ExactLimits, ExactRule, Operation, Outcome, RuleRequest},
};
use testkit::{limiter::Limiter, tools::redis_server_or_skip};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::{Builder, Runtime},
    sync::{
        Mutex,
        mpsc::{Receiver, channel},
    },
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

const LIMIT: &str = "bench";
const RATE: &str = "1000000000/s";
const BURST: u64 = 1_000_000;
const COUNTERS: u64 = 100_000;
const CLIENTS: usize = 32;
const SCHEDULED_PER_SECOND: u32 = 5_000;

const CALL_COUNTERS: f64 = 2_000.0;
const CALL_RULE: &str = "interval=60&requests=100";

/// Times of scheduled calls, relative to the start. An idle client receives each of them.
type Schedule = Mutex<Receiver<Duration>>;

fn main() -> Result<()> {
    let seconds = env::args().find_map(|argument| argument.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(5));
    let program = env::args_os().skip(1).map(PathBuf::from);
    let program = program.into_iter().find(|argument| argument.is_file());
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_limiter").into());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let calls = env::args().find_map(|argument| argument.strip_prefix("calls=")?.parse().ok());
    if let Some(rate) = calls {
        return call_at(rate, &runtime, &program, dir.path(), length);
    }
    over_http(&runtime, &program, dir.path(), length)?;
    match redis_server_or_skip() {
        Some(program) => in_redis(&runtime, &program, dir.path(), length),
        None => Ok(()),
    }
}

fn over_http(runtime: &Runtime, program: &Path, dir: &Path, length: Duration) -> Result<()> {
    let limits = format!(
        "[limits.{LIMIT}]\nrules = [{{ id = \"all\", rate = \"{RATE}\", burst = {BURST} }}]\n"
    );
    let limiter = runtime.block_on(Limiter::start(program, dir, &limits, &[]))?;
    let server = limiter.process.id();
    let interval = Duration::from_secs(1) / SCHEDULED_PER_SECOND;
    for (name, interval) in [("http", None), ("http at 5,000/s", Some(interval))] {
        let streams = (0..CLIENTS).map(|_| TcpStream::connect(&limiter.address));
        let clients = runtime.block_on(try_join_all(streams))?.into_iter();
        let clients =
            clients.map(|mut stream| async move |counter| reserve(&mut stream, counter).await);
        measure(runtime, name, server, length, interval, clients)?;
    }
    Ok(())
}

fn in_redis(runtime: &Runtime, program: &Path, dir: &Path, length: Duration) -> Result<()> {
    let redis = runtime.block_on(testkit::redis::start(program, dir))?;
    let (server, url) = (redis.process.id(), redis.uri());
    let config = Config {
        server: Address::parse(&url).map_err(anyhow::Error::msg)?,
        group: LIMIT.to_owned(),
        budget: Duration::from_secs(10),
    };
    let exact: &'static ExactLimits = Box::leak(Box::new(ExactLimits::new(config)));
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn_on(exact.run(stop.clone()), runtime.handle());
    runtime.block_on(async {
        while !exact.is_connected() {
            sleep(Duration::from_millis(10)).await;
        }
    });
    let rule = ExactRule::new(&Algorithm::token_bucket(RATE, BURST)?.into())
        .map_err(anyhow::Error::msg)?;
    let clients = (0..CLIENTS).map(|_| async |counter| by_script(exact, rule, counter).await);
    measure(runtime, "exact", server, length, None, clients)?;
    stop.cancel();

    let client = redis::Client::open(url)?;
    let connection = runtime.block_on(client.get_multiplexed_async_connection())?;
    let clients = (0..CLIENTS).map(|_| {
        let mut connection = connection.clone();
        async move |counter| by_window(&mut connection, counter).await
    });
    measure(runtime, "window", server, length, None, clients)
}

/// Sends `rate` requests per second, and prints the latencies of `delay` and `increment`.
fn call_at(
    rate: u32,
    runtime: &Runtime,
    program: &Path,
    dir: &Path,
    length: Duration,
) -> Result<()> {
    let limits = format!("[limits.{LIMIT}]\nfrom_call = true\n");
    let limiter = runtime.block_on(Limiter::start(program, dir, &limits, &[]))?;
    let server = limiter.process.id();
    let streams = (0..CLIENTS).map(|_| TcpStream::connect(&limiter.address));
    let clients = runtime.block_on(try_join_all(streams))?.into_iter();
    let (cpu_before, began) = (cpu(server)?, Instant::now());
    let schedule = schedule(began, length, Duration::from_secs(1) / rate);
    let clients = clients.map(|stream| call(stream, began, &schedule));
    let mut nanos = [Histogram::<u64>::new(3)?, Histogram::new(3)?];
    for of_client in runtime.block_on(try_join_all(clients))? {
        for (all, of_client) in nanos.iter_mut().zip(of_client) {
            all.add(of_client)?;
        }
    }
    for (name, nanos) in ["delay", "increment"].into_iter().zip(&nanos) {
        let millis = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e6;
        println!(
            "{name}: {} requests, mean {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
            nanos.len(),
            nanos.mean() / 1e6,
            millis(0.95),
            millis(0.99),
            millis(0.999)
        );
    }
    let requests = nanos.iter().map(Histogram::len).sum::<u64>() as f64;
    let used = (cpu(server)? - cpu_before).as_secs_f64();
    println!(
        "{:.0} requests/s, {:.1} µs of the limiter's CPU per request",
        requests / began.elapsed().as_secs_f64(),
        used * 1e6 / requests
    );
    Ok(())
}

/// Makes calls at their scheduled times; returns the latencies of `delay` and of `increment`.
async fn call(
    mut stream: TcpStream,
    began: Instant,
    schedule: &Schedule,
) -> Result<[Histogram<u64>; 2]> {
    let mut nanos = [Histogram::new(3)?, Histogram::new(3)?];
    let mut permitted = None;
    loop {
        let Some(due) = schedule.lock().await.recv().await else {
            return Ok(nanos);
        };
        // A few counters have most of the calls.
        let counter = permitted.unwrap_or((fastrand::f64().powi(4) * CALL_COUNTERS).floor());
        let (method, name) = match permitted {
            Some(_) => ("POST", "increment"),
            None => ("GET", "delay"),
        };
        let request = format!(
            "{method} /v1/limits/{LIMIT}/{counter}/{name}?{CALL_RULE} HTTP/1.1\r\nhost: localhost\r\n\r\n"
        );
        let body = exchange(&mut stream, &request).await?;
        let latency = u64::try_from((began.elapsed() - due).as_nanos())?;
        nanos[usize::from(permitted.is_some())].record(latency)?;
        permitted = match permitted {
            None if body.contains("\"wait\":0.0") => Some(counter),
            _ => None,
        };
    }
}

/// Runs all clients, which return an error unless a call for a counter is granted immediately, and prints the results. With
/// an interval, calls are scheduled this far apart, and wait while all clients are busy.
fn measure(
    runtime: &Runtime,
    name: &str,
    server: u32,
    length: Duration,
    interval: Option<Duration>,
    clients: impl Iterator<Item = impl AsyncFnMut(u64) -> Result<()>>,
) -> Result<()> {
    let cpu_before = [cpu(process::id())?, cpu(server)?];
    let began = Instant::now();
    let schedule = interval.map(|interval| schedule(began, length, interval));
    let decided = clients.map(|client| decide(client, began, length, schedule.as_ref()));
    let mut nanos = Histogram::<u64>::new(3)?;
    for of_client in runtime.block_on(try_join_all(decided))? {
        nanos.add(of_client)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let decisions = nanos.len() as f64;
    let own = (cpu(process::id())? - cpu_before[0]).as_secs_f64() * 1e6 / decisions;
    let of_server = (cpu(server)? - cpu_before[1]).as_secs_f64() * 1e6 / decisions;
    let millis = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e6;
    println!(
        "{name}: {:.0} decisions/s, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, CPU {:.1} µs per decision, {of_server:.1} µs of it in the server",
        decisions / seconds,
        millis(0.5),
        millis(0.99),
        millis(0.999),
        own + of_server,
    );
    Ok(())
}

/// Schedules calls in a thread, because timers of tokio have a resolution of a millisecond.
fn schedule(began: Instant, length: Duration, interval: Duration) -> Schedule {
    let (calls, schedule) = channel(CLIENTS);
    thread::spawn(move || {
        // By default, the kernel may end a sleep 50 µs late.
        fs::write("/proc/thread-self/timerslack_ns", "1").ok();
        for due in (0..).map(|call| interval * call) {
            thread::sleep(due.saturating_sub(began.elapsed()));
            if due >= length || calls.blocking_send(due).is_err() {
                break;
            }
        }
    });
    Mutex::new(schedule)
}

async fn decide(
    mut client: impl AsyncFnMut(u64) -> Result<()>,
    began: Instant,
    length: Duration,
    schedule: Option<&Schedule>,
) -> Result<Histogram<u64>> {
    let mut nanos = Histogram::new(3)?;
    let mut random = fastrand::Rng::new();
    loop {
        let due = match schedule {
            Some(calls) => calls.lock().await.recv().await,
            None => Some(began.elapsed()).filter(|now| *now < length),
        };
        let Some(due) = due else { return Ok(nanos) };
        client(random.u64(..COUNTERS)).await?;
        nanos.record(u64::try_from((began.elapsed() - due).as_nanos())?)?;
    }
}

async fn reserve(stream: &mut TcpStream, counter: u64) -> Result<()> {
    let request = format!(
        "POST /v1/limits/{LIMIT}/{counter}/reserve HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let body = exchange(stream, &request).await?;
    ensure!(
        body.contains("\"wait\":0.0"),
        "a call was not granted: {body}"
    );
    Ok(())
}

/// Sends a request, and returns the body of its response, which must have the status 200.
async fn exchange(stream: &mut TcpStream, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let (mut buffer, mut received) = ([0; 4096], 0);
    loop {
        let bytes = stream.read(&mut buffer[received..]).await?;
        ensure!(bytes > 0, "the limiter closed the connection");
        received += bytes;
        let text = str::from_utf8(&buffer[..received])?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length
                .then(|| value.trim().parse::<usize>().ok())
                .flatten()
        });
        let length = length.with_context(|| format!("no content-length: {head}"))?;
        if body.len() >= length {
            ensure!(
                head.starts_with("HTTP/1.1 200 "),
                "a request failed: {text}"
            );
            return Ok(body.to_owned());
        }
    }
}

async fn by_script(exact: &ExactLimits, rule: ExactRule, counter: u64) -> Result<()> {
    let request = RuleRequest {
        name: LIMIT.into(),
        rule,
        key: counter.to_string().into(),
        requests: 1,
    };
    let operation = Operation::Reserve {
        max_wait: Duration::ZERO,
    };
    match exact.decide(&[request], operation, Duration::ZERO).await {
        Ok(decision) if decision.outcome == Outcome::Now => Ok(()),
        Ok(decision) => bail!("a call was not granted: {decision:?}"),
        Err(error) => bail!("no decision: {error:?}"),
    }
}

async fn by_window(connection: &mut redis::aio::MultiplexedConnection, counter: u64) -> Result<()> {
    const WINDOW_SECONDS: u64 = 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let key = format!("{LIMIT}:{counter}:{}", now.as_secs() / WINDOW_SECONDS);
    let mut pipeline = redis::pipe();
    pipeline.cmd("INCR").arg(&key);
    pipeline
        .cmd("EXPIRE")
        .arg(&key)
        .arg(2 * WINDOW_SECONDS)
        .ignore();
    let (_count,): (u64,) = pipeline.query_async(connection).await?;
    Ok(())
}

/// CPU time used by a process.
fn cpu(process_id: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process_id}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no process name")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("too few fields")?.parse()?) };
    let ticks = ticks()? + ticks()?;
    let millis = ticks * 1000 / rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(millis))
}
