//! The plan of all faults, drawn from a seed so that a run can be repeated. Does no I/O.

use std::time::Duration;

use bench::traffic::nth_word;
use clap::ValueEnum;
use testkit::cluster::netns::Direction;

/// Earliest time of the first fault.
const FIRST_FAULT_AFTER: Duration = Duration::from_secs(2);

/// Minimum time between two faults of the same target, to reconnect and catch up.
const PAUSE: Duration = Duration::from_secs(3);

/// Fault-free times before a clean restart of a producer (to work off a backlog) and after it (to drain). The restart loses
/// cookies unless all consumers are connected and their stores work.
const BEFORE_RESTART: Duration = Duration::from_secs(6);
const AFTER_RESTART: Duration = Duration::from_secs(4);

/// Fault-free time between a partition and a clean restart: the consumer must reconnect and catch up.
const RESTART_AFTER_PARTITION: Duration = Duration::from_secs(20);

/// Minimum duration of a partition in milliseconds.
const PARTITION_MILLIS_MIN: u64 = 1_000;

/// Separates the draws of this module from other draws with the same seed.
const FAULTS: u64 = 0x6a09_e667_f3bc_c908;

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FaultKind {
    /// SIGKILL, then restart.
    KillConsumer,
    /// SIGSTOP, then SIGCONT.
    StopConsumer,
    /// SIGTERM, then restart.
    RestartConsumer,
    /// Drops all packets between a node and the producers.
    PartitionNode,
    /// Drops packets to a node.
    DropInboundNode,
    /// Drops packets from a node.
    DropOutboundNode,
    /// SIGKILL, then restart.
    KillMongod,
    /// SIGSTOP, then SIGCONT.
    StopMongod,
    /// SIGTERM, then restart.
    RestartMongod,
    /// SIGSTOP, then SIGCONT.
    StopProducer,
    /// SIGTERM, then restart after the drain.
    RestartProducer,
    /// SIGKILL, then restart.
    KillProducer,
    /// SIGKILL, then restart.
    KillNats,
    /// SIGSTOP, then SIGCONT.
    StopNats,
}

/// Target of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultTarget {
    Producer(usize),
    Consumer(usize),
    Mongod(usize),
    Nats,
    /// Network between a node and all producers.
    NodeNetwork(usize),
}

/// Possible targets of faults.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    pub(super) producers: usize,
    pub(super) nodes: usize,
    /// Nodes with their own mongod.
    pub(super) mongods: Vec<usize>,
    /// Maximum duration of a partition.
    pub(super) partition_max: Duration,
}

impl Topology {
    fn targets(&self, kind: FaultKind) -> Vec<FaultTarget> {
        match kind {
            FaultKind::KillConsumer | FaultKind::StopConsumer | FaultKind::RestartConsumer => {
                (0..self.nodes).map(FaultTarget::Consumer).collect()
            }
            FaultKind::PartitionNode | FaultKind::DropInboundNode | FaultKind::DropOutboundNode => {
                (0..self.nodes).map(FaultTarget::NodeNetwork).collect()
            }
            FaultKind::KillMongod | FaultKind::StopMongod | FaultKind::RestartMongod => self
                .mongods
                .iter()
                .copied()
                .map(FaultTarget::Mongod)
                .collect(),
            FaultKind::StopProducer | FaultKind::RestartProducer | FaultKind::KillProducer => {
                (0..self.producers).map(FaultTarget::Producer).collect()
            }
            FaultKind::KillNats | FaultKind::StopNats => vec![FaultTarget::Nats],
        }
    }

    /// Minimum and maximum duration in milliseconds. Producers are down for less than the connect timeout of a load, and
    /// suspended for less than its response timeout.
    fn duration_millis(&self, kind: FaultKind) -> (u64, u64) {
        match kind {
            FaultKind::StopConsumer | FaultKind::StopMongod | FaultKind::StopNats => (1_000, 5_000),
            FaultKind::StopProducer => (500, 3_000),
            FaultKind::KillConsumer
            | FaultKind::RestartConsumer
            | FaultKind::KillMongod
            | FaultKind::RestartMongod
            | FaultKind::KillNats => (200, 3_000),
            FaultKind::RestartProducer | FaultKind::KillProducer => (100, 1_000),
            FaultKind::PartitionNode | FaultKind::DropInboundNode | FaultKind::DropOutboundNode => {
                (
                    PARTITION_MILLIS_MIN,
                    millis(self.partition_max).max(PARTITION_MILLIS_MIN),
                )
            }
        }
    }
}

/// A planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// Time since the start of the load.
    pub(super) at: Duration,
    pub(super) kind: FaultKind,
    pub(super) target: FaultTarget,
    /// How long the process is suspended, or down after its exit.
    pub(super) duration: Duration,
}

impl FaultKind {
    pub(super) fn needs_mongod(self) -> bool {
        matches!(
            self,
            Self::KillMongod | Self::StopMongod | Self::RestartMongod
        )
    }

    pub(super) fn needs_archive(self) -> bool {
        matches!(self, Self::KillNats | Self::StopNats)
    }

    /// Dropped packets, for partitions.
    pub(super) fn partition(self) -> Option<Direction> {
        match self {
            Self::PartitionNode => Some(Direction::Both),
            Self::DropInboundNode => Some(Direction::ToNode),
            Self::DropOutboundNode => Some(Direction::FromNode),
            _ => None,
        }
    }

    /// Whether requests may remain unanswered or be rejected.
    pub(super) fn affects_edge(self) -> bool {
        matches!(self, Self::RestartProducer | Self::KillProducer)
    }
}

impl Fault {
    fn end(&self) -> Duration {
        self.at + self.duration
    }

    fn collides_with(&self, other: &Self) -> bool {
        // Faults without a required pause may overlap.
        let apart = |fault: &Self, next: &Self| {
            let is_partition = fault.kind.partition().is_some();
            let [after_restart, before_restart] =
                [fault, next].map(|it| it.kind == FaultKind::RestartProducer);
            let pauses = [
                (fault.target == next.target, PAUSE),
                (before_restart, BEFORE_RESTART),
                (before_restart && is_partition, RESTART_AFTER_PARTITION),
                (after_restart, AFTER_RESTART),
            ];
            let pauses = pauses.into_iter().filter(|(is_needed, _)| *is_needed);
            let pause = pauses.map(|(_, pause)| pause).max();
            pause.is_none_or(|pause| fault.end() + pause <= next.at)
        };
        !apart(self, other) && !apart(other, self)
    }
}

/// Draws faults of each kind with its mean interval, within `duration`. Faults that collide with others are omitted.
pub(super) fn plan(
    kinds: &[(FaultKind, Duration)],
    topology: &Topology,
    duration: Duration,
    seed: u64,
) -> Vec<Fault> {
    let mut drawn = 0;
    let mut draw = |from: u64, to: u64| {
        drawn += 1;
        from + nth_word(seed ^ FAULTS, drawn) % (to - from + 1)
    };
    let mut candidates = Vec::new();
    for &(kind, mean) in kinds {
        let mean = millis(mean).max(2);
        let mut at = FIRST_FAULT_AFTER;
        let targets = topology.targets(kind);
        let (min, max) = topology.duration_millis(kind);
        if targets.is_empty() {
            continue;
        }
        loop {
            at += Duration::from_millis(draw(mean / 2, mean + mean / 2));
            if at >= duration {
                break;
            }
            let index = usize::try_from(draw(0, targets.len() as u64 - 1)).unwrap_or(0);
            candidates.push(Fault {
                at,
                kind,
                target: targets[index],
                duration: Duration::from_millis(draw(min, max)),
            });
        }
    }
    // Restarts of producers are drawn first, because they need the longest fault-free times.
    candidates.sort_by_key(|fault| (fault.kind != FaultKind::RestartProducer, fault.at));
    let mut faults: Vec<Fault> = Vec::new();
    for fault in candidates {
        if !faults.iter().any(|earlier| earlier.collides_with(&fault)) {
            faults.push(fault);
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(seed: u64) -> Vec<Fault> {
        let kinds = FaultKind::value_variants().iter().map(|kind| match kind {
            FaultKind::RestartProducer => (*kind, 80 * SECOND),
            _ => (*kind, 10 * SECOND),
        });
        let kinds: Vec<_> = kinds.collect();
        let topology = Topology {
            producers: 2,
            nodes: 3,
            mongods: vec![0, 2],
            partition_max: 20 * SECOND,
        };
        plan(&kinds, &topology, 600 * SECOND, seed)
    }

    #[test]
    fn faults_depend_on_the_seed() {
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn every_kind_is_planned_without_collisions() {
        let faults = all(3);
        for kind in FaultKind::value_variants() {
            assert!(faults.iter().any(|fault| fault.kind == *kind), "{kind:?}");
        }
        for (index, fault) in faults.iter().enumerate() {
            assert!(fault.at >= FIRST_FAULT_AFTER && fault.at < 600 * SECOND);
            assert_ne!(fault.target, FaultTarget::Mongod(1), "node 1 has no mongod");
            for later in &faults[index + 1..] {
                assert!(fault.at <= later.at && !fault.collides_with(later));
                if later.target == fault.target {
                    assert!(fault.end() + PAUSE <= later.at, "{fault:?} {later:?}");
                }
            }
        }
    }

    #[test]
    fn producer_restarts_are_planned_in_fault_free_times() {
        let faults = all(4);
        let mut restarts = 0;
        for (index, restart) in faults.iter().enumerate() {
            if restart.kind == FaultKind::RestartProducer {
                let mut before = faults[..index].iter();
                assert!(before.all(|fault| fault.end() + BEFORE_RESTART <= restart.at));
                restarts += 1;
            }
        }
        assert!(restarts > 4, "{restarts}");
    }
}
