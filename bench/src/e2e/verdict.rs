//! Whether a rate was sustained, and the bottleneck if not. Pure.

use super::{cluster_run::EarlyEnd, outcome::E2eOutcome, step::Step};
use crate::{
    observe::Role,
    report::{grouped, plural, rate},
};

/// Minimum fraction of offered requests that must be accepted.
const ACCEPTED_SHARE: f64 = 0.99;

/// Maximum backlog at the end, in seconds of the rate. Cookies in transit (chunk age, flush interval, current batch) are far
/// below it.
const BACKLOG_SECONDS: f64 = 1.0;

/// Minimum fraction of the cookies accepted in the second half that must be stored in it, unless the backlog only fluctuates
/// with batches.
const STORED_SHARE: f64 = 0.98;

/// Fraction of all cores from which the machine counts as busy; the rest goes to the system and wake-ups.
const ALL_CORES: f64 = 0.9;

/// Fill level of a consumer buffer from which its store is the bottleneck.
const BUFFER_FULL: f64 = 0.5;

/// Roles in data-flow order, with their names.
const ROLES: [(Role, &str); 4] = [
    (Role::Generator, "the generator"),
    (Role::Producer, "producers"),
    (Role::Consumer, "consumers"),
    (Role::Mongod, "mongod"),
];

/// Why the rate was not sustained; `None` if it was.
pub(super) fn failure_reason(step: &Step, cores: usize) -> Option<String> {
    match step.ended_early {
        Some(EarlyEnd::Interrupted) => return Some("interrupted".to_owned()),
        Some(EarlyEnd::ProcessExited) => return Some("a process exited".to_owned()),
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
            "in the second half, {} were accepted and {} stored, and the backlog grew by {}",
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
        Some(reason) => {
            format!("accepted only {accepted}, because the generator sent no more ({reason})")
        }
        None if step.rejected > 0 => format!(
            "accepted only {accepted}, with {} rejected requests",
            grouped(step.rejected)
        ),
        None => format!("the edge accepts only {accepted}"),
    }
}

fn storing(step: &Step) -> String {
    let stored = rate(step.stored_per_second);
    if step.buffer_full >= BUFFER_FULL {
        format!("the stores accept only {stored}, with full buffers in the consumers")
    } else if step.backlog_in_producers > step.backlog / 2 {
        format!(
            "consumers receive only {stored}, with free buffers and the backlog in the logs of producers"
        )
    } else {
        format!("consumers store only {stored}, with the backlog inside the consumers")
    }
}

fn machine(step: &Step, cores: usize) -> String {
    let used: Vec<_> = ROLES
        .into_iter()
        .map(|(role, name)| (step.cores(role), name))
        .filter(|(used, _)| *used >= 0.005)
        .collect();
    let total: f64 = used.iter().map(|(used, _)| used).sum();
    let usage: Vec<_> = used
        .iter()
        .map(|(used, name)| format!("{name} {used:.2}"))
        .collect();
    let usage = usage.join(", ");
    if total >= ALL_CORES * cores as f64 {
        format!("all of {} are busy ({usage})", plural(cores, "core"))
    } else {
        format!(
            "{total:.2} of {} are busy ({usage}), so the CPU is not the bottleneck",
            plural(cores, "core")
        )
    }
}

/// Conclusions of the run, most important first.
pub(super) fn findings(outcome: &E2eOutcome) -> Vec<String> {
    let mut findings = Vec::new();
    let best = outcome
        .steps
        .iter()
        .filter(|step| step.is_sustained)
        .max_by_key(|step| step.rate);
    let nodes = plural(outcome.consumers, "node");
    let completed = || {
        outcome
            .steps
            .iter()
            .filter(|step| step.ended_early.is_none())
    };
    match best {
        Some(step) => findings.push(format!(
            "{} sustained by {nodes}, with all processes on {}; acceptance to storage {}",
            rate(step.rate as f64),
            plural(outcome.cores, "core"),
            step.stored.line()
        )),
        None if completed().next().is_some() => {
            findings.push("no rate was sustained".to_owned());
        }
        None => findings.push("no step was completed".to_owned()),
    }
    for step in completed().filter(|step| !step.is_sustained) {
        findings.push(format!(
            "{} not sustained: {}; {}",
            rate(step.rate as f64),
            step.reason.as_deref().unwrap_or("unknown"),
            backlog_result(step)
        ));
    }
    findings
}

/// Cost of a cookie at the highest sustained rate, or otherwise at the first rate. Use it to estimate other rates.
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
        "CPU per cookie at {}: {:.2} µs of producer with {}, and {:.2} µs of consumer and {:.2} µs of mongod on each node; {:.1} \
         bytes per cookie and node",
        rate(step.rate as f64),
        step.cpu_micros(Role::Producer),
        plural(outcome.consumers, "node"),
        each_node(Role::Consumer),
        each_node(Role::Mongod),
        step.bytes_per_delivery,
    ))
}

fn backlog_result(step: &Step) -> String {
    let (lost, failed) = step.lost_and_failed();
    let mut text = if lost + failed == 0 {
        "no loss".to_owned()
    } else {
        format!("{} lost, {} failed", grouped(lost), grouped(failed))
    };
    let backlog = grouped(step.backlog);
    if step.settled.remaining > 0 {
        text.push_str(&format!(
            ", backlog {backlog} at the end, {} after {:.0} s",
            grouped(step.settled.remaining),
            step.settled.seconds
        ));
    } else {
        text.push_str(&format!(
            ", backlog {backlog} at the end, stored within {:.1} s",
            step.settled.seconds
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::{
        cluster_run::Settlement,
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
            reason: None,
            generator_limit: None,
            accepted_each_second: Vec::new(),
        }
    }

    #[test]
    fn rate_is_sustained_if_accepted_and_stored_keep_up() {
        assert_eq!(failure_reason(&step(), 2), None);
    }

    #[test]
    fn step_that_ended_early_is_not_sustained() {
        for (ended_early, word) in [
            (EarlyEnd::Interrupted, "interrupted"),
            (EarlyEnd::ProcessExited, "process exited"),
        ] {
            let ended_early = Step {
                ended_early: Some(ended_early),
                ..step()
            };
            check(&ended_early, 2, &[word]);
        }
    }

    #[test]
    fn slow_growth_is_not_sustained_unlike_batch_fluctuation() {
        let half = |stored_per_second, backlog_growth| Step {
            second_half: SecondHalf {
                stored_per_second,
                backlog_growth,
                ..step().second_half
            },
            ..step()
        };
        check(&half(940.0, 300), 2, &["940/s stored", "grew by 300"]);
        assert_eq!(failure_reason(&half(940.0, 200), 2), None);
        assert_eq!(failure_reason(&half(985.0, 300), 2), None);
    }

    #[track_caller]
    fn check(step: &Step, cores: usize, words: &[&str]) {
        let reason = failure_reason(step, cores).unwrap();
        for word in words {
            assert!(reason.contains(word), "{word} is missing in: {reason}");
        }
    }

    #[test]
    fn bottleneck_is_named() {
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
            &["stores accept only 700/s", "all of 2 cores", "mongod 1.30"],
        );
        check(&full, 8, &["1.80 of 8 cores", "CPU is not the bottleneck"]);
        let lagging = Step {
            backlog_in_producers: 2_000,
            ..behind.clone()
        };
        check(&lagging, 2, &["logs of producers"]);
        check(&behind, 2, &["inside the consumers"]);

        let slow = Step {
            accepted: 9_000,
            accepted_per_second: 900.0,
            ..step()
        };
        check(&slow, 2, &["the edge accepts only 900/s"]);
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
    fn result_of_the_backlog_is_described() {
        assert_eq!(
            backlog_result(&step()),
            "no loss, backlog 900 at the end, stored within 4.1 s"
        );
    }
}
