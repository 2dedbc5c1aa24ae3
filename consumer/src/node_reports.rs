//! Reports what this node has stored, for producers to which it has no stream: once a second while a position changes, otherwise every
//! ten seconds.
//!
//! The reports contain what [`Confirm`](proto::client::confirm) calls contain. They also state which records are missing, because
//! the producer does not know what the archive has delivered. Nothing waits for a report.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use proto::v1::{Cursor, NodePosition, NodePositions};
use runtime::{connect::ArchiveError, reload::Reloader, token};
use tokio::time::{Instant, sleep};

use crate::{
    deletions::Deletions,
    producers::{DurablePosition, Producers},
    recovery::NodeReports,
    subscription::AppliedPosition,
};

/// Minimum time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time after which the same positions are reported again, which shows that the node is alive.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time until the next attempt after an error, and if somebody must change a setting.
const RETRY: Duration = Duration::from_secs(5);
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Sends the reports of this node.
#[derive(Debug)]
pub struct Reporter {
    /// The stream of the reports.
    pub reports: NodeReports,
    /// The name of this node.
    pub name: String,
    /// The token that proves them, if there is one.
    pub token: Option<Arc<Reloader<token::File>>>,
    /// The durable positions.
    pub producers: Producers,
    /// Deletions, some of which may not have taken effect.
    pub deletions: Deletions,
}

/// The applied positions in the epochs of all producers.
type Applied = BTreeMap<(Arc<str>, u64), AppliedPosition>;

impl Reporter {
    /// Sends reports until the future is dropped.
    pub async fn run(mut self) {
        let mut applied = Applied::new();
        let mut sent: Option<(Vec<NodePosition>, Instant)> = None;
        let mut is_failing = false;
        loop {
            let positions = positions(&self.producers, &self.deletions, &mut applied);
            let is_sent = |(last, at): &(Vec<NodePosition>, Instant)| {
                *last == positions && at.elapsed() < REPEAT_INTERVAL
            };
            if sent.as_ref().is_some_and(is_sent) {
                sleep(INTERVAL).await;
                continue;
            }
            let report = NodePositions {
                name: self.name.clone(),
                unix_micros: self.producers.steady_now().0,
                positions,
            };
            let token = self.token.as_ref().map(|it| it.current());
            let token = token.as_ref().map(|it| it.first());
            let published = self.reports.publish(&report, token).await;
            let had_failed = mem::replace(&mut is_failing, published.is_err());
            sleep(match published {
                Ok(()) => {
                    sent = Some((report.positions, Instant::now()));
                    if had_failed {
                        tracing::info!("positions are reported again");
                    }
                    INTERVAL
                }
                Err(error) => {
                    if !had_failed {
                        tracing::warn!(
                            %error,
                            "cannot report positions, retrying; deletions do not complete on producers without a stream to this node"
                        );
                    }
                    match error {
                        ArchiveError::Refused(_) => REFUSED_RETRY,
                        ArchiveError::Unavailable(_) => RETRY,
                    }
                }
            })
            .await;
        }
    }
}

/// The positions on all producers. Removes the applied positions of others.
fn positions(
    producers: &Producers,
    deletions: &Deletions,
    applied: &mut Applied,
) -> Vec<NodePosition> {
    let durable = producers.durable_positions();
    // The deletions are read after the positions, so that they include all deletions up to them.
    let unapplied = deletions.unapplied();
    let mut before = mem::take(applied);
    let positions = durable.into_iter().map(|it| {
        let DurablePosition {
            producer,
            durable,
            observed,
        } = it;
        let key = (Arc::clone(&producer), durable.epoch.0);
        let mut position = before.remove(&key).unwrap_or_default();
        let applied_sequence = position.advance(durable.sequence, &unapplied).0;
        applied.insert(key, position);
        NodePosition {
            durable: Some(Cursor {
                producer_id: producer.to_string(),
                epoch: durable.epoch.0,
                sequence: durable.sequence.0,
            }),
            applied_sequence,
            first_sequence: observed.from.0,
            lost_until: observed.lost_until.0,
        }
    });
    positions.collect()
}

#[cfg(test)]
mod tests;
