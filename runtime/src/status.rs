//! The status page: how a process is, second by second, for a person who looks.
//!
//! `/` is one page that needs nothing else, `/status.json` says the same as JSON, and `/status/events` sends it every second
//! as server-sent events: the first with the history of the last five minutes, each following one without.
//!
//! One task takes one sample a second, whether nobody looks or sixteen do; a sample is put into JSON once, and
//! only when somebody looks. Viewers read the newest sample from one place: none has a queue, one that reads slowly
//! skips samples, and one that does not read at all is cut off by the port's write timeout. Further viewers than
//! [`VIEWERS_MAX`] get 503, and `/status.json` instead.
//!
//! What is shown came from outsiders in part: names of subscribers and producers, reasons. The page puts it into text
//! nodes alone, and its [policy](page) lets no script run but its own.

pub mod counted;
mod events;
pub mod page;
pub mod quantiles;
pub mod sample;
pub mod series;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use prometheus::{IntCounter, IntGauge};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use self::{
    events::{Events, Viewer},
    page::Page,
};
use super::{
    answer::{Answer, json, streamed, text},
    caller,
    metrics::Registry,
};

/// How often a sample is taken.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// How many samples the history has: five minutes.
pub const HISTORY_SAMPLES: usize = 300;

/// Most streams of events at once.
pub const VIEWERS_MAX: usize = 16;

/// What is shown of a process.
pub trait StatusSource: Send + 'static {
    /// Takes a sample: the figures of `now`, and a place for them in the history.
    fn sample(&mut self, now: Instant);

    /// The last sample as JSON, one object; with all of the history under the key `history`, or without that key.
    ///
    /// # Errors
    /// When something in it is not JSON.
    fn json(&self, with_history: bool) -> serde_json::Result<Vec<u8>>;
}

/// What all viewers look at; clones share it.
#[derive(Clone)]
pub struct StatusHub {
    shared: Arc<Shared>,
}

struct Shared {
    page: Page,
    source: Mutex<Box<dyn StatusSource>>,
    /// The newest sample as an event; nothing while nobody looks.
    newest: watch::Sender<Bytes>,
    viewers: Arc<Semaphore>,
    viewing: IntGauge,
    refused: IntCounter,
    /// Ends the streams.
    stop: CancellationToken,
}

impl StatusHub {
    /// A hub whose streams end with `stop`. Registers `<process>_status_viewers` and `…_refused_total`.
    ///
    /// # Errors
    /// When metrics of these names are registered already.
    pub fn register(
        registry: &Registry,
        process: &str,
        page: Page,
        source: Box<dyn StatusSource>,
        stop: CancellationToken,
    ) -> prometheus::Result<Self> {
        let viewing = IntGauge::new(
            format!("{process}_status_viewers"),
            "Streams of the status page that are open.",
        )?;
        let refused = IntCounter::new(
            format!("{process}_status_viewers_refused_total"),
            "Streams of the status page that were not opened, because there were too many.",
        )?;
        registry.register(Box::new(viewing.clone()))?;
        registry.register(Box::new(refused.clone()))?;
        let hub = Self {
            shared: Arc::new(Shared {
                page,
                source: Mutex::new(source),
                newest: watch::Sender::default(),
                viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
                viewing,
                refused,
                stop,
            }),
        };
        Ok(hub)
    }

    /// Takes samples until the hub's streams end. To be run by one task.
    pub async fn run(self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shared.stop.cancelled() => return,
                _ = ticks.tick() => self.sample(),
            }
        }
    }

    /// Takes a sample and shows it to all viewers.
    fn sample(&self) {
        let shared = &*self.shared;
        let mut source = shared.source();
        source.sample(Instant::now());
        if shared.newest.receiver_count() == 0 {
            return;
        }
        match source.json(false) {
            Ok(sample) => drop(shared.newest.send_replace(events::event(&sample))),
            Err(error) => tracing::warn!(%error, "the status is not JSON"),
        }
    }

    /// The page.
    pub(super) fn page(&self) -> Answer {
        self.shared.page.answer()
    }

    /// The last sample with the history.
    pub(super) fn json(&self) -> Answer {
        let status = self.shared.source().json(true);
        match status {
            Ok(mut status) => {
                status.push(b'\n');
                json(StatusCode::OK, status)
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }

    /// A stream of samples, the first with the history.
    pub(super) fn events<B>(&self, request: &Request<B>) -> Answer {
        let shared = &*self.shared;
        if caller::is_of_another_site(request.headers()) {
            let word = "pages of other sites see nothing here\n";
            return text(StatusCode::FORBIDDEN, word);
        }
        if *request.method() == Method::HEAD {
            return streamed(
                StatusCode::OK,
                events::TYPE,
                http_body_util::Empty::new().boxed_unsync(),
            );
        }
        let Ok(permit) = Arc::clone(&shared.viewers).try_acquire_owned() else {
            shared.refused.inc();
            let word = format!("{VIEWERS_MAX} viewers are too many; try later, or /status.json\n");
            return text(StatusCode::SERVICE_UNAVAILABLE, word);
        };
        // Under the lock, so that no sample is missed or comes twice.
        let source = shared.source();
        let first = source.json(true);
        let newest = shared.newest.subscribe();
        drop(source);
        match first {
            Ok(first) => {
                let viewer = Viewer::new(permit, shared.viewing.clone());
                let events = Events::new(&first, newest, shared.stop.clone(), viewer);
                streamed(StatusCode::OK, events::TYPE, events.boxed_unsync())
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

impl Shared {
    fn source(&self) -> MutexGuard<'_, Box<dyn StatusSource>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
