//! The port for calls: HTTP/1.1 in plain text.
//!
//! Everything that an outsider can do is bounded: connections in all and by address, the head of a request in bytes and time, its
//! body likewise, how many reservations wait, how many counters there are, how long a client may leave answers unread. A connection
//! has one call at a time, answered in the connection's own task: a refusal takes no place and starts no task, and who does not read
//! is not read from.
//!
//! Where no token is needed the port is on loopback, and pages of other sites are kept out as on the admin port: by the name that they
//! call, and because what changes something must be said to be JSON, which they may not send.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use runtime::listen::{self, Activity, ByteStream, Listener, Stage, WatchedStream};
use tokio_util::sync::CancellationToken;

use super::service::Service;

/// Largest head of a request, and most bytes of answers that a connection keeps for a client that does not read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The end of the dates of [`Date`](http::header::DATE), the begin of the year 10000: hyper panics from then on.
const DATES_END: Duration = Duration::from_secs(253_402_300_800);

/// The limits of the port.
#[must_use]
pub fn limits(connections_max: usize, per_address_max: usize) -> listen::Limits {
    listen::Limits {
        connections_max,
        connections_per_address_max: Some(per_address_max),
        request_timeout: Some(Duration::from_secs(10)),
        idle_timeout: Duration::from_secs(300),
        write_timeout: Some(Duration::from_secs(30)),
    }
}

impl Service {
    /// Serves until the stage stops: then those who wait get their answer at once, before their slot.
    pub(super) async fn serve(
        self,
        listener: impl Listener,
        limits: listen::Limits,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let (service, stop) = (Arc::new(self), stage.stop.clone());
        listen::accept(
            listener,
            limits.fixed(),
            metrics,
            stage,
            move |stream, activity| Arc::clone(&service).connection(stream, activity, stop.clone()),
        )
        .await;
    }

    async fn connection(
        self: Arc<Self>,
        stream: WatchedStream<impl ByteStream>,
        activity: Arc<Activity>,
        stop: CancellationToken,
    ) {
        if !has_date(SystemTime::now()) {
            tracing::debug!("connection closed: the system's clock is beyond the year 9999");
            return;
        }
        let answering = service_fn(|request: Request<Incoming>| {
            let in_progress = activity.long_request();
            let (service, stop) = (&self, &stop);
            async move {
                let answer = service.http(request, stop).await;
                drop(in_progress);
                Ok::<_, Infallible>(answer)
            }
        });
        let mut protocol = http1::Builder::new();
        protocol.max_buf_size(HEAD_BYTES_MAX);
        let connection = protocol.serve_connection(TokioIo::new(stream), answering);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Whether answers can have a `Date` at this moment, and for a minute.
fn has_date(now: SystemTime) -> bool {
    now + Duration::from_secs(60) < SystemTime::UNIX_EPOCH + DATES_END
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_beyond_the_year_9999_is_known_before_hyper_meets_it() {
        let end = SystemTime::UNIX_EPOCH + DATES_END;
        let last = httpdate::fmt_http_date(end - Duration::from_nanos(1));
        assert_eq!(last, "Fri, 31 Dec 9999 23:59:59 GMT");
        assert!(std::panic::catch_unwind(|| httpdate::fmt_http_date(end)).is_err());
        assert!(has_date(SystemTime::now()));
        assert!(!has_date(end - Duration::from_secs(1)) && !has_date(end));
    }
}
