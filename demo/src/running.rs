//! The processes of a demo, and the directory with their store and logs.
//!
//! All ports are checked before anything is built or started. The processes are stopped in data-flow order (load, producer,
//! consumer), so that every accepted cookie is stored.

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use launcher::{
    producer::{Addresses, Launch},
    programs::{Process, Programs, find, flags, target_dir},
};
use tokio_util::sync::CancellationToken;

use crate::args::{SetupArgs, reachable};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the stop of a process, longer than its drain timeout.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// Marks the directory of a demo, whose contents may be removed.
const MARKER: &str = ".cookiesync-demo";

/// Runs a demo: builds the programs, with `bench` if `with_bench`, and starts a producer and a consumer in an empty directory.
/// Then `show` runs to its end or until `stop`. Returns the running processes; `None` if `stop` was cancelled before they were
/// started.
///
/// # Errors
/// If a port is in use, the build fails, the directory has other contents, or `show` fails.
pub(crate) async fn run(
    args: &SetupArgs,
    with_bench: bool,
    stop: &CancellationToken,
    show: impl AsyncFnOnce(&mut Running) -> Result<()>,
) -> Result<Option<Running>> {
    args.check_ports()?;
    let find_all = move || {
        if !with_bench {
            return anyhow::Ok((Programs::find()?, None));
        }
        let [producer, consumer, bench] = find(["producer", "consumer", "bench"])?;
        Ok((Programs { producer, consumer }, Some(bench)))
    };
    let found = tokio::task::spawn_blocking(find_all).await?;
    if stop.is_cancelled() {
        // The same Ctrl-C has stopped cargo.
        return Ok(None);
    }
    let (programs, bench) = found?;
    let dir = empty(args.dir.clone())?;
    // Checked again, because the build can take minutes.
    args.check_ports()?;
    let mut running = Running::start(args.clone(), &programs, bench, dir)?;
    let result = tokio::select! {
        result = show(&mut running) => result,
        () = stop.cancelled() => Ok(()),
    };
    result.map(|()| Some(running))
}

/// Removes the contents that a previous demo left in its directory, and returns it. Rejects other contents.
fn empty(dir: Option<PathBuf>) -> Result<PathBuf> {
    let dir = dir.unwrap_or_else(|| target_dir().join("demo"));
    let named = || format!("{}", dir.display());
    let marker = dir.join(MARKER);
    fs::create_dir_all(&dir).with_context(named)?;
    let is_empty = fs::read_dir(&dir).with_context(named)?.next().is_none();
    if !is_empty && !marker.exists() {
        bail!(
            "{} is not empty, and was not created by a demo; choose another directory with --dir",
            dir.display()
        );
    }
    fs::remove_dir_all(&dir).with_context(named)?;
    fs::create_dir_all(&dir).with_context(named)?;
    fs::write(&marker, "").with_context(named)?;
    Ok(dir)
}

/// The running processes; killed on drop.
pub(crate) struct Running {
    pub(crate) args: SetupArgs,
    /// Directory with store and logs.
    pub(crate) dir: PathBuf,
    bench: Option<PathBuf>,
    producer: Process,
    consumer: Process,
    load: Option<Process>,
    /// Admin address of the producer.
    pub(crate) producer_admin: String,
    /// Admin address of the consumer.
    pub(crate) consumer_admin: String,
}

impl Running {
    /// Starts a producer and a consumer.
    fn start(
        args: SetupArgs,
        programs: &Programs,
        bench: Option<PathBuf>,
        dir: PathBuf,
    ) -> Result<Self> {
        let producer = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses {
                http: args.http.to_string(),
                grpc: args.grpc.to_string(),
                admin: args.producer_admin.to_string(),
            },
            dir: &dir,
            flags: Vec::new(),
        };
        let store = dir.join("store");
        let consumer = flags([
            ("--producer", format!("http://{}", reachable(args.grpc))),
            ("--name", "demo".to_owned()),
            ("--store", format!("embedded:{}", store.display())),
            ("--admin", args.consumer_admin.to_string()),
            (
                "--dead-letters",
                dir.join("dead-letters.jsonl").display().to_string(),
            ),
        ]);
        Ok(Self {
            producer: producer.start()?.process,
            consumer: start("consumer", &programs.consumer, &consumer, &dir)?,
            load: None,
            producer_admin: reachable(args.producer_admin).to_string(),
            consumer_admin: reachable(args.consumer_admin).to_string(),
            args,
            dir,
            bench,
        })
    }

    /// Address of the edge.
    pub(crate) fn edge(&self) -> String {
        reachable(self.args.http).to_string()
    }

    /// Waits until both processes are ready, and prints their addresses.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        let (producer, consumer) = (&mut self.producer, &mut self.consumer);
        producer
            .wait_ready(&self.producer_admin, READY_TIMEOUT)
            .await?;
        consumer
            .wait_ready(&self.consumer_admin, READY_TIMEOUT)
            .await?;
        let args = &self.args;
        println!(
            "producer  {} (sync), {} (gRPC), {} (admin)\nconsumer  {} (lookup, admin)\nstore and logs in {}\n",
            args.http,
            args.grpc,
            args.producer_admin,
            args.consumer_admin,
            self.dir.display()
        );
        Ok(())
    }

    /// Starts the load generator, which must have been built.
    pub(crate) fn start_load(&mut self, rate: NonZeroU64) -> Result<()> {
        let program = self.bench.as_ref().context("bench was not built")?;
        let load = ["load", "--no-report"].map(str::to_owned);
        let more = flags([
            ("--url", format!("http://{}/", self.edge())),
            ("--connections", "8".to_owned()),
            ("--threads", "1".to_owned()),
            ("--rate", rate.to_string()),
            // The maximum of the load generator.
            ("--duration", "30d".to_owned()),
        ]);
        let load: Vec<_> = load.into_iter().chain(more).collect();
        self.load = Some(start("load", program, &load, &self.dir)?);
        Ok(())
    }

    /// Checks that all processes run.
    ///
    /// # Errors
    /// If one of them, including the load, has exited.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.producer.check()?;
        self.consumer.check()?;
        self.load.as_mut().map_or(Ok(()), Process::check)
    }

    /// Stops all processes.
    ///
    /// # Errors
    /// If the drain of producer or consumer fails.
    pub(crate) async fn stop(mut self) -> Result<()> {
        println!("\nstopping");
        // An error must not prevent the drain of the other processes.
        if let Some(load) = &mut self.load
            && let Err(error) = load.stop(STOP_TIMEOUT).await
        {
            eprintln!("failed to stop the load: {error:#}");
        }
        for process in [&mut self.producer, &mut self.consumer] {
            let status = process.stop(STOP_TIMEOUT).await?;
            if !status.success() {
                bail!(
                    "{} exited with {status}; last log lines:\n{}",
                    process.name(),
                    process.last_lines(20)
                );
            }
        }
        Ok(())
    }
}

/// Starts a program whose log file has its name.
fn start(name: &str, program: &Path, flags: &[String], dir: &Path) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    Process::start(&format!("the {name}"), program, flags, &log)
}
