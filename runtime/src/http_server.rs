//! The HTTP/1.1 server of admin and API ports, with connection limits, TLS, and a graceful stop.
//!
//! A connection processes one request at a time, so a client that does not read responses cannot send more requests.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
};

use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
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
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let serve = connections(tls, stage.stop.clone(), handler);
    let (proxies, limits) = (Proxies::default(), limits.fixed());
    listen::accept(listener, proxies, limits, metrics, stage, serve).await;
}

/// Serves a connection, for [`listen::accept`], until `stop` is cancelled; see [`serve`].
pub fn connections<S, H, F, B>(
    tls: Option<Arc<Handshakes>>,
    stop: CancellationToken,
    handler: H,
) -> impl Fn(WatchedStream<S>, Arc<Activity>) -> Pin<Box<dyn Future<Output = ()> + Send>>
where
    S: ByteStream,
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    move |stream: WatchedStream<S>, activity: Arc<Activity>| {
        let (tls, stop, handler) = (tls.clone(), stop.clone(), handler.clone());
        Box::pin(async move {
            let Some(tls) = tls else {
                return connection(stream, &activity, &stop, handler).await;
            };
            if let Some(stream) = tls.accept(stream, &stop).await {
                connection(stream, &activity, &stop, handler).await;
            }
        })
    }
}

async fn connection<F, B>(
    stream: impl ByteStream,
    activity: &Arc<Activity>,
    stop: &CancellationToken,
    handler: impl Fn(Request<Incoming>) -> F,
) where
    F: Future<Output = Response<B>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let service = service_fn(|request| {
        let (in_progress, response) = (activity.long_request(), handler(request));
        async move {
            // The body owns the guard, so that the connection is not idle before it ends.
            let owner = move |error| (error, &in_progress).0;
            Ok::<_, Infallible>(response.await.map(|body| body.map_err(owner)))
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http_body::Frame;
    use parking_lot::Mutex;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        sync::mpsc,
    };

    use super::*;

    /// A body of the chunks that are sent to it.
    struct Chunks(mpsc::Receiver<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let chunk = self.0.poll_recv(context);
            chunk.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    async fn read_to(client: &mut DuplexStream, end: &str) {
        let mut read = String::new();
        while !read.ends_with(end) {
            let byte = client.read_u8().await.unwrap();
            read.push(byte.into());
        }
    }

    /// Serves one request, whose response has begun when `act` gets the client and the sender of the chunks.
    async fn check<F: Future<Output = ()>>(
        act: impl FnOnce(DuplexStream, mpsc::Sender<Bytes>, Arc<Activity>) -> F,
    ) {
        let (mut client, server) = duplex(1024);
        let (sender, chunks) = mpsc::channel(1);
        let body = Mutex::new(Some(Chunks(chunks)));
        let handler = |_| std::future::ready(Response::new(body.lock().take().unwrap()));
        let (activity, stop) = (Arc::<Activity>::default(), CancellationToken::new());
        let requests = async {
            let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
            client.write_all(request).await.unwrap();
            read_to(&mut client, "\r\n\r\n").await;
            assert_eq!(activity.in_progress(), 1);
            act(client, sender, Arc::clone(&activity)).await;
        };
        tokio::join!(connection(server, &activity, &stop, handler), requests);
    }

    #[tokio::test]
    async fn connection_is_not_idle_until_a_streamed_body_ends() {
        check(async |mut client, sender, activity| {
            sender.send(Bytes::from_static(b"line")).await.unwrap();
            read_to(&mut client, "line\r\n").await;
            assert_eq!(activity.in_progress(), 1);
            drop(sender);
            read_to(&mut client, "0\r\n\r\n").await;
            assert_eq!(activity.in_progress(), 0);
        })
        .await;
    }

    #[tokio::test]
    async fn streamed_body_is_dropped_when_the_client_disconnects() {
        check(async |client, sender, activity| {
            drop(client);
            sender.closed().await;
            assert_eq!(activity.in_progress(), 0);
        })
        .await;
    }
}
