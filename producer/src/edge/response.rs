//! Responses of the edge: maps outcomes to HTTP, and completes the first lines of an [`Answer`].

use std::time::{Duration, SystemTime};

use proto::wire::CookieRef;

use super::{opt_out::Page, sync_page};
use crate::contracts::{
    Contract, RefusedAnswer,
    answer::Answer,
    privacy::Signals,
    redirect::Values,
    rejection::{Cause, Rejection},
};

/// Maximum size of the responses that are written together.
pub(super) const WRITE_BYTES_MAX: usize = 32 * 1024;

/// Outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The cookie is in the log, or its limit queued or dropped it.
    Accepted(Answer),
    /// As `Accepted`, with a header that sets a hint.
    AcceptedWithHint(Answer),
    /// The opt-out page.
    OptOut(Page),
    /// The answer to a request for a sync plan.
    Plan,
    /// The page that runs a sync plan.
    SyncPage,
    /// A browser may send a request of a script.
    Preflight,
    /// Invalid input, or a match that the contract of its DSP does not permit. Without an answer, the status is an error.
    Rejected(Rejection, Option<Answer>),
    /// Unknown path.
    NotFound,
    /// Neither GET nor HEAD.
    MethodNotAllowed,
    /// The request headers are too large.
    HeadTooLarge,
    /// Not HTTP/1.
    Malformed,
}

/// The answer to a rejected request with a valid DSP; `None` for an error status. `format` replaces the answer of the contract.
pub(super) fn answer_to_refused(
    rejection: Rejection,
    contract: &Contract,
    format: Option<Answer>,
) -> Option<Answer> {
    let without_ids = answer_without_ids(contract, format);
    match (rejection, rejection.cause()) {
        // Prebid Server accepts an empty uid, and deletes the match.
        (Rejection::BuyerEmpty, _) => format,
        (Rejection::OptedOut, _) => Some(without_ids),
        (_, Cause::Request) => None,
        (_, Cause::Privacy) if format.is_some() => None,
        (_, Cause::Dsp | Cause::Uid | Cause::Privacy | Cause::Browser) => {
            (contract.refused == RefusedAnswer::Answer).then_some(without_ids)
        }
    }
}

fn answer_without_ids(contract: &Contract, format: Option<Answer>) -> Answer {
    match format.unwrap_or(contract.answer) {
        Answer::Redirect => Answer::None,
        answer => answer,
    }
}

/// Begins the answer to a recorded match.
pub(super) fn begin_answer(
    contract: &Contract,
    format: Option<Answer>,
    cookie: &CookieRef<'_>,
    signals: &Signals<'_>,
    output: &mut Vec<u8>,
) -> Answer {
    let redirects = format.is_none() && contract.answer == Answer::Redirect;
    if let Some(template) = contract.redirect.as_ref().filter(|_| redirects) {
        let start = output.len();
        Answer::Redirect.begin(output);
        output.extend_from_slice(b"location: ");
        let values = Values {
            user_id: cookie.user_id,
            buyer_uid: cookie.buyer_uid,
            return_url: "",
            signals: *signals,
        };
        if template.render(&values, output) {
            output.extend_from_slice(b"\r\n");
            return Answer::Redirect;
        }
        output.truncate(start);
    }
    let answer = answer_without_ids(contract, format);
    answer.begin(output);
    answer
}

/// Adds a header to the answer to a recorded match.
pub(super) fn add_header(answer: Answer, header: &str, output: &mut Vec<u8>) {
    if answer == Answer::Empty {
        // `begin` leaves it to the responses that need no header.
        output.extend_from_slice(
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncache-control: no-store\r\n",
        );
    }
    output.extend_from_slice(header.as_bytes());
}

/// Properties of the request that affect its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseOptions<'a> {
    /// HEAD request: the response has no body, regardless of its `content-length`.
    pub head: bool,
    /// The connection is closed after the response.
    pub close: bool,
    /// The origin whose scripts may read the response.
    pub origin: Option<&'a [u8]>,
    /// The body of the answer to a request for a plan.
    pub body: &'a [u8],
}

impl Outcome {
    /// The body of a response that was begun; `None` if it was not.
    fn begun(self) -> Option<&'static [u8]> {
        match self {
            Self::Accepted(Answer::Empty) | Self::Rejected(_, Some(Answer::Empty)) => None,
            Self::Accepted(answer)
            | Self::AcceptedWithHint(answer)
            | Self::Rejected(_, Some(answer)) => Some(answer.body()),
            Self::OptOut(page) => Some(page.body().as_bytes()),
            Self::SyncPage => Some(sync_page::HTML.as_bytes()),
            Self::Preflight | Self::Plan => Some(b""),
            _ => None,
        }
    }

    /// The outcomes that are neither accepted, nor rejected, nor of the opt-out page.
    pub(super) const OTHERS: [Self; 7] = [
        Self::Preflight,
        Self::Plan,
        Self::SyncPage,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::HeadTooLarge,
        Self::Malformed,
    ];

    /// Label in metrics and log messages.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Accepted(_) | Self::AcceptedWithHint(_) => "accepted",
            Self::OptOut(page) => Page::LABELS[page as usize],
            Self::Rejected(rejection, _) => rejection.label(),
            Self::Preflight => "preflight",
            Self::Plan => "plan",
            Self::SyncPage => "sync_page",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::HeadTooLarge => "headers_too_large",
            Self::Malformed => "malformed",
        }
    }

    /// Whether the request is rejected.
    pub(super) fn is_rejection(self) -> bool {
        !matches!(
            self,
            Self::Accepted(_)
                | Self::AcceptedWithHint(_)
                | Self::OptOut(_)
                | Self::Plan
                | Self::SyncPage
                | Self::Preflight
        )
    }

    /// Whether a connection with almost only such outcomes has a low priority. A browser returns after it got a user id.
    pub(super) fn lowers_priority(self) -> bool {
        self.is_rejection() && !matches!(self, Self::Rejected(Rejection::UserMinted, _))
    }

    /// The status line and the text of a response that has not begun yet.
    fn status_and_text(self) -> (&'static str, &'static str) {
        match self {
            Self::Accepted(_)
            | Self::AcceptedWithHint(_)
            | Self::Rejected(_, Some(_))
            | Self::OptOut(_)
            | Self::Plan
            | Self::SyncPage
            | Self::Preflight => ("200 OK", ""),
            Self::Rejected(rejection, None) => {
                let status = match rejection {
                    Rejection::OptedOut => "401 Unauthorized",
                    Rejection::DspBlocked => "403 Forbidden",
                    Rejection::Privacy => "451 Unavailable For Legal Reasons",
                    _ => "400 Bad Request",
                };
                (status, rejection.reason())
            }
            Self::NotFound => ("404 Not Found", "unknown path; use / or /sync\n"),
            Self::MethodNotAllowed => (
                "405 Method Not Allowed\r\nallow: GET, HEAD",
                "use GET or HEAD\n",
            ),
            Self::HeadTooLarge => (
                "431 Request Header Fields Too Large",
                "request headers too large\n",
            ),
            Self::Malformed => ("400 Bad Request", "not an HTTP/1 request\n"),
        }
    }
}

impl Answer {
    /// Appends the first lines of the response. The caller may append further headers; [`Responses::write`] completes the
    /// response. Does nothing for `Empty`.
    pub(super) fn begin(self, output: &mut Vec<u8>) {
        const END: &str = "cache-control: no-store\r\n";
        // A page with `Cross-Origin-Embedder-Policy: require-corp` loads only these.
        const EMBEDDED: &str = "cross-origin-resource-policy: cross-origin\r\n";
        let lines = match self {
            Self::Empty => return,
            Self::None => "HTTP/1.1 204 No Content\r\n",
            Self::Gif => "HTTP/1.1 200 OK\r\ncontent-type: image/gif\r\ncontent-length: 43\r\n",
            Self::Png => "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 68\r\n",
            Self::Json => {
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nvary: origin\r\n"
            }
            Self::Redirect => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n",
            Self::Html => "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n",
        };
        output.extend_from_slice(lines.as_bytes());
        output.extend_from_slice(END.as_bytes());
        if matches!(self, Self::Gif | Self::Png | Self::Redirect) {
            output.extend_from_slice(EMBEDDED.as_bytes());
        }
    }

    /// The body.
    pub(super) fn body(self) -> &'static [u8] {
        match self {
            Self::Empty | Self::None | Self::Redirect | Self::Html => b"",
            Self::Gif => include_bytes!("response/pixel.gif"),
            Self::Png => include_bytes!("response/pixel.png"),
            Self::Json => b"{\"ok\":true}",
        }
    }
}

/// Encodes responses, with a date header that is formatted once per second.
///
/// Responses forbid caching, so that repeated syncs reach the edge.
#[derive(Debug, Default)]
pub struct Responses {
    second: Option<Duration>,
    /// `date: …` with line break.
    date: String,
    /// Encoded response to an accepted request on a connection that stays open.
    accepted: Vec<u8>,
}

impl Responses {
    /// Sets the date header of later responses.
    pub fn set_time(&mut self, now: SystemTime) {
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let second = Some(Duration::from_secs(since_epoch.as_secs()));
        if second != self.second {
            self.second = second;
            self.date = format!("date: {}\r\n", httpdate::fmt_http_date(now));
            let options = ResponseOptions::default();
            let mut accepted = Vec::new();
            self.encode(Outcome::Accepted(Answer::Empty), options, &mut accepted);
            self.accepted = accepted;
        }
    }

    /// Appends one response to `output`, or the rest of one that was begun.
    pub fn write(&self, outcome: Outcome, options: ResponseOptions<'_>, output: &mut Vec<u8>) {
        let is_usual = !options.close && options.origin.is_none();
        match outcome {
            Outcome::Accepted(Answer::Empty) | Outcome::Rejected(_, Some(Answer::Empty))
                if is_usual =>
            {
                output.extend_from_slice(&self.accepted);
            }
            _ => self.encode(outcome, options, output),
        }
    }

    fn encode(&self, outcome: Outcome, options: ResponseOptions<'_>, output: &mut Vec<u8>) {
        let begun = match outcome {
            Outcome::Plan => Some(options.body),
            _ => outcome.begun(),
        };
        let body = begun.unwrap_or_else(|| {
            let (status, body) = outcome.status_and_text();
            let content_type = match body {
                "" => "",
                _ => "content-type: text/plain; charset=utf-8\r\n",
            };
            let head = format!(
                "HTTP/1.1 {status}\r\n{content_type}content-length: {}\r\ncache-control: no-store\r\n",
                body.len(),
            );
            output.extend_from_slice(head.as_bytes());
            body.as_bytes()
        });
        if let Some(origin) = options.origin {
            let vary: &[u8] = match outcome {
                // Already varies.
                Outcome::Accepted(Answer::Json)
                | Outcome::AcceptedWithHint(Answer::Json)
                | Outcome::Rejected(_, Some(Answer::Json))
                | Outcome::Plan => b"",
                _ => b"vary: origin\r\n",
            };
            output.extend_from_slice(vary);
            output.extend_from_slice(
                b"access-control-allow-credentials: true\r\naccess-control-allow-origin: ",
            );
            output.extend_from_slice(origin);
            output.extend_from_slice(b"\r\n");
        }
        if options.close {
            output.extend_from_slice(b"connection: close\r\n");
        }
        output.extend_from_slice(self.date.as_bytes());
        output.extend_from_slice(b"\r\n");
        if !options.head {
            output.extend_from_slice(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(outcome: Outcome, head: bool, close: bool, expected: &str) {
        let mut responses = Responses::default();
        responses.set_time(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_999));
        let mut output = Vec::new();
        let options = ResponseOptions {
            head,
            close,
            ..ResponseOptions::default()
        };
        responses.write(outcome, options, &mut output);
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }

    #[test]
    fn responses_are_valid_http() {
        let date = "date: Tue, 14 Nov 2023 22:13:20 GMT\r\n";
        let no_body = "content-length: 0\r\ncache-control: no-store\r\n";
        check(
            Outcome::Accepted(Answer::Empty),
            false,
            false,
            &format!("HTTP/1.1 200 OK\r\n{no_body}{date}\r\n"),
        );
        check(
            Outcome::Accepted(Answer::Empty),
            true,
            true,
            &format!("HTTP/1.1 200 OK\r\n{no_body}connection: close\r\n{date}\r\n"),
        );
        let allow = format!(
            "HTTP/1.1 405 Method Not Allowed\r\nallow: GET, HEAD\r\n\
             content-type: text/plain; charset=utf-8\r\ncontent-length: 16\r\n\
             cache-control: no-store\r\n{date}\r\n"
        );
        check(Outcome::MethodNotAllowed, true, false, &allow);
        let with_body = format!("{allow}use GET or HEAD\n");
        check(Outcome::MethodNotAllowed, false, false, &with_body);
    }

    #[test]
    fn date_follows_the_clock() {
        let mut responses = Responses::default();
        for second in [0, 1, 5] {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            responses.set_time(now);
            let date = httpdate::fmt_http_date(now);
            let accepted = String::from_utf8(responses.accepted.clone()).unwrap();
            assert!(accepted.contains(&date), "{accepted}");
        }
    }
}
