//! Plots of all observations.

use std::time::Duration;

use testkit::{
    observe::{Observation, ProcessSample, Role},
    scrape::names,
};
use tokio::time::Instant;

use crate::report::{Plot, Series};

/// Minimum time between compared observations: in shorter times, CPU time changes by clock ticks and counts by whole batches.
const DISTANCE_MIN: Duration = Duration::from_millis(900);

/// Rates, backlog, latency, CPU and memory over time since `start`.
pub fn plots(observations: &[Observation], start: Instant) -> Vec<Plot> {
    let pairs = pairs(observations);
    let Some((first, _)) = pairs.first() else {
        return Vec::new();
    };
    let line = |name: &str, value: &dyn Fn(&Observation, &Observation) -> f64| {
        let seconds = |at: &Observation| at.at.saturating_duration_since(start).as_secs_f64();
        let points = pairs.iter();
        let points = points.map(|(before, now)| (seconds(now), value(before, now)));
        Series {
            name: name.to_owned(),
            points: points.collect(),
        }
    };
    let mut rate = vec![line("accepted", &|before, now| {
        now.accepted_per_second(before)
    })];
    let mut backlog = Vec::new();
    for (node, seen) in first.of(Role::Consumer).enumerate() {
        let name = &seen.name;
        rate.push(line(&format!("settled by {name}"), &|before, now| {
            now.settled_per_second(before).nth(node).unwrap_or(0.0)
        }));
        backlog.push(line(&format!("not stored by {name}"), &|_, now| {
            now.backlogs().get(node).copied().unwrap_or(0) as f64
        }));
    }
    let histograms = [
        ("received", names::RECEIVED_SECONDS),
        ("stored", names::STORED_SECONDS),
    ];
    let mut latency = Vec::new();
    for (stage, metric) in histograms {
        for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
            latency.push(line(&format!("{stage}, {name}"), &|before, now| {
                let seconds = now.histogram(metric).since(&before.histogram(metric));
                let seconds = seconds.quantile(quantile);
                seconds.map_or(f64::NAN, |seconds| seconds * 1e3)
            }));
        }
    }
    let (mut cpu, mut memory) = (Vec::new(), Vec::new());
    for (at, ProcessSample { name, .. }) in first.processes.iter().enumerate() {
        cpu.push(line(name, &|before, now| now.cores_since(before)[at]));
        memory.push(line(name, &|_, now| {
            now.processes[at].memory.resident_bytes as f64 / f64::from(1 << 20)
        }));
    }
    let plot = Plot::new;
    let title = "Latency since acceptance, over all nodes";
    vec![
        plot("Accepted and settled", "cookies per second", rate),
        plot("Accepted and not stored", "cookies", backlog),
        plot(title, "ms", latency),
        plot("CPU", "cores", cpu),
        plot("Memory", "MiB resident", memory),
    ]
}

/// Observations with their predecessors, at least [`DISTANCE_MIN`] apart.
fn pairs(observations: &[Observation]) -> Vec<(&Observation, &Observation)> {
    let mut pairs = Vec::new();
    let mut before = observations.first();
    for now in observations {
        if let Some(last) = before
            && now.at - last.at >= DISTANCE_MIN
        {
            pairs.push((last, now));
            before = Some(now);
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_observations_are_skipped() {
        let start = Instant::now();
        let observations = [0, 1_000, 1_050, 1_250, 2_050, 3_050].map(|millis| Observation {
            at: start + Duration::from_millis(millis),
            processes: Vec::new(),
        });
        let pairs = pairs(&observations);
        let seconds = pairs
            .iter()
            .map(|(before, now)| (now.at - before.at).as_secs_f64());
        assert_eq!(seconds.collect::<Vec<_>>(), [1.0, 1.05, 1.0]);
    }
}
