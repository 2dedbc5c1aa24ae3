//! HTTP/1.1 on the lookup port: `POST /v1/lookup` and `GET /v1/users/<user id>`.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use httparse::Header;
use runtime::{
    http1::{
        self, CLOSE, DateHeader, Handled, Next, OpenResponse, ReadContext, Requests,
        YIELD_REQUESTS_MAX,
        head::{self, HEAD_BYTES_MAX, HeadError},
    },
    listen::{Activity, ByteStream},
    problem::Problem,
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    answer::JsonUsers,
    metrics::Api,
    port::{self, LookupPort, SMALL_ANSWER_BYTES, label_of},
    request::{BODY_BYTES_MAX, BatchRequest, Rejection},
    user::{self, put_numbers},
};

/// The path of batches.
const BATCH_PATH: &str = "/v1/lookup";

/// Answers are written when they reach this size, before further requests are handled.
const WRITE_BYTES: usize = 32 << 10;

/// A request with its response counts as one for each of so many bytes.
const REQUEST_BYTES: usize = 1 << 10;

/// Usual maximum of the body for one user.
const USER_BODY_BYTES: usize = 1 << 10;

/// Serves requests until the client closes the connection or `stop` is cancelled. `input` was read before.
pub(super) async fn serve(
    port: Arc<LookupPort>,
    stream: impl ByteStream,
    input: Vec<u8>,
    activity: &Arc<Activity>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let connection = Connection {
        port,
        accepted_host: None,
        date: DateHeader::default(),
        receiving: None,
        unread: None,
    };
    http1::serve(connection, stream, input, activity, stop).await
}

/// The state of one connection between reads.
struct Connection {
    port: Arc<LookupPort>,
    /// The last accepted host, so that it need not be parsed again.
    accepted_host: Option<Vec<u8>>,
    date: DateHeader,
    /// Permit of a request whose body is incomplete.
    receiving: Option<OwnedSemaphorePermit>,
    /// Permit of large answers that are being written.
    unread: Option<OwnedSemaphorePermit>,
}

/// A request that can be answered.
enum Request<'a> {
    Batch(&'a [u8]),
    User { encoded: &'a str, query: &'a str },
}

/// The first request in the input.
struct Received<'a> {
    request: Result<Request<'a>, Problem>,
    consumed: usize,
    is_head: bool,
    close: bool,
}

impl Requests for Connection {
    const INPUT_BYTES_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES_MAX;

    async fn handle(
        &mut self,
        input: &[u8],
        context: &ReadContext<'_>,
        output: &mut Vec<u8>,
    ) -> anyhow::Result<Handled> {
        let (mut consumed, mut requests, mut next) = (0, 0, Next::Read);
        while next == Next::Read && consumed < input.len() {
            let Some(received) = self.receive(&input[consumed..]) else {
                break;
            };
            context.activity.request();
            consumed += received.consumed;
            let is_last = consumed == input.len();
            let close = received.close || (context.is_stopping && is_last);
            let is_head = received.is_head;
            let (request_bytes, start) = (received.consumed, output.len());
            // Later requests of the same read have waited for the first one.
            let read_at = if output.is_empty() {
                context.read_at
            } else {
                std::time::Instant::now()
            };
            self.respond(received.request, is_head, close, read_at, output)
                .await;
            // Large requests count as several, so that a busy connection yields to others.
            let bytes = request_bytes + output.len() - start;
            requests += 1 + (bytes / REQUEST_BYTES) as u64;
            if close {
                next = Next::Close;
            } else if output.len() >= WRITE_BYTES || requests >= YIELD_REQUESTS_MAX {
                next = Next::Respond;
            }
        }
        Ok(Handled {
            consumed,
            requests,
            next,
        })
    }

    fn written(&mut self) {
        self.unread = None;
    }
}

impl Connection {
    /// The first request, when it is complete or can be rejected.
    fn receive<'a>(&mut self, input: &'a [u8]) -> Option<Received<'a>> {
        let mut storage = head::headers();
        let rejected = |problem, is_head| Received {
            request: Err(problem),
            consumed: input.len(),
            is_head,
            close: true,
        };
        let (head, headers) = match head::parse(input, &mut storage) {
            Ok(None) => return None,
            Ok(Some(parsed)) => parsed,
            Err(HeadError::Malformed) => {
                let problem = Problem::new(port::INVALID, "not an HTTP/1 request");
                return Some(rejected(problem, false));
            }
            Err(HeadError::TooLarge) => {
                let problem = Problem::new(port::HEADERS, "request headers too large");
                return Some(rejected(problem, false));
            }
        };
        let is_head = head.method == "HEAD";
        if let Err(problem) = self.admit(headers) {
            return Some(rejected(problem, is_head));
        }
        let body = &input[head.length..];
        let body = match head.body {
            None => {
                let detail = "send the length of the body in Content-Length, and do not use Expect";
                return Some(rejected(Problem::new(port::LENGTH, detail), is_head));
            }
            Some(BODY_BYTES_MAX..) if head.body > Some(BODY_BYTES_MAX) => {
                let detail = format!("the body is longer than {BODY_BYTES_MAX} bytes");
                return Some(rejected(Problem::new(port::TOO_LARGE, detail), is_head));
            }
            Some(length) if length > body.len() => {
                if self.receiving.is_none() {
                    match self.port.begin() {
                        Ok(permit) => self.receiving = Some(permit),
                        Err(busy) => return Some(rejected(busy.problem(), is_head)),
                    }
                }
                return None;
            }
            Some(length) => &body[..length],
        };
        let user = head.path.strip_prefix(user::PREFIX);
        // A slash in a user id is encoded.
        let user = user.filter(|encoded| !encoded.contains('/'));
        let request = match (head.method, head.path, user) {
            ("POST", BATCH_PATH, _) => Ok(Request::Batch(body)),
            ("GET" | "HEAD", _, Some(encoded)) => Ok(Request::User {
                encoded,
                query: head.query,
            }),
            (_, BATCH_PATH, _) => Err(method("POST")),
            (_, _, Some(_)) => Err(method("GET, HEAD")),
            _ => {
                let detail = "unknown path; use POST /v1/lookup or GET /v1/users/ID";
                Err(Problem::new(port::NOT_FOUND, detail))
            }
        };
        Some(Received {
            request,
            consumed: head.length + body.len(),
            is_head,
            close: head.close,
        })
    }

    /// Checks the host and the token.
    fn admit(&mut self, headers: &[Header<'_>]) -> Result<(), Problem> {
        let (mut host, mut authorization, mut is_known) = (None, None, true);
        for header in headers {
            if header.name.eq_ignore_ascii_case("host") {
                if host.is_some() {
                    return Err(Problem::new(port::INVALID, "more than one Host header"));
                }
                host = Some(header.value);
            } else if header.name.eq_ignore_ascii_case("authorization") {
                authorization = authorization.or(Some(header.value));
            } else if header.name.eq_ignore_ascii_case("sec-fetch-site") {
                is_known = false;
            }
        }
        is_known &= host.is_some() && host == self.accepted_host.as_deref();
        if is_known || !self.port.requires_loopback_host() {
            return self.port.authenticate(authorization);
        }
        let names = headers.iter().filter_map(|header| {
            let name = HeaderName::try_from(header.name).ok()?;
            let is_needed =
                name == header::HOST || name == header::AUTHORIZATION || name == "sec-fetch-site";
            is_needed.then_some((name, HeaderValue::from_bytes(header.value).ok()?))
        });
        let map: HeaderMap = names.collect();
        self.port.admit(&map, &Uri::default())?;
        self.accepted_host = host.map(<[u8]>::to_vec);
        Ok(())
    }

    async fn respond(
        &mut self,
        request: Result<Request<'_>, Problem>,
        is_head: bool,
        close: bool,
        read_at: std::time::Instant,
        output: &mut Vec<u8>,
    ) {
        let received = Instant::from_std(read_at);
        let start = output.len();
        let permit = self.receiving.take();
        let outcome = match request {
            Err(problem) => Err((problem.reply(), label_of(problem.kind.status))),
            Ok(Request::Batch(body)) => {
                let answered = self
                    .answer_batch(body, received, permit, close, output)
                    .await;
                answered.map_err(|rejection| (rejection.problem().reply(), rejection.label()))
            }
            Ok(Request::User { encoded, query }) => {
                let mut body = Vec::with_capacity(USER_BODY_BYTES);
                let begin = || permit.map_or_else(|| self.port.begin(), Ok).map(Some);
                let answered =
                    user::answer(&self.port.lookups, encoded, query, begin, &mut body).await;
                answered
                    .map(|status| {
                        let open = self.begin(status, close, read_at, output);
                        output.extend_from_slice(&body);
                        open.end(is_head, output);
                        "ok"
                    })
                    .map_err(|rejection| (user::refused(&rejection), rejection.label()))
            }
        };
        let charged = self.charge(output);
        let refused = match (outcome, charged) {
            (Ok(label), Ok(())) => Ok(label),
            (Ok(_), Err(busy)) => Err((busy.problem().reply(), busy.label())),
            (refused, _) => refused,
        };
        let label = match refused {
            Ok(label) => label,
            Err((reply, label)) => {
                output.truncate(start);
                output.shrink_to(WRITE_BYTES);
                let date = self.date.line(read_at);
                http1::encode(reply, is_head, close, date, output);
                label
            }
        };
        self.port.count(Api::Http, label, received);
    }

    /// Writes the answer to a batch.
    async fn answer_batch(
        &mut self,
        body: &[u8],
        received: Instant,
        permit: Option<OwnedSemaphorePermit>,
        close: bool,
        output: &mut Vec<u8>,
    ) -> Result<&'static str, Rejection> {
        let request = BatchRequest::parse(body)?;
        let port = Arc::clone(&self.port);
        let result = port.read(&request, received, permit).await?;
        let is_complete = result.is_complete(&request);
        let open = self.begin(StatusCode::OK, close, received.into_std(), output);
        let complete: &[u8] = match is_complete {
            true => b"{\"complete\":true,\"users\":[",
            false => b"{\"complete\":false,\"users\":[",
        };
        output.extend_from_slice(complete);
        port.write(&request, &result, &mut JsonUsers::new(output))
            .await;
        output.extend_from_slice(b"],\"unavailable\":");
        put_numbers(output, result.unavailable().iter().map(|it| it.0));
        output.extend_from_slice(b"}\n");
        open.end(false, output);
        Ok(if is_complete { "ok" } else { "partial" })
    }

    /// Counts the answers in the buffer as unread, if they are large.
    fn charge(&mut self, output: &mut Vec<u8>) -> Result<(), Rejection> {
        if output.len() > SMALL_ANSWER_BYTES {
            if output.capacity() > 2 * WRITE_BYTES {
                output.shrink_to_fit();
            }
            // That of earlier answers in the same buffer is part of the new one.
            self.unread = None;
            self.unread = Some(self.port.charge(output.capacity())?);
        }
        Ok(())
    }

    /// Begins a response with a body of JSON, whose length follows.
    fn begin(
        &mut self,
        status: StatusCode,
        close: bool,
        now: std::time::Instant,
        output: &mut Vec<u8>,
    ) -> OpenResponse {
        let lines = [
            "content-type: application/json\r\ncache-control: no-store\r\n",
            if close { CLOSE } else { "" },
            self.date.line(now),
        ];
        OpenResponse::begin(status, &lines, output)
    }
}

fn method(allowed: &'static str) -> Problem {
    let mut problem = Problem::new(port::METHOD, format!("use {allowed}"));
    let allowed = HeaderValue::from_static(allowed);
    problem.headers.insert(header::ALLOW, allowed);
    problem
}
