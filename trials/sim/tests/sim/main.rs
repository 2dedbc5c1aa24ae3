//! Deterministic simulation of the whole: the real producer and consumer programs in one thread, on a simulated
//! network and a simulated clock, under faults drawn from a seed. A seed that fails fails again, step by step.
//!
//! Plain `cargo test` runs the first hundred seeds, and `.ci/run` a thousand more. Each takes 0.6 s of CPU time in a debug build. For
//! others, or for one of them again with all it logs:
//!
//! ```sh
//! SIM_SEEDS=1100..9999 cargo test --test sim seeds -- --test-threads=1
//! SIM_SEED=17 RUST_LOG=debug cargo test --test sim seeds -- --nocapture
//! ```
//!
//! **Why this way.** The programs run on tokio, hyper, h2 and tonic, whose behaviour under faults is half of what is to
//! be tested, so they must be the real ones. turmoil gives each host a paused tokio runtime of its own and a network
//! in between, and needs no more of the programs than their ports and connections as arguments. madsim would replace
//! tokio itself by a build flag: all dependencies would be built anew, with its own versions of tonic and others in
//! place of those that ship. An executor of our own would test our executor. What turmoil leaves to chance is the
//! process: time and random bytes from the system, which decide epochs, hash orders and the order in which `select!`
//! looks at its arms. mad-turmoil defines the two C functions behind them in this binary, so nothing has to be passed
//! through the programs. Counters of a whole process, as in tokio's own seeds, remain: so every seed has a process of
//! its own, and there is nothing left that could differ; `same_seed_produces_the_same_trace` proves it.
//!
//! Beside what browsers send, each producer appends cookies late, with their ages (`delayed_cookies.rs`).
//!
//! A producer may stand still while the others go on (`stall.rs`).
//!
//! A run's clocks agree: no host's is set, none is fast or slow. The same cookie is never sent twice, so repeats that
//! are left out are not part of it; nor are stores that refuse single cookies forever.

mod check;
mod delayed_cookies;
mod hosts;
mod load;
mod loss_reports;
mod network;
mod plan;
mod scenarios;
mod stall;
mod store;
mod trace;
mod world;

use std::{
    env,
    io::Read,
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use mad_turmoil::time::SimClocksGuard;
use rand::{SeedableRng, rngs::StdRng};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tempfile::TempDir;
use tracing_subscriber::{
    EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use plan::Plan;
use world::World;

/// Why a lock is never poisoned.
const UNPOISONED: &str = "a panic ends the process";

/// How long a run may take by the clock on the wall; most take seconds.
const RUN_MAX: Duration = Duration::from_secs(120);

/// What plain `cargo test` runs.
const SEEDS: std::ops::Range<u64> = 0..100;

/// The test that runs one seed when it is told so by its environment.
const ENTRY: &str = "seeds_lose_only_counted_cookies";

#[test]
fn seeds_lose_only_counted_cookies() {
    if let Ok(seed) = env::var("SIM_SEED") {
        let seed = seed.parse().expect("SIM_SEED is a number");
        let scenario = env::var("SIM_SCENARIO").ok();
        let plan = scenario.map_or_else(
            || Plan::draw(seed),
            |name| scenarios::plan(&name).expect("SIM_SCENARIO is one of scenarios.rs"),
        );
        run_here(plan);
        return;
    }
    let seeds = env::var("SIM_SEEDS").map_or(SEEDS, |range| {
        let (from, to) = range.split_once("..").expect("SIM_SEEDS=from..to");
        let number = |text: &str| text.parse().expect("SIM_SEEDS=from..to");
        number(from)..number(to)
    });
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(Vec::new());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let output = run_apart(seed, None);
                    if !output.status.success() {
                        report(&format!("SIM_SEED={seed}"), &output);
                        failed.lock().expect(UNPOISONED).push(seed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect(UNPOISONED);
    failed.sort_unstable();
    assert!(failed.is_empty(), "failed: {failed:?} of {seeds:?}");
}

#[test]
fn same_seed_produces_the_same_trace() {
    if env::var_os("SIM_SEED").is_some() {
        return;
    }
    for seed in [3, 5, 8, 13] {
        let ways = [0, 1].map(|_| way(&run_apart(seed, None)));
        assert_eq!(ways[0], ways[1], "seed {seed}");
    }
    let other = way(&run_apart(14, None));
    assert_ne!(
        other,
        way(&run_apart(13, None)),
        "the trace sees no difference"
    );
}

/// The trace that a run printed.
fn way(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout);
    let way = printed.lines().find(|line| line.starts_with("trace "));
    way.unwrap_or_else(|| panic!("no trace in {printed}"))
        .to_owned()
}

#[test]
fn run_beyond_its_time_limit_is_killed_and_reported() {
    if env::var_os("SIM_SEED").is_some() {
        return;
    }
    // Longer than it takes to see that this time passes, and shorter than any run.
    let output = run_within(Duration::from_millis(10), 7, None);
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("seed 7 was killed"), "{errors}");
}

/// Runs a seed, or a scenario, in a process of its own.
fn run_apart(seed: u64, scenario: Option<&str>) -> Output {
    run_within(RUN_MAX, seed, scenario)
}

/// Like [`run_apart`]; what takes longer than this is killed, and that is the last line of its errors.
fn run_within(time: Duration, seed: u64, scenario: Option<&str>) -> Output {
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args([ENTRY, "--exact", "--nocapture", "--test-threads=1"]);
    command
        .env("SIM_SEED", seed.to_string())
        .env_remove("SIM_SCENARIO")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(scenario) = scenario {
        command.env("SIM_SCENARIO", scenario);
    }
    let mut child = command.spawn().expect("this program can be run");
    let (mut out, mut err) = child.stdout.take().zip(child.stderr.take()).expect("pipes");
    let printed = thread::spawn(move || read(&mut out));
    let errors = thread::spawn(move || read(&mut err));
    let is_late = !ends_within(time, &child);
    if is_late {
        child.kill().expect("it was not waited for yet");
    }
    let status = child.wait().expect("it is a child");
    let stdout = printed.join().expect("no panic");
    let mut stderr = errors.join().expect("no panic");
    if is_late {
        let line = format!("seed {seed} was killed: it had not ended after {time:?}\n");
        stderr.extend_from_slice(line.as_bytes());
    }
    Output {
        status,
        stdout,
        stderr,
    }
}

/// Waits until a process has ended, but no longer than this. The system measures the time: for this program, whose clock is
/// mad-turmoil's, it stands still.
fn ends_within(time: Duration, child: &Child) -> bool {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let process = process.expect("it was not waited for yet");
    let time = Timespec::try_from(time).expect("a few minutes");
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time));
    ended.expect("no handler of signals interrupts it") > 0
}

fn read(pipe: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    pipe.read_to_end(&mut all).expect("a pipe can be read");
    all
}

fn report(what: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("failed; again: {what} cargo test --test sim seeds -- --nocapture");
    println!("{printed}{errors}");
}

/// Runs a plan in this process, which must not have run another.
fn run_here(plan: Plan) {
    println!("\n{plan}");
    let seed = plan.seed;
    // What producers record outlives them, but not the run; a run knows no path, which would differ each time.
    // Epoch histories belong in memory.
    let records = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    let records = records.expect("there is a directory for temporary files");
    env::set_current_dir(&records).expect("it was just made");
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let printed = env::var_os("RUST_LOG").map(|_| {
        let printed = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        printed.with_filter(EnvFilter::from_default_env())
    });
    tracing_subscriber::registry()
        .with(loss_reports::layer())
        .with(printed)
        .init();
    // A panic in a task would end that task alone.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    // The keys of a thread's hash maps are drawn when it first needs them.
    let run = thread::spawn(move || {
        fastrand::seed(seed);
        let _clocks = SimClocksGuard::init();
        let figures = World::new(plan).run();
        (figures, trace::hash())
    });
    let (figures, trace) = run.join().expect("a panic ends the process");
    println!("trace {trace:016x}");
    match figures {
        Ok(figures) => println!("{figures:?}"),
        Err(why) => panic!("seed {seed}: {why:#}"),
    }
}
