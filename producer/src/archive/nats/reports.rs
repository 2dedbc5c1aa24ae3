//! Reads the reports of nodes that read the archive, and verifies them.
//!
//! The last report of each node is read first, then new ones. After an error, this is repeated. All input is untrusted; the reader holds at
//! most [`BATCH`] messages.

use std::{convert::Infallible, mem, time::Duration};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt as _;
use proto::{
    archive::{NODES_PREFIX, node_name, node_subject},
    limits::{CLOCK_AHEAD_MICROS_MAX, CURSORS_MAX, REQUEST_BYTES_MAX},
    units::{Sequence, UnixMicros},
    v1::NodePosition,
};
use runtime::connect::ArchiveError;
use runtime_nats::{StreamUrl, report};
use tokio::time::{Instant, sleep};

use super::super::{REFUSED_RETRY, RETRY_MAX, ReportIntake};
use crate::{
    interval_limit::IntervalLimit,
    streams::subscribers::{Report, ReportedPosition},
};

/// Maximum number of messages of a read.
const BATCH: usize = 16;

/// Maximum time of a read.
const READ_TIME: Duration = Duration::from_secs(2);

/// Maximum rate: verification by strangers' messages thus uses a small part of a processor.
const BYTES_PER_SECOND: f64 = 8e6;

/// When the server forgets the consumer of a lost connection.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum time between log messages about reports that do not count.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// The stream of the reports.
#[derive(Debug, Clone)]
pub struct NodeReports {
    url: StreamUrl,
}

impl NodeReports {
    pub(super) fn new(url: StreamUrl) -> Self {
        Self { url }
    }

    /// Removes the last report of a node, so that no producer counts it after a restart.
    ///
    /// # Errors
    /// If the stream is unavailable, or its server does not permit this.
    pub async fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        let connection = self.url.connect("producer").await?;
        let what = format!("cannot remove a report from stream {}", self.url.name);
        let purge = connection.stream.purge().filter(node_subject(name));
        connection.request(&what, purge.into_future()).await?;
        Ok(())
    }

    /// Reads reports until the future is dropped.
    pub async fn run(self, intake: ReportIntake) {
        let log_limit = IntervalLimit::new(1, LOG_INTERVAL);
        let mut is_failing = false;
        loop {
            let Err(error) = self.read(&intake, &log_limit, &mut is_failing).await;
            if !mem::replace(&mut is_failing, true) {
                tracing::warn!(
                    %error,
                    "cannot read the reports of nodes, retrying; deletions on these nodes stay pending"
                );
            }
            sleep(match error {
                ArchiveError::Refused(_) => REFUSED_RETRY,
                ArchiveError::Unavailable(_) => RETRY_MAX,
            })
            .await;
        }
    }

    async fn read(
        &self,
        intake: &ReportIntake,
        log_limit: &IntervalLimit,
        is_failing: &mut bool,
    ) -> Result<Infallible, ArchiveError> {
        let connection = self.url.connect("producer").await?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::LastPerSubject,
            ack_policy: AckPolicy::None,
            filter_subject: format!("{NODES_PREFIX}.>"),
            inactive_threshold: CONSUMER_TIMEOUT,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let what = format!("cannot read stream {}", self.url.name);
        let consumer = connection.stream.create_consumer(config);
        let consumer = connection.request(&what, consumer).await?;
        if mem::take(is_failing) {
            tracing::info!("reports of nodes can be read again");
        }
        loop {
            let batch = async {
                let batch = consumer.batch().max_messages(BATCH).expires(READ_TIME);
                let messages = batch.messages().await?;
                let messages: Vec<_> = messages.collect().await;
                messages.into_iter().collect::<Result<Vec<_>, _>>()
            };
            let mut bytes = 0;
            for message in connection.request(&what, Box::pin(batch)).await? {
                let message = message.message;
                bytes += message.payload.len();
                match intake.apply(&message.subject, message.payload) {
                    Some(Outcome::Counted) => {}
                    Some(Outcome::Unverified) => {
                        let subject = &*message.subject;
                        if log_limit.admit(Instant::now().into_std()).is_some() {
                            tracing::warn!(
                                subject,
                                "a node's report does not count: its code is of none of the tokens in --token-file"
                            );
                        }
                    }
                    None => intake.subscribers.reject_report(),
                }
            }
            sleep(Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND)).await;
        }
    }
}

/// What becomes of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It counts, unless the node has a stream.
    Counted,
    /// Anyone may have sent it: only its name is shown.
    Unverified,
}

impl ReportIntake {
    /// Verifies and records a report; `None` if it is rejected.
    fn apply(&self, subject: &str, payload: Bytes) -> Option<Outcome> {
        let name = node_name(subject)?;
        if payload.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let tokens = self.tokens.as_ref().map(|tokens| tokens.current());
        let Some(report) = report::verify(payload, tokens.as_deref()).ok()? else {
            let is_shown = self.subscribers.report_unverified(&name);
            return is_shown.then_some(Outcome::Unverified);
        };
        let (now, time) = (self.log.now(), UnixMicros(report.unix_micros));
        let positions = &report.positions;
        if report.name != name
            || time > now.after(CLOCK_AHEAD_MICROS_MAX)
            || positions.len() > CURSORS_MAX
        {
            return None;
        }
        let position = match positions.iter().find(|it| self.is_own(it)) {
            Some(position) => Some(self.position(position)?),
            None => None,
        };
        let report = Report {
            name,
            time,
            age: Duration::from_micros(now.since(time)),
            position,
        };
        let is_newest = self.subscribers.report(&report);
        is_newest.then_some(Outcome::Counted)
    }

    /// Whether a position is in the log of this producer.
    fn is_own(&self, position: &NodePosition) -> bool {
        let cursor = position.durable.as_ref();
        cursor
            .is_some_and(|it| it.producer_id == self.producer_id && it.epoch == self.log.epoch().0)
    }

    /// A position in the log of this producer; `None` if it is invalid.
    fn position(&self, position: &NodePosition) -> Option<ReportedPosition> {
        let position = ReportedPosition {
            durable: Sequence(position.durable.as_ref()?.sequence),
            applied: Sequence(position.applied_sequence),
            first: Sequence(position.first_sequence),
            lost_until: Sequence(position.lost_until),
        };
        let is_valid = position.durable < self.log.span().next
            && position.applied <= position.durable
            && position.first >= Sequence::FIRST;
        is_valid.then_some(position)
    }
}

#[cfg(test)]
mod tests;
