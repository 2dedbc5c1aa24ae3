//! Whether the ledgers of producers and consumers balance: every cookie has exactly one fate, at any time.
//!
//! Each process makes its scrape under its own locks, so what is checked here holds exactly for every single scrape, under
//! load as well as at rest. What does not balance is a bug of the process, whatever the stores say.

use std::fmt;

use anyhow::{Result, bail, ensure};
use metric_defs::{
    Equation, MetricDef,
    equations::{ACCOUNT, LEDGER, SHAPING, Term},
};

use crate::scrape::{Samples, names};

/// Checks whatever ledger there is in a scrape: a producer's, a consumer's, or none.
///
/// # Errors
/// With all terms of the sum that is wrong.
pub fn check(samples: &Samples) -> Result<()> {
    if samples.sum(names::APPENDED, &[]).is_some() {
        check_producer(samples)?;
    }
    if samples.sum(names::RECEIVED, &[]).is_some() {
        check_consumer(samples)?;
    }
    Ok(())
}

/// Checks the [account](ACCOUNT) of each subscriber of a producer, and what is counted of each of its [limits](SHAPING).
///
/// # Errors
/// With all terms, when one is missing or the sum is wrong.
pub fn check_producer(samples: &Samples) -> Result<()> {
    for labels in samples.label_sets(names::SHAPING_ACCEPTED) {
        of_limit(samples, labels.get("limit").map_or("", String::as_str))?;
    }
    let appended = term(samples, names::APPENDED, &[])?;
    for labels in samples.label_sets(names::SUBSCRIBER_APPENDED) {
        let labels = labels.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let labels: Vec<_> = labels.collect();
        let account = Reading::of(&ACCOUNT, samples, &labels)?;
        ensure!(
            account.adds_up() && account.came <= appended,
            "the account of {labels:?}, of {appended} cookies appended, does not add up: {account}"
        );
    }
    let series = |figure| samples.label_sets(figure).count();
    let (accounts, others) = (series(names::SUBSCRIBER_APPENDED), series(names::DELIVERED));
    ensure!(
        accounts == others,
        "{accounts} accounts of {others} subscribers"
    );
    Ok(())
}

/// What became of the cookies that were accepted under a limit of a producer: how many were accepted, and how many had which fate or are
/// held, each with the word of its figure: `released`, `waiting`.
///
/// # Errors
/// With all terms, when one is missing or the [sum](SHAPING) is wrong.
pub fn of_limit(samples: &Samples, limit: &str) -> Result<(u64, Vec<(&'static str, u64)>)> {
    let labels = [("limit", limit)];
    let reading = Reading::of(&SHAPING, samples, &labels)?;
    ensure!(
        reading.adds_up(),
        "the ledger of the limit {limit} does not add up: {reading}"
    );
    let fates = SHAPING.terms().map(|term| {
        let name = term.count.name.strip_prefix("producer_limits_");
        let word = name.and_then(|name| name.split('_').next());
        let count = samples.count(term.count, &labels);
        (word.unwrap_or(term.count.name), count)
    });
    let accepted = samples.count(names::SHAPING_ACCEPTED, &labels);
    Ok((accepted, fates.collect()))
}

/// Checks the [ledger](LEDGER) of a consumer.
///
/// # Errors
/// With all terms, when one is missing or the sum is wrong.
pub fn check_consumer(samples: &Samples) -> Result<()> {
    let ledger = Reading::of(&LEDGER, samples, &[])?;
    ensure!(ledger.adds_up(), "the ledger does not add up: {ledger}");
    Ok(())
}

/// Checks that a consumer received what a producer says it delivered, to the subscriber of that name.
///
/// Sound only when nothing moves between the two scrapes, this producer is the consumer's only one, and both have been the
/// same processes since the consumer opened its first stream. Then the consumer has received at least what is delivered and
/// not undelivered, at most that and what was sent again, and exactly that when no stream broke off.
///
/// # Errors
/// With all terms, when the subscriber is unknown or the counts contradict each other.
pub fn check_between(producer: &Samples, consumer: &Samples, subscriber: &str) -> Result<()> {
    let labels = [("subscriber", subscriber), ("call", "subscribe")];
    let sent = term(producer, names::DELIVERED, &labels)?;
    let undelivered = term(producer, names::UNDELIVERED, &labels)?;
    let redelivered = term(producer, names::REDELIVERED, &labels)?;
    let received = term(consumer, names::RECEIVED, &[])?;
    ensure!(
        sent - undelivered <= received && received <= sent + redelivered,
        "{subscriber} has received {received} cookies of {sent} delivered - {undelivered} undelivered, with {redelivered} sent again"
    );
    Ok(())
}

/// A sum as it was read.
struct Reading {
    came: f64,
    all_came: Vec<String>,
    explained: f64,
    all: Vec<String>,
    /// Whether no term is below zero.
    is_sound: bool,
}

impl Reading {
    /// That of the figures with these labels.
    fn of(equation: &Equation, samples: &Samples, labels: &[(&str, &str)]) -> Result<Self> {
        let mut read = Self {
            came: 0.0,
            all_came: Vec::new(),
            explained: 0.0,
            all: Vec::new(),
            is_sound: true,
        };
        for figure in equation.came {
            let count = term(samples, *figure, labels)?;
            read.came += count;
            read.all_came.push(format!("{figure} {count}"));
        }
        for Term { count, less } in equation.terms() {
            let mut net = term(samples, *count, labels)?;
            let mut text = format!("{count} {net}");
            if let Some(less) = less {
                let taken_back = term(samples, *less, labels)?;
                net -= taken_back;
                text += &format!(" - {less} {taken_back}");
            }
            read.explained += net;
            read.all.push(text);
            read.is_sound &= net >= 0.0;
        }
        Ok(read)
    }

    fn adds_up(&self) -> bool {
        self.is_sound && exact(self.came, self.explained)
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all_came, all) = (self.all_came.join(" + "), self.all.join(" + "));
        write!(
            formatter,
            "{all_came} = {}, and {all} = {}",
            self.came, self.explained
        )
    }
}

fn term(samples: &Samples, figure: MetricDef, labels: &[(&str, &str)]) -> Result<f64> {
    match samples.sum(figure, labels) {
        Some(value) => Ok(value),
        None => bail!("{figure} is missing for {labels:?}"),
    }
}

/// Counts are whole and far below 2^53, so that floats hold them and their sums exactly.
fn exact(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.5
}

#[cfg(test)]
mod tests;
