//! The request of a streaming call: one message, bounded in size and time, and the name in it.

use std::{future::poll_fn, pin::Pin, time::Duration};

use http::Request;
use http_body::Body as _;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use proto::{
    ids::{self, InvalidId},
    limits::{CURSORS_MAX, REQUEST_BYTES_MAX, SUBSCRIBER_NAME_BYTES_MAX},
};
use tokio::time::timeout;
use tonic::{Status, body::Body};

/// How long a client may take to send the message of its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The field of a request's cursors.
const CURSORS: u32 = 2;

/// Bytes before a message: the compression flag and the length.
const PREFIX_BYTES: usize = 5;

/// Reads the one message of a server-streaming call, to the end of the request: anything left unread would stay in
/// memory for as long as the stream.
///
/// tonic's reader would allocate a buffer before anything has arrived, and then the full length that the client
/// announces.
pub(super) async fn read_request<M: Message + Default>(
    request: Request<Body>,
) -> Result<M, Status> {
    let bytes = timeout(REQUEST_TIMEOUT, read_message(request.into_body()))
        .await
        .map_err(|_| Status::deadline_exceeded("the request's message did not come"))??;
    let malformed = |error| Status::invalid_argument(format!("malformed request: {error}"));
    if cursors(&bytes).map_err(malformed)? > CURSORS_MAX {
        let message = format!("more than {CURSORS_MAX} cursors");
        return Err(Status::invalid_argument(message));
    }
    M::decode(&*bytes).map_err(malformed)
}

/// How many cursors a request has, the only repeated field of all requests: decoded, an empty one takes twenty times its
/// encoded bytes.
fn cursors(mut message: &[u8]) -> Result<usize, DecodeError> {
    let mut cursors = 0;
    while !message.is_empty() {
        let (number, kind) = decode_key(&mut message)?;
        skip_field(kind, number, &mut message, DecodeContext::default())?;
        cursors += usize::from(number == CURSORS);
    }
    Ok(cursors)
}

async fn read_message(mut body: Body) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Trailers are ignored.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > message_end(&bytes)? {
            return Err(Status::invalid_argument(
                "the request has more than one message",
            ));
        }
    }
    if bytes.is_empty() {
        return Err(Status::invalid_argument("the request has no message"));
    }
    if bytes.len() < message_end(&bytes)? {
        return Err(Status::invalid_argument(
            "the request's message is not whole",
        ));
    }
    bytes.drain(..PREFIX_BYTES);
    Ok(bytes)
}

/// The end of the message that begins with `bytes`; the end of its prefix while that is incomplete.
fn message_end(bytes: &[u8]) -> Result<usize, Status> {
    let Some(&[compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES);
    };
    if compressed != 0 {
        return Err(Status::unimplemented("the request's message is compressed"));
    }
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length <= REQUEST_BYTES_MAX => Ok(PREFIX_BYTES + length),
        _ => Err(Status::out_of_range(format!(
            "the request's message is longer than {REQUEST_BYTES_MAX} bytes"
        ))),
    }
}

/// Checks the name of a queue, which is in the request's field `field`.
pub(super) fn check_name(name: &str, field: &str) -> Result<(), Status> {
    ids::check_name(name).map_err(|illegal| {
        Status::invalid_argument(match illegal {
            InvalidId::Empty => format!("{field} is empty"),
            InvalidId::TooLong => {
                format!("{field} is longer than {SUBSCRIBER_NAME_BYTES_MAX} bytes")
            }
            InvalidId::Character => format!("{field} holds a control character"),
        })
    })
}
