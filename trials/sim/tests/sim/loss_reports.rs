//! What consumers say of cookies that they will not get: their log lines, read as they are written.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, filter::filter_fn, layer::Context, registry::LookupSpan};

thread_local! {
    // All hosts of a run share its one thread.
    static SAID: RefCell<BTreeMap<String, Vec<Loss>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A log line about a gap, or about the end of an epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loss {
    pub(crate) message: String,
    pub(crate) producer: String,
    numbers: BTreeMap<&'static str, u64>,
    /// Whether the new epoch told of all before it.
    pub(crate) is_tail_known: bool,
}

impl Loss {
    /// The number in this field.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.numbers.get(field).copied()
    }

    /// How many cookies are lost, or at most, if that is known.
    pub(crate) fn cookies(&self) -> Option<u64> {
        self.number("lost").or(self.number("cookies_max"))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.number("epoch").expect("each line has it")
    }

    /// Epoch and sequence of the cursor with which nobody says it again.
    pub(crate) fn is_passed_at(&self) -> (u64, u64) {
        match self.number("new_epoch") {
            Some(epoch) => (epoch, 0),
            None => (self.epoch(), self.number("last").unwrap_or_default()),
        }
    }
}

/// What a consumer said that no later process says again.
pub(crate) fn losses(consumer: &str) -> Vec<Loss> {
    SAID.with_borrow(|said| said.get(consumer).cloned().unwrap_or_default())
}

/// Forgets what a consumer said that its next process says again.
pub(crate) fn retain(consumer: &str, is_durable: impl FnMut(&Loss) -> bool) {
    SAID.with_borrow_mut(|said| {
        said.entry(consumer.to_owned())
            .or_default()
            .retain(is_durable)
    });
}

/// Notes what consumers say.
pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    Listener.with_filter(filter_fn(|metadata| {
        metadata.target().starts_with("consumer::subscription") || metadata.name() == NODE
    }))
}

/// turmoil's span of a host.
const NODE: &str = "node";

struct Listener;

struct Name(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Name(fields.name));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = &fields.loss.message;
        if !message.starts_with("gap: ") && !message.starts_with("producer restarted") {
            return;
        }
        let mut spans = context.event_scope(event).into_iter().flatten();
        let name = spans.find_map(|span| Some(span.extensions().get::<Name>()?.0.clone()));
        let name = name.expect("each host has a span");
        SAID.with_borrow_mut(|said| said.entry(name).or_default().push(fields.loss));
    }
}

#[derive(Default)]
struct Fields {
    name: String,
    loss: Loss,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.loss.numbers.insert(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.loss.is_tail_known |= field.name() == "tail_known" && value;
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "name" => value.clone_into(&mut self.name),
            "producer" => value.clone_into(&mut self.loss.producer),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.loss.message = format!("{value:?}");
        }
    }
}
