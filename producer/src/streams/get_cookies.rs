//! The `GetCookies` call: one cookie per message, for any gRPC client.

use std::{net::IpAddr, sync::Arc};

use proto::v1::{GetCookiesRequest, StartPosition};
use tonic::Status;

use super::{
    Inner,
    body::{MessageFormat, StreamBody},
    request::check_name,
    resume::by_name,
    subscribers::Call,
};

/// Opens a stream at the retained position of the host, or without one at the newest cookie.
pub(super) fn open(
    streams: &Inner,
    request: &GetCookiesRequest,
    network: IpAddr,
) -> Result<StreamBody, Status> {
    check_name(&request.host, "host")?;
    let mut span = streams.log.span();
    let (mut first, mut until) = (span.next, 0);
    let lease = streams
        .subscribers
        .join(Call::GetCookies, &request.host, network, |retained| {
            // The span is read after the position: see `Subscribe`.
            span = streams.log.span();
            let start = by_name(streams, StartPosition::Newest, span, retained);
            (first, until) = (start.first, start.catching_up_until);
            Ok::<_, Status>(start.for_client(0, request.supports_age))
        })?;
    if lease.may_log() {
        tracing::info!(
            subscriber = request.host,
            first_sequence = first,
            next_sequence = span.next,
            "started a stream of single cookies"
        );
    }
    let messages = &streams.cookie_messages[usize::from(request.deletions)];
    let format = MessageFormat::Cookies(Arc::clone(messages));
    let session = streams.session(lease, first, until, format);
    Ok(StreamBody::new(session))
}
