//! What a delivery costs a producer: the same load without and with further subscribers.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use clap::Parser;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{drive::Drive, running::Running, sizing::Delivery};
use crate::{
    observe::{Observation, Role},
    subscribe::{self, SubscribeArgs},
    verify::Source,
};

/// How long each of the two loads lasts: at 20,000 a second and 20 subscribers their difference is some fifty of the clock
/// ticks by which the system accounts CPU time.
const LASTS: Duration = Duration::from_secs(5);

/// The rate, at most: what a machine of two cores sustains together with twenty readers.
const RATE_MAX: u64 = 40_000;

/// What the difference must exceed for each producer: each of its four CPU times may be off by a clock tick of 10 ms, for
/// its own code and for the kernel's.
const RESOLUTION: Duration = Duration::from_millis(80);

/// Subscribers' arguments with all defaults.
#[derive(Parser)]
struct Subscribers {
    #[command(flatten)]
    args: SubscribeArgs,
}

/// What was found, and what was sent for it.
#[derive(Default)]
pub(super) struct Measurement {
    /// `None` when it could not be measured.
    pub(super) delivery: Option<Delivery>,
    /// Why not.
    pub(super) problem: Option<String>,
    pub(super) sources: Vec<Source>,
    /// What is left of the backlog.
    pub(super) left: u64,
}

/// Measures the CPU time of producers for each cookie and further subscriber, at a rate that is `sustained` or a lower one.
pub(super) async fn measure(
    running: &mut Running,
    drive: &Drive,
    sustained: u64,
    subscribers: usize,
    stop: &CancellationToken,
) -> Measurement {
    let rate = NonZeroU64::new(sustained.min(RATE_MAX)).unwrap_or(NonZeroU64::MIN);
    let mut found = Measurement::default();
    // CPU time and cookies, without and with.
    let mut costs = Vec::new();
    for (number, streams) in [(0, 0), (1, subscribers)] {
        let drive = Drive {
            rate,
            lasts: LASTS,
            first_connection: drive.first_connection + number * drive.connections.get() as u64,
            ..drive.clone()
        };
        let what = format!("measuring a delivery, {streams} subscribers more");
        running.progress.begin(&what, Some(LASTS));
        let readers_stop = stop.child_token();
        let readers = Readers::open(running, streams, &readers_stop);
        let drove = running.drive(drive, stop, None).await;
        readers_stop.cancel();
        let read = match readers {
            Ok(readers) => readers.end().await,
            Err(error) => Err(error),
        };
        let settled = running.settle(stop, |_, now| now.backlog() == 0).await;
        let accepted = drove.driven.accepted;
        found.sources.extend(drove.driven.sources);
        found.left = settled.left;
        if let Err(error) = read
            && !stop.is_cancelled()
        {
            found.problem = Some(format!("a delivery was not measured: {error:#}"));
        }
        if drove.cut.is_some() || found.problem.is_some() || found.left > 0 || accepted == 0 {
            return found;
        }
        costs.push((
            producers(&drove.after).saturating_sub(producers(&drove.before)),
            accepted,
        ));
    }
    let resolution = RESOLUTION * u32::try_from(running.cluster.producers.len()).unwrap_or(1);
    found.delivery = Some(Delivery {
        at: rate.get(),
        micros: difference(costs[0], costs[1], resolution)
            .map(|micros| micros / subscribers as f64),
    });
    found
}

/// How much more a cookie costs, in microseconds; `None` when the clock cannot tell.
fn difference(
    without: (Duration, u64),
    with: (Duration, u64),
    resolution: Duration,
) -> Option<f64> {
    let each = |(cpu, accepted): (Duration, u64)| cpu.as_secs_f64() / accepted as f64;
    let more = each(with) - each(without);
    (more * with.1 as f64 > resolution.as_secs_f64()).then_some(more * 1e6)
}

/// Further subscribers of every producer.
struct Readers(JoinSet<Result<subscribe::Outcome>>);

impl Readers {
    fn open(running: &Running, streams: usize, stop: &CancellationToken) -> Result<Self> {
        let mut readers = JoinSet::new();
        for producer in running.cluster.producers.iter().filter(|_| streams > 0) {
            let url = format!("http://{}", producer.grpc);
            let streams = streams.to_string();
            let flags = ["subscribe", "--producer", &url, "--streams", &streams];
            let args = Subscribers::try_parse_from(flags)?.args;
            let stop = stop.clone();
            readers.spawn(async move { subscribe::run(&args, &stop, || {}).await });
        }
        Ok(Self(readers))
    }

    async fn end(mut self) -> Result<()> {
        while let Some(ended) = self.0.join_next().await {
            ended??;
        }
        Ok(())
    }
}

fn producers(at: &Observation) -> Duration {
    at.of(Role::Producer).map(|seen| seen.cpu.total()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_below_the_clock_is_none() {
        let millis = Duration::from_millis;
        let of =
            |without, with| difference((millis(without), 1_000), (millis(with), 1_000), RESOLUTION);
        assert_eq!(of(500, 560), None);
        assert_eq!(of(560, 500), None);
        assert!((of(500, 700).unwrap() - 200.0).abs() < 1e-6);
    }
}
