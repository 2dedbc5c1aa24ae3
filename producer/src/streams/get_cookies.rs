//! The `GetCookies` call: one cookie per message, for any gRPC client.

use std::{net::IpAddr, sync::Arc};

use proto::{
    v1::{GetCookiesRequest, StartPosition},
    wire::IdleMessage,
};

use super::{
    Streams,
    call::{Call, CallError, check_name},
    resume::by_name,
    session::{MessageFormat, Session},
    subscribers::StreamStart,
};

impl Streams {
    /// Opens a stream at the retained position of the host, or at the newest cookie if none is retained.
    pub(crate) fn get_cookies(
        &self,
        request: &GetCookiesRequest,
        network: IpAddr,
    ) -> Result<Session, CallError> {
        check_name(&request.host, "host")?;
        let config = &self.config;
        let mut span = config.log.span();
        let lease =
            config
                .subscribers
                .join(Call::GetCookies, &request.host, network, |retained| {
                    // The span is read after the position: see `Subscribe`.
                    span = config.log.span();
                    Ok(StreamStart {
                        supports_age: request.supports_age,
                        ..by_name(config, StartPosition::Newest, span, retained)
                    })
                })?;
        if lease.may_log() {
            tracing::info!(
                subscriber = request.host,
                first_sequence = lease.start.first.0,
                next_sequence = span.next.0,
                "GetCookies stream started"
            );
        }
        let messages = &self.cookie_messages[usize::from(request.deletions)];
        let format = MessageFormat::Cookies(Arc::clone(messages), IdleMessage::default());
        Ok(self.session(lease, format))
    }
}
