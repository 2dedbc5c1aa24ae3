//! The processes of a demonstration, and the directory with their store and logs.
//!
//! Every port is checked before anything is built or started. The processes are stopped in the direction of the data,
//! the load first and then the producer, so what was accepted is stored when the demonstration ends.

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

use crate::args::{Places, reachable};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than a process may take to drain.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// Says that a directory is the demonstration's, whose data may be removed.
const MARKER: &str = ".cookiesync-demo";

/// What a demonstration is started with.
pub(crate) struct Prepared {
    pub(crate) programs: Programs,
    /// Empty but for a marker.
    pub(crate) dir: PathBuf,
}

impl Prepared {
    /// Builds the programs, with what sends a load if that is needed, and empties the directory; `None` when it is told to stop
    /// meanwhile.
    ///
    /// # Errors
    /// When a port is taken, the programs cannot be built, or the directory holds something else.
    pub(crate) async fn prepare(
        places: &Places,
        with_load: bool,
        stop: &CancellationToken,
    ) -> Result<Option<Self>> {
        places.check_ports()?;
        let programs = tokio::task::spawn_blocking(move || {
            if with_load {
                Programs::find_with_bench()
            } else {
                Programs::find()
            }
        })
        .await?;
        if stop.is_cancelled() {
            // The same Ctrl-C has ended cargo.
            return Ok(None);
        }
        let programs = programs?;
        let dir = places
            .dir
            .clone()
            .unwrap_or_else(|| target_dir().join("demo"));
        empty(&dir)?;
        // Again, since a build can take minutes.
        places.check_ports()?;
        Ok(Some(Self { programs, dir }))
    }
}

/// Empties the directory of what an earlier demonstration left, and of nothing else.
fn empty(dir: &Path) -> Result<()> {
    let named = || format!("{}", dir.display());
    let marker = dir.join(MARKER);
    fs::create_dir_all(dir).with_context(named)?;
    let is_empty = fs::read_dir(dir).with_context(named)?.next().is_none();
    if !is_empty && !marker.exists() {
        bail!(
            "{} holds something else: name another directory with --dir",
            dir.display()
        );
    }
    fs::remove_dir_all(dir).with_context(named)?;
    fs::create_dir_all(dir).with_context(named)?;
    fs::write(&marker, "").with_context(named)
}

/// The processes; they are killed when this is dropped.
pub(crate) struct Running {
    producer: Process,
    consumer: Process,
    load: Option<Process>,
    /// Where to ask the producer.
    pub(crate) producer_admin: String,
    /// Where to ask the consumer.
    pub(crate) consumer_admin: String,
}

impl Running {
    /// Starts a producer with these flags beside its addresses, and a consumer.
    pub(crate) fn start(
        places: &Places,
        prepared: &Prepared,
        producer_flags: Vec<String>,
    ) -> Result<Self> {
        let Prepared { programs, dir } = prepared;
        let producer = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses {
                http: places.http.to_string(),
                grpc: places.grpc.to_string(),
                admin: places.producer_admin.to_string(),
            },
            dir,
            flags: producer_flags,
        };
        let store = dir.join("store");
        let consumer = flags([
            ("--producer", format!("http://{}", reachable(places.grpc))),
            ("--name", "demo".to_owned()),
            ("--store", format!("embedded:{}", store.display())),
            ("--admin", places.consumer_admin.to_string()),
            (
                "--dead-letters",
                dir.join("dead-letters.jsonl").display().to_string(),
            ),
        ]);
        Ok(Self {
            producer: producer.start()?.process,
            consumer: start("consumer", &programs.consumer, &consumer, dir)?,
            load: None,
            producer_admin: reachable(places.producer_admin).to_string(),
            consumer_admin: reachable(places.consumer_admin).to_string(),
        })
    }

    /// Waits until both are ready, and says where they are.
    pub(crate) async fn wait_ready(&mut self, places: &Places, prepared: &Prepared) -> Result<()> {
        let (producer, consumer) = (&mut self.producer, &mut self.consumer);
        producer
            .wait_ready(&self.producer_admin, READY_TIMEOUT)
            .await?;
        consumer
            .wait_ready(&self.consumer_admin, READY_TIMEOUT)
            .await?;
        println!(
            "producer  {} (sync), {} (gRPC), {} (admin)\nconsumer  {} (lookup, admin), store and logs in {}\n",
            places.http,
            places.grpc,
            places.producer_admin,
            places.consumer_admin,
            prepared.dir.display()
        );
        Ok(())
    }

    /// Starts what sends requests, with these flags beside the address.
    pub(crate) fn start_load<const N: usize>(
        &mut self,
        places: &Places,
        prepared: &Prepared,
        more: [(&str, String); N],
    ) -> Result<()> {
        let program = prepared.programs.bench.as_ref();
        let program = program.context("it was built with the others")?;
        let mut load = vec!["load".to_owned(), "--no-report".to_owned()];
        load.extend(flags([
            ("--url", format!("http://{}/", reachable(places.http))),
            ("--connections", "8".to_owned()),
            ("--threads", "1".to_owned()),
        ]));
        load.extend(flags(more));
        self.load = Some(start("load", program, &load, &prepared.dir)?);
        Ok(())
    }

    /// How the load ended; `None` while it goes on, or when there was none.
    pub(crate) fn load_ended(&mut self) -> Result<Option<ExitStatus>> {
        self.load.as_mut().map_or(Ok(None), Process::exit_status)
    }

    /// # Errors
    /// When one of them has ended, the load included.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.check_both()?;
        self.load.as_mut().map_or(Ok(()), Process::check)
    }

    /// # Errors
    /// When producer or consumer has ended.
    pub(crate) fn check_both(&mut self) -> Result<()> {
        self.producer.check()?;
        self.consumer.check()
    }

    /// Stops the load; `false` if none was started.
    pub(crate) async fn stop_load(&mut self) -> bool {
        let Some(mut load) = self.load.take() else {
            return false;
        };
        // The others drain however it ends.
        if let Err(error) = load.stop(STOP_TIMEOUT).await {
            eprintln!("the load: {error:#}");
        }
        true
    }

    /// Stops everything.
    ///
    /// # Errors
    /// When the producer or the consumer does not drain.
    pub(crate) async fn stop(mut self) -> Result<()> {
        println!("\nstopping");
        self.stop_load().await;
        for process in [&mut self.producer, &mut self.consumer] {
            let status = process.stop(STOP_TIMEOUT).await?;
            if !status.success() {
                bail!(
                    "{} ended with {status}; its last lines:\n{}",
                    process.name(),
                    process.last_lines(20)
                );
            }
        }
        Ok(())
    }
}

/// Starts a program with its output in a file of its name.
fn start(name: &str, program: &Path, flags: &[String], dir: &Path) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    Process::start(&format!("the {name}"), program, flags, &log)
}

/// Flags with their values, as arguments.
pub(crate) fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}
