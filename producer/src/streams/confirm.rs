//! The `Confirm` call: a node reports the position up to which it has stored records.

use std::net::IpAddr;

use proto::{
    units::Sequence,
    v1::{ConfirmRequest, ConfirmResponse},
};

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
        if durable.producer_id != config.producer_id || durable.epoch != config.log.epoch().0 {
            return Err(CallError::OtherLog);
        }
        let durable = Sequence(durable.sequence);
        let applied = Sequence(request.applied_sequence);
        if durable >= config.log.span().next || applied > durable {
            return Err(CallError::PositionBeyondLog);
        }
        let subscribers = &config.subscribers;
        subscribers.confirm(&request.subscriber, network, durable, applied)?;
        Ok(ConfirmResponse {
            unix_micros: config.log.now().0,
        })
    }
}
