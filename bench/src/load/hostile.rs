//! Hostile requests (`--hostile`): invalid requests of partners, and attacks. A producer with the contracts in
//! `examples/hostile.toml` refuses each of them for a known reason.
//!
//! All connections send the list in `hostile.tsv` repeatedly, so the number of requests per reason follows from the
//! number of sent requests.

use std::{collections::BTreeMap, iter};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{history::History, request::Parts};
use crate::{traffic::SyntheticCookie, verify::RequestHistory as _};

/// A DSP that the contracts block, and one that they do not list.
const BLOCKED_DSP: u32 = 4_294_967_294;
const UNKNOWN_DSP: u32 = 4_294_967_295;

/// The requests, in order.
#[derive(Debug)]
pub(super) struct HostileMix(Vec<Request>);

/// One request. Unset values come from the cookie that it replaces.
#[derive(Debug)]
struct Request {
    /// Outcome that the producer counts.
    reason: &'static str,
    buyer_uid: Option<String>,
    /// End of the query.
    more: String,
}

impl HostileMix {
    pub(super) fn new() -> Self {
        let lines = include_str!("hostile.tsv").lines();
        let lines = lines.filter(|line| !line.starts_with('#'));
        Self(lines.flat_map(Request::of_line).collect())
    }

    fn request(&self, connection: u64, number: u64) -> &Request {
        let length = self.0.len() as u64;
        let index = (connection % length + number % length) % length;
        &self.0[usize::try_from(index).unwrap_or(0)]
    }

    /// Request `number` of a connection, in place of this cookie.
    pub(super) fn parts<'a>(
        &'a self,
        connection: u64,
        number: u64,
        cookie: &'a SyntheticCookie,
    ) -> Parts<'a> {
        let request = self.request(connection, number);
        let mut parts = Parts::from(cookie);
        parts.more = request.more.as_bytes();
        if let Some(buyer_uid) = &request.buyer_uid {
            parts.buyer_uid = buyer_uid.as_bytes();
        }
        match request.reason {
            "dsp_blocked" => parts.dsp_id = BLOCKED_DSP,
            "unknown_dsp" => parts.dsp_id = UNKNOWN_DSP,
            "uid_missing" => parts.user_id = None,
            _ => {}
        }
        parts
    }

    /// Status of the response to request `number` of a connection.
    pub(super) fn status(&self, connection: u64, number: u64) -> u16 {
        match self.request(connection, number).reason {
            "dsp_blocked" => 403,
            reason if reason.starts_with("privacy") => 451,
            _ => 400,
        }
    }

    /// Number of requests that these connections sent, by reason.
    pub(super) fn counts(&self, histories: &[History]) -> BTreeMap<&'static str, u64> {
        let length = self.0.len() as u64;
        let mut counts = BTreeMap::new();
        for history in histories {
            for number in 0..length {
                let request = self.request(history.connection(), number);
                *counts.entry(request.reason).or_default() +=
                    history.sent().saturating_sub(number).div_ceil(length);
            }
        }
        counts
    }
}

impl Request {
    /// The requests of a line: a macro is also sent percent-encoded, once and twice.
    fn of_line(line: &'static str) -> Vec<Self> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let (reason, buyer_uid) = (next(), next());
        let mut more = next().to_owned();
        let (repeated, count) = (next(), next().parse().unwrap_or(0));
        more.push_str(&repeated.repeat(count));
        more.push_str(next());
        let buyer_uids = match (reason, buyer_uid) {
            (_, "*") => vec![None],
            ("uid_macro", uid) => {
                let forms = iter::successors(Some(uid.to_owned()), |uid| Some(encoded(uid)));
                // A number sign would end the query.
                let forms = forms.take(3).filter(|form| !form.starts_with('#'));
                forms.map(Some).collect()
            }
            (_, uid) => vec![Some(encoded(uid))],
        };
        let request = |buyer_uid| Self {
            reason,
            buyer_uid,
            more: more.clone(),
        };
        buyer_uids.into_iter().map(request).collect()
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{load::request::Template, traffic::Traffic};

    fn requests() -> Vec<String> {
        let template = Template::new(&"http://127.0.0.1:65535/sync".parse().unwrap()).unwrap();
        let mix = HostileMix::new();
        let cookie = Traffic::new(1, None).cookie(0, 0);
        let requests = (0..mix.0.len() as u64).map(|number| {
            let mut buffer = Vec::new();
            template.put(&mut buffer, &mix.parts(0, number, &cookie));
            String::from_utf8(buffer).unwrap()
        });
        requests.collect()
    }

    #[test]
    fn macros_are_sent_in_three_forms() {
        let requests = requests();
        for uid in [
            "{UID}",
            "%7BUID%7D",
            "%257BUID%257D",
            "%23PMUID",
            "%5Bobject%20Object%5D",
        ] {
            let uid = format!("&b={uid} ");
            assert!(requests.iter().any(|it| it.contains(&uid)), "{uid}");
        }
        assert!(!requests.iter().any(|it| it.contains('#')));
    }

    #[test]
    fn requests_fit_into_16_kib_and_some_almost_fill_them() {
        let requests = requests();
        let sizes = requests.iter().map(String::len);
        let large: Vec<_> = sizes.filter(|size| *size > 15_000).collect();
        assert_eq!(large.len(), 5, "{large:?}");
        assert!(large.iter().all(|size| *size < 16 * 1024), "{large:?}");
    }

    #[test]
    fn sent_requests_are_counted_by_reason() {
        let mix = HostileMix::new();
        let sent = [(0, 0), (3, 1), (90, 1_000), (u64::MAX, 40)];
        let mut expected = BTreeMap::<_, u64>::new();
        let mut histories = Vec::new();
        for (connection, sent) in sent {
            let mut history = History::new(connection, Instant::now(), false);
            history.send(sent, 0);
            histories.push(history);
            for number in 0..sent {
                *expected
                    .entry(mix.request(connection, number).reason)
                    .or_default() += 1;
            }
        }
        let mut counts = mix.counts(&histories);
        counts.retain(|_, count| *count > 0);
        assert_eq!(counts, expected);
    }
}
