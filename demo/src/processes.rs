//! The processes of a demo. They are stopped in data-flow order (load, producer, consumer), so that every accepted cookie is
//! stored.

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use testkit::{
    producer::{Addresses, Launch, Producer},
    programs::{Process, find, flags, target_dir},
};

use crate::args::Args;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the stop of a process, longer than its drain timeout.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// The paths of `producer`, `consumer` and, for a load, `bench`.
pub(crate) struct Programs {
    producer: PathBuf,
    consumer: PathBuf,
    bench: Option<PathBuf>,
}

impl Programs {
    /// Finds or builds the programs. Blocks meanwhile.
    pub(crate) fn find(with_bench: bool) -> Result<Self> {
        let [producer, consumer] = find(["producer", "consumer"])?;
        let bench = with_bench.then(|| find(["bench"])).transpose()?;
        Ok(Self {
            producer,
            consumer,
            bench: bench.map(|[program]| program),
        })
    }
}

/// The running processes; killed on drop.
pub(crate) struct Processes {
    pub(crate) producer: Producer,
    consumer: Process,
    load: Option<Process>,
    /// Directory with store and logs.
    dir: PathBuf,
}

impl Processes {
    /// Starts a producer and a consumer, waits until they are ready, and prints their addresses.
    pub(crate) async fn start(args: &Args, programs: &Programs) -> Result<Self> {
        let dir = empty(args.dir.clone())?;
        let launch = Launch {
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
        let consumer_admin = args.consumer_admin.to_string();
        let consumer = flags([
            ("--producer", format!("http://{}", args.grpc)),
            ("--name", "demo".to_owned()),
            (
                "--store",
                format!("embedded:{}", dir.join("store").display()),
            ),
            ("--admin", consumer_admin.clone()),
            (
                "--dead-letters",
                dir.join("dead-letters.jsonl").display().to_string(),
            ),
        ]);
        let mut processes = Self {
            producer: launch.start()?,
            consumer: start("consumer", &programs.consumer, &consumer, &dir)?,
            load: None,
            dir,
        };
        processes.producer.wait_ready(READY_TIMEOUT).await?;
        let consumer = &mut processes.consumer;
        consumer.wait_ready(&consumer_admin, READY_TIMEOUT).await?;
        println!(
            "producer  {} (sync), {} (gRPC), {} (admin)\nconsumer  {} (lookup, admin)\nstore and logs in {}\n",
            args.http,
            args.grpc,
            args.producer_admin,
            consumer_admin,
            processes.dir.display()
        );
        Ok(processes)
    }

    /// Starts the load generator.
    pub(crate) fn start_load(&mut self, programs: &Programs, rate: NonZeroU64) -> Result<()> {
        let program = programs.bench.as_ref().context("bench was not built")?;
        let mut load = vec!["load".to_owned(), "--no-report".to_owned()];
        load.extend(flags([
            ("--url", format!("http://{}/", self.producer.http)),
            ("--connections", "8".to_owned()),
            ("--threads", "1".to_owned()),
            ("--rate", rate.to_string()),
            // The maximum of the load generator.
            ("--duration", "30d".to_owned()),
        ]));
        self.load = Some(start("load", program, &load, &self.dir)?);
        Ok(())
    }

    /// Checks that all processes run.
    ///
    /// # Errors
    /// If one of them, including the load, has exited.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.producer.process.check()?;
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
        for process in [&mut self.producer.process, &mut self.consumer] {
            process.drain(STOP_TIMEOUT).await?;
        }
        Ok(())
    }
}

/// The directory `dir`, or by default that of the previous demo, which is emptied.
fn empty(dir: Option<PathBuf>) -> Result<PathBuf> {
    let previous = target_dir().join("demo");
    if dir.is_none() && previous.exists() {
        fs::remove_dir_all(&previous)?;
    }
    let dir = dir.unwrap_or(previous);
    let named = || format!("{}", dir.display());
    fs::create_dir_all(&dir).with_context(named)?;
    if fs::read_dir(&dir).with_context(named)?.next().is_some() {
        bail!(
            "{} is not empty; choose another directory with --dir",
            dir.display()
        );
    }
    Ok(dir)
}

/// Starts a program whose log file has its name.
fn start(name: &str, program: &Path, flags: &[String], dir: &Path) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    Process::start(&format!("the {name}"), program, flags, &log)
}
