//! Streams of the rejected requests of one DSP: `GET /debug/refusals?dsp=17` on the admin port.
//!
//! Each is a JSON line that contains neither values nor ids. A stream ends after ten minutes, with the drain, or when its client
//! disconnects. Without a stream, nothing is recorded, and a rejected request costs one relaxed load.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, StreamExt as _};
use http::{StatusCode, Uri};
use http_body_util::{Either, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use runtime::reply::{Reply, content, text};
use serde_json::{Value, json};
use tokio::{sync::broadcast, time::sleep};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError::Lagged};
use tokio_util::sync::CancellationToken;

use super::{DspId, IntervalLimit, Rejection, Signals, request::parse_dsp_id};

/// Maximum number of streams.
const STREAMS_MAX: usize = 4;

/// Maximum refusals per second of a stream; the others are only counted.
const SHOWN_PER_SECOND: u32 = 20;

/// Maximum refusals that wait until the client reads them; the oldest one is dropped.
const QUEUE_MAX: usize = 128;

/// Maximum duration of a stream.
const DURATION: Duration = Duration::from_secs(600);

/// The streams of one producer.
#[derive(Debug, Default)]
pub struct Refusals {
    streams: Mutex<Vec<Stream>>,
    /// Each stream has a clone until it ends.
    readers: Arc<()>,
}

/// The writing end of a stream. The body of a response is its reading end.
#[derive(Debug)]
struct Stream {
    dsp_id: DspId,
    limit: IntervalLimit,
    queue: broadcast::Sender<Value>,
}

impl Refusals {
    /// The path of the page.
    pub(crate) const PATH: &str = "/debug/refusals";

    /// Whether anyone reads refusals: one relaxed load.
    pub(super) fn are_read(&self) -> bool {
        Arc::strong_count(&self.readers) > 1
    }

    /// Adds a refusal to the streams of its DSP.
    #[cold]
    pub(super) fn add(&self, dsp_id: DspId, now: Instant, describe: impl Fn() -> Value) {
        for stream in self.streams.lock().iter().filter(|it| it.dsp_id == dsp_id) {
            if let Some(left_out) = stream.limit.admit(now) {
                let mut line = describe();
                line["left_out"] = left_out.into();
                // Fails if the client has disconnected.
                drop(stream.queue.send(line));
            }
        }
    }

    /// Responds to a request for the page.
    pub(crate) fn page(&self, uri: &Uri, draining: CancellationToken) -> Reply {
        let parameters = uri.query().unwrap_or_default().split('&');
        let mut ids = parameters.filter_map(|it| it.strip_prefix("dsp="));
        let (Some(Ok(dsp_id)), None) = (ids.next().map(parse_dsp_id), ids.next()) else {
            let error = "use ?dsp=ID with the id of one DSP, an integer from 1 to 4294967295\n";
            return text(StatusCode::BAD_REQUEST, error);
        };
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.queue.receiver_count() > 0);
        if streams.len() == STREAMS_MAX {
            let error = "all streams are in use: close one\n";
            return text(StatusCode::TOO_MANY_REQUESTS, error);
        }
        let (sender, queue) = broadcast::channel(QUEUE_MAX);
        streams.push(Stream {
            dsp_id,
            limit: IntervalLimit::new(SHOWN_PER_SECOND, Duration::from_secs(1)),
            queue: sender,
        });
        let reader = Arc::clone(&self.readers);
        let end = async move {
            let _reader = reader;
            tokio::select! {
                () = draining.cancelled() => json!({ "end": "the producer is draining" }),
                () = sleep(DURATION) => json!({ "end": "10 minutes have passed" }),
            }
        };
        let end = end.shared();
        let lines = BroadcastStream::new(queue)
            .map(|line| line.unwrap_or_else(|Lagged(count)| json!({ "dropped": count })))
            .take_until(end.clone())
            .chain(end.into_stream())
            .map(|line| Ok(http_body::Frame::data(format!("{line}\n").into())));
        let body = UnsyncBoxBody::new(StreamBody::new(lines));
        content(StatusCode::OK, "application/x-ndjson", "").map(|_| Either::Right(body))
    }
}

/// Describes a request that is rejected now. Omits the `value` of the parameter at fault.
pub(super) fn describe(rejection: Rejection, value: Option<&[u8]>, signals: &Signals<'_>) -> Value {
    let signals = [
        ("gdpr", !signals.gdpr.is_empty()),
        ("gdpr_consent", !signals.gdpr_consent.is_empty()),
        ("gpp", !signals.gpp.is_empty()),
        ("us_privacy", !signals.us_privacy.is_empty()),
        ("sec_gpc", signals.gpc),
        ("opt_out_cookie", signals.opted_out),
        ("country", signals.country.is_some()),
    ];
    let signals = signals.iter().filter(|(_, is_present)| *is_present);
    json!({
        "time": format!("{:.3}", jiff::Timestamp::now()),
        "reason": rejection.label(),
        "parameter": rejection.parameter(),
        "length": value.map(<[u8]>::len),
        "classes": value.unwrap_or_default().iter().map(class).collect::<std::collections::BTreeSet<_>>(),
        "signals": signals.map(|(name, _)| *name).collect::<Vec<_>>(),
    })
}

/// The class of a byte.
fn class(byte: &u8) -> &'static str {
    match byte {
        b'a'..=b'z' => "lower",
        b'A'..=b'Z' => "upper",
        b'0'..=b'9' => "digit",
        b'-' => "dash",
        b'_' => "underscore",
        b'%' => "percent",
        128.. => "non_ascii",
        _ => "other",
    }
}

#[cfg(test)]
mod tests;
