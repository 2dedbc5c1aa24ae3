//! One HTTP/2 connection: its calls, its keep-alive pings, and its orderly end.
//!
//! This uses h2 directly. hyper would take a message out of the log before HTTP/2 has capacity for it, and would not
//! poll a stalled response until it has: such a stream could be ended neither by a status nor by a reset, and its
//! in-flight bytes could not be counted.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use h2::{Ping, PingPong, Reason, RecvStream, server};
use http::Request;
use runtime::listen::{Activity, ByteStream, addresses};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;

use super::{
    call::{self, CallContext},
    call_rates::ConnectionLimits,
    pipe::Data,
};
use crate::streams::Peer;

/// A stream with this many bytes in its send buffer takes no further chunk from the log; enough for the kernel never to
/// wait. A stream whose client has closed its window has two chunks in flight: one of which a part was sent, and one that
/// waits. One whose client's kernel accepts nothing more has these bytes in flight, one chunk that exceeds them, one that
/// is half written, and one that waits: 448 KiB at the default chunk size, or 44 MiB for a hundred such streams.
pub(crate) const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Most calls at once on one connection.
const CALLS_MAX: u32 = 64;

/// Most bytes of a request's headers, and the receive windows: the largest request is read in steps. HTTP/2 starts
/// every connection with a window of 65,535 bytes, before a smaller one can be set.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
const STREAM_WINDOW_BYTES: u32 = 16 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// What a connection may hold besides its calls and streams: the window, and as much again for HTTP/2's buffers in both
/// directions, the headers that it is reading, its tables, and its task.
pub(crate) const CONNECTION_BYTES: usize = 128 * 1024;

/// What TLS may hold in addition: bytes not yet decrypted or not yet sent.
pub(crate) const TLS_BYTES: usize = 128 * 1024;

/// Limits on resets: calls that a client has reset before they were accepted, resets that it has forced by breaking the
/// protocol, and ended calls that are remembered for frames still on their way. Beyond either of the first two, the
/// connection is closed with `ENHANCE_YOUR_CALM`: endless opening and resetting costs a client more than this server.
const RESETS_PENDING_MAX: usize = 20;
const RESETS_FORCED_MAX: usize = 100;
const RESETS_REMEMBERED_MAX: usize = 50;
const RESET_REMEMBERED: Duration = Duration::from_secs(1);

/// How often a connection is pinged, and how long the answer may take: longer than a reader may be suspended and still
/// find its stream.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a client may take for the HTTP/2 preface and its first admitted call: others may need the connection slot.
const FIRST_CALL_WITHIN: Duration = Duration::from_secs(15);

/// How long a client may take to close its connection after its last call when the producer drains. Closing it first
/// could destroy what is still on its way to the client: a kernel answers data on a closed connection with a reset.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long an HTTP/2 connection may take to end after it was told to. Its calls are over by then, and everything they
/// sent is in the kernel unless the client has stopped reading; such a client gets no `Goodbye`, and can tell.
const GOAWAY_GRACE: Duration = Duration::from_millis(500);

/// What a connection needs to answer calls.
pub(super) struct Connection {
    pub(super) routes: Routes,
    pub(super) limits: ConnectionLimits,
    pub(super) activity: Arc<Activity>,
    /// Runs its calls; the drain waits for them.
    pub(super) tasks: TaskTracker,
    pub(super) stopping: CancellationToken,
}

/// Why a connection ended before its client closed it.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Broken(#[from] h2::Error),
    #[error("keepalive timeout")]
    Silent,
    #[error("it asked for nothing")]
    Unused,
    #[error("it did not end in time")]
    Late,
    #[error("connection did not release its bytes after a stream was disconnected")]
    Stuck,
}

impl Connection {
    /// Serves `stream` until the client closes it, or its calls are over and the producer drains.
    pub(super) async fn run(self, stream: impl ByteStream) {
        if let Err(error) = self.serve(stream).await {
            tracing::debug!(%error, "gRPC connection ended");
        }
    }

    async fn serve(mut self, stream: impl ByteStream) -> Result<(), ConnectionError> {
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
            () = &mut first_call => return Err(ConnectionError::Unused),
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
                        if self.limits.is_abused() && !is_ending {
                            is_ending = true;
                            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                            end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                        }
                    }
                    None => return Ok(()),
                },
                () = &mut closed => return Err(ConnectionError::Stuck),
                Err(error) = &mut keep_alive => return Err(error),
                () = &mut first_call, if !is_used && !is_ending => {
                    // GOAWAY tells a client that calls at this moment to use another connection.
                    is_ending = true;
                    connection.graceful_shutdown();
                    end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                }
                () = &mut closing, if !is_ending => {
                    is_ending = true;
                    connection.graceful_shutdown();
                    end.as_mut().reset(Instant::now() + GOAWAY_GRACE);
                }
                () = &mut end => return Err(ConnectionError::Late),
            }
        }
    }

    /// Spawns the task that answers a call; false when the call is refused.
    fn accept(
        &mut self,
        request: Request<RecvStream>,
        respond: server::SendResponse<Data>,
        close: &CancellationToken,
    ) -> bool {
        let grant = match self.limits.admit(&request, Instant::now()) {
            Ok(grant) => grant,
            Err(status) => {
                call::refuse(respond, status);
                return false;
            }
        };
        let in_progress = self.activity.long_request();
        let context = CallContext {
            routes: self.routes.clone(),
            share: self.limits.share(),
            stopping: self.stopping.clone(),
            close: close.clone(),
        };
        let mut request = call::bare(request);
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

/// Pings the client for as long as its answers come in time.
async fn keep_alive(pings: Option<PingPong>) -> Result<Infallible, ConnectionError> {
    let Some(mut pings) = pings else {
        unreachable!("nobody else has taken this connection's pings");
    };
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        match timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(ConnectionError::Broken(error)),
            Err(_) => return Err(ConnectionError::Silent),
        }
    }
}

#[cfg(test)]
mod tests;
