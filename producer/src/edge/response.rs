//! Responses of the edge. The only place that maps outcomes to HTTP.

use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::{opt_out::Page, request::Rejection};

/// Outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The cookie is in the log, or its limit queued or dropped it.
    Accepted(Answer),
    /// The match of a user is deleted.
    Removed(Answer),
    /// The opt-out page.
    OptOut(Page),
    /// Invalid input, or a match that the contract of its DSP does not permit. Without an answer, the status is an error.
    Rejected(Rejection, Option<Answer>),
    /// No DSP has the name that a request to `/setuid` contains.
    BidderUnknown,
    /// Unknown path.
    NotFound,
    /// Neither GET nor HEAD.
    MethodNotAllowed,
    /// The request headers are too large.
    HeadTooLarge,
    /// Not HTTP/1.
    Malformed,
}

/// What a browser gets for a valid match. Without contracts, it is `Empty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Status 200 without a body.
    #[default]
    Empty,
    /// Status 204.
    None,
    /// A transparent pixel.
    Gif,
    /// A transparent pixel.
    Png,
    /// A constant object, for scripts.
    Json,
    /// A redirect to the DSP.
    Redirect,
    /// An empty page, for frames.
    #[serde(skip)]
    Html,
}

impl Answer {
    /// The name in the contracts file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::None => "none",
            Self::Gif => "gif",
            Self::Png => "png",
            Self::Json => "json",
            Self::Redirect => "redirect",
            Self::Html => "html",
        }
    }

    /// Appends the first lines of the response. The caller may append further headers; [`Responses::write`] completes the
    /// response. Does nothing for `Empty`.
    pub(super) fn begin(self, output: &mut Vec<u8>) {
        const END: &str = "cache-control: no-store\r\n";
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
    }

    fn body(self) -> &'static [u8] {
        match self {
            Self::Empty | Self::None | Self::Redirect | Self::Html => b"",
            Self::Gif => include_bytes!("response/pixel.gif"),
            Self::Png => include_bytes!("response/pixel.png"),
            Self::Json => b"{\"ok\":true}",
        }
    }
}

/// Properties of the request that affect its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseOptions {
    /// HEAD request: the response has no body, regardless of its `content-length`.
    pub head: bool,
    /// The connection is closed after the response.
    pub close: bool,
}

impl Outcome {
    /// The answer; `None` for an error and for the opt-out page.
    fn answer(self) -> Option<Answer> {
        match self {
            Self::Accepted(answer) | Self::Removed(answer) => Some(answer),
            Self::Rejected(_, answer) => answer,
            _ => None,
        }
    }

    fn status_line(self) -> &'static str {
        match self {
            Self::Accepted(_) | Self::Removed(_) | Self::Rejected(_, Some(_)) => "200 OK",
            Self::OptOut(page) => page.status_line(),
            Self::Rejected(Rejection::OptedOut, None) => "401 Unauthorized",
            Self::Rejected(Rejection::DspBlocked, None) => "403 Forbidden",
            Self::Rejected(Rejection::Privacy, None) => "451 Unavailable For Legal Reasons",
            Self::Rejected(_, None) | Self::BidderUnknown | Self::Malformed => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed\r\nallow: GET, HEAD",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
        }
    }

    fn body(self) -> &'static str {
        match self {
            Self::Accepted(_) | Self::Removed(_) | Self::Rejected(_, Some(_)) => "",
            Self::OptOut(page) => page.body(),
            Self::Rejected(rejection, None) => rejection.reason(),
            Self::BidderUnknown => "parameter bidder (the name of a DSP) is missing or unknown\n",
            Self::NotFound => "unknown path; use / or /sync\n",
            Self::MethodNotAllowed => "use GET or HEAD\n",
            Self::HeadTooLarge => "request headers too large\n",
            Self::Malformed => "not an HTTP/1 request\n",
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OptOut(Page::OptOut | Page::OptIn) => "text/html; charset=utf-8",
            _ => "text/plain; charset=utf-8",
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
            let options = ResponseOptions {
                head: false,
                close: false,
            };
            let mut accepted = Vec::new();
            self.encode(Outcome::Accepted(Answer::Empty), options, &mut accepted);
            self.accepted = accepted;
        }
    }

    /// Appends one response to `output`, or the rest of an answer that was begun.
    pub fn write(&self, outcome: Outcome, options: ResponseOptions, output: &mut Vec<u8>) {
        match outcome.answer() {
            Some(Answer::Empty) if !options.close => output.extend_from_slice(&self.accepted),
            None | Some(Answer::Empty) => self.encode(outcome, options, output),
            Some(answer) => {
                output.extend_from_slice(connection(options).as_bytes());
                output.extend_from_slice(self.date.as_bytes());
                output.extend_from_slice(b"\r\n");
                if !options.head {
                    output.extend_from_slice(answer.body());
                }
            }
        }
    }

    fn encode(&self, outcome: Outcome, options: ResponseOptions, output: &mut Vec<u8>) {
        let body = outcome.body();
        let close = connection(options);
        let content_type = if body.is_empty() {
            String::new()
        } else {
            format!("content-type: {}\r\n", outcome.content_type())
        };
        let head = format!(
            "HTTP/1.1 {}\r\n{content_type}content-length: {}\r\ncache-control: no-store\r\n{close}{}\r\n",
            outcome.status_line(),
            body.len(),
            self.date,
        );
        output.extend_from_slice(head.as_bytes());
        if !options.head {
            output.extend_from_slice(body.as_bytes());
        }
    }
}

fn connection(options: ResponseOptions) -> &'static str {
    if options.close {
        "connection: close\r\n"
    } else {
        ""
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
        responses.write(outcome, ResponseOptions { head, close }, &mut output);
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
