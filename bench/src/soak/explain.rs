//! Which accepted cookies a node may lack: those that a killed producer may have taken with it, and those of which its consumer
//! said that it will not get them.
//!
//! A producer keeps cookies in memory only. What it had accepted and a node had not received is gone with it: at most what came
//! after the node's last durable cursor. That cursor, as it was seen right before the kill, says of how many cookies of
//! that life the node was certain, and what was seen of the producer before, when it had accepted so many.

use std::time::Duration;

use cookiesync::process::unix_micros;
use tokio::time::Instant;

use super::{
    inject::Killed,
    told::{Moment, Told},
};
use crate::{
    observe::{Observation, Role},
    verify::{Sending, Source},
};

/// Two clocks of one process, and the time between a look and what it saw.
const MARGIN: Duration = Duration::from_secs(1);

/// A life this short may still be shown with the cursor of the one before.
const YOUNG: Duration = Duration::from_secs(15);

/// When a node may have missed what a producer accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    node: usize,
    producer: usize,
    from: Instant,
    until: Instant,
}

/// All times at which something may have been lost.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(super) fn new(killed: &[Killed], observations: &[Observation], nodes: usize) -> Self {
        let gaps = killed.iter().flat_map(|killed| {
            (0..nodes).map(|node| Gap {
                node,
                producer: killed.producer,
                from: certain_until(killed, node, observations),
                until: killed.at + MARGIN,
            })
        });
        Self(gaps.collect())
    }

    /// With what the consumers' logs tell, one for each node; how many cookies each of them told of.
    pub(super) fn tell(&mut self, logs: &[String], observations: &[Observation]) -> Vec<u64> {
        let now = Moment {
            at: Instant::now(),
            unix_micros: unix_micros(),
        };
        let mut cookies = vec![0; logs.len()];
        for (node, log) in logs.iter().enumerate() {
            for told in Told::all(log) {
                cookies[node] += told.cookies();
                let mut producers = observations
                    .last()
                    .into_iter()
                    .flat_map(|at| at.of(Role::Producer));
                let Some(producer) = producers.position(|seen| seen.name == told.producer) else {
                    continue;
                };
                let (from, until) = told.accepted(observations, now);
                self.0.push(Gap {
                    node,
                    producer,
                    from,
                    until,
                });
            }
        }
        cookies
    }

    /// Whether the request may have been lost for the node.
    pub(super) fn may_hold(&self, node: usize, source: &Source, number: u64) -> bool {
        self.0
            .iter()
            .filter(|gap| gap.node == node && gap.producer == source.producer)
            .any(|gap| {
                source.requests.fate(number) == Sending::Accepted
                    && source.requests.answered_before(number) >= gap.from
                    && source.requests.sent_after(number) <= gap.until
            })
    }
}

/// Up to when the node certainly has what the killed life had accepted.
fn certain_until(killed: &Killed, node: usize, observations: &[Observation]) -> Instant {
    let appended = |at: &Observation| {
        let producer = at.of(Role::Producer).nth(killed.producer);
        producer.map_or(0, |seen| seen.life.producer.appended)
    };
    let before: Vec<_> = observations
        .iter()
        .filter(|at| at.at <= killed.at)
        .collect();
    let Some(last) = before.last() else {
        return killed.at - MARGIN;
    };
    // Backwards for as long as it is the same life: its count only falls.
    let mut life = vec![*last];
    for at in before.iter().rev().skip(1) {
        if appended(at) > appended(life[life.len() - 1]) {
            break;
        }
        life.push(at);
    }
    let began = life[life.len() - 1].at;
    let cursor = killed.cursors.get(node).copied().unwrap_or(0);
    let is_old = cursor > appended(last) || killed.at.duration_since(began) < YOUNG;
    let certain = life
        .iter()
        .find(|at| appended(at) <= cursor)
        .filter(|_| !is_old);
    certain
        .map_or(began, |at| at.at)
        .checked_sub(MARGIN)
        .unwrap_or(began)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpu::CpuTime,
        memory::Memory,
        observe::{Counts, Seen},
    };

    fn seen(at: Instant, appended: u64) -> Observation {
        let mut life = Counts::default();
        life.producer.appended = appended;
        Observation {
            at,
            processes: vec![Seen {
                role: Role::Producer,
                name: "producer-1".to_owned(),
                cpu: CpuTime::default(),
                memory: Memory::default(),
                counts: life.clone(),
                life,
            }],
        }
    }

    /// Seconds after the start up to which a node is certain, of a producer killed after the last observation, which are a
    /// second apart.
    #[track_caller]
    fn check(appended: &[u64], cursor: u64, seconds: u64) {
        let start = Instant::now() + MARGIN;
        let at = |index: usize| start + Duration::from_secs(index as u64);
        let observations: Vec<_> = appended
            .iter()
            .enumerate()
            .map(|(index, count)| seen(at(index), *count))
            .collect();
        let killed = Killed {
            producer: 0,
            at: at(appended.len()),
            cursors: vec![cursor],
        };
        let certain = certain_until(&killed, 0, &observations) + MARGIN;
        assert_eq!(certain.duration_since(start).as_secs(), seconds);
    }

    #[test]
    fn node_is_certain_of_what_was_accepted_before_its_cursor() {
        let appended: Vec<_> = (0..20).map(|second| second * 100).collect();
        check(&appended, 1_900, 19);
        check(&appended, 1_250, 12);
        check(&appended, 0, 0);
    }

    #[test]
    fn cursor_of_another_life_says_nothing() {
        let lives: Vec<_> = (0..20)
            .map(|second| second * 100)
            .chain((0..20).map(|second| second * 10))
            .collect();
        check(&lives, 1_900, 20);
        check(&lives, 155, 35);
        let young: Vec<_> = (0..5).map(|second| second * 100).collect();
        check(&young, 200, 0);
    }
}
