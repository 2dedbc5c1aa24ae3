//! `POST /cookie_sync`: answers which DSPs a browser is sent to next, as Prebid Server does.
//!
//! Only pages of listed origins may read the answer, and cause it at all: a POST of `text/plain` needs no preflight, so the origin
//! is compared before a cookie is set. The answer depends on nothing but the request and the contracts.

use std::{
    borrow::Cow,
    time::{SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use httparse::Header;
use proto::units::DspId;
use runtime::http1::head::{self, HEAD_BYTES_MAX, Head};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Edge, ReadRequests,
    browser_cookies::BrowserCookies,
    request,
    response::{Outcome, WRITE_BYTES_MAX},
    set_uid,
};
use crate::{
    contracts::{
        Contract, Contracts, privacy::Outcome as PrivacyOutcome, redirect::URL_BYTES_MAX,
        rejection::Rejection,
    },
    plan::{self, Context, Hints, Kind, Plan, Reason, Request},
};

/// The path.
pub(super) const PATH: &str = "/cookie_sync";

/// Maximum size of a body. A connection has memory for one after a head.
const BODY_BYTES_MAX: usize = HEAD_BYTES_MAX;

/// Bytes of the write buffer that an answer leaves for its head, with the hints and the origin.
const HEAD_BYTES: usize = 2 << 10;

/// Maximum number of answers at a time that do not fit into the write buffer of their connection. While there are as many, plans contain fewer DSPs.
pub(crate) const LARGE_ANSWERS_MAX: usize = 64;

/// Maximum size of a large answer: 20 URLs, with their names.
pub(crate) const LARGE_ANSWER_BYTES: usize = 20 * (URL_BYTES_MAX + 512);

/// The rest of an answer whose head was begun.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The body.
    pub(super) body: Vec<u8>,
    /// Whether the connection must be closed.
    pub(super) close: bool,
    /// Held until a large answer is written.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// The day since 1970 in UTC, modulo 256.
fn today() -> u8 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let days = now.unwrap_or_default().as_secs() / (24 * 3600);
    days.to_le_bytes()[0]
}

/// An answer: its status and headers, the body, and the value of the metric label, if it is counted.
struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
    label: Option<&'static str>,
}

impl Answer {
    fn text(status: &'static str, text: impl Into<Vec<u8>>, label: &'static str) -> Self {
        Self {
            status,
            headers: "content-type: text/plain; charset=utf-8\r\n".to_owned(),
            body: text.into(),
            label: Some(label),
        }
    }

    fn plan(
        plan: &Plan<'_>,
        context: &Context<'_>,
        cookie: Option<String>,
        bytes_max: usize,
        label: &'static str,
    ) -> Self {
        let cookie = cookie.unwrap_or_default();
        Self {
            status: "200 OK",
            headers: format!("content-type: application/json\r\n{cookie}"),
            body: json(plan, context.request.debug, bytes_max),
            label: Some(label),
        }
    }
}

impl Edge {
    /// Whether the body of this request must arrive before it is handled.
    #[cold]
    pub(super) fn awaits_body(
        &self,
        head: &Head<'_>,
        received: usize,
        contracts: &Contracts,
    ) -> bool {
        let permits = |origin| contracts.plan.as_ref().is_some_and(|it| it.permits(origin));
        let is_incomplete = |bytes| received < bytes && bytes <= BODY_BYTES_MAX;
        contracts.plan.is_some()
            && head.method == "POST"
            && head.body.is_some_and(is_incomplete)
            && head.origin.is_none_or(permits)
    }

    /// Begins the answer to a request for a plan. `is_permitted`: its origin is listed.
    #[cold]
    pub(super) fn plan(
        &self,
        head: &Head<'_>,
        headers: &[Header<'_>],
        body: &[u8],
        is_permitted: bool,
        read: &mut ReadRequests<'_>,
    ) -> Outcome {
        let has_length = head::values(headers, "content-length").next().is_some();
        let close = &mut read.rest.close;
        let answer = match head.method {
            _ if head.origin.is_some() && !is_permitted => Answer::text(
                "403 Forbidden",
                "the origin of this page is not in plan.origins\n",
                "forbidden_origin",
            ),
            "POST" if head.body.is_some_and(|bytes| bytes > BODY_BYTES_MAX) => {
                *close = true;
                let text = "the body is larger than 16 KiB\n";
                Answer::text("413 Content Too Large", text, "too_large")
            }
            "POST" if head.body.is_none() || !has_length => {
                *close = true;
                let text = "send the body with one content-length, without transfer-encoding and expect\n";
                Answer::text("411 Length Required", text, "invalid")
            }
            "POST" => self.answer(headers, body, read),
            "OPTIONS" => Answer {
                status: "204 No Content",
                headers: "access-control-allow-methods: POST\r\naccess-control-allow-headers: content-type\r\naccess-control-max-age: 600\r\n".to_owned(),
                body: Vec::new(),
                label: None,
            },
            _ => Answer {
                headers: "allow: POST, OPTIONS\r\ncontent-type: text/plain; charset=utf-8\r\n".to_owned(),
                label: None,
                ..Answer::text("405 Method Not Allowed", "use POST\n", "")
            },
        };
        if let Some(label) = answer.label {
            self.metrics.plans.count(label);
        }
        let length = match answer.status {
            "204 No Content" => String::new(),
            _ => format!("content-length: {}\r\n", answer.body.len()),
        };
        let lines = format!(
            "HTTP/1.1 {}\r\n{length}cache-control: no-store\r\nvary: origin\r\n{}",
            answer.status, answer.headers
        );
        // The rest of the head is short. A buffer that grew by doubling would exceed the maximum.
        read.output
            .reserve_exact(lines.len() + answer.body.len() + 1024);
        read.output.extend_from_slice(lines.as_bytes());
        read.rest.body = answer.body;
        Outcome::Plan
    }

    fn answer(&self, headers: &[Header<'_>], body: &[u8], read: &mut ReadRequests<'_>) -> Answer {
        let contracts = read.known.contracts();
        let request = match Request::parse(body, contracts) {
            Ok(request) => request,
            Err(error) => {
                return Answer::text("400 Bad Request", format!("{error}\n"), "invalid");
            }
        };
        if self.has_opted_out(headers) {
            let text = Rejection::OptedOut.reason();
            return Answer::text("401 Unauthorized", text, "opted_out");
        }
        let country_header = contracts.privacy.country_header.as_deref();
        let signals = request::with_signals(request.signals(), headers, country_header);
        let mut rng = Rng::new();
        let permit = std::sync::Arc::clone(&self.large_answers).try_acquire_owned();
        let free = WRITE_BYTES_MAX.saturating_sub(read.output.len() + HEAD_BYTES);
        let bytes_max = if permit.is_ok() {
            LARGE_ANSWER_BYTES
        } else {
            free
        };
        let context = Context {
            contracts,
            request: &request,
            signals: &signals,
            day: today(),
            bytes_max,
        };
        let mut empty = |reason, cookie, label| {
            let plan = plan::nothing(&context, reason, &mut rng);
            self.metrics.plans.count_plan(&plan);
            Answer::plan(&plan, &context, cookie, free, label)
        };
        let outcome = contracts.privacy.decide_for_host(&signals);
        if outcome != PrivacyOutcome::Allowed {
            return match set_uid::refusal(Rejection::Privacy, outcome, &signals) {
                Rejection::SignalsInvalid => {
                    let text = Rejection::SignalsInvalid.reason();
                    Answer::text("400 Bad Request", text, "invalid")
                }
                _ => empty(Reason::Privacy, None, "privacy"),
            };
        }
        let user_id = self.cookies.user_id(head::cookies(headers));
        let user_id = match request::parse_user_id(user_id) {
            Ok(user_id) => user_id,
            Err(rejection) => {
                let is_missing = matches!(rejection, Rejection::UserMissing | Rejection::UserEmpty);
                let mints = is_missing && self.uid.mints();
                let cookie = mints.then(|| self.uid.new_cookie(&self.cookies)).flatten();
                let label = if cookie.is_some() {
                    "uid_minted"
                } else {
                    "uid_missing"
                };
                return empty(Reason::NoUserId, cookie, label);
            }
        };
        let mut hints = Hints::read(BrowserCookies::hints(head::cookies(headers)), user_id);
        let plan = plan::plan(&context, &mut hints, &mut rng);
        self.metrics.plans.count_plan(&plan);
        let (cookie, label) = match &*plan.offers {
            [] => (None, "empty"),
            _ => {
                let hints = hints.write(context.day, contracts);
                let is_partitioned = self.uid.is_partitioned();
                (
                    Some(self.cookies.set_hints(&hints, is_partitioned)),
                    "planned",
                )
            }
        };
        let answer = Answer::plan(&plan, &context, cookie, bytes_max, label);
        read.rest.permit = permit.ok().filter(|_| answer.body.len() > free);
        answer
    }

    /// The header that sets the hint of an accepted match; `None` if it is set, or if plans do not contain this DSP.
    #[cold]
    pub(super) fn hint(
        &self,
        (dsp_id, contract): (DspId, &Contract),
        user_id: &str,
        headers: &[Header<'_>],
        contracts: &Contracts,
    ) -> Option<String> {
        contract.sync.as_ref()?;
        let (day, hints) = (today(), BrowserCookies::hints(head::cookies(headers)));
        let mut hints = Hints::read(hints, user_id);
        hints.accept(dsp_id, day).then(|| {
            let hints = hints.write(day, contracts);
            self.cookies.set_hints(&hints, self.uid.is_partitioned())
        })
    }
}

/// The body of an answer, as that of Prebid Server. The DSPs that are left out are named as long as they fit into `bytes_max`.
pub fn json(plan: &Plan<'_>, is_debug: bool, bytes_max: usize) -> Vec<u8> {
    let status = if plan.is_in_sync { "ok" } else { "no_cookie" };
    let urls: usize = plan.offers.iter().map(|it| it.url.len()).sum();
    let mut json = String::with_capacity(urls + 256 * (plan.offers.len() + 1));
    json.extend(["{\"status\":\"", status, "\",\"bidder_status\":["]);
    for (index, offer) in plan.offers.iter().enumerate() {
        let kind = match offer.kind {
            Kind::Image => "redirect",
            Kind::Iframe => "iframe",
        };
        // Neither the template nor percent-encoded values contain characters that JSON escapes.
        json.extend([
            if index > 0 { "," } else { "" },
            "{\"bidder\":",
            &*offer.sync.json_name,
            ",\"no_cookie\":true,\"usersync\":{\"url\":\"",
            &*offer.url,
            "\",\"type\":\"",
            kind,
            "\"}}",
        ]);
    }
    json.push(']');
    if is_debug && !plan.left_out.is_empty() {
        let mut separator = ",\"debug\":[";
        for (name, _, reason) in &plan.left_out {
            let name = Value::from(Cow::clone(name));
            let entry = format!(
                "{separator}{{\"bidder\":{name},\"error\":\"{}\"}}",
                reason.text()
            );
            if json.len() + entry.len() + 2 > bytes_max {
                break;
            }
            json += &entry;
            separator = ",";
        }
        if separator == "," {
            json.push(']');
        }
    }
    json.push('}');
    json.into_bytes()
}
