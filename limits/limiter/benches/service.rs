//! Throughput, latency and CPU cost of decisions by `limiter serve` over HTTP, compared with decisions in Redis.
//!
//! `cargo bench -p limiter --bench service -- [SECONDS]` runs each backend for this time (default: 5), with random counters of
//! one limit that grants every call:
//!
//! | backend | decision |
//! |---|---|
//! | `http` | `limiter serve`: sequential reservations on each of 32 connections |
//! | `http at 5,000/s` | the same as an open loop: calls are sent on schedule, and latency counts from the scheduled time |
//! | `exact` | the script of `limits-sharing` in Redis, 32 concurrent decisions |
//! | `window` | `INCR` and `EXPIRE` in Redis: a fixed window, which is a weaker limit |
//!
//! The last two are skipped without a `redis-server`. `cargo bench -p limits` measures decisions in process.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process, thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use launcher::{limiter::Limiter, redis::Redis, tools::redis_server_or_skip};
use limits::Algorithm;
use limits_sharing::{
    Address,
    exact::{Config, ExactLimits, ExactRule, Operation, Outcome, RuleRequest},
};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

const LIMIT: &str = "bench";
const RATE: &str = "1000000000/s";
const BURST: u64 = 1_000_000;
const COUNTERS: u64 = 100_000;
const CLIENTS: usize = 32;
const SCHEDULED_PER_SECOND: u32 = 5_000;

/// Requests a decision for a counter; an error unless the call is granted immediately.
type Client = Box<dyn FnMut(u64) -> Result<()> + Send>;

fn main() -> Result<()> {
    let seconds = env::args().find_map(|argument| argument.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(5));
    let runtime = Runtime::new()?;
    let dir = tempfile::tempdir()?;
    over_http(&runtime, dir.path(), length)?;
    match redis_server_or_skip() {
        Some(program) => in_redis(&runtime, &program, dir.path(), length),
        None => Ok(()),
    }
}

fn over_http(runtime: &Runtime, dir: &Path, length: Duration) -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_limiter"));
    let limits = format!(
        "[limits.{LIMIT}]\nrules = [{{ id = \"all\", rate = \"{RATE}\", burst = {BURST} }}]\n"
    );
    let limiter = runtime.block_on(Limiter::start(program, dir, &limits, &[]))?;
    let server = limiter.process.id();
    measure("http", server, length, None, http(&limiter.address)?)?;
    let interval = Duration::from_secs(1) / SCHEDULED_PER_SECOND;
    let clients = http(&limiter.address)?;
    measure("http at 5,000/s", server, length, Some(interval), clients)
}

fn in_redis(runtime: &Runtime, program: &Path, dir: &Path, length: Duration) -> Result<()> {
    let redis = runtime.block_on(Redis::start(program, dir))?;
    let (server, url) = (redis.process.id(), format!("redis://{}", redis.address()));
    let config = Config {
        server: Address::parse(&url).map_err(anyhow::Error::msg)?,
        group: LIMIT.to_owned(),
        budget: Duration::from_secs(10),
    };
    let exact: &'static ExactLimits = Box::leak(Box::new(ExactLimits::new(config)));
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn_on(exact.run(stop.clone()), runtime.handle());
    while !exact.is_connected() {
        thread::sleep(Duration::from_millis(10));
    }
    let rule = ExactRule::new(&Algorithm::token_bucket(RATE, BURST)?.into())?;
    let by_script = || -> Client { by_script(runtime.handle().clone(), exact, rule) };
    let clients = (0..CLIENTS).map(|_| by_script()).collect();
    measure("exact", server, length, None, clients)?;
    stop.cancel();

    let client = redis::Client::open(url)?;
    let connection = runtime.block_on(client.get_multiplexed_async_connection())?;
    let by_window = || -> Client { by_window(runtime.handle().clone(), connection.clone()) };
    let clients = (0..CLIENTS).map(|_| by_window()).collect();
    measure("window", server, length, None, clients)
}

/// Runs each client in its own thread and prints the results. With an interval, the calls of all clients are scheduled this
/// far apart.
fn measure(
    name: &str,
    server: u32,
    length: Duration,
    interval: Option<Duration>,
    clients: Vec<Client>,
) -> Result<()> {
    let cpu_before = [cpu(process::id())?, cpu(server)?];
    let began = Instant::now();
    let count = u32::try_from(clients.len())?;
    let nanos = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, client) in (0..count).zip(clients) {
            // Offset of this client's first call, and time between two of its calls.
            let schedule = interval.map(|interval| (interval * at, interval * count));
            threads.push(scope.spawn(move || decide(client, began, length, schedule)));
        }
        let mut all = Histogram::<u64>::new(3)?;
        for thread in threads {
            all.add(thread.join().expect("a client does not panic")?)?;
        }
        anyhow::Ok(all)
    })?;
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

fn decide(
    mut client: Client,
    began: Instant,
    length: Duration,
    schedule: Option<(Duration, Duration)>,
) -> Result<Histogram<u64>> {
    // By default, the kernel may end a sleep 50 µs late.
    fs::write("/proc/thread-self/timerslack_ns", "1").ok();
    let mut nanos = Histogram::new(3)?;
    let mut random = fastrand::Rng::new();
    for call in 0_u32.. {
        let due = schedule.map_or_else(|| began.elapsed(), |(first, each)| first + each * call);
        if due >= length {
            break;
        }
        thread::sleep(due.saturating_sub(began.elapsed()));
        client(random.u64(..COUNTERS))?;
        nanos.record(u64::try_from((began.elapsed() - due).as_nanos())?)?;
    }
    Ok(nanos)
}

fn http(address: &str) -> Result<Vec<Client>> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let decide = move |counter| reserve(&mut stream, counter);
        anyhow::Ok(Box::new(decide) as Client)
    };
    (0..CLIENTS).map(connect).collect()
}

fn reserve(stream: &mut TcpStream, counter: u64) -> Result<()> {
    const BODY: &str = "{\"max_wait\":0}";
    let request = format!(
        "POST /v1/limits/{LIMIT}/{counter}/reserve HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    stream.write_all(request.as_bytes())?;
    let (mut buffer, mut received) = ([0; 4096], 0);
    loop {
        let bytes = stream.read(&mut buffer[received..])?;
        ensure!(bytes > 0, "the limiter closed the connection");
        received += bytes;
        let text = str::from_utf8(&buffer[..received])?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.parse::<usize>().ok()).flatten()
        });
        let length = length.with_context(|| format!("no content-length: {head}"))?;
        if body.len() >= length {
            let is_granted = head.starts_with("HTTP/1.1 200 ") && body.contains("\"wait\":0.0");
            ensure!(is_granted, "a call was not granted: {text}");
            return Ok(());
        }
    }
}

fn by_script(runtime: Handle, exact: &'static ExactLimits, rule: ExactRule) -> Client {
    Box::new(move |counter| {
        let request = RuleRequest {
            name: LIMIT.into(),
            rule,
            key: counter.to_string().into(),
            requests: 1,
        };
        let operation = Operation::Reserve {
            max_wait: Duration::ZERO,
        };
        match runtime.block_on(exact.decide(&[request], operation, Duration::ZERO)) {
            Ok(decision) if decision.outcome == Outcome::Now => Ok(()),
            Ok(decision) => bail!("a call was not granted: {decision:?}"),
            Err(error) => bail!("no decision: {error}"),
        }
    })
}

fn by_window(runtime: Handle, mut connection: redis::aio::MultiplexedConnection) -> Client {
    const WINDOW_SECONDS: u64 = 60;
    Box::new(move |counter| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let key = format!("{LIMIT}:{counter}:{}", now.as_secs() / WINDOW_SECONDS);
        let mut pipeline = redis::pipe();
        pipeline.cmd("INCR").arg(&key);
        pipeline
            .cmd("EXPIRE")
            .arg(&key)
            .arg(2 * WINDOW_SECONDS)
            .ignore();
        let (_count,): (u64,) = runtime.block_on(pipeline.query_async(&mut connection))?;
        Ok(())
    })
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
