//! The processes of a demo, and the directory with their store and logs.
//!
//! All ports are checked before anything is built or started. The processes are stopped in data-flow order (load, producer,
//! consumer), so that every accepted cookie is stored.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use launcher::{
    producer::{Addresses, Launch},
    programs::{Process, Programs, target_dir},
};
use tokio_util::sync::CancellationToken;

use crate::args::{SetupArgs, reachable};

pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// More than the drain timeout of a process.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// File with the token for pages of cookies.
pub(crate) const TOKEN_FILE: &str = "token";

/// Marks the directory of a demo, whose contents may be removed.
const MARKER: &str = ".cookiesync-demo";

/// Programs and directory of a demo.
pub(crate) struct Setup {
    pub(crate) programs: Programs,
    /// Empty except for the marker.
    pub(crate) dir: PathBuf,
}

impl Setup {
    /// Builds the programs, with the load generator if `with_load`, and empties the directory; `None` if `stop` is cancelled.
    ///
    /// # Errors
    /// If a port is in use, the build fails, or the directory has other contents.
    pub(crate) async fn prepare(
        args: &SetupArgs,
        with_load: bool,
        stop: &CancellationToken,
    ) -> Result<Option<Self>> {
        args.check_ports()?;
        let programs = tokio::task::spawn_blocking(move || {
            if with_load {
                Programs::find_with_bench()
            } else {
                Programs::find()
            }
        })
        .await?;
        if stop.is_cancelled() {
            // The same Ctrl-C has stopped cargo.
            return Ok(None);
        }
        let programs = programs?;
        let dir = empty(args.dir.clone())?;
        // Again, because the build can take minutes.
        args.check_ports()?;
        Ok(Some(Self { programs, dir }))
    }
}

/// Removes the contents that a previous demo left in its directory, and returns it. Rejects other contents.
pub(crate) fn empty(dir: Option<PathBuf>) -> Result<PathBuf> {
    let dir = dir.unwrap_or_else(|| target_dir().join("demo"));
    let named = || format!("{}", dir.display());
    let marker = dir.join(MARKER);
    fs::create_dir_all(&dir).with_context(named)?;
    let is_empty = fs::read_dir(&dir).with_context(named)?.next().is_none();
    if !is_empty && !marker.exists() {
        bail!(
            "{} is not the directory of a demo; choose another with --dir",
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
    producer: Process,
    consumer: Process,
    load: Option<Process>,
    /// Admin address of the producer.
    pub(crate) producer_admin: String,
    /// Admin address of the consumer.
    pub(crate) consumer_admin: String,
}

impl Running {
    /// Starts a producer with these additional flags, and a consumer.
    pub(crate) fn start(
        args: &SetupArgs,
        setup: &Setup,
        producer_flags: Vec<String>,
    ) -> Result<Self> {
        let Setup { programs, dir } = setup;
        let producer = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses {
                http: args.http.to_string(),
                grpc: args.grpc.to_string(),
                admin: args.producer_admin.to_string(),
            },
            dir,
            flags: producer_flags,
        };
        let (store, token) = (dir.join("store"), dir.join(TOKEN_FILE));
        fs::write(&token, "token-of-the-demo\n")?;
        let consumer = flags([
            ("--producer", format!("http://{}", reachable(args.grpc))),
            ("--name", "demo".to_owned()),
            ("--store", format!("embedded:{}", store.display())),
            ("--admin", args.consumer_admin.to_string()),
            ("--cookies-token-file", token.display().to_string()),
            (
                "--dead-letters",
                dir.join("dead-letters.jsonl").display().to_string(),
            ),
        ]);
        Ok(Self {
            producer: producer.start()?.process,
            consumer: start("consumer", &programs.consumer, &consumer, dir)?,
            load: None,
            producer_admin: reachable(args.producer_admin).to_string(),
            consumer_admin: reachable(args.consumer_admin).to_string(),
        })
    }

    /// Waits until both processes are ready, and prints their addresses.
    pub(crate) async fn wait_ready(&mut self, args: &SetupArgs, setup: &Setup) -> Result<()> {
        let (producer, consumer) = (&mut self.producer, &mut self.consumer);
        producer
            .wait_ready(&self.producer_admin, READY_TIMEOUT)
            .await?;
        consumer
            .wait_ready(&self.consumer_admin, READY_TIMEOUT)
            .await?;
        println!(
            "producer  {} (sync), {} (gRPC), {} (admin)\nconsumer  {} (lookup, admin)\nstore and logs in {}\n",
            args.http,
            args.grpc,
            args.producer_admin,
            args.consumer_admin,
            setup.dir.display()
        );
        Ok(())
    }

    /// Starts the load generator with these additional flags.
    pub(crate) fn start_load<const N: usize>(
        &mut self,
        args: &SetupArgs,
        setup: &Setup,
        more: [(&str, String); N],
    ) -> Result<()> {
        let program = setup.programs.bench.as_ref();
        let program = program.context("the load generator was not built")?;
        let mut load = vec!["load".to_owned(), "--no-report".to_owned()];
        load.extend(flags([
            ("--url", format!("http://{}/", reachable(args.http))),
            ("--connections", "8".to_owned()),
            ("--threads", "1".to_owned()),
        ]));
        load.extend(flags(more));
        self.load = Some(start("load", program, &load, &setup.dir)?);
        Ok(())
    }

    /// Exit status of the load; `None` while it runs, or if none was started.
    pub(crate) fn load_status(&mut self) -> Result<Option<ExitStatus>> {
        self.load.as_mut().map_or(Ok(None), Process::exit_status)
    }

    /// Checks that all processes run.
    ///
    /// # Errors
    /// If one of them, including the load, has exited.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.check_servers()?;
        self.load.as_mut().map_or(Ok(()), Process::check)
    }

    /// Checks that producer and consumer run.
    ///
    /// # Errors
    /// If one of them has exited.
    pub(crate) fn check_servers(&mut self) -> Result<()> {
        self.producer.check()?;
        self.consumer.check()
    }

    /// Stops the load. Returns whether there was one.
    pub(crate) async fn stop_load(&mut self) -> bool {
        let Some(mut load) = self.load.take() else {
            return false;
        };
        // An error must not prevent the drain of the other processes.
        if let Err(error) = load.stop(STOP_TIMEOUT).await {
            eprintln!("failed to stop the load: {error:#}");
        }
        true
    }

    /// Stops all processes.
    ///
    /// # Errors
    /// If the drain of producer or consumer fails.
    pub(crate) async fn stop(mut self) -> Result<()> {
        println!("\nstopping");
        self.stop_load().await;
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
pub(crate) fn start(name: &str, program: &Path, flags: &[String], dir: &Path) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    Process::start(&format!("the {name}"), program, flags, &log)
}

/// Converts flags and values to arguments.
pub(crate) fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}
