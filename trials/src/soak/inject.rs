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
    e2e::{Meanwhile, TurnEvent},
    programs::Process,
};
use rustix::process::Signal;
use serde::Serialize;

use super::plan::{Fault, Kind, Victim};

/// How long an orderly end may take; longer than the drain the processes are told.
const END_TIMEOUT: Duration = Duration::from_secs(40);

/// Something that was done.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Seconds since the begin of the load.
    pub seconds: f64,
    /// What, to whom.
    pub what: String,
}

/// Does the faults.
#[derive(Debug)]
pub(super) struct Injector {
    waiting: VecDeque<Fault>,
    /// Everything was looked at for the first that waits.
    is_seen: bool,
    active: Vec<Active>,
    pub(super) events: Vec<Event>,
    /// How often a producer was killed.
    pub(super) killed: usize,
    /// Nodes whose consumer lost what it has in memory only.
    pub(super) restarted: BTreeSet<usize>,
    pub(super) faults: Vec<String>,
}

#[derive(Debug)]
struct Active {
    fault: Fault,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Stopped until then.
    Stopped(Duration),
    /// Told to end then.
    Ending(Duration),
    /// Not there until then.
    Away(Duration),
    /// Cut off until then.
    Cut(Duration),
}

impl Injector {
    pub(super) fn new(plan: Vec<Fault>) -> Self {
        Self {
            waiting: plan.into(),
            is_seen: false,
            active: Vec::new(),
            events: Vec::new(),
            killed: 0,
            restarted: BTreeSet::new(),
            faults: Vec::new(),
        }
    }

    /// No more faults from now on.
    pub(super) fn begin_no_more(&mut self) {
        self.waiting.clear();
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
        let next = self.waiting.front().copied();
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
    fn go_on(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<String>> {
        for index in 0..self.active.len() {
            let Active { fault, stage } = self.active[index];
            if let Stage::Cut(until) = stage {
                if elapsed < until {
                    continue;
                }
                let (name, way) = way(cluster, fault.victim)?;
                way.heal()?;
                self.active.remove(index);
                return Ok(Some(format!("{name} is heard and hears again")));
            }
            let (name, process) = victim(cluster, fault.victim)?;
            match stage {
                Stage::Stopped(until) if elapsed >= until => {
                    process.signal(Signal::CONT)?;
                    let what = format!("{name} goes on");
                    self.active.remove(index);
                    return Ok(Some(what));
                }
                Stage::Away(until) if elapsed >= until => {
                    process.restart()?;
                    let what = format!("{name} started again");
                    self.active.remove(index);
                    return Ok(Some(what));
                }
                Stage::Ending(began) => {
                    let Some(status) = process.exit_status()? else {
                        if elapsed > began + END_TIMEOUT {
                            process.kill()?;
                            self.faults.push(format!("{name} did not end in order"));
                        }
                        continue;
                    };
                    if !status.success() {
                        let words = process.last_lines(5);
                        self.faults
                            .push(format!("{name} ended with {status}: {words}"));
                    }
                    self.active[index].stage = Stage::Away(elapsed + fault.lasts);
                    return Ok(Some(format!("{name} has ended ({status})")));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn strike(&mut self, cluster: &mut Cluster, fault: Fault, elapsed: Duration) -> Result<String> {
        let seconds = fault.lasts.as_secs_f64();
        if let Some(direction) = fault.kind.cuts() {
            let ports = cluster.stream_ports();
            let (name, way) = way(cluster, fault.victim)?;
            way.cut(direction, &ports)?;
            let stage = Stage::Cut(elapsed + fault.lasts);
            self.active.push(Active { fault, stage });
            let packets = match direction {
                Direction::Both => "packets to and from it vanish",
                Direction::ToNode => "packets to it vanish",
                Direction::FromNode => "packets from it vanish",
            };
            return Ok(format!("{name} cut off for {seconds:.1} s: {packets}"));
        }
        let (name, process) = victim(cluster, fault.victim)?;
        let (stage, what) = match fault.kind {
            Kind::StopConsumer | Kind::StopMongod | Kind::StopProducer => {
                process.signal(Signal::STOP)?;
                let until = elapsed + fault.lasts;
                (
                    Stage::Stopped(until),
                    format!("{name} stopped for {seconds:.1} s"),
                )
            }
            Kind::RestartConsumer | Kind::RestartMongod | Kind::RestartProducer => {
                process.signal(Signal::TERM)?;
                (
                    Stage::Ending(elapsed),
                    format!("{name} told to end, for {seconds:.1} s"),
                )
            }
            // Cuts were handled above.
            _ => {
                process.kill()?;
                let until = elapsed + fault.lasts;
                (
                    Stage::Away(until),
                    format!("{name} killed, for {seconds:.1} s"),
                )
            }
        };
        self.killed += usize::from(fault.kind == Kind::KillProducer);
        if let (Kind::KillConsumer | Kind::RestartConsumer, Victim::Consumer(node)) =
            (fault.kind, fault.victim)
        {
            self.restarted.insert(node);
        }
        self.active.push(Active { fault, stage });
        Ok(what)
    }
}

impl Meanwhile for Injector {
    fn turn(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<TurnEvent>> {
        self.check(cluster)?;
        let mut what = self.go_on(cluster, elapsed)?;
        if what.is_none()
            && let Some(fault) = self.due(elapsed)
        {
            if !self.is_seen {
                return Ok(Some(TurnEvent::Look));
            }
            self.is_seen = false;
            self.waiting.pop_front();
            what = Some(self.strike(cluster, fault, elapsed)?);
        }
        Ok(what.map(|what| {
            let seconds = elapsed.as_secs_f64();
            let line = format!("{seconds:>7.1} s  {what}");
            self.events.push(Event { seconds, what });
            TurnEvent::Line(line)
        }))
    }

    fn seen(&mut self) {
        self.is_seen = true;
    }
}

/// The node's name, and its network.
fn way(cluster: &Cluster, victim: Victim) -> Result<(String, &Namespace)> {
    let found = match victim {
        Victim::Way(index) => cluster.nodes.get(index).zip(cluster.network(index)),
        _ => None,
    };
    match found {
        Some((node, way)) => Ok((node.name.clone(), way)),
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
        Victim::Way(_) => None,
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
        let restart = fault(1, Kind::RestartMongod, Victim::Mongod(0));
        let mut injector = Injector::new(vec![
            fault(5, Kind::StopMongod, Victim::Mongod(0)),
            fault(6, Kind::KillConsumer, Victim::Consumer(0)),
        ]);
        assert!(injector.due(second * 4).is_none());
        assert!(injector.due(second * 5).is_some());
        injector.active.push(Active {
            fault: restart,
            stage: Stage::Ending(second),
        });
        assert!(injector.due(second * 6).is_none());
        injector.active.clear();
        assert!(injector.due(second * 6).is_some());
    }
}
