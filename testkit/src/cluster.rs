//! A whole system on this machine: producers, consumers and stores run as processes on free loopback ports, and keep their files in a
//! temporary directory.
//!
//! Each consumer represents one exchange node: it has its own store and reads from all producers. Dropping the [`Cluster`]
//! ends all processes.

mod args;
mod backend;
pub mod netns;
mod node;

use std::{fs, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::Value;
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
    admin, nats,
    observe::{Role, Target},
    producer::{Addresses, Launch, Producer},
    programs::{Process, ServerProcess, find_with, flags, free_address},
    scrape::names,
};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The recommended stream of an archive.
const STREAM: &str = include_str!("../../deploy/archive/stream.json");

/// Size of the stream of a cluster: 30 minutes at 10,000 cookies per second, with room.
const ARCHIVE_BYTES: u64 = 4 << 30;

/// Features of programs with an archive.
const ARCHIVE_FEATURES: &str = "producer/archive,consumer/archive";

/// How long a clean shutdown may take; longer than the drain timeout of the processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Producers by number. The process name is the producer id.
    pub producers: Vec<Producer>,
    /// Nodes by number.
    pub nodes: Vec<Node>,
    /// The NATS server, if the cluster has an archive.
    pub nats: Option<ServerProcess>,
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
        let features = if args.archive { ARCHIVE_FEATURES } else { "" };
        let finding = tokio::task::spawn_blocking(|| find_with(["producer", "consumer"], features));
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
        let mut args = args.clone();
        let mut nats = None;
        if args.archive {
            let (server, url) = start_archive(dir.path(), host).await?;
            let flags = ["--archive".to_owned(), url];
            args.producer_arg.extend(flags.clone());
            args.consumer_arg.extend(flags);
            nats = Some(server);
        }
        let args = &args;
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
            nats,
            network,
            _dir: dir,
            _state: state,
        })
    }

    /// The network namespace of the node with this index, if it has one.
    pub fn network(&self, node: usize) -> Option<&Namespace> {
        self.network.as_ref()?.nodes().get(node)
    }

    /// The ports that nodes read from: the streams of all producers, and the archive.
    pub fn stream_ports(&self) -> Vec<u16> {
        let addresses = self.producers.iter().map(|producer| &producer.grpc);
        let ports = addresses.filter_map(|address| address.rsplit_once(':')?.1.parse().ok());
        ports
            .chain(self.nats.iter().map(|nats| nats.address.port()))
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
        let nats = self.nats.iter_mut().map(|it| &mut it.process);
        let nodes = self.nodes.iter_mut();
        producers.chain(nats).chain(
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

/// Starts a NATS server with the recommended stream. Returns it with the URL of the stream.
async fn start_archive(dir: &Path, host: Option<Ipv4Addr>) -> Result<(ServerProcess, String)> {
    let mut address = free_address()?;
    if let Some(host) = host {
        address.set_ip(host.into());
    }
    let dir = dir.join("nats");
    fs::create_dir(&dir)?;
    let server = nats::start_at(&dir, "", address).await?;
    let mut stream: Value = serde_json::from_str(STREAM)?;
    stream["num_replicas"] = 1.into();
    stream["max_bytes"] = ARCHIVE_BYTES.into();
    nats::create_stream(address, "COOKIES", &stream.to_string()).await?;
    let url = format!("{}/COOKIES", server.uri());
    Ok((server, url))
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
