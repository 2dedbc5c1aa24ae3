//! The request of a streaming call: one message, bounded in size and time, and the name in it.

use std::{future::poll_fn, pin::Pin, time::Duration};

use http::Request;
use http_body::Body as _;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use proto::{
    ids::{self, Illegal},
    limits::{CURSORS_MAX, REQUEST_BYTES_MAX, SUBSCRIBER_NAME_BYTES_MAX},
    v1::{GetCookiesRequest, SubscribeRequest},
};
use tokio::time::timeout;
use tonic::{Status, body::Body};

/// How long a client may take to send the message of its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes before a message: the compression flag and the length.
const PREFIX_BYTES: usize = 5;

/// A request of which it is known how many entries its repeated fields may have: decoded, an empty cursor takes twenty times
/// its encoded bytes.
pub(super) trait Bounded: Message + Default {
    /// All its repeated fields.
    const REPEATED: &'static [Repeated];
}

/// A repeated field.
pub(super) struct Repeated {
    number: u32,
    /// What it holds, in the plural.
    name: &'static str,
    entries_max: usize,
}

impl Bounded for SubscribeRequest {
    const REPEATED: &'static [Repeated] = &[Repeated {
        number: 2,
        name: "cursors",
        entries_max: CURSORS_MAX,
    }];
}

impl Bounded for GetCookiesRequest {
    const REPEATED: &'static [Repeated] = &[];
}

impl Repeated {
    /// How many entries of it a request has.
    fn entries(&self, mut message: &[u8]) -> Result<usize, DecodeError> {
        let mut entries = 0;
        while !message.is_empty() {
            let (number, kind) = decode_key(&mut message)?;
            skip_field(kind, number, &mut message, DecodeContext::default())?;
            entries += usize::from(number == self.number);
        }
        Ok(entries)
    }
}

/// Reads the one message of a server-streaming call, to the end of the request: anything left unread would stay in
/// memory for as long as the stream.
///
/// tonic's reader would allocate a buffer before anything has arrived, and then the full length that the client
/// announces.
pub(super) async fn read_request<M: Bounded>(request: Request<Body>) -> Result<M, Status> {
    let bytes = timeout(REQUEST_TIMEOUT, read_message(request.into_body()))
        .await
        .map_err(|_| Status::deadline_exceeded("the request's message did not come"))??;
    let malformed = |error| Status::invalid_argument(format!("malformed request: {error}"));
    for repeated in M::REPEATED {
        if repeated.entries(&bytes).map_err(malformed)? > repeated.entries_max {
            let (most, name) = (repeated.entries_max, repeated.name);
            return Err(Status::invalid_argument(format!("more than {most} {name}")));
        }
    }
    M::decode(&*bytes).map_err(malformed)
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
            Illegal::Empty => format!("{field} is empty"),
            Illegal::TooLong => format!("{field} is longer than {SUBSCRIBER_NAME_BYTES_MAX} bytes"),
            Illegal::Character => format!("{field} holds a control character"),
        })
    })
}
