//! One connection to the lookup port: TLS if the port has it, then HTTP/1.1 or HTTP/2.

use std::sync::Arc;

use runtime::{
    http1::IDLE_BUFFER_BYTES,
    listen::{Activity, ByteStream, WatchedStream},
};
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use super::{grpc, http, port::LookupPort};

/// The first bytes of HTTP/2.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl LookupPort {
    /// Serves one connection.
    pub async fn serve(
        self: Arc<Self>,
        stream: WatchedStream<impl ByteStream>,
        activity: Arc<Activity>,
        stop: CancellationToken,
    ) {
        let served = match &self.tls {
            None => {
                Arc::clone(&self)
                    .serve_stream(stream, &activity, &stop)
                    .await
            }
            Some(tls) => {
                let Some(stream) = tls.accept(stream, &stop).await else {
                    return;
                };
                // Boxed, so that unencrypted connections need no memory for it.
                Box::pin(Arc::clone(&self).serve_stream(stream, &activity, &stop)).await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "connection to the lookup port failed");
        }
    }

    /// Serves HTTP/1.1, or HTTP/2 if the client begins with it.
    async fn serve_stream(
        self: Arc<Self>,
        mut stream: impl ByteStream,
        activity: &Arc<Activity>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut input = Vec::with_capacity(IDLE_BUFFER_BYTES);
        loop {
            let read = stop.run_until_cancelled(stream.read_buf(&mut input)).await;
            if !matches!(read.transpose()?, Some(1..)) {
                return Ok(());
            }
            let known = input.len().min(HTTP2_PREFACE.len());
            if input[..known] != HTTP2_PREFACE[..known] {
                return http::serve(self, stream, input, activity, stop).await;
            }
            if known == HTTP2_PREFACE.len() {
                return Box::pin(grpc::serve(self, stream, input, activity, stop)).await;
            }
        }
    }
}
