//! What was observed, as plots.

use std::time::Duration;

use tokio::time::Instant;

use super::{Observation, Role, Seen};
use crate::{
    report::{Plot, Series},
    scrape::Buckets,
};

/// Looks closer than this are not compared: within so short a time, CPU time moves by clock ticks and counts by whole batches.
const APART_MIN: Duration = Duration::from_millis(900);

/// Rates, backlog, latency, CPU and memory over the time since `start`.
#[must_use]
pub fn plots(observations: &[Observation], start: Instant) -> Vec<Plot> {
    let Some(first) = observations.first() else {
        return Vec::new();
    };
    let lines = Lines {
        observations,
        start,
    };
    let processes = || first.processes.iter().enumerate();
    let nodes = || processes().filter(|(_, seen)| seen.role == Role::Consumer);

    let accepted = lines.since("accepted", |before, now| now.accepted_per_second(before));
    let stored = nodes().map(|(at, seen)| {
        let name = format!("settled by {}", seen.name);
        let node = at - first.of(Role::Producer).count();
        lines.since(&name, move |before, now| {
            let mut nodes = now.settled_per_second(before);
            nodes.nth(node).unwrap_or(0.0)
        })
    });
    let waiting = nodes().map(|(at, seen)| {
        let name = format!("not stored by {}", seen.name);
        let node = at - first.of(Role::Producer).count();
        lines.level(&name, move |now| {
            now.waiting().get(node).copied().unwrap_or(0) as f64
        })
    });
    let quantiles = [(0.5, "p50"), (0.99, "p99")];
    let received = quantiles.map(|(quantile, name)| {
        lines.latency(&format!("received, {name}"), quantile, |seen| {
            &seen.counts.received_seconds
        })
    });
    let to_stored = quantiles.map(|(quantile, name)| {
        lines.latency(&format!("stored, {name}"), quantile, |seen| {
            &seen.counts.stored_seconds
        })
    });
    let cpu = processes().map(|(at, seen)| lines.cores(&seen.name, at));
    let memory = processes().map(|(at, seen)| {
        lines.level(&seen.name, move |now| {
            now.processes[at].memory.resident_bytes as f64 / f64::from(1 << 20)
        })
    });
    let rate = std::iter::once(accepted).chain(stored).collect();
    let latency = received.into_iter().chain(to_stored).collect();
    let plot = Plot::over_time;
    vec![
        plot("rate", "Accepted and settled", "cookies a second", rate),
        plot(
            "backlog",
            "Accepted and not stored",
            "cookies",
            waiting.collect(),
        ),
        plot(
            "latency",
            "From accepted at the edge, over all nodes",
            "ms",
            latency,
        )
        .logarithmic(),
        plot("cpu", "CPU", "cores", cpu.collect()),
        plot("memory", "Memory", "MiB resident", memory.collect()),
    ]
}

struct Lines<'a> {
    observations: &'a [Observation],
    start: Instant,
}

impl Lines<'_> {
    fn level(&self, name: &str, value: impl Fn(&Observation) -> f64) -> Series {
        let points = self
            .observations
            .iter()
            .map(|now| (self.x(now), value(now)));
        Series::new(name, points)
    }

    /// Between looks that are far enough apart.
    fn since(&self, name: &str, value: impl Fn(&Observation, &Observation) -> f64) -> Series {
        let mut points = Vec::new();
        let mut before = self.observations.first();
        for now in self.observations {
            if let Some(last) = before
                && now.at - last.at >= APART_MIN
            {
                points.push((self.x(now), value(last, now)));
                before = Some(now);
            }
        }
        Series::new(name, points)
    }

    fn cores(&self, name: &str, at: usize) -> Series {
        self.since(name, |before, now| now.cores_since(before)[at])
    }

    fn latency(&self, name: &str, quantile: f64, of: impl Fn(&Seen) -> &Buckets) -> Series {
        self.since(name, |before, now| {
            let sum = |at: &Observation| {
                let all = at.of(Role::Consumer).map(&of);
                all.fold(Buckets::default(), |sum, more| sum.plus(more))
            };
            let seconds = sum(now).since(&sum(before)).quantile(quantile);
            seconds.map_or(f64::NAN, |seconds| seconds * 1e3)
        })
    }

    fn x(&self, at: &Observation) -> f64 {
        at.at.saturating_duration_since(self.start).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_close_together_make_no_spikes() {
        let start = Instant::now();
        let looks = [0, 1_000, 1_050, 1_250, 2_050, 3_050].map(|millis| Observation {
            at: start + Duration::from_millis(millis),
            processes: Vec::new(),
        });
        let lines = Lines {
            observations: &looks,
            start,
        };
        let apart = lines.since("apart", |before, now| (now.at - before.at).as_secs_f64());
        let seconds = apart.points.iter().map(|(_, apart)| *apart);
        assert_eq!(seconds.collect::<Vec<_>>(), [1.0, 1.05, 1.0]);
    }
}
