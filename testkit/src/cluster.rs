//! A whole system on this machine: producers, consumers and stores run as processes on free loopback ports, and keep their files in a
//! temporary directory.
//!
//! Each consumer represents one exchange node: it has its own store and reads from all producers. Dropping the [`Cluster`]
//! ends all processes.

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

pub use self::{
    args::{ClusterArgs, StoreChoice},
    backend::StoreBackend,
    node::Node,
};
use self::{
    netns::{Namespace, Network},
    node::DRAIN_TIMEOUT,
};
use crate::{
    admin,
    observe::{Role, Target},
    producer::{Addresses, Launch, Producer},
    programs::{Process, find, flags, free_address},
    scrape::names,
};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a clean shutdown may take; longer than the drain timeout of the processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Producers by number. The process name is the producer id.
    pub producers: Vec<Producer>,
    /// Nodes by number.
    pub nodes: Vec<Node>,
    /// Declared after the processes in its namespaces, so that it is dropped later.
    network: Option<Network>,
    /// Stores and logs of all processes; removed on drop, unless it is kept.
    _dir: TempDir,
    /// Epoch histories of producers, in memory.
    _state: TempDir,
}

impl Cluster {
    /// Starts all processes. Dropping the future ends the started ones. Stores receive no cookies before
    /// [`wait_connected`](Self::wait_connected).
    ///
    /// # Errors
    /// A program is missing or a process does not start.
    pub async fn start(args: &ClusterArgs) -> Result<Self> {
        let finding = tokio::task::spawn_blocking(|| find(["producer", "consumer"]));
        let [producer, consumer] = finding.await??;
        let dir = tempfile::Builder::new()
            .prefix("cookiesync-bench-")
            .disable_cleanup(args.keep)
            .tempdir()
            .context("failed to create a directory for the stores; check TMPDIR")?;
        if args.keep {
            eprintln!("keeping   {}", dir.path().display());
        }
        let state =
            TempDir::new_in("/dev/shm").context("failed to create a directory in /dev/shm")?;
        let network = args
            .own_network
            .then(|| Network::create(args.consumers.get()));
        let network = network.transpose();
        let network = network.context("failed to create network namespaces")?;
        let host = network.as_ref().map(Network::host);
        let mut backends = Vec::new();
        for number in 1..=args.consumers.get() {
            backends.push(StoreBackend::prepare(args, number, dir.path(), host).await?);
        }
        let mut producers = Vec::new();
        for number in 1..=args.producers.get() {
            let dirs = [dir.path(), state.path()];
            producers.push(start_producer(args, number, &producer, dirs, host)?);
        }
        for producer in &mut producers {
            producer.wait_ready(READY_TIMEOUT).await?;
        }
        let mut nodes = Vec::new();
        for (number, backend) in (1..).zip(backends) {
            let network = network.as_ref().map(|network| &network.nodes()[number - 1]);
            let dir = dir.path();
            let node = Node::start(args, number, &producers, &consumer, dir, network, backend);
            nodes.push(node?);
        }
        Ok(Self {
            producers,
            nodes,
            network,
            _dir: dir,
            _state: state,
        })
    }

    /// The network namespace of the node with this index, if it has one.
    pub fn network(&self, node: usize) -> Option<&Namespace> {
        self.network.as_ref()?.nodes().get(node)
    }

    /// The stream ports of all producers.
    pub fn stream_ports(&self) -> Vec<u16> {
        let addresses = self.producers.iter().map(|producer| &producer.grpc);
        addresses
            .filter_map(|address| address.rsplit_once(':')?.1.parse().ok())
            .collect()
    }

    /// Waits until every consumer is ready and reads from every producer.
    ///
    /// # Errors
    /// A process exits or times out.
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
                        "{} timed out: connected to {connected} of {producers} producers",
                        node.name
                    );
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Processes to observe: producers, consumers, stores, and this process.
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

    /// Checks that all processes are running.
    ///
    /// # Errors
    /// A process has exited; the error contains its last log lines.
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

    /// Stops producers and then consumers cleanly, so that all cookies are stored. The stores keep running. Returns the failures,
    /// starting with processes that had already exited.
    pub async fn stop(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        for process in self.processes() {
            match process.check() {
                // A suspended process would not handle SIGTERM.
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
}

/// Stops a process; returns its failure, if any. Does nothing for a process that has already exited.
async fn stop(process: &mut Process) -> Option<String> {
    if !matches!(process.exit_status(), Ok(None)) {
        return None;
    }
    let stopped = process.drain(STOP_TIMEOUT).await;
    stopped.err().map(|error| format!("{error:#}"))
}

/// Starts the producer with this number.
fn start_producer(
    args: &ClusterArgs,
    number: usize,
    program: &Path,
    [dir, state]: [&Path; 2],
    host: Option<Ipv4Addr>,
) -> Result<Producer> {
    let name = format!("producer-{number}");
    let mut addresses = Addresses::free()?;
    if let Some(host) = host {
        let mut grpc = free_address()?;
        grpc.set_ip(host.into());
        addresses.grpc = grpc.to_string();
    }
    let mut flags = flags([
        ("--id", &*name),
        ("--state", &*state.display().to_string()),
        ("--drain-timeout", DRAIN_TIMEOUT),
    ]);
    flags.extend(args.producer_arg.iter().cloned());
    let launch = Launch {
        program,
        name,
        addresses,
        dir,
        flags,
    };
    launch.start()
}
