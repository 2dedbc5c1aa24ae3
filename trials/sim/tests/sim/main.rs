//! Deterministic simulation: the real producer and consumer programs in one thread, on a simulated network and clock, under faults
//! drawn from a seed. A run depends on its seed only, so a failed seed can be replayed.
//!
//! `cargo test` runs the first 40 seeds, also with an archive; `.ci/run` and `.ci/nightly` run more. Each seed takes 0.5 s of CPU time in a
//! debug build. To run other seeds, or to replay one seed with its log:
//!
//! ```sh
//! SIM_SEEDS=1100..9999 cargo test --test sim seeds
//! SIM_SEED=17 RUST_LOG=debug cargo test --test sim seeds -- --nocapture
//! ```
//!
//! **Structure.** [`plan`] draws a run from its seed. [`scenarios`] contains hand-written plans. [`world`] starts the hosts, injects the
//! faults and waits until the system has settled. [`load`] and [`delayed_cookies`] produce cookies. [`api_client`] sends bulk input and
//! deletions, and looks up users. [`store`] simulates the stores of consumers, and [`clocks`] simulates the clocks of hosts.
//! [`archive`] simulates an archive, in which consumers find what a small queue or a killed producer did not deliver, or everything.
//! [`loss_reports`] captures the losses that consumers report. [`check`] compares stores, reports and metrics with the requests.
//!
//! **Real:** both programs with tokio, hyper, h2 and tonic, and the epoch histories on disk. **Simulated:** network, time, random bytes,
//! browsers, and the stores of consumers.
//!
//! **Not covered:** clocks that jump, suppression of duplicates except after deletions, and stores that reject single cookies
//! permanently.
//!
//! **Tools.** turmoil gives each host a paused tokio runtime, and connects the hosts through a simulated network. For this, the programs
//! only accept ports and connections as arguments. madsim would replace tokio and tonic with its own versions, which do not ship.
//! turmoil does not control the system's time and random bytes, which decide epochs, hash orders and the order of `select!` branches.
//! mad-turmoil overrides the two C functions that return them. Process-wide counters, such as tokio's seeds, cannot be reset, so every
//! seed runs in its own process. `same_seed_produces_the_same_trace` checks that runs are deterministic.

mod api_client;
mod archive;
mod check;
mod clocks;
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

/// Reason why locks are never poisoned.
const UNPOISONED: &str = "a panic ends the process";

/// Real time after which a run is killed. Most take seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Seeds that `cargo test` runs by default.
const SEEDS: std::ops::Range<u64> = 0..40;

/// The test that runs a single seed if `SIM_SEED` is set.
const ENTRY: &str = "seeds_lose_only_counted_cookies";

#[test]
fn seeds_lose_only_counted_cookies() {
    if let Ok(seed) = env::var("SIM_SEED") {
        let seed = seed.parse().expect("SIM_SEED is a number");
        let scenario = env::var("SIM_SCENARIO").ok();
        let plan = scenario.map_or_else(
            || match env::var_os("SIM_ARCHIVE") {
                Some(_) => Plan::draw(seed).with_archive(),
                None => Plan::draw(seed),
            },
            |name| scenarios::plan(&name).expect("SIM_SCENARIO is one of scenarios.rs"),
        );
        run_in_this_process(plan);
        return;
    }
    check_seeds(false);
}

#[test]
fn seeds_with_an_archive_lose_only_what_it_lacks() {
    if env::var_os("SIM_SEED").is_none() {
        check_seeds(true);
    }
}

/// Runs all seeds, with or without an archive.
fn check_seeds(has_archive: bool) {
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
                    let variable = has_archive.then_some(("SIM_ARCHIVE", "1"));
                    let output = run_within(RUN_TIMEOUT, seed, variable);
                    if !output.status.success() {
                        let archive = if has_archive { "SIM_ARCHIVE=1 " } else { "" };
                        report(&format!("{archive}SIM_SEED={seed}"), &output);
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
        let traces = thread::scope(|scope| {
            let runs = [0, 1].map(|_| scope.spawn(|| trace_line(&run_in_child(seed, None))));
            runs.map(|run| run.join().expect("the run has a trace"))
        });
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
    let other = trace_line(&run_in_child(14, None));
    assert_ne!(
        other,
        trace_line(&run_in_child(13, None)),
        "the traces of different seeds are equal"
    );
}

/// The line with the trace hash in the output of a run.
fn trace_line(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout);
    let trace = printed.lines().find(|line| line.starts_with("trace "));
    trace
        .unwrap_or_else(|| panic!("no trace in {printed}"))
        .to_owned()
}

#[test]
fn run_beyond_its_time_limit_is_killed_and_reported() {
    if env::var_os("SIM_SEED").is_some() {
        return;
    }
    // Shorter than any run.
    let output = run_within(Duration::from_millis(10), 7, None);
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("seed 7 was killed"), "{errors}");
}

/// Runs a seed or a scenario in a child process.
fn run_in_child(seed: u64, scenario: Option<&str>) -> Output {
    run_within(
        RUN_TIMEOUT,
        seed,
        scenario.map(|name| ("SIM_SCENARIO", name)),
    )
}

/// Like [`run_in_child`], with a time limit. A run that exceeds it is killed, and the last line of its stderr reports the kill.
fn run_within(time: Duration, seed: u64, variable: Option<(&str, &str)>) -> Output {
    let program = env::current_exe().expect("the test binary has a path");
    let mut command = Command::new(program);
    command.args([ENTRY, "--exact", "--nocapture", "--test-threads=1"]);
    command
        .env("SIM_SEED", seed.to_string())
        .env_remove("SIM_SCENARIO")
        .env_remove("SIM_ARCHIVE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.envs(variable);
    let mut child = command.spawn().expect("the test binary can be run");
    let (mut out, mut err) = child.stdout.take().zip(child.stderr.take()).expect("pipes");
    let printed = thread::spawn(move || read(&mut out));
    let errors = thread::spawn(move || read(&mut err));
    let is_timeout = !exits_within(time, &child);
    if is_timeout {
        child.kill().expect("the child was not reaped yet");
    }
    let status = child.wait().expect("the child can be reaped");
    let stdout = printed.join().expect("no panic");
    let mut stderr = errors.join().expect("no panic");
    if is_timeout {
        let line = format!("seed {seed} was killed after {time:?}\n");
        stderr.extend_from_slice(line.as_bytes());
    }
    Output {
        status,
        stdout,
        stderr,
    }
}

/// Waits until a process has exited, up to `time`. The kernel measures the time, because mad-turmoil controls the clock of this process.
fn exits_within(time: Duration, child: &Child) -> bool {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let process = process.expect("the child was not reaped yet");
    let time = Timespec::try_from(time).expect("the time limit fits");
    let exited = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time));
    exited.expect("no signal handler interrupts the call") > 0
}

fn read(pipe: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    pipe.read_to_end(&mut all).expect("the pipe can be read");
    all
}

fn report(variables: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("failed; replay with: {variables} cargo test --test sim seeds -- --nocapture");
    println!("{printed}{errors}");
}

/// Runs a plan in this process, which must not have run another one.
fn run_in_this_process(plan: Plan) {
    println!("\n{plan}");
    let seed = plan.seed;
    // Epoch histories outlive producers but not the run. The working directory has them, because a path would differ in each run.
    let directory = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    let directory = directory.expect("a temporary directory can be created");
    env::set_current_dir(&directory).expect("the directory exists");
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    // A list, because an absent layer next to it would let the registry create the spans of all libraries.
    let mut layers = vec![loss_reports::layer().boxed()];
    if env::var_os("RUST_LOG").is_some() {
        let printed = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        layers.push(printed.with_filter(EnvFilter::from_default_env()).boxed());
    }
    tracing_subscriber::registry().with(layers).init();
    // A panic in a task would only end that task.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    // A new thread, because each thread draws its hash map keys at their first use.
    let run = thread::spawn(move || {
        fastrand::seed(seed);
        let _clocks = SimClocksGuard::init();
        let summary = World::new(plan).run();
        (summary, trace::hash())
    });
    let (summary, trace) = run.join().expect("a panic ends the process");
    println!("trace {trace:016x}");
    match summary {
        Ok(summary) => println!("{summary:?}"),
        Err(error) => panic!("seed {seed}: {error:#}"),
    }
}
