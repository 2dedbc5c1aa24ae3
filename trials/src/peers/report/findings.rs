//! What follows from the figures, in sentences, whichever way it is.

use bench::report::{micros_each, rate};

use crate::peers::{
    outcome::{Outcome, Participant, Step, Stopped, mebibytes},
    peer::Peer,
};

/// Ratios nearer to 1 are noise on a shared machine.
const NOISE: f64 = 1.2;

/// CPU time is accounted in ticks of 10 ms: fewer than ten of them say nothing.
const CPU_SECONDS_MIN: f64 = 0.1;

/// Ours against each other at the most subscribers, then what was lost, then who was stopped.
pub(super) fn findings(outcome: &Outcome) -> Vec<String> {
    let mut findings = comparisons(outcome);
    findings.extend(
        outcome
            .peers
            .iter()
            .filter_map(|peer| losses(outcome, peer)),
    );
    findings.extend(outcome.stopped.iter().map(stopped));
    if outcome.interrupted {
        let words = "The run was interrupted: this is what was measured until then.";
        findings.push(words.to_owned());
    }
    findings
}

fn comparisons(outcome: &Outcome) -> Vec<String> {
    let most = outcome.steps.iter().map(|step| step.subscribers).max();
    let last = |step: &&Step| Some(step.subscribers) == most;
    let mut comparisons = Vec::new();
    let ours = |step: &&Step| step.peer == Peer::Ours;
    for ours in outcome.steps.iter().filter(last).filter(ours) {
        let same = |step: &&Step| step.peer != Peer::Ours && (step.batch > 1) == (ours.batch > 1);
        let others = outcome.steps.iter().filter(last).filter(same);
        comparisons.extend(others.map(|other| compare(ours, other, outcome.rate.is_some())));
    }
    comparisons
}

/// `… ours delivers 2.0 × as much as nats, with 1.5 × less server CPU for each delivery`.
fn compare(ours: &Step, other: &Step, has_rate: bool) -> String {
    let name = other.peer.name();
    let [mine, its] = [ours, other].map(|step| step.deliveries_per_second);
    let rates = match its / mine {
        _ if mine <= 0.0 && its <= 0.0 => format!("delivers nothing, as does {name}"),
        _ if mine <= 0.0 => format!("delivers nothing and {name} {}", rate(its)),
        _ if its <= 0.0 => format!("delivers {} and {name} nothing", rate(mine)),
        ratio if is_noise(ratio) && has_rate => format!("delivers at the same rate as {name}"),
        _ if has_rate => format!("delivers {} and {name} {}", rate(mine), rate(its)),
        ratio if is_noise(ratio) => format!("delivers about as much as {name}"),
        ratio if ratio > 1.0 => format!("delivers {ratio:.1} × less than {name}"),
        ratio => format!("delivers {:.1} × as much as {name}", 1.0 / ratio),
    };
    let has_cpu =
        [ours, other].map(|step| step.broker_cpu_seconds >= CPU_SECONDS_MIN && step.delivered > 0);
    let [mine, its] = [ours, other].map(|step| step.broker_cpu_micros_per_delivery);
    let cpu = match mine / its {
        _ if has_cpu != [true, true] => {
            "server CPU is too little to compare: measure longer".to_owned()
        }
        ratio if is_noise(ratio) => "with about the same server CPU for each delivery".to_owned(),
        ratio if ratio > 1.0 => format!("with {ratio:.1} × its server CPU for each delivery"),
        ratio => {
            let ratio = 1.0 / ratio;
            format!("with {ratio:.1} × less server CPU for each delivery")
        }
    };
    let losses = match (ours.lost, other.lost) {
        (0, 0) => String::new(),
        _ => format!("; lost: {} and {}", ours.lost_share(), other.lost_share()),
    };
    let with = match (ours.subscribers, other.batch) {
        (subscribers, 1) => format!("With {subscribers} subscribers and 1 a message, ours"),
        (subscribers, batch) => format!(
            "With {subscribers} subscribers, ours in chunks of {:.0} on average against messages of {batch}",
            ours.cookies_per_message
        ),
    };
    format!("{with} {rates}, {cpu} ({mine:.3} and {its:.3} µs){losses}.")
}

fn is_noise(ratio: f64) -> bool {
    (1.0 / NOISE..=NOISE).contains(&ratio)
}

/// What a system lost over all steps; `None` when there are none.
fn losses(outcome: &Outcome, participant: &Participant) -> Option<String> {
    let of_it = |step: &&Step| step.peer == participant.peer;
    let steps = outcome.steps.iter().filter(of_it);
    let lossy = steps.clone().filter(|step| step.lost > 0);
    let (count, lossy_count) = (steps.count(), lossy.clone().count());
    let name = participant.peer.name();
    if count == 0 {
        return None;
    }
    Some(match lossy.max_by_key(|step| step.lost) {
        None => format!("{name} lost nothing in {count} steps."),
        Some(worst) => format!(
            "{name} lost cookies in {lossy_count} of {count} steps; most with {} subscribers, {}: {}.",
            worst.subscribers,
            worst.packing(),
            worst.lost_share()
        ),
    })
}

fn stopped(stopped: &Stopped) -> String {
    let growth = mebibytes(stopped.memory_growth_bytes());
    let (name, verdict) = (stopped.peer.name(), stopped.verdict());
    format!(
        "With one of three subscribers stopped, {name} grew by {growth}; the stopped one {verdict}."
    )
}

/// Least and most subscribers of a system's steps, and by how many µs of server CPU each cookie became dearer for each subscriber
/// between them; `None` when there are not two counts, or too little CPU to tell.
pub(super) fn further_subscriber(
    steps: &[Step],
    peer: Peer,
    batch: u32,
) -> Option<(usize, usize, f64)> {
    let of_it = |step: &&Step| step.peer == peer && step.batch == batch;
    let steps = steps.iter().filter(of_it);
    let least = steps.clone().min_by_key(|step| step.subscribers)?;
    let most = steps.max_by_key(|step| step.subscribers)?;
    let more = most.subscribers - least.subscribers;
    let measured = |step: &Step| step.broker_cpu_seconds >= CPU_SECONDS_MIN;
    if more == 0 || !measured(least) || !measured(most) {
        return None;
    }
    let cost = |step: &Step| micros_each(step.broker_cpu_seconds, step.published);
    let further = (cost(most) - cost(least)) / more as f64;
    Some((least.subscribers, most.subscribers, further))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(peer: Peer, subscribers: usize, rate: f64, micros: f64) -> Step {
        Step {
            peer,
            subscribers,
            batch: 1,
            cookies_per_message: 1.0,
            said_version: None,
            published: 1_000_000,
            refused: 0,
            publish_seconds: 1.0,
            published_per_second: 1_000_000.0,
            delivered: 1_000_000 * subscribers as u64,
            deliver_seconds: 1.0,
            deliveries_per_second: rate,
            lost: 0,
            surplus: 0,
            told_lost: 0,
            repeated: 0,
            unreadable: 0,
            disconnects: 0,
            broker_cpu_seconds: micros * subscribers as f64,
            broker_cpu_micros_per_delivery: micros,
            publisher_cpu_micros_per_cookie: 1.0,
            reader_cpu_micros_per_delivery: 1.0,
            broker_peak_bytes: 1,
            deliveries_per_second_by_second: Vec::new(),
        }
    }

    #[track_caller]
    fn check_with(has_rate: bool, ours: (f64, f64), other: (f64, f64), expected: &str) {
        let ours = step(Peer::Ours, 2, ours.0, ours.1);
        let other = step(Peer::Nats, 2, other.0, other.1);
        let said = compare(&ours, &other, has_rate);
        assert!(said.contains(expected), "{said}");
    }

    #[track_caller]
    fn check(ours: (f64, f64), other: (f64, f64), expected: &str) {
        check_with(false, ours, other, expected);
    }

    #[test]
    fn only_what_nobody_counted_is_lost_in_silence() {
        let silent = |lost, told_lost| {
            let step = Step {
                lost,
                told_lost,
                ..step(Peer::Ours, 2, 1.0, 1.0)
            };
            step.silently_lost()
        };
        assert_eq!([silent(9, 9), silent(9, 7), silent(0, 3)], [0, 2, 0]);
    }

    #[test]
    fn comparisons_are_honest_in_both_directions() {
        let better = "ours delivers 2.0 × as much as nats, with 4.0 × less server CPU";
        check((200.0, 1.0), (100.0, 4.0), better);
        let worse = "ours delivers 2.0 × less than nats, with 4.0 × its server CPU";
        check((100.0, 4.0), (200.0, 1.0), worse);
        let same = "ours delivers about as much as nats, with about the same server CPU";
        check((100.0, 1.0), (110.0, 1.1), same);
        check((100.0, 1.0), (100.0, 0.001), "too little to compare");
    }

    #[test]
    fn the_same_rate_is_said_only_of_the_same_rate() {
        let same = "ours delivers at the same rate as nats,";
        check_with(true, (100.0, 1.0), (110.0, 1.0), same);
        let half = "ours delivers 100/s and nats 200/s,";
        check_with(true, (100.0, 1.0), (200.0, 1.0), half);
    }

    #[test]
    fn who_delivers_nothing_is_named() {
        check((0.0, 1.0), (9.0, 1.0), "ours delivers nothing and nats 9/s");
        check((9.0, 1.0), (0.0, 1.0), "ours delivers 9/s and nats nothing");
        check((0.0, 1.0), (0.0, 1.0), "delivers nothing, as does nats");
    }

    #[test]
    fn chunks_of_ours_stand_against_messages() {
        let ours = Step {
            batch: 100,
            cookies_per_message: 23.4,
            ..step(Peer::Ours, 2, 1.0, 1.0)
        };
        let other = Step {
            batch: 500,
            ..step(Peer::Nats, 2, 1.0, 1.0)
        };
        let said = compare(&ours, &other, false);
        let expected = "2 subscribers, ours in chunks of 23 on average against messages of 500 ";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn a_further_subscribers_cost_leaves_out_what_comes_in() {
        // 10 µs to take a cookie and 1 µs for each subscriber.
        let steps = [1, 10].map(|count| {
            let each = 10.0 / count as f64 + 1.0;
            step(Peer::Ours, count, 1.0, each)
        });
        let (least, most, micros) = further_subscriber(&steps, Peer::Ours, 1).unwrap();
        assert_eq!((least, most), (1, 10));
        assert!((micros - 1.0).abs() < 1e-9, "{micros}");
        assert_eq!(further_subscriber(&steps[..1], Peer::Ours, 1), None);
    }
}
