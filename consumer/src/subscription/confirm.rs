//! Confirms to a producer up to which sequence this node has stored its records: once a second while the position
//! changes, and immediately when deletions become durable or take effect.

use std::{sync::Arc, time::Duration};

use proto::{client, v1};
use tokio::time::{sleep, timeout};
use tonic::{Code, Request, metadata::MetadataMap, transport::Channel};

use super::Context;

/// Interval of confirmations of a changing position.
const INTERVAL: Duration = Duration::from_secs(1);

/// Timeout for the producer's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The confirmations of one stream.
pub(super) struct Confirmations {
    pub(super) context: Arc<Context>,
    /// The connection of the stream.
    pub(super) channel: Channel,
    /// Metadata with the token, if there is one.
    pub(super) metadata: MetadataMap,
    pub(super) producer: Arc<str>,
    pub(super) epoch: u64,
}

impl Confirmations {
    /// Sends confirmations until it is dropped, or until the producer responds that it does not support them.
    pub(super) async fn run(self) {
        let mut changes = self.context.deletions.changes();
        let (mut applied, mut reported) = (0, None);
        loop {
            changes.mark_unchanged();
            let position = self.context.producers.durable(&self.producer);
            if let Some((epoch, durable)) = position
                && epoch == self.epoch
            {
                // This is read after the position, so that it includes every durable deletion that has not taken
                // effect.
                if self.context.deletions.are_applied() {
                    applied = durable;
                }
                if reported != Some((durable, applied)) {
                    match self.report(durable, applied).await {
                        Ok(()) => reported = Some((durable, applied)),
                        Err(Code::Unimplemented) => return,
                        Err(_) => {}
                    }
                }
            }
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }

    async fn report(&self, durable: u64, applied: u64) -> Result<(), Code> {
        let request = v1::ConfirmRequest {
            subscriber: self.context.name.clone(),
            durable: Some(v1::Cursor {
                producer_id: self.producer.to_string(),
                epoch: self.epoch,
                sequence: durable,
            }),
            applied_sequence: applied,
        };
        let mut request = Request::new(request);
        *request.metadata_mut() = self.metadata.clone();
        let confirmed = client::confirm(self.channel.clone(), request);
        match timeout(REPLY_TIMEOUT, confirmed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => {
                tracing::debug!(producer = &*self.producer, %status, "confirmation failed");
                Err(status.code())
            }
            Err(_) => Err(Code::DeadlineExceeded),
        }
    }
}
