//! One HTTP/2 connection: its calls, keepalive pings, and graceful shutdown.
//!
//! Uses h2 directly. hyper would take a chunk from the log before HTTP/2 has capacity for it, and would not poll the
//! response again until HTTP/2 has this capacity. Neither a status nor a reset could end such a stalled stream, and its
//! in-flight bytes could not be counted.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use h2::{Ping, PingPong, Reason, RecvStream, server};
use http::Request;
use runtime::listen::{Activity, ByteStream, addresses};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;

use super::{
    call::{self, CallContext},
    calls::{ConnectionLimits, REFUSED_MAX},
    pipe::Data,
    service::Peer,
};

/// A stream with this many bytes in its send buffer takes no further chunk from the log; enough to keep the kernel busy. A
/// stream whose client has closed its window has two chunks in flight: one partly sent, and one waiting. If the client's
/// kernel accepts nothing more, a full send buffer and three chunks are in flight. This is 448 KiB at the default chunk
/// size, or 44 MiB for a hundred such streams.
pub(crate) const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Maximum number of concurrent calls per connection.
const CALLS_MAX: u32 = 64;

/// Maximum size of request headers, and receive windows. Large requests are read in steps. The connection window is the
/// initial window of HTTP/2, which cannot be reduced.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
const STREAM_WINDOW_BYTES: u32 = 16 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// Memory of a connection besides its calls and streams: one half for the window, the other half for the buffers of HTTP/2
/// in both directions, partial headers, tables, and the task.
pub(crate) const CONNECTION_BYTES: usize = 128 * 1024;

/// Additional memory with TLS: bytes not yet decrypted or not yet sent.
pub(crate) const TLS_BYTES: usize = 128 * 1024;

/// Limits of resets: calls that a client reset before they were accepted, resets caused by protocol violations, and ended
/// calls that are remembered for frames in transit. Beyond either of the first two, the connection is closed with
/// `ENHANCE_YOUR_CALM`, so that rapid resets cost the client more than the server.
const RESETS_PENDING_MAX: usize = 20;
const RESETS_FORCED_MAX: usize = 100;
const RESETS_REMEMBERED_MAX: usize = 50;
const RESET_REMEMBERED: Duration = Duration::from_secs(1);

/// Interval of keepalive pings, and timeout of the reply. A client may be suspended for less than this without losing its
/// stream.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit for the HTTP/2 preface and the first admitted call, so that idle clients do not occupy connections.
const FIRST_CALL_WITHIN: Duration = Duration::from_secs(15);

/// Time for a client to close its connection after its last call during a drain. Closing it here first could destroy data in
/// transit: a kernel responds to data on a closed connection with a reset.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Time limit for an HTTP/2 connection to end after GOAWAY. By then, its calls have ended, and all of their data is in the
/// kernel unless the client has stopped reading. Such a client receives no `Goodbye`, which it can detect.
const GOAWAY_GRACE: Duration = Duration::from_millis(500);

/// A connection before it is served.
pub(super) struct GrpcConnection {
    pub(super) routes: Routes,
    pub(super) limits: ConnectionLimits,
    pub(super) activity: Arc<Activity>,
    /// Tracks its calls, for the drain.
    pub(super) tasks: TaskTracker,
    pub(super) stopping: CancellationToken,
}

impl GrpcConnection {
    /// Serves `stream` until the client closes it, or until its calls have ended during a drain.
    pub(super) async fn run(self, stream: impl ByteStream) {
        if let Err(error) = self.serve(stream).await {
            tracing::debug!(%error, "gRPC connection ended");
        }
    }

    async fn serve(mut self, stream: impl ByteStream) -> anyhow::Result<()> {
        let (activity, stopping) = (Arc::clone(&self.activity), self.stopping.clone());
        let mut closing = pin!(async {
            stopping.cancelled().await;
            activity.wait_idle().await;
            sleep(CLOSE_GRACE).await;
        });
        let mut first_call = pin!(sleep(FIRST_CALL_WITHIN));
        let mut connection = tokio::select! {
            biased;
            connection = settings().handshake::<_, Data>(stream) => connection?,
            () = &mut closing => return Ok(()),
            () = &mut first_call => bail!("no call received in time"),
        };
        let mut keep_alive = pin!(keep_alive(connection.ping_pong()));
        let close = CancellationToken::new();
        let mut closed = pin!(close.clone().cancelled_owned());
        let mut end = pin!(sleep(Duration::MAX));
        let (mut is_used, mut is_ending) = (false, false);
        loop {
            tokio::select! {
                biased;
                call = connection.accept() => match call {
                    Some(call) => {
                        let (request, respond) = call?;
                        is_used |= self.accept(request, respond, &close);
                        if self.limits.refused >= REFUSED_MAX && !is_ending {
                            is_ending = true;
                            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                            end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                        }
                    }
                    None => return Ok(()),
                },
                () = &mut closed => bail!("connection did not release its in-flight bytes after a stream was closed"),
                Err(error) = &mut keep_alive => return Err(error),
                () = &mut first_call, if !is_used && !is_ending => {
                    // GOAWAY makes a client send further calls on another connection.
                    is_ending = true;
                    connection.graceful_shutdown();
                    end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                }
                () = &mut closing, if !is_ending => {
                    is_ending = true;
                    connection.graceful_shutdown();
                    end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                }
                () = &mut end => bail!("connection did not close in time"),
            }
        }
    }

    /// Spawns the task of a call; false if the call is rejected.
    fn accept(
        &mut self,
        request: Request<RecvStream>,
        respond: server::SendResponse<Data>,
        close: &CancellationToken,
    ) -> bool {
        let grant = match self.limits.admit(&request, Instant::now()) {
            Ok(grant) => grant,
            Err(status) => {
                call::reject(respond, status);
                return false;
            }
        };
        let in_progress = self.activity.long_request();
        let context = CallContext {
            routes: self.routes.clone(),
            stopping: self.stopping.clone(),
            close: close.clone(),
        };
        let mut request = call::strip_headers(request);
        let network = addresses::network(self.limits.peer);
        request.extensions_mut().insert(Peer(network));
        let running = call::run(request, respond, context, grant, in_progress);
        self.tasks.spawn(running);
        true
    }
}

fn settings() -> server::Builder {
    let mut settings = server::Builder::new();
    settings
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_concurrent_streams(CALLS_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(Some(RESETS_FORCED_MAX))
        .max_concurrent_reset_streams(RESETS_REMEMBERED_MAX)
        .reset_stream_duration(RESET_REMEMBERED)
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    settings
}

/// Pings the client, and fails when a reply is late.
async fn keep_alive(pings: Option<PingPong>) -> anyhow::Result<Infallible> {
    let Some(mut pings) = pings else {
        unreachable!("the pings of a connection are taken once");
    };
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        let pong = timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await;
        pong.context("keepalive timeout")??;
    }
}

#[cfg(test)]
mod tests;
