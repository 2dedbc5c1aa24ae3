//! Whether a rate was sustained, and if not, where it stops and why: pure.

use super::{outcome::E2eOutcome, running::EarlyEnd, step::Step};
use crate::{
    observe::Role,
    report::{grouped, plural, rate},
};

/// Share of the offered requests that must be accepted in time.
const ACCEPTED_SHARE: f64 = 0.99;

/// Seconds' worth of cookies that may wait at the end: what is on its way anyway, chunk age, flush interval and a batch being
/// written, is well below.
const BACKLOG_SECONDS: f64 = 1.0;

/// Share of what is accepted in the second half of a step that must be stored in it, unless the backlog only goes up and
/// down with the batches.
const STORED_SHARE: f64 = 0.98;

/// Share of all cores from which on the machine has nothing left: the rest goes to the system and to waking up.
const ALL_CORES: f64 = 0.9;

/// Share of a consumer's buffer from which on its store is what it waits for.
const BUFFER_FULL: f64 = 0.5;

/// Roles in the order of the data, and what they are called.
const ROLES: [(Role, &str); 4] = [
    (Role::Generator, "the generator"),
    (Role::Producer, "producers"),
    (Role::Consumer, "consumers"),
    (Role::Mongod, "mongod"),
];

/// `None` when accepted and stored kept up with the rate.
pub(super) fn why_not_sustained(step: &Step, cores: usize) -> Option<String> {
    match step.ended_early {
        Some(EarlyEnd::Interrupted) => return Some("it was interrupted".to_owned()),
        Some(EarlyEnd::ProcessExited) => return Some("a process ended".to_owned()),
        None => {}
    }
    let half = &step.second_half;
    let falls_behind = half.stored_per_second < STORED_SHARE * half.accepted_per_second
        && half.backlog_growth as f64 > half.backlog_wave;
    let accepts_less = (step.accepted as f64) < ACCEPTED_SHARE * step.offered as f64;
    let stores_less = step.backlog as f64 > BACKLOG_SECONDS * step.rate as f64;
    let mut reasons = Vec::new();
    if accepts_less {
        reasons.push(accepting(step));
    }
    if stores_less || falls_behind {
        reasons.push(storing(step));
    }
    if falls_behind && !stores_less {
        reasons.push(format!(
            "in the second half {} were accepted and {} stored, and the backlog grew by {}",
            rate(half.accepted_per_second),
            rate(half.stored_per_second),
            grouped(half.backlog_growth)
        ));
    }
    if reasons.is_empty() {
        return None;
    }
    reasons.push(machine(step, cores));
    Some(reasons.join("; "))
}

fn accepting(step: &Step) -> String {
    let accepted = rate(step.accepted_per_second);
    match &step.generator_limit {
        Some(why) => {
            format!("{accepted} were accepted because the generator sent no more ({why})")
        }
        None if step.rejected > 0 => format!(
            "{accepted} were accepted, {} requests were refused",
            grouped(step.rejected)
        ),
        None => format!("the edge accepts {accepted}"),
    }
}

fn storing(step: &Step) -> String {
    let stored = rate(step.stored_per_second);
    if step.buffer_full >= BUFFER_FULL {
        format!("the stores take {stored}: consumers wait for them with full buffers")
    } else if step.backlog_in_producers > step.backlog / 2 {
        format!(
            "{stored} are taken off the producers: the backlog is in their logs, while consumers have room"
        )
    } else {
        format!("{stored} are stored: the backlog is on its way through the consumers")
    }
}

fn machine(step: &Step, cores: usize) -> String {
    let used: Vec<_> = ROLES
        .into_iter()
        .map(|(role, name)| (step.cores(role), name))
        .filter(|(used, _)| *used >= 0.005)
        .collect();
    let total: f64 = used.iter().map(|(used, _)| used).sum();
    let parts: Vec<_> = used
        .iter()
        .map(|(used, name)| format!("{name} {used:.2}"))
        .collect();
    let parts = parts.join(", ");
    if total >= ALL_CORES * cores as f64 {
        format!(
            "the machine is busy, all of {} ({parts})",
            plural(cores, "core")
        )
    } else {
        format!(
            "{total:.2} of {} are in use ({parts}): it is not the processor that is short",
            plural(cores, "core")
        )
    }
}

/// What the run says, most important first.
pub(super) fn findings(outcome: &E2eOutcome) -> Vec<String> {
    let mut findings = Vec::new();
    let best = outcome
        .steps
        .iter()
        .filter(|step| step.is_sustained)
        .max_by_key(|step| step.rate);
    let nodes = plural(outcome.consumers, "node");
    let driven = || {
        outcome
            .steps
            .iter()
            .filter(|step| step.ended_early.is_none())
    };
    match best {
        Some(step) => findings.push(format!(
            "{} are sustained by {nodes} with everything on {}: accepted to stored {}",
            rate(step.rate as f64),
            plural(outcome.cores, "core"),
            step.stored.line()
        )),
        None if driven().next().is_some() => {
            findings.push("no rate of the ladder was sustained".to_owned());
        }
        None => findings.push("no rate was driven to its end".to_owned()),
    }
    for step in driven().filter(|step| !step.is_sustained) {
        findings.push(format!(
            "stops at {}: {}; {}",
            rate(step.rate as f64),
            step.why.as_deref().unwrap_or("unknown"),
            what_became(step)
        ));
    }
    findings
}

/// What a cookie cost at the highest rate that was sustained, or else at the first: what other rates need is computed from that.
pub(super) fn cost(outcome: &E2eOutcome) -> Option<String> {
    let steps = || {
        outcome
            .steps
            .iter()
            .filter(|step| step.ended_early.is_none())
    };
    let sustained = steps().filter(|step| step.is_sustained);
    let step = sustained.max_by_key(|step| step.rate).or(steps().next())?;
    let each_node = |role| step.cpu_micros(role) / outcome.consumers as f64;
    Some(format!(
        "at {} a cookie costs {:.2} µs of producer with {}; {:.2} µs of consumer and {:.2} µs of mongod on each node; and {:.1} \
         bytes to each node",
        rate(step.rate as f64),
        step.cpu_micros(Role::Producer),
        plural(outcome.consumers, "node"),
        each_node(Role::Consumer),
        each_node(Role::Mongod),
        step.bytes_per_delivery,
    ))
}

fn what_became(step: &Step) -> String {
    let (lost, failed) = step.lost_and_failed();
    let mut words = if lost + failed == 0 {
        "nothing was lost".to_owned()
    } else {
        format!("{} were lost, {} failed", grouped(lost), grouped(failed))
    };
    let waiting = grouped(step.backlog);
    if step.settled.remaining > 0 {
        words.push_str(&format!(
            ", {waiting} were waiting at the end, {} still after {:.0} s",
            grouped(step.settled.remaining),
            step.settled.seconds
        ));
    } else {
        words.push_str(&format!(
            ", {waiting} were waiting at the end and were stored {:.1} s later",
            step.settled.seconds
        ));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::{
        running::Settlement,
        step::{ProcessUse, Quantiles, SecondHalf},
    };

    fn step() -> Step {
        let used = |(role, cores)| ProcessUse {
            name: String::new(),
            role,
            cores,
            cpu_micros_per_cookie: 1.0,
            resident_bytes: 0,
            peak_bytes: 0,
        };
        let processes = [
            (Role::Producer, 0.3),
            (Role::Consumer, 0.2),
            (Role::Mongod, 1.3),
        ];
        Step {
            rate: 1_000,
            seconds: 10.0,
            offered: 10_000,
            sent: 10_000,
            accepted: 10_000,
            rejected: 0,
            unanswered: 0,
            accepted_per_second: 1_000.0,
            edge_micros: None,
            received: Quantiles::default(),
            stored: Quantiles::default(),
            flush: Quantiles::default(),
            batch_cookies: 1.0,
            backlog: 900,
            backlog_max: 900,
            backlog_in_producers: 0,
            buffer_full: 0.0,
            settled: Settlement {
                seconds: 4.1,
                remaining: 0,
            },
            stored_per_second: 990.0,
            second_half: SecondHalf {
                accepted_per_second: 1_000.0,
                stored_per_second: 1_000.0,
                backlog_growth: 0,
                backlog_wave: 250.0,
            },
            ended_early: None,
            nodes: Vec::new(),
            processes: processes.into_iter().map(used).collect(),
            bytes_per_delivery: 60.0,
            is_sustained: false,
            why: None,
            generator_limit: None,
            accepted_each_second: Vec::new(),
        }
    }

    #[test]
    fn rate_is_sustained_while_accepted_and_stored_keep_up() {
        assert_eq!(why_not_sustained(&step(), 2), None);
    }

    #[test]
    fn step_that_was_cut_short_is_never_sustained() {
        for (ended_early, word) in [
            (EarlyEnd::Interrupted, "interrupted"),
            (EarlyEnd::ProcessExited, "process ended"),
        ] {
            let ended_early = Step {
                ended_early: Some(ended_early),
                ..step()
            };
            check(&ended_early, 2, &[word]);
        }
    }

    #[test]
    fn slow_growth_is_not_sustained_and_waves_of_batches_are() {
        let half = |stored_per_second, backlog_growth| Step {
            second_half: SecondHalf {
                stored_per_second,
                backlog_growth,
                ..step().second_half
            },
            ..step()
        };
        check(&half(940.0, 300), 2, &["940/s stored", "grew by 300"]);
        assert_eq!(why_not_sustained(&half(940.0, 200), 2), None);
        assert_eq!(why_not_sustained(&half(985.0, 300), 2), None);
    }

    #[track_caller]
    fn check(step: &Step, cores: usize, words: &[&str]) {
        let why = why_not_sustained(step, cores).unwrap();
        for word in words {
            assert!(why.contains(word), "{word} is missing in: {why}");
        }
    }

    #[test]
    fn what_limits_is_named() {
        let behind = Step {
            backlog: 3_000,
            stored_per_second: 700.0,
            ..step()
        };
        let full = Step {
            buffer_full: 0.9,
            ..behind.clone()
        };
        check(
            &full,
            2,
            &["stores take 700/s", "all of 2 cores", "mongod 1.30"],
        );
        check(&full, 8, &["1.80 of 8 cores", "not the processor"]);
        let lagging = Step {
            backlog_in_producers: 2_000,
            ..behind.clone()
        };
        check(&lagging, 2, &["off the producers"]);
        check(&behind, 2, &["through the consumers"]);

        let slow = Step {
            accepted: 9_000,
            accepted_per_second: 900.0,
            ..step()
        };
        check(&slow, 2, &["the edge accepts 900/s"]);
        let generator = Step {
            generator_limit: Some("it woke late".to_owned()),
            ..slow
        };
        check(
            &generator,
            2,
            &["the generator sent no more (it woke late)"],
        );
    }

    #[test]
    fn what_became_of_the_backlog_is_told() {
        assert_eq!(
            what_became(&step()),
            "nothing was lost, 900 were waiting at the end and were stored 4.1 s later"
        );
    }
}
