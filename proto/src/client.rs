//! Opens streams: one connection per stream, fixed windows, large frames, undecoded messages.

use std::time::Duration;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::{
    IntoRequest, Request, Response, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::{Channel, Endpoint},
};

use crate::{limits, v1};

const SUBSCRIBE: &str = "/cookiesync.v1.CookieStreamer/Subscribe";
const GET_COOKIES: &str = "/cookiesync.v1.CookieStreamer/GetCookies";

/// Timeout for establishing a TCP connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time before an HTTP/2 ping, and the timeout for its acknowledgement.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint with the windows, frame size and keep-alive that a client needs.
///
/// Connect once per stream: a stalled HTTP/2 stream starves the others on its connection.
///
/// # Errors
/// If `uri` is not a URI with scheme and host.
pub fn endpoint(uri: impl Into<Bytes>) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(uri)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(limits::RECEIVE_WINDOW_BYTES)
        .initial_connection_window_size(limits::RECEIVE_WINDOW_BYTES)
        .max_frame_size(limits::RECEIVE_FRAME_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// Opens a `Subscribe` stream of undecoded messages, for [`StreamMessage::decode`](crate::wire::StreamMessage::decode).
///
/// # Errors
/// The status of the producer, or of the failed connection.
pub async fn subscribe(
    channel: Channel,
    request: impl IntoRequest<v1::SubscribeRequest>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    open(channel, request.into_request(), SUBSCRIBE).await
}

/// Opens a `GetCookies` stream of undecoded messages, for [`decode_record`](crate::wire::decode_record).
///
/// # Errors
/// The status of the producer, or of the failed connection.
pub async fn get_cookies(
    channel: Channel,
    request: impl IntoRequest<v1::GetCookiesRequest>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    open(channel, request.into_request(), GET_COOKIES).await
}

/// Confirms the position up to which a node has stored its records. Returns the producer's clock, in microseconds since the
/// Unix epoch.
///
/// # Errors
/// The producer's status, or `UNAVAILABLE` when it cannot be reached.
pub async fn confirm(
    channel: Channel,
    request: Request<v1::ConfirmRequest>,
) -> Result<u64, Status> {
    let mut client = v1::cookie_streamer_client::CookieStreamerClient::new(channel);
    let confirmed = client.confirm(request).await?;
    Ok(confirmed.into_inner().unix_micros)
}

async fn open(
    channel: Channel,
    request: Request<impl Message + 'static>,
    path: &'static str,
) -> Result<Response<Streaming<Bytes>>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(format!("not connected: {error}")))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let request = request.map(|message| Bytes::from(message.encode_to_vec()));
    grpc.server_streaming(request, path, BytesCodec).await
}

/// A codec that leaves messages as bytes.
#[derive(Debug, Clone, Copy, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    /// Splits the message off the receive buffer without copying.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
