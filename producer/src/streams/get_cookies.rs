//! The `GetCookies` call: one cookie per message, for any gRPC client.

use std::{net::IpAddr, sync::Arc};

use proto::v1::{GetCookiesRequest, StartPosition};
use tonic::Status;

use super::{
    Inner,
    body::{Form, StreamBody},
    request::check_name,
    resume::by_name,
    subscribers::Call,
};

/// Opens a stream at the position of the host's queue, or at the newest cookie if there is none.
pub(super) fn open(
    streams: &Inner,
    request: &GetCookiesRequest,
    network: IpAddr,
) -> Result<StreamBody, Status> {
    check_name(&request.host, "host")?;
    let mut span = streams.log.span();
    let (mut first, mut until) = (span.next, 0);
    let lease =
        streams
            .subscribers
            .join(Call::GetCookies, &request.host, network, |remembered| {
                // Read after the queue's position: see `Subscribe`.
                span = streams.log.span();
                let start = by_name(streams, StartPosition::Newest, span, remembered);
                (first, until) = (start.first, start.catching_up_until);
                Ok::<_, Status>(start.of_reader(0, request.supports_age))
            })?;
    if lease.may_log() {
        tracing::info!(
            subscriber = request.host,
            first_sequence = first,
            next_sequence = span.next,
            "reading cookies"
        );
    }
    let form = Form::Cookies(Arc::clone(&streams.cookie_messages));
    let session = streams.session(lease, first, until, form);
    Ok(StreamBody::new(session))
}
