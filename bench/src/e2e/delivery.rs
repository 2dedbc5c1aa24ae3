//! What a delivery costs a producer: the same load without and with further subscribers.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use clap::Parser;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    drive::Drive,
    running::{Drove, Running},
};
use crate::{
    observe::{Observation, Role},
    subscribe::{self, SubscribeArgs},
    verify::Source,
};

/// How long each of the two loads lasts: at 20,000 a second and 20 subscribers their difference is some fifty of the clock
/// ticks by which the system accounts CPU time.
const LASTS: Duration = Duration::from_secs(5);

/// Subscribers' arguments with all defaults.
#[derive(Parser)]
struct Subscribers {
    #[command(flatten)]
    args: SubscribeArgs,
}

/// CPU time of producers for each cookie and further subscriber, in microseconds; `None` when it was stopped. What was
/// sent is added to `sources`.
pub(super) async fn measure(
    running: &mut Running,
    drive: &Drive,
    rate: u64,
    subscribers: usize,
    stop: &CancellationToken,
    sources: &mut Vec<Source>,
) -> Result<Option<f64>> {
    let connections = drive.connections.get() as u64;
    let mut costs = Vec::new();
    for (number, streams) in [(0, 0), (1, subscribers)] {
        let drive = Drive {
            rate: NonZeroU64::new(rate).unwrap_or(NonZeroU64::MIN),
            lasts: LASTS,
            first_connection: drive.first_connection + number * connections,
            ..drive.clone()
        };
        let what = format!("measuring a delivery, {streams} subscribers more");
        running.progress.begin(&what, Some(LASTS));
        let streams_stop = stop.child_token();
        let mut readers = JoinSet::new();
        for producer in running.cluster.producers.iter().filter(|_| streams > 0) {
            let url = format!("http://{}", producer.grpc);
            let flags = [
                "subscribe",
                "--producer",
                &url,
                "--streams",
                &streams.to_string(),
            ];
            let args = Subscribers::try_parse_from(flags)?.args;
            let stop = streams_stop.clone();
            readers.spawn(async move { subscribe::run(&args, &stop, || {}).await });
        }
        let drove = running.drive(drive, stop, None).await;
        streams_stop.cancel();
        while let Some(ended) = readers.join_next().await {
            ended??;
        }
        let Drove {
            driven,
            before,
            after,
            ..
        } = drove?;
        let accepted = driven.accepted;
        sources.extend(driven.sources);
        running.settle(stop, |_, now| now.backlog() == 0).await;
        if stop.is_cancelled() || accepted == 0 {
            return Ok(None);
        }
        costs.push(
            producers(&after)
                .saturating_sub(producers(&before))
                .as_secs_f64()
                * 1e6
                / accepted as f64,
        );
    }
    Ok(Some(((costs[1] - costs[0]) / subscribers as f64).max(0.0)))
}

fn producers(at: &Observation) -> Duration {
    at.of(Role::Producer).map(|seen| seen.cpu.total()).sum()
}
