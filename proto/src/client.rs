//! How our own readers open a stream: one connection each, fixed windows, large frames, messages kept as
//! bytes.

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

/// Time allowed for a TCP connection to be established.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long nothing may arrive before the connection is asked for a sign of life, and how long that may take.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint with the windows, frame size and keep-alive that a reader of this contract needs.
///
/// Connect it once for each stream: stalled HTTP/2 streams on one connection starve the others.
///
/// # Errors
/// When `uri` is not a URI with scheme and host.
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

/// Opens a `Subscribe` stream whose messages stay bytes, for [`StreamMessage::decode`](crate::wire::StreamMessage::decode).
///
/// # Errors
/// What the producer, or the way to it, answers.
pub async fn subscribe(
    channel: Channel,
    request: impl IntoRequest<v1::SubscribeRequest>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    open(channel, request.into_request(), SUBSCRIBE).await
}

/// Opens a `GetCookies` stream whose messages stay bytes, for [`decode_cookie`](crate::wire::decode_cookie).
///
/// # Errors
/// What the producer, or the way to it, answers.
pub async fn get_cookies(
    channel: Channel,
    request: impl IntoRequest<v1::GetCookiesRequest>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    open(channel, request.into_request(), GET_COOKIES).await
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

/// Passes messages through as bytes, in both directions.
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

    /// Splits the message off the receive buffer; the bytes are not copied.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
