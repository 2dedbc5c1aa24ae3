//! Injects the planned faults during the load.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Result, bail};
use bench::e2e::ClusterRun;
use rustix::process::Signal;
use testkit::{
    cluster::{
        Cluster,
        netns::{Direction, Namespace},
    },
    programs::Process,
};

use super::plan::{Fault, FaultKind, FaultTarget};

/// How long a clean shutdown may take; longer than the drain timeout of the processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Injector of planned faults.
#[derive(Debug)]
pub(super) struct FaultInjector {
    pending: VecDeque<Fault>,
    active: Vec<ActiveFault>,
    /// Injected faults and their ends, with their times in seconds since the start of the load.
    pub(super) events: Vec<(f64, String)>,
    /// Number of kills of producers.
    pub(super) killed: usize,
    /// Nodes whose consumer was killed or restarted.
    pub(super) restarted: BTreeSet<usize>,
    pub(super) failures: Vec<String>,
}

#[derive(Debug)]
struct ActiveFault {
    fault: Fault,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Suspended until this time.
    Suspended(Duration),
    /// SIGTERM was sent at this time.
    Terminating(Duration),
    /// Not running until this time.
    Down(Duration),
    /// Partitioned until this time.
    Partitioned(Duration),
}

impl FaultInjector {
    pub(super) fn new(plan: Vec<Fault>) -> Self {
        Self {
            pending: plan.into(),
            active: Vec::new(),
            events: Vec::new(),
            killed: 0,
            restarted: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Stops starting new faults.
    pub(super) fn stop_injecting(&mut self) {
        self.pending.clear();
    }

    /// Whether a fault is active.
    pub(super) fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    fn is_struck(&self, target: FaultTarget) -> bool {
        let mut active = self.active.iter();
        active.any(|active| active.fault.target == target)
    }

    /// The next fault, if it is due and its target has recovered from the previous fault. A mongod with large files may
    /// take seconds to stop.
    fn due(&self, elapsed: Duration) -> Option<Fault> {
        let next = self.pending.front().copied();
        next.filter(|fault| fault.at <= elapsed && !self.is_struck(fault.target))
    }

    /// Fails if a process exited without a fault.
    fn check(&self, cluster: &mut Cluster) -> Result<()> {
        let nodes = 0..cluster.nodes.len();
        let producers = (0..cluster.producers.len()).map(FaultTarget::Producer);
        let consumers = nodes.clone().map(FaultTarget::Consumer);
        let targets = producers
            .chain(consumers)
            .chain([FaultTarget::Nats])
            .chain(nodes.map(FaultTarget::Mongod));
        for target in targets.filter(|it| !self.is_struck(*it)) {
            // A node with an embedded store has no mongod; there may be no archive.
            if let Ok((_, process)) = process_of(cluster, target) {
                process.check()?;
            }
        }
        Ok(())
    }

    /// Advances active faults; returns a description of the first change.
    fn advance(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<String>> {
        for index in 0..self.active.len() {
            let ActiveFault { fault, stage } = self.active[index];
            let ended = match stage {
                Stage::Suspended(until) | Stage::Down(until) | Stage::Partitioned(until)
                    if elapsed < until =>
                {
                    continue;
                }
                Stage::Partitioned(_) => {
                    let (name, node_network) = node_network(cluster, fault.target)?;
                    node_network.heal()?;
                    format!("{name} reconnected")
                }
                Stage::Suspended(_) => {
                    let (name, process) = process_of(cluster, fault.target)?;
                    process.signal(Signal::CONT)?;
                    format!("{name} resumed")
                }
                Stage::Down(_) => {
                    let (name, process) = process_of(cluster, fault.target)?;
                    process.restart()?;
                    format!("{name} restarted")
                }
                Stage::Terminating(began) => {
                    let (name, process) = process_of(cluster, fault.target)?;
                    let Some(status) = process.exit_status()? else {
                        if elapsed > began + STOP_TIMEOUT {
                            process.kill()?;
                            self.failures
                                .push(format!("{name} did not shut down cleanly"));
                        }
                        continue;
                    };
                    if !status.success() {
                        let log = process.last_lines(5);
                        self.failures
                            .push(format!("{name} exited with {status}: {log}"));
                    }
                    self.active[index].stage = Stage::Down(elapsed + fault.duration);
                    return Ok(Some(format!("{name} exited ({status})")));
                }
            };
            self.active.remove(index);
            return Ok(Some(ended));
        }
        Ok(None)
    }

    fn strike(&mut self, cluster: &mut Cluster, fault: Fault, elapsed: Duration) -> Result<String> {
        let (seconds, until) = (fault.duration.as_secs_f64(), elapsed + fault.duration);
        if let Some(direction) = fault.kind.partition() {
            let ports = cluster.stream_ports();
            let (name, node_network) = node_network(cluster, fault.target)?;
            node_network.partition(direction, &ports)?;
            let stage = Stage::Partitioned(until);
            self.active.push(ActiveFault { fault, stage });
            let packets = match direction {
                Direction::Both => "all packets dropped",
                Direction::ToNode => "inbound packets dropped",
                Direction::FromNode => "outbound packets dropped",
            };
            return Ok(format!("{name} partitioned for {seconds:.1} s: {packets}"));
        }
        let (name, process) = process_of(cluster, fault.target)?;
        let (stage, what) = match fault.kind {
            FaultKind::StopConsumer
            | FaultKind::StopMongod
            | FaultKind::StopProducer
            | FaultKind::StopNats => {
                process.signal(Signal::STOP)?;
                (Stage::Suspended(until), "suspended for")
            }
            FaultKind::RestartConsumer | FaultKind::RestartMongod | FaultKind::RestartProducer => {
                process.signal(Signal::TERM)?;
                (Stage::Terminating(elapsed), "terminated, down for")
            }
            // Partitions were handled above.
            _ => {
                process.kill()?;
                (Stage::Down(until), "killed, down for")
            }
        };
        let description = format!("{name} {what} {seconds:.1} s");
        self.killed += usize::from(fault.kind == FaultKind::KillProducer);
        if let (FaultKind::KillConsumer | FaultKind::RestartConsumer, FaultTarget::Consumer(node)) =
            (fault.kind, fault.target)
        {
            self.restarted.insert(node);
        }
        self.active.push(ActiveFault { fault, stage });
        Ok(description)
    }

    /// Advances active faults, or injects the next one if it is due.
    ///
    /// # Errors
    /// A fault failed, or a process exited unexpectedly.
    pub(super) async fn tick(&mut self, run: &mut ClusterRun, elapsed: Duration) -> Result<()> {
        self.check(&mut run.cluster)?;
        let mut description = self.advance(&mut run.cluster, elapsed)?;
        if description.is_none()
            && let Some(fault) = self.due(elapsed)
        {
            // The counters of a process may be about to be lost.
            run.observe().await;
            self.pending.pop_front();
            description = Some(self.strike(&mut run.cluster, fault, elapsed)?);
        }
        if let Some(description) = description {
            let seconds = elapsed.as_secs_f64();
            eprintln!("{seconds:>7.1} s  {description}");
            self.events.push((seconds, description));
        }
        Ok(())
    }
}

/// Name and network of a node.
fn node_network(cluster: &Cluster, target: FaultTarget) -> Result<(String, &Namespace)> {
    let found = match target {
        FaultTarget::NodeNetwork(index) => cluster.nodes.get(index).zip(cluster.network(index)),
        _ => None,
    };
    match found {
        Some((node, node_network)) => Ok((node.name.clone(), node_network)),
        None => bail!("{target:?} has no network namespace"),
    }
}

/// Name and process of a target.
fn process_of(cluster: &mut Cluster, target: FaultTarget) -> Result<(String, &mut Process)> {
    let found = match target {
        FaultTarget::Producer(index) => {
            let producer = cluster.producers.get_mut(index);
            producer.map(|it| (it.process.name().to_owned(), &mut it.process))
        }
        FaultTarget::Consumer(index) => {
            let node = cluster.nodes.get_mut(index);
            node.map(|it| (it.name.clone(), &mut it.process))
        }
        FaultTarget::Mongod(index) => {
            let mongod = cluster.nodes.get_mut(index);
            let mongod = mongod.and_then(|it| it.backend.process());
            mongod.map(|it| (format!("mongod-{}", index + 1), it))
        }
        FaultTarget::Nats => {
            let nats = cluster.nats.as_mut();
            nats.map(|it| ("nats".to_owned(), &mut it.process))
        }
        FaultTarget::NodeNetwork(_) => None,
    };
    match found {
        Some(found) => Ok(found),
        None => bail!("unknown target {target:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_fault_waits_until_its_target_has_recovered() {
        let second = Duration::from_secs(1);
        let fault = |at: u32, kind, target| Fault {
            at: second * at,
            kind,
            target,
            duration: second,
        };
        let restart = fault(1, FaultKind::RestartMongod, FaultTarget::Mongod(0));
        let mut injector = FaultInjector::new(vec![
            fault(5, FaultKind::StopMongod, FaultTarget::Mongod(0)),
            fault(6, FaultKind::KillConsumer, FaultTarget::Consumer(0)),
        ]);
        assert!(injector.due(second * 4).is_none());
        assert!(injector.due(second * 5).is_some());
        injector.active.push(ActiveFault {
            fault: restart,
            stage: Stage::Terminating(second),
        });
        assert!(injector.due(second * 6).is_none());
        injector.active.clear();
        assert!(injector.due(second * 6).is_some());
    }
}
