//! The `Confirm` call: a node reports the position up to which it has stored records.

use std::net::IpAddr;

use proto::v1::{ConfirmRequest, ConfirmResponse};

use super::{
    Streams,
    call::{CallError, check_name},
};

impl Streams {
    /// Records the stored position of the node.
    pub(crate) fn confirm(
        &self,
        request: &ConfirmRequest,
        network: IpAddr,
    ) -> Result<ConfirmResponse, CallError> {
        let config = &self.config;
        check_name(&request.subscriber, "subscriber")?;
        let durable = request.durable.as_ref();
        let durable = durable.ok_or(CallError::MissingPosition)?;
        if durable.producer_id != config.producer_id || durable.epoch != config.log.epoch() {
            return Err(CallError::OtherLog);
        }
        if durable.sequence >= config.log.span().next || request.applied_sequence > durable.sequence
        {
            return Err(CallError::PositionBeyondLog);
        }
        let (durable, applied) = (durable.sequence, request.applied_sequence);
        let subscribers = &config.subscribers;
        subscribers.confirm(&request.subscriber, network, durable, applied)?;
        Ok(ConfirmResponse {
            unix_micros: config.log.unix_micros(),
        })
    }
}
