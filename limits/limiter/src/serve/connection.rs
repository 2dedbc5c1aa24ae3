//! One HTTP/1.1 connection, which [`http1`] serves: its requests are answered one after the other.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use httparse::Header;
use runtime::{
    http1::{
        self, CLOSE, DateHeader, Handled, Next, OpenResponse, ReadContext, Requests,
        head::{self, HEAD_BYTES_MAX, Head, HeadError},
    },
    listen::{Activity, ByteStream},
};
use tokio_util::sync::CancellationToken;

use super::{
    problem::{LENGTH, Problem, TOO_LARGE, invalid},
    response::{Answer, HEADERS},
    service::Service,
};

/// Maximum bytes of a request body.
const BODY_BYTES_MAX: usize = 8 << 10;

/// A request counts as so many before the task yields to other connections, because each response is written alone.
const REQUEST_WEIGHT: u64 = 8;

/// A response counts as one more for each of so many bytes.
const RESPONSE_BYTES: usize = 512;

/// Serves requests until the client closes the connection or `stop` is cancelled.
pub(super) async fn serve(
    service: Arc<Service>,
    stream: impl ByteStream,
    activity: Arc<Activity>,
    stop: CancellationToken,
) {
    let connection = Connection {
        service,
        date: DateHeader::default(),
        stop: stop.clone(),
    };
    if let Err(error) = http1::serve(connection, stream, Vec::new(), &activity, &stop).await {
        tracing::debug!(%error, "connection ended");
    }
}

struct Connection {
    service: Arc<Service>,
    date: DateHeader,
    /// Ends waiting reservations.
    stop: CancellationToken,
}

impl Requests for Connection {
    const INPUT_BYTES_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES_MAX;
    const END_WITH_CLIENT: bool = true;

    async fn handle(
        &mut self,
        input: &[u8],
        context: &ReadContext<'_>,
        output: &mut Vec<u8>,
    ) -> anyhow::Result<Handled> {
        let (answer, consumed, is_head, must_close) = match receive(input) {
            Ok(None) => return Ok(Handled::INCOMPLETE),
            Ok(Some(request)) => {
                let _in_progress = context.activity.long_request();
                let answer = self.service.http(&request, &self.stop).await;
                let Request { head, body, .. } = request;
                let consumed = head.length + body.len();
                (answer, consumed, head.method == "HEAD", head.close)
            }
            Err(problem) => {
                context.activity.request();
                let answer = self.service.refuse(&problem);
                (answer, input.len(), false, true)
            }
        };
        let is_last = consumed == input.len();
        let close = must_close || (is_last && self.stop.is_cancelled());
        let date = self.date.line(std::time::Instant::now());
        match answer {
            Answer::Call(answer) => {
                let close = if close { CLOSE } else { "" };
                let lines = [HEADERS, close, date, &answer.quota];
                let open = OpenResponse::begin(StatusCode::OK, &lines, output);
                serde_json::to_writer(&mut *output, &answer.body)?;
                output.push(b'\n');
                open.end(is_head, output);
            }
            Answer::Other(reply) => http1::encode(reply, is_head, close, date, output),
        }
        let next = match (close, is_last) {
            (true, _) => Next::Close,
            (false, true) => Next::Read,
            (false, false) => Next::Respond,
        };
        let requests = REQUEST_WEIGHT + (output.len() / RESPONSE_BYTES) as u64;
        Ok(Handled {
            consumed,
            requests,
            next,
        })
    }
}

/// A request.
pub(super) struct Request<'a> {
    pub(super) head: Head<'a>,
    /// The [read](HEADERS_READ) headers.
    pub(super) headers: HeaderMap,
    pub(super) body: &'a [u8],
}

/// The headers that requests may need.
static HEADERS_READ: [HeaderName; 5] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::ORIGIN,
    HeaderName::from_static("sec-fetch-site"),
];

/// The first request in the input; `None` if it is incomplete.
///
/// # Errors
/// When it cannot be read, so that the connection must be closed.
fn receive(input: &[u8]) -> Result<Option<Request<'_>>, Problem> {
    let mut storage = head::headers();
    let parsed = head::parse(input, &mut storage).map_err(|error| match error {
        HeadError::Malformed => invalid("not an HTTP/1 request"),
        HeadError::TooLarge => Problem::new(TOO_LARGE, ""),
    })?;
    let Some((head, sent)) = parsed else {
        return Ok(None);
    };
    let length = head.body.ok_or_else(|| Problem::new(LENGTH, ""))?;
    if length > BODY_BYTES_MAX {
        return Err(Problem::new(TOO_LARGE, ""));
    }
    let Some(body) = input.get(head.length..head.length + length) else {
        return Ok(None);
    };
    let mut headers = HeaderMap::with_capacity(HEADERS_READ.len());
    for Header { name, value } in sent {
        let is_same = |read: &&HeaderName| read.as_str().eq_ignore_ascii_case(name);
        let name = HEADERS_READ.iter().find(is_same);
        if let (Some(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name.clone(), value);
        }
    }
    Ok(Some(Request {
        head,
        headers,
        body,
    }))
}
