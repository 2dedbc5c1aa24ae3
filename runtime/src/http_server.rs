//! The HTTP/1.1 server of admin and API ports, with connection limits, TLS, and a graceful stop.
//!
//! A connection processes one request at a time, so a client that does not read responses cannot send more requests.

use std::{convert::Infallible, error::Error, future::Future, pin::pin, sync::Arc};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::{
    listen::{self, Activity, ByteStream, Limits, Listener, Proxies, Stage, WatchedStream},
    tls::server::Handshakes,
};

/// Maximum bytes of request headers, and of unread responses, per connection.
const BUFFER_BYTES: usize = 16 << 10;

/// Responds to requests with `handler` until the stage stops. Requests in progress then still get a response. Without `tls`,
/// connections are unencrypted.
pub async fn serve<H, F, B>(
    listener: impl Listener,
    tls: Option<Arc<Handshakes>>,
    limits: Limits,
    metrics: listen::Metrics,
    stage: Stage,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Error + Send + Sync> + Send + 'static,
{
    let stop = stage.stop.clone();
    let serve = move |stream: WatchedStream<_>, activity: Arc<Activity>| {
        let (tls, stop, handler) = (tls.clone(), stop.clone(), handler.clone());
        async move {
            let Some(tls) = tls else {
                return connection(stream, &activity, &stop, handler).await;
            };
            if let Some(stream) = tls.accept(stream, &stop).await {
                connection(stream, &activity, &stop, handler).await;
            }
        }
    };
    listen::accept(
        listener,
        Proxies::default(),
        limits.fixed(),
        metrics,
        stage,
        serve,
    )
    .await;
}

async fn connection<F, B>(
    stream: impl ByteStream,
    activity: &Arc<Activity>,
    stop: &CancellationToken,
    handler: impl Fn(Request<Incoming>) -> F,
) where
    F: Future<Output = Response<B>>,
    B: Body<Error: Error + Send + Sync> + 'static,
{
    let service = service_fn(|request| {
        let (in_progress, response) = (activity.long_request(), handler(request));
        async move {
            let response = response.await;
            drop(in_progress);
            Ok::<_, Infallible>(response)
        }
    });
    let mut protocol = http1::Builder::new();
    protocol.max_buf_size(BUFFER_BYTES);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
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
