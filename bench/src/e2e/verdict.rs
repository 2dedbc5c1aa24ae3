//! Decides whether a rate was sustained, and finds the bottleneck if it was not. Does no I/O.

use super::{cluster_run::EarlyEnd, step::Step};
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

/// Minimum used fraction of all cores of a busy machine; the system and wake-ups need the rest.
const ALL_CORES: f64 = 0.9;

/// Minimum fill level of a consumer buffer if its store is the bottleneck.
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
    let accepts_less = (step.accepted() as f64) < ACCEPTED_SHARE * step.offered as f64;
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
    let accepted = rate(step.accepted_per_second());
    match &step.load.generator_limit {
        Some(reason) => {
            format!("accepted only {accepted}, because the generator sent no more ({reason})")
        }
        None if step.rejected() > 0 => format!(
            "accepted only {accepted}, with {} rejected requests",
            grouped(step.rejected())
        ),
        None => format!("the edge accepts only {accepted}"),
    }
}

fn storing(step: &Step) -> String {
    let stored = rate(step.stored_per_second);
    if step.buffer_full >= BUFFER_FULL {
        format!("the stores accept only {stored}, and the buffers of the consumers are full")
    } else if step.backlog_in_producers > step.backlog / 2 {
        format!(
            "consumers receive only {stored}: their buffers are not full, and most of the backlog is in the logs of producers"
        )
    } else {
        format!("consumers store only {stored}, and most of the backlog is inside the consumers")
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

/// Conclusions of a run with `consumers` nodes on `cores` cores, most important first.
pub(super) fn findings(steps: &[Step], consumers: usize, cores: usize) -> Vec<String> {
    let mut findings = Vec::new();
    match best(steps) {
        Some(step) => findings.push(format!(
            "{} sustained by {}, with all processes on {}; time from acceptance to storage: {}",
            rate(step.rate as f64),
            plural(consumers, "node"),
            plural(cores, "core"),
            step.stored.line()
        )),
        None if completed(steps).next().is_some() => {
            findings.push("no rate was sustained".to_owned());
        }
        None => findings.push("no step was completed".to_owned()),
    }
    let failed = completed(steps).filter_map(|step| Some((step, step.reason.as_ref()?)));
    findings.extend(failed.map(|(step, reason)| {
        let rate = rate(step.rate as f64);
        format!("{rate} not sustained: {reason}; {}", backlog_result(step))
    }));
    findings
}

fn completed(steps: &[Step]) -> impl Iterator<Item = &Step> {
    steps.iter().filter(|step| step.ended_early.is_none())
}

/// The step with the highest sustained rate.
fn best(steps: &[Step]) -> Option<&Step> {
    let sustained = steps.iter().filter(|step| step.is_sustained());
    sustained.max_by_key(|step| step.rate)
}

/// Cost of a cookie at the highest sustained rate, or otherwise at the first rate. Use it to estimate other rates.
pub(super) fn cost(steps: &[Step], consumers: usize) -> Option<String> {
    let step = best(steps).or(completed(steps).next())?;
    let each_node = |role| step.cpu_micros(role) / consumers as f64;
    Some(format!(
        "CPU per cookie at {}: {:.2} µs in the producer with {}, and {:.2} µs in the consumer and {:.2} µs in mongod on each \
         node; {:.1} bytes per cookie and node",
        rate(step.rate as f64),
        step.cpu_micros(Role::Producer),
        plural(consumers, "node"),
        each_node(Role::Consumer),
        each_node(Role::Mongod),
        step.bytes_per_delivery,
    ))
}

fn backlog_result(step: &Step) -> String {
    let losses = match step.lost_and_failed() {
        (0, 0) => "no loss".to_owned(),
        (lost, failed) => format!("{} lost, {} failed", grouped(lost), grouped(failed)),
    };
    let (backlog, seconds) = (grouped(step.backlog), step.settled.seconds);
    match step.settled.remaining {
        0 => format!("{losses}, backlog {backlog} at the end, stored within {seconds:.1} s"),
        remaining => {
            let remaining = grouped(remaining);
            format!("{losses}, backlog {backlog} at the end, {remaining} after {seconds:.0} s")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::{
        cluster_run::Settlement,
        step::{ProcessUse, SecondHalf},
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
        let mut step = Step {
            rate: 1_000,
            offered: 10_000,
            backlog: 900,
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
            processes: processes.into_iter().map(used).collect(),
            ..Step::default()
        };
        (step.load.seconds, step.load.counts.accepted) = (10.0, 10_000);
        step
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

        let mut slow = step();
        slow.load.counts.accepted = 9_000;
        check(&slow, 2, &["the edge accepts only 900/s"]);
        slow.load.generator_limit = Some("it woke late".to_owned());
        check(&slow, 2, &["the generator sent no more (it woke late)"]);
    }

    #[test]
    fn result_of_the_backlog_is_described() {
        assert_eq!(
            backlog_result(&step()),
            "no loss, backlog 900 at the end, stored within 4.1 s"
        );
    }
}
