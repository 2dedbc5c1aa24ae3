//! Does what the plan of faults says, turn by turn, while the load runs.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Result, bail};
use bench::{
    cluster::{
        Cluster,
        netns::{Direction, Namespace},
    },
    e2e::{Injector, InjectorAction},
    programs::Process,
};
use rustix::process::Signal;
use serde::Serialize;

use super::plan::{Fault, FaultKind, Victim};

/// How long an orderly end may take; longer than the drain the processes are told.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Something that was done.
#[derive(Debug, Clone, Serialize)]
pub struct FaultEvent {
    /// Seconds since the begin of the load.
    pub seconds: f64,
    /// What, to whom.
    pub what: String,
}

/// Does the faults.
#[derive(Debug)]
pub(super) struct FaultInjector {
    pending: VecDeque<Fault>,
    /// Everything was looked at for the first that waits.
    is_observed: bool,
    active: Vec<ActiveFault>,
    pub(super) events: Vec<FaultEvent>,
    /// How often a producer was killed.
    pub(super) killed: usize,
    /// Nodes whose consumer lost what it has in memory only.
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
    /// Stopped until then.
    Stopped(Duration),
    /// Told to end then.
    Terminating(Duration),
    /// Not there until then.
    Down(Duration),
    /// Cut off until then.
    Partitioned(Duration),
}

impl FaultInjector {
    pub(super) fn new(plan: Vec<Fault>) -> Self {
        Self {
            pending: plan.into(),
            is_observed: false,
            active: Vec::new(),
            events: Vec::new(),
            killed: 0,
            restarted: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// No more faults from now on.
    pub(super) fn stop_injecting(&mut self) {
        self.pending.clear();
    }

    /// True while something is not as it was before.
    pub(super) fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    fn is_struck(&self, victim: Victim) -> bool {
        let mut active = self.active.iter();
        active.any(|active| active.fault.victim == victim)
    }

    /// The next fault, when its time has come: not before the victim has got over the one before, which takes a mongod that
    /// closes large files seconds.
    fn due(&self, elapsed: Duration) -> Option<Fault> {
        let next = self.pending.front().copied();
        next.filter(|fault| fault.at <= elapsed && !self.is_struck(fault.victim))
    }

    /// Ends with the last words of a process that nobody told to end.
    fn check(&self, cluster: &mut Cluster) -> Result<()> {
        let is_ours = |victim| self.is_struck(victim);
        for (index, producer) in cluster.producers.iter_mut().enumerate() {
            if !is_ours(Victim::Producer(index)) {
                producer.process.check()?;
            }
        }
        for (index, node) in cluster.nodes.iter_mut().enumerate() {
            if !is_ours(Victim::Consumer(index)) {
                node.process.check()?;
            }
            if let Some(mongod) = node.backend.process()
                && !is_ours(Victim::Mongod(index))
            {
                mongod.check()?;
            }
        }
        Ok(())
    }

    /// What is due of a fault that has begun.
    fn advance(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<String>> {
        for index in 0..self.active.len() {
            let ActiveFault { fault, stage } = self.active[index];
            if let Stage::Partitioned(until) = stage {
                if elapsed < until {
                    continue;
                }
                let (name, node_network) = node_network(cluster, fault.victim)?;
                node_network.heal()?;
                self.active.remove(index);
                return Ok(Some(format!("{name} reconnected")));
            }
            let (name, process) = victim(cluster, fault.victim)?;
            match stage {
                Stage::Stopped(until) if elapsed >= until => {
                    process.signal(Signal::CONT)?;
                    let what = format!("{name} resumed");
                    self.active.remove(index);
                    return Ok(Some(what));
                }
                Stage::Down(until) if elapsed >= until => {
                    process.restart()?;
                    let what = format!("{name} restarted");
                    self.active.remove(index);
                    return Ok(Some(what));
                }
                Stage::Terminating(began) => {
                    let Some(status) = process.exit_status()? else {
                        if elapsed > began + STOP_TIMEOUT {
                            process.kill()?;
                            self.failures
                                .push(format!("{name} did not shut down cleanly"));
                        }
                        continue;
                    };
                    if !status.success() {
                        let words = process.last_lines(5);
                        self.failures
                            .push(format!("{name} exited with {status}: {words}"));
                    }
                    self.active[index].stage = Stage::Down(elapsed + fault.lasts);
                    return Ok(Some(format!("{name} exited ({status})")));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn strike(&mut self, cluster: &mut Cluster, fault: Fault, elapsed: Duration) -> Result<String> {
        let seconds = fault.lasts.as_secs_f64();
        if let Some(direction) = fault.kind.partition() {
            let ports = cluster.stream_ports();
            let (name, node_network) = node_network(cluster, fault.victim)?;
            node_network.partition(direction, &ports)?;
            let stage = Stage::Partitioned(elapsed + fault.lasts);
            self.active.push(ActiveFault { fault, stage });
            let packets = match direction {
                Direction::Both => "all packets dropped",
                Direction::ToNode => "inbound packets dropped",
                Direction::FromNode => "outbound packets dropped",
            };
            return Ok(format!("{name} partitioned for {seconds:.1} s: {packets}"));
        }
        let (name, process) = victim(cluster, fault.victim)?;
        let (stage, what) = match fault.kind {
            FaultKind::StopConsumer | FaultKind::StopMongod | FaultKind::StopProducer => {
                process.signal(Signal::STOP)?;
                let until = elapsed + fault.lasts;
                (
                    Stage::Stopped(until),
                    format!("{name} suspended for {seconds:.1} s"),
                )
            }
            FaultKind::RestartConsumer | FaultKind::RestartMongod | FaultKind::RestartProducer => {
                process.signal(Signal::TERM)?;
                (
                    Stage::Terminating(elapsed),
                    format!("{name} terminated, down for {seconds:.1} s"),
                )
            }
            // Cuts were handled above.
            _ => {
                process.kill()?;
                let until = elapsed + fault.lasts;
                (
                    Stage::Down(until),
                    format!("{name} killed, down for {seconds:.1} s"),
                )
            }
        };
        self.killed += usize::from(fault.kind == FaultKind::KillProducer);
        if let (FaultKind::KillConsumer | FaultKind::RestartConsumer, Victim::Consumer(node)) =
            (fault.kind, fault.victim)
        {
            self.restarted.insert(node);
        }
        self.active.push(ActiveFault { fault, stage });
        Ok(what)
    }
}

impl Injector for FaultInjector {
    fn tick(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<InjectorAction>> {
        self.check(cluster)?;
        let mut what = self.advance(cluster, elapsed)?;
        if what.is_none()
            && let Some(fault) = self.due(elapsed)
        {
            if !self.is_observed {
                return Ok(Some(InjectorAction::Observe));
            }
            self.is_observed = false;
            self.pending.pop_front();
            what = Some(self.strike(cluster, fault, elapsed)?);
        }
        Ok(what.map(|what| {
            let seconds = elapsed.as_secs_f64();
            let line = format!("{seconds:>7.1} s  {what}");
            self.events.push(FaultEvent { seconds, what });
            InjectorAction::Print(line)
        }))
    }

    fn observed(&mut self) {
        self.is_observed = true;
    }
}

/// The node's name, and its network.
fn node_network(cluster: &Cluster, victim: Victim) -> Result<(String, &Namespace)> {
    let found = match victim {
        Victim::NodeNetwork(index) => cluster.nodes.get(index).zip(cluster.network(index)),
        _ => None,
    };
    match found {
        Some((node, node_network)) => Ok((node.name.clone(), node_network)),
        None => bail!("{victim:?} has no network of its own"),
    }
}

/// What it is called, and the process.
fn victim(cluster: &mut Cluster, victim: Victim) -> Result<(String, &mut Process)> {
    let found = match victim {
        Victim::Producer(index) => {
            let producer = cluster.producers.get_mut(index);
            producer.map(|it| (it.process.name().to_owned(), &mut it.process))
        }
        Victim::Consumer(index) => {
            let node = cluster.nodes.get_mut(index);
            node.map(|it| (it.name.clone(), &mut it.process))
        }
        Victim::Mongod(index) => {
            let mongod = cluster.nodes.get_mut(index);
            let mongod = mongod.and_then(|it| it.backend.process());
            mongod.map(|it| (format!("mongod-{}", index + 1), it))
        }
        Victim::NodeNetwork(_) => None,
    };
    match found {
        Some(found) => Ok(found),
        None => bail!("there is no {victim:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victim_that_is_slow_to_end_is_struck_again_when_it_is_back() {
        let second = Duration::from_secs(1);
        let fault = |at: u32, kind, victim| Fault {
            at: second * at,
            kind,
            victim,
            lasts: second,
        };
        let restart = fault(1, FaultKind::RestartMongod, Victim::Mongod(0));
        let mut injector = FaultInjector::new(vec![
            fault(5, FaultKind::StopMongod, Victim::Mongod(0)),
            fault(6, FaultKind::KillConsumer, Victim::Consumer(0)),
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
