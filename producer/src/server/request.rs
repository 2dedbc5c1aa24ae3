//! Reads the request of a streaming call: one message, bounded in size and time.

use std::{future::poll_fn, pin::Pin, time::Duration};

use http::Request;
use http_body::Body as _;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use proto::limits::{CURSORS_MAX, REQUEST_BYTES_MAX};
use tokio::time::timeout;
use tonic::{Status, body::Body};

/// Time limit for a client to send its request message.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Field number of the cursors in a request.
const CURSORS: u32 = 2;

/// Size of the message prefix: compression flag and length.
const PREFIX_BYTES: usize = 5;

/// Reads the single message of a server-streaming call, up to the end of the request, because unread data would stay in
/// memory until the stream ends.
///
/// Unlike the reader of tonic, it allocates only for data that has arrived.
pub(super) async fn read_request<M: Message + Default>(
    request: Request<Body>,
) -> Result<M, Status> {
    let bytes = timeout(REQUEST_TIMEOUT, read_message(request.into_body()))
        .await
        .map_err(|_| Status::deadline_exceeded("request message not received in time"))??;
    let malformed = |error| Status::invalid_argument(format!("malformed request: {error}"));
    if cursors(&bytes).map_err(malformed)? > CURSORS_MAX {
        let message = format!("too many cursors; the maximum is {CURSORS_MAX}");
        return Err(Status::invalid_argument(message));
    }
    M::decode(&*bytes).map_err(malformed)
}

/// Counts the cursors of a request, its only repeated field. Checked before decoding, because a decoded empty cursor takes
/// twenty times its encoded size.
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
    let invalid = |message: &str| Err(Status::invalid_argument(message));
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Trailers are ignored.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > message_end(&bytes)? {
            return invalid("the request has more than one message");
        }
    }
    if bytes.is_empty() {
        return invalid("the request has no message");
    }
    if bytes.len() < message_end(&bytes)? {
        return invalid("the request message is incomplete");
    }
    bytes.drain(..PREFIX_BYTES);
    Ok(bytes)
}

/// End of the message that begins with `bytes`, or of its prefix while that is incomplete.
fn message_end(bytes: &[u8]) -> Result<usize, Status> {
    let Some(&[compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES);
    };
    if compressed != 0 {
        return Err(Status::unimplemented(
            "compressed request messages are not supported",
        ));
    }
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length <= REQUEST_BYTES_MAX => Ok(PREFIX_BYTES + length),
        _ => Err(Status::out_of_range(format!(
            "the request message is longer than {REQUEST_BYTES_MAX} bytes"
        ))),
    }
}
