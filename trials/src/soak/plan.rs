//! Which faults strike when: drawn from a seed before the load begins, so that a run can be repeated. Pure.

use std::time::Duration;

use bench::{cluster::netns::Direction, traffic::nth_word};
use clap::ValueEnum;
use serde::Serialize;

/// No fault strikes before: everything is to have begun.
const FIRST_FAULT_AFTER: Duration = Duration::from_secs(2);

/// Between the end of a fault and the next to the same process: time to connect again and catch up.
const PAUSE: Duration = Duration::from_secs(3);

/// An orderly restart of a producer loses nothing only for consumers that are there and whose stores work. So nothing else
/// strikes for as long before, for a backlog to be gone, and after, while it drains.
const BEFORE_RESTART: Duration = Duration::from_secs(6);
const AFTER_RESTART: Duration = Duration::from_secs(4);

/// After a cut a consumer may still wait to connect, and then has all of it to catch up with.
const RESTART_AFTER_PARTITION: Duration = Duration::from_secs(20);

/// A cut is at least as long, in milliseconds; how long at most is asked for.
const PARTITION_MILLIS_MIN: u64 = 1_000;

/// Keeps what is drawn here apart from everything else that is drawn from the seed.
const FAULTS: u64 = 0x6a09_e667_f3bc_c908;

/// What is done to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// SIGKILL, and a new start.
    KillConsumer,
    /// SIGSTOP, and SIGCONT.
    StopConsumer,
    /// SIGTERM, and a new start.
    RestartConsumer,
    /// Its packets to and from producers vanish.
    PartitionNode,
    /// Those to it vanish.
    DropInboundNode,
    /// Those from it vanish.
    DropOutboundNode,
    /// SIGKILL, and a new start.
    KillMongod,
    /// SIGSTOP, and SIGCONT.
    StopMongod,
    /// SIGTERM, and a new start.
    RestartMongod,
    /// SIGSTOP, and SIGCONT.
    StopProducer,
    /// SIGTERM, and a new start when it has drained.
    RestartProducer,
    /// SIGKILL, and a new start.
    KillProducer,
}

/// What a fault is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    Producer(usize),
    Consumer(usize),
    Mongod(usize),
    /// The way between a node and all producers.
    NodeNetwork(usize),
}

/// What there is to strike.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    pub(super) producers: usize,
    pub(super) nodes: usize,
    /// The nodes with a mongod of ours.
    pub(super) mongods: Vec<usize>,
    /// How long a cut lasts at most.
    pub(super) partition_max: Duration,
}

impl Topology {
    fn victims(&self, kind: FaultKind) -> Vec<Victim> {
        match kind {
            FaultKind::KillConsumer | FaultKind::StopConsumer | FaultKind::RestartConsumer => {
                (0..self.nodes).map(Victim::Consumer).collect()
            }
            FaultKind::PartitionNode | FaultKind::DropInboundNode | FaultKind::DropOutboundNode => {
                (0..self.nodes).map(Victim::NodeNetwork).collect()
            }
            FaultKind::KillMongod | FaultKind::StopMongod | FaultKind::RestartMongod => {
                self.mongods.iter().copied().map(Victim::Mongod).collect()
            }
            FaultKind::StopProducer | FaultKind::RestartProducer | FaultKind::KillProducer => {
                (0..self.producers).map(Victim::Producer).collect()
            }
        }
    }

    /// Shortest and longest, in milliseconds. Producers are away for less than a load waits for a connection, and
    /// stopped for less than it waits for an answer.
    fn lasts_millis(&self, kind: FaultKind) -> (u64, u64) {
        match kind {
            FaultKind::StopConsumer | FaultKind::StopMongod => (1_000, 5_000),
            FaultKind::StopProducer => (500, 3_000),
            FaultKind::KillConsumer
            | FaultKind::RestartConsumer
            | FaultKind::KillMongod
            | FaultKind::RestartMongod => (200, 3_000),
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

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// Since the begin of the load.
    pub(super) at: Duration,
    pub(super) kind: FaultKind,
    pub(super) victim: Victim,
    /// How long the process is stopped, or away after its end.
    pub(super) lasts: Duration,
}

impl FaultKind {
    pub(super) fn needs_mongod(self) -> bool {
        matches!(
            self,
            Self::KillMongod | Self::StopMongod | Self::RestartMongod
        )
    }

    /// Which packets of a node vanish.
    pub(super) fn partition(self) -> Option<Direction> {
        match self {
            Self::PartitionNode => Some(Direction::Both),
            Self::DropInboundNode => Some(Direction::ToNode),
            Self::DropOutboundNode => Some(Direction::FromNode),
            _ => None,
        }
    }

    /// Whether requests may stay without an answer, or be refused.
    pub(super) fn affects_edge(self) -> bool {
        matches!(self, Self::RestartProducer | Self::KillProducer)
    }
}

impl Fault {
    fn ends(&self) -> Duration {
        self.at + self.lasts
    }

    fn collides_with(&self, other: &Self) -> bool {
        let apart =
            |earlier: &Self, later: &Self, pause: Duration| earlier.ends() + pause <= later.at;
        let pause_after = |fault: &Self, next: &Self| {
            let mut pause = Duration::ZERO;
            if fault.victim == next.victim {
                pause = PAUSE;
            }
            if next.kind == FaultKind::RestartProducer {
                pause = pause.max(BEFORE_RESTART);
            }
            if next.kind == FaultKind::RestartProducer && fault.kind.partition().is_some() {
                pause = pause.max(RESTART_AFTER_PARTITION);
            }
            if fault.kind == FaultKind::RestartProducer {
                pause = pause.max(AFTER_RESTART);
            }
            pause
        };
        let is_free = self.victim != other.victim
            && self.kind != FaultKind::RestartProducer
            && other.kind != FaultKind::RestartProducer;
        !is_free
            && !apart(self, other, pause_after(self, other))
            && !apart(other, self, pause_after(other, self))
    }
}

/// Faults of each kind, on average so far apart, within `lasts`; what would collide with another is left out.
pub(super) fn plan(
    kinds: &[(FaultKind, Duration)],
    topology: &Topology,
    lasts: Duration,
    seed: u64,
) -> Vec<Fault> {
    let mut drawn = 0;
    let mut draw = |from: u64, to: u64| {
        drawn += 1;
        from + nth_word(seed ^ FAULTS, drawn) % (to - from + 1)
    };
    let mut wanted = Vec::new();
    for &(kind, mean) in kinds {
        let mean = millis(mean).max(2);
        let mut at = FIRST_FAULT_AFTER;
        let victims = topology.victims(kind);
        let (shortest, longest) = topology.lasts_millis(kind);
        if victims.is_empty() {
            continue;
        }
        loop {
            at += Duration::from_millis(draw(mean / 2, mean + mean / 2));
            if at >= lasts {
                break;
            }
            let index = usize::try_from(draw(0, victims.len() as u64 - 1)).unwrap_or(0);
            wanted.push(Fault {
                at,
                kind,
                victim: victims[index],
                lasts: Duration::from_millis(draw(shortest, longest)),
            });
        }
    }
    // What needs most room comes first, or would never find it.
    wanted.sort_by_key(|fault| (fault.kind != FaultKind::RestartProducer, fault.at));
    let mut faults: Vec<Fault> = Vec::new();
    for fault in wanted {
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
    fn same_seed_makes_the_same_faults_and_another_others() {
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn every_kind_strikes_within_the_time_and_none_collides() {
        let faults = all(3);
        for kind in FaultKind::value_variants() {
            assert!(faults.iter().any(|fault| fault.kind == *kind), "{kind:?}");
        }
        for (index, fault) in faults.iter().enumerate() {
            assert!(fault.at >= FIRST_FAULT_AFTER && fault.at < 600 * SECOND);
            assert_ne!(fault.victim, Victim::Mongod(1), "it has none");
            for later in &faults[index + 1..] {
                assert!(fault.at <= later.at && !fault.collides_with(later));
                if later.victim == fault.victim {
                    assert!(fault.ends() + PAUSE <= later.at, "{fault:?} {later:?}");
                }
            }
        }
    }

    #[test]
    fn producer_is_restarted_in_order_only_while_nothing_else_is_broken() {
        let faults = all(4);
        let mut restarts = 0;
        for (index, restart) in faults.iter().enumerate() {
            if restart.kind == FaultKind::RestartProducer {
                let mut before = faults[..index].iter();
                assert!(before.all(|fault| fault.ends() + BEFORE_RESTART <= restart.at));
                restarts += 1;
            }
        }
        assert!(restarts > 4, "{restarts}");
    }
}
