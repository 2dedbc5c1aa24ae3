//! Test helper: sends one request to an edge, and collects its effects.

use std::time::{Instant, SystemTime};

use proto::{units::Sequence, wire::Record};
use runtime::metrics::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    dsps::{KnownDsps, Tally},
    edge::{
        Edge, ReadRequests,
        connection::tests::edge_with,
        cookie_sync::Rest,
        head,
        mint::UidMode,
        response::{ResponseOptions, Responses},
    },
    log::{self, AppendBatch, Delivery, Log},
};

/// The effects of one request.
pub(super) struct Exchange {
    /// The response without its date.
    pub(super) response: Vec<u8>,
    /// The records in the log, as `user DSP buyer`.
    pub(super) recorded: Vec<String>,
    /// The counters by DSP that are not 0, as `dsp outcome`, `would refuse: dsp reason`, or `privacy:
    /// outcome`.
    pub(super) counted: Vec<String>,
}

impl Exchange {
    pub(super) fn head(&self) -> &str {
        let end = self.response.windows(4).position(|it| it == b"\r\n\r\n");
        std::str::from_utf8(&self.response[..end.unwrap()]).unwrap()
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.response[self.head().len() + 4..]
    }

    pub(super) fn status(&self) -> &str {
        self.head()
            .lines()
            .next()
            .unwrap()
            .strip_prefix("HTTP/1.1 ")
            .unwrap()
    }

    #[track_caller]
    pub(super) fn check(&self, status: &str, recorded: &[&str], counted: &[&str]) {
        assert_eq!(self.status(), status);
        assert_eq!(self.recorded, recorded);
        assert_eq!(self.counted, counted);
    }
}

/// The effects of a request with this query from a browser with the user id `u/1`.
pub(super) fn exchange(contracts: &str, query: &str) -> Exchange {
    exchange_with(contracts, &format!("GET /?{query}"), "cookie: uid=u/1\r\n")
}

pub(super) fn exchange_with(contracts: &str, request: &str, headers: &str) -> Exchange {
    Producer::new(Some(contracts), true, UidMode::Require).exchange(request, headers)
}

/// A producer, and the position of the next record in its log.
pub(super) struct Producer {
    pub(super) edge: Edge,
    registry: Registry,
    log: Log,
}

impl Producer {
    pub(super) fn new(contracts: Option<&str>, opt_out: bool, uid: UidMode) -> Self {
        let registry = Registry::new();
        let edge = edge_with(&registry, contracts, opt_out, uid, CancellationToken::new());
        Self {
            log: edge.inlet.log().clone(),
            edge,
            registry,
        }
    }

    /// The effects of this request and of all previous requests.
    pub(super) fn exchange(&self, request: &str, headers: &str) -> Exchange {
        self.exchange_body(request, headers, "")
    }

    pub(super) fn exchange_body(&self, request: &str, headers: &str, body: &str) -> Exchange {
        let edge = &self.edge;
        let (mut known, mut batch) = (KnownDsps::default(), AppendBatch::default());
        edge.metrics.dsps.refresh(&mut known);
        let (mut response, mut rest) = (Vec::new(), Rest::default());
        let mut read = ReadRequests {
            read_at: Instant::now(),
            client: None,
            known: &mut known,
            batch: &mut batch,
            tally: Tally::default(),
            output: &mut response,
            rest: &mut rest,
        };
        let bytes = format!("{request} HTTP/1.1\r\n{headers}\r\n");
        let mut storage = head::headers();
        let (head, headers) = head::parse(bytes.as_bytes(), &mut storage)
            .unwrap()
            .unwrap();
        let (outcome, origin) = edge
            .handle(&head, headers, body.as_bytes(), &mut read)
            .unwrap();
        let mut responses = Responses::default();
        responses.set_time(SystemTime::UNIX_EPOCH);
        let options = ResponseOptions {
            head: head.method == "HEAD",
            close: read.rest.close,
            origin,
            body: &read.rest.body,
        };
        responses.write(outcome, options, read.output);
        edge.append(&mut read).unwrap();
        edge.metrics.count(outcome);
        log::tests::seal(&self.log);
        Exchange {
            response: without_date(&response),
            recorded: recorded(&self.log),
            counted: counted(&self.registry),
        }
    }
}

fn without_date(response: &[u8]) -> Vec<u8> {
    let date = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    let at = response
        .windows(date.len())
        .position(|it| it == date)
        .unwrap();
    [&response[..at], &response[at + date.len()..]].concat()
}

fn recorded(log: &Log) -> Vec<String> {
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let mut recorded = Vec::new();
    while let Some(Delivery::Chunk { chunk, first }) = log::tests::now(reader.next()) {
        for record in chunk.cookies_from(first).records() {
            recorded.push(match record.unwrap() {
                Record::Set(it) => format!("{} {} {}", it.user_id, it.dsp_id, it.buyer_uid),
                Record::Delete { scope, .. } => format!("{scope:?}"),
            });
        }
    }
    recorded
}

fn counted(registry: &Registry) -> Vec<String> {
    let mut counted = Vec::new();
    for family in registry.gather() {
        let prefix = match family.name() {
            "producer_dsp_cookies_total" => "",
            "producer_dsp_would_refuse_total" => "would refuse: ",
            "producer_privacy_total" => "privacy: ",
            _ => continue,
        };
        for metric in family.get_metric() {
            if metric.get_counter().get_value() > 0.0 {
                let labels: Vec<_> = metric.get_label().iter().map(|it| it.value()).collect();
                counted.push(format!("{prefix}{}", labels.join(" ")));
            }
        }
    }
    counted
}
