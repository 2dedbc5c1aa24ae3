//! Loss reports of consumers, captured from their log messages about gaps and restarts of producers.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use proto::units::{Epoch, Sequence};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, filter::filter_fn, layer::Context, registry::LookupSpan};

use crate::clocks;

thread_local! {
    // All hosts of a run share its one thread.
    static REPORTS: RefCell<BTreeMap<String, Vec<LossReport>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A log message about a gap or the end of an epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct LossReport {
    pub(crate) message: String,
    pub(crate) producer: String,
    numbers: BTreeMap<&'static str, u64>,
    /// Whether the new epoch reported the end of all earlier ones.
    pub(crate) is_tail_known: bool,
}

impl LossReport {
    /// The value of a numeric field.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.numbers.get(field).copied()
    }

    /// Exact or maximum number of lost cookies, if known.
    pub(crate) fn cookies(&self) -> Option<u64> {
        self.number("lost").or(self.number("cookies_max"))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.number("epoch").expect("each message has the epoch")
    }

    /// Epoch and sequence number of the first cursor from which the loss is not reported again.
    pub(crate) fn durable_position(&self) -> (Epoch, Sequence) {
        match self.number("new_epoch") {
            Some(epoch) => (Epoch(epoch), Sequence(0)),
            None => {
                let last = self.number("last").unwrap_or_default();
                (Epoch(self.epoch()), Sequence(last))
            }
        }
    }
}

/// Loss reports of a consumer, without repetitions by later processes.
pub(crate) fn losses(consumer: &str) -> Vec<LossReport> {
    REPORTS.with_borrow(|reports| reports.get(consumer).cloned().unwrap_or_default())
}

/// Keeps only durable loss reports of a consumer; its next process repeats the others.
pub(crate) fn retain(consumer: &str, is_durable: impl FnMut(&LossReport) -> bool) {
    REPORTS.with_borrow_mut(|reports| {
        reports
            .entry(consumer.to_owned())
            .or_default()
            .retain(is_durable)
    });
}

/// A layer that captures loss reports.
pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    LogListener.with_filter(filter_fn(|metadata| {
        metadata.target().starts_with("consumer::subscription") || metadata.name() == NODE
    }))
}

/// turmoil's span of a host.
const NODE: &str = "node";

struct LogListener;

struct Name(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogListener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        // turmoil creates the span of a host whenever the host continues.
        clocks::enter(&fields.name);
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
        REPORTS.with_borrow_mut(|reports| reports.entry(name).or_default().push(fields.loss));
    }
}

#[derive(Default)]
struct Fields {
    name: String,
    loss: LossReport,
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
