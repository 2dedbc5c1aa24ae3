//! The whole system on this machine: producers, consumers and their stores as real processes on loopback ports of
//! their own, in a directory that is removed at the end.
//!
//! Every consumer stands for one exchange node: it has a store of its own and reads from all producers. Nothing here
//! outlives its [`Cluster`].

mod args;
mod backend;
pub mod netns;
mod node;

use std::{net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use self::netns::{Namespace, Network};
pub use self::{
    args::{ClusterArgs, StoreChoice},
    backend::StoreBackend,
    node::Node,
};
use crate::{
    admin,
    observe::{Role, Target},
    producer::{Addresses, Launch, Producer},
    programs::{Process, Programs, free_address},
    scrape::names,
};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// What a process may take to finish in order; longer than any drain it is told.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// What consumers and producers are told: enough for all that a full buffer holds, on a slow disk.
const DRAIN_TIMEOUT: &str = "30s";

/// Everything that runs.
#[derive(Debug)]
pub struct Cluster {
    /// In order of their numbers; the name of the process is the producer's name for cursors.
    pub producers: Vec<Producer>,
    /// Likewise.
    pub nodes: Vec<Node>,
    /// After all that runs in it.
    network: Option<Network>,
    /// With the stores and the logs of all processes; removed when dropped, unless it is kept.
    dir: TempDir,
    is_kept: bool,
    /// In memory, as the records of producers must be.
    _records: TempDir,
}

impl Cluster {
    /// Starts all processes. Dropping the future ends what it has started. No store has been written to before [`wait_connected`](Self::wait_connected).
    ///
    /// # Errors
    /// When something is not to be found or does not start.
    pub async fn start(args: &ClusterArgs) -> Result<Self> {
        let programs = tokio::task::spawn_blocking(Programs::find).await??;
        let dir = tempfile::Builder::new()
            .prefix("cookiesync-bench-")
            .disable_cleanup(args.keep)
            .tempdir()
            .context("cannot make a directory for the stores; TMPDIR names another place")?;
        let records = TempDir::new_in("/dev/shm").context("no directory in memory")?;
        let network = if args.own_network {
            let made = Network::create(args.consumers.get());
            Some(made.context("no network of its own for each node")?)
        } else {
            None
        };
        let host = network.as_ref().map(Network::host);
        let mut backends = Vec::new();
        for number in 1..=args.consumers.get() {
            backends.push(StoreBackend::prepare(args, number, dir.path(), host).await?);
        }
        let mut producers = Vec::new();
        for number in 1..=args.producers.get() {
            let started =
                start_producer(args, number, &programs, [dir.path(), records.path()], host);
            producers.push(started?);
        }
        for producer in &mut producers {
            producer.wait_ready(READY_TIMEOUT).await?;
        }
        let mut nodes = Vec::new();
        for (number, backend) in (1..).zip(backends) {
            let start = node::Start {
                args,
                number,
                producers: &producers,
                programs: &programs,
                dir: dir.path(),
                network: network
                    .as_ref()
                    .and_then(|network| network.nodes().get(number - 1)),
            };
            nodes.push(Node::start(&start, backend)?);
        }
        Ok(Self {
            producers,
            nodes,
            network,
            dir,
            is_kept: args.keep,
            _records: records,
        })
    }

    /// The network of the node with this index, if it has one of its own.
    #[must_use]
    pub fn network(&self, node: usize) -> Option<&Namespace> {
        self.network.as_ref()?.nodes().get(node)
    }

    /// The ports of all producers' streams.
    #[must_use]
    pub fn stream_ports(&self) -> Vec<u16> {
        let addresses = self.producers.iter().map(|producer| &producer.grpc);
        addresses
            .filter_map(|address| address.rsplit_once(':')?.1.parse().ok())
            .collect()
    }

    /// Waits until every consumer is ready and reads from every producer.
    ///
    /// # Errors
    /// When one ends, or is not after a minute.
    pub async fn wait_connected(&mut self) -> Result<()> {
        let producers = self.producers.len() as u64;
        for node in &mut self.nodes {
            node.process.wait_ready(&node.admin, READY_TIMEOUT).await?;
            let deadline = Instant::now() + READY_TIMEOUT;
            loop {
                let metrics = admin::metrics(&node.admin).await?;
                let connected = metrics.count(names::PRODUCERS_CONNECTED, &[]);
                if connected >= producers {
                    break;
                }
                if Instant::now() >= deadline {
                    bail!(
                        "{} reads from {connected} of {producers} producers",
                        node.name
                    );
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// What there is to observe: producers, consumers and their stores, in this order, and this process.
    #[must_use]
    pub fn targets(&mut self) -> Vec<Target> {
        let target = |role, name: &str, process_id, admin: Option<&String>| Target {
            role,
            name: name.to_owned(),
            process_id,
            admin: admin.cloned(),
        };
        let producers = self
            .producers
            .iter()
            .map(|Producer { process, admin, .. }| {
                target(Role::Producer, process.name(), process.id(), Some(admin))
            });
        let consumers = self.nodes.iter().map(|node| {
            let id = node.process.id();
            target(Role::Consumer, &node.name, id, Some(&node.admin))
        });
        let mut targets: Vec<_> = producers.chain(consumers).collect();
        for (number, node) in (1..).zip(&mut self.nodes) {
            let mongod = node.backend.process();
            let name = format!("mongod-{number}");
            targets.extend(mongod.map(|it| target(Role::Mongod, &name, it.id(), None)));
        }
        let own_id = std::process::id();
        targets.push(target(Role::Generator, "generator", own_id, None));
        targets
    }

    /// Fails when a process has ended by itself, with its last words.
    ///
    /// # Errors
    /// See above.
    pub fn check(&mut self) -> Result<()> {
        self.processes().try_for_each(Process::check)
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let producers = self.producers.iter_mut().map(|it| &mut it.process);
        let nodes = self.nodes.iter_mut();
        producers.chain(
            nodes.flat_map(|node| std::iter::once(&mut node.process).chain(node.backend.process())),
        )
    }

    /// Stops producers and then consumers in order, so that these store all that those had; the stores stay up, to be
    /// read. Returns what went wrong, first of all which processes had ended before.
    pub async fn stop(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        for process in self.processes() {
            match process.check() {
                // One that is stopped would hear nothing.
                Ok(()) => drop(process.signal(Signal::CONT)),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        let producers = self.producers.iter_mut().map(|it| stop(&mut it.process));
        failures.extend(join_all(producers).await.into_iter().flatten());
        let consumers = self.nodes.iter_mut().map(|node| stop(&mut node.process));
        failures.extend(join_all(consumers).await.into_iter().flatten());
        failures
    }

    /// Ends everything, and removes the directory and the databases unless they are to be kept. Says what is kept; returns what
    /// could not be removed.
    pub async fn remove(self) -> Vec<String> {
        let mut problems = Vec::new();
        let is_kept = self.is_kept;
        drop(self.producers);
        for node in self.nodes {
            drop(node.process);
            if let Err(error) = node.backend.remove(is_kept, STOP_TIMEOUT).await {
                problems.push(format!("{}: {error:#}", node.name));
            }
        }
        let path = self.dir.path().to_owned();
        if is_kept {
            eprintln!("kept      {}", path.display());
        } else if let Err(error) = self.dir.close() {
            problems.push(format!("cannot remove {}: {error}", path.display()));
        }
        for problem in &problems {
            eprintln!("left      {problem}");
        }
        problems
    }
}

/// What went wrong, if anything; nothing for one that has ended before.
async fn stop(process: &mut Process) -> Option<String> {
    if !matches!(process.exit_status(), Ok(None)) {
        return None;
    }
    let problem = match process.stop(STOP_TIMEOUT).await {
        Ok(status) if status.success() => return None,
        Ok(status) => format!("ended with {status}"),
        Err(error) => format!("did not stop: {error:#}"),
    };
    Some(format!(
        "{} {problem}; its last lines:\n{}",
        process.name(),
        process.last_lines(5)
    ))
}

/// Starts the producer with this number.
fn start_producer(
    args: &ClusterArgs,
    number: usize,
    programs: &Programs,
    [dir, records]: [&Path; 2],
    host: Option<Ipv4Addr>,
) -> Result<Producer> {
    let name = format!("producer-{number}");
    let mut addresses = Addresses::free()?;
    if let Some(host) = host {
        let mut streams = free_address()?;
        streams.set_ip(host.into());
        addresses.grpc = streams.to_string();
    }
    let mut flags = flags([
        ("--id", &name),
        ("--state", &records.display().to_string()),
        ("--drain-timeout", DRAIN_TIMEOUT),
    ]);
    flags.extend(args.producer_arg.iter().cloned());
    let launch = Launch {
        program: &programs.producer,
        name,
        addresses,
        dir,
        flags,
    };
    launch.start()
}

fn flags<const N: usize>(flags: [(&str, &str); N]) -> Vec<String> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
        .collect()
}
