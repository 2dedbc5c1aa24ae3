//! What consumers say of the ends of producers' lives, as it comes into their logs.
//!
//! A saying counts until its process is gone. The next one stands where the store does, and says anew what follows that.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use consumer::batch::Cursor;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    EnvFilter, Layer, filter::Targets, fmt::layer, layer::Context, prelude::*, registry::LookupSpan,
};

use crate::UNPOISONED;

/// What is said to be missing at the end of a life, and of lives since then up to the one that told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    Nothing,
    /// Of that life; of others nothing is known.
    NothingOfIt,
    Exactly(u64),
    AtMost(u64),
    Unknown,
}

/// A saying of one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Saying {
    pub(crate) producer: String,
    /// The life that ended.
    pub(crate) epoch: u64,
    /// The life that told of it.
    pub(crate) next: u64,
    pub(crate) lacks: Lacks,
    /// The first sequence of the life that this process of the consumer saw to itself.
    pub(crate) watched_from: u64,
    /// What it lost of the life from there on, in gaps.
    pub(crate) lost_in_gaps: u64,
    /// Whether it still counts.
    pub(crate) counts: bool,
}

/// All sayings of a run, which has a process of its own.
static SAID: Mutex<Said> = Mutex::new(Said {
    sayings: BTreeMap::new(),
    connected: BTreeMap::new(),
});

struct Said {
    /// By consumer, in order.
    sayings: BTreeMap<String, Vec<Saying>>,
    /// Which life a consumer met last, by consumer and producer.
    connected: BTreeMap<(String, String), u64>,
}

/// All that a consumer ever said.
pub(crate) fn of(consumer: &str) -> Vec<Saying> {
    let said = SAID.lock().expect(UNPOISONED);
    said.sayings.get(consumer).cloned().unwrap_or_default()
}

/// Notes that a process of a consumer begins on these cursors: what the one before said of what comes after them is void.
pub(crate) fn begin(consumer: &str, cursors: &BTreeMap<Arc<str>, Cursor>) {
    let mut said = SAID.lock().expect(UNPOISONED);
    let sayings = said.sayings.entry(consumer.to_owned()).or_default();
    for saying in sayings {
        let cursor = cursors.get(saying.producer.as_str());
        saying.counts &= cursor.is_some_and(|cursor| saying.epoch < cursor.epoch);
    }
}

/// Hears all sayings from now on; prints all that `RUST_LOG` asks for.
pub(crate) fn listen() {
    let heard = Targets::new()
        .with_target("turmoil", Level::INFO)
        .with_target("consumer::subscription", Level::INFO);
    let printed = std::env::var_os("RUST_LOG").map(|_| {
        let filter = EnvFilter::from_default_env();
        layer().with_writer(std::io::stderr).with_filter(filter)
    });
    tracing_subscriber::registry()
        .with(Listener.with_filter(heard))
        .with(printed)
        .init();
}

struct Listener;

/// The host that a span is of.
struct HostName(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        // Each host runs within a span of turmoil's that bears its name.
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let (Some(name), Some(span)) = (fields.0.remove("name"), context.span(id)) {
            span.extensions_mut().insert(HostName(name));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let is_end = event.metadata().target().ends_with("::ended");
        if !is_end && fields.text("message") != "connected" {
            return;
        }
        let host = context.event_scope(event).and_then(|mut scope| {
            scope.find_map(|span| span.extensions().get().map(|HostName(name)| name.clone()))
        });
        let consumer = host.expect("a consumer speaks on its host");
        let producer = fields.text("producer").to_owned();
        let mut said = SAID.lock().expect(UNPOISONED);
        let way = (consumer, producer);
        if !is_end {
            said.connected.insert(way, fields.number("epoch"));
            return;
        }
        let next = said.connected.get(&way).copied().unwrap_or(u64::MAX);
        let (consumer, producer) = way;
        let saying = Saying {
            producer,
            epoch: fields.number("epoch"),
            next,
            lacks: fields.lacks(),
            watched_from: fields.number("watched_from"),
            // Where none is named, there was none.
            lost_in_gaps: fields.text("lost_in_gaps").parse().unwrap_or(0),
            counts: true,
        };
        said.sayings.entry(consumer).or_default().push(saying);
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Fields {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        let number = self.text(name).parse();
        number.unwrap_or_else(|_| panic!("no number `{name}` in {:?}", self.0))
    }

    fn lacks(&self) -> Lacks {
        let message = self.text("message");
        if self.0.contains_key("cookies_max") {
            Lacks::AtMost(self.number("cookies_max"))
        } else if self.0.contains_key("lost") {
            Lacks::Exactly(self.number("lost"))
        } else if message.contains("no bound is known") {
            Lacks::Unknown
        } else if message.contains("after a goodbye") {
            Lacks::NothingOfIt
        } else if message.contains("nothing was lost") {
            Lacks::Nothing
        } else {
            panic!("what does it mean: {message}");
        }
    }
}
