//! Checks that the ledgers in a scrape balance: every cookie has exactly one outcome or is pending.
//!
//! Each process collects its metrics under its own locks, so the equations hold exactly in every scrape, even under
//! load. An imbalance is a bug of the process.

use anyhow::{Result, bail, ensure};
use metric_defs::{
    Equation, MetricDef, consumer,
    equations::{ACCOUNT, ARCHIVE, DSP_LIMITS, LEDGER, RECOVERY, Term},
};

use crate::scrape::{Samples, names};

/// Checks the ledger of a producer or a consumer; does nothing if the scrape is from another process.
///
/// # Errors
/// Lists all terms of the first equation that does not balance.
pub fn check(samples: &Samples) -> Result<()> {
    if samples.sum(names::APPENDED, &[]).is_some() {
        check_producer(samples)?;
    }
    if samples.sum(names::RECEIVED, &[]).is_some() {
        check_consumer(samples)?;
    }
    Ok(())
}

/// Checks the [account](ACCOUNT) of each subscriber of a producer, and the ledger of each of its [limits](DSP_LIMITS).
///
/// # Errors
/// Lists all terms if an equation does not balance or a term is missing.
pub fn check_producer(samples: &Samples) -> Result<()> {
    for labels in samples.label_sets(names::DSP_LIMITS_ACCEPTED) {
        limit_outcomes(samples, labels.get("limit").map_or("", String::as_str))?;
    }
    let appended = term(samples, names::APPENDED, &[])?;
    for labels in samples.label_sets(names::SUBSCRIBER_APPENDED) {
        let labels = labels.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let labels: Vec<_> = labels.collect();
        let account = Balance::of(&ACCOUNT, samples, &labels)?;
        ensure!(
            account.is_balanced && account.inputs <= appended,
            "the cookie counts of {labels:?} do not balance; cookies appended: {appended}; {}",
            account.text
        );
    }
    if samples.label_sets(names::ARCHIVED).next().is_some() {
        let archive = Balance::of(&ARCHIVE, samples, &[])?;
        ensure!(
            archive.is_balanced,
            "the cookie counts of the archive do not balance: {}",
            archive.text
        );
    }
    let series = |metric| samples.label_sets(metric).count();
    let (accounts, subscribers) = (series(names::SUBSCRIBER_APPENDED), series(names::DELIVERED));
    ensure!(
        accounts == subscribers,
        "{accounts} accounts for {subscribers} subscribers"
    );
    Ok(())
}

/// The cookies accepted under a limit of a producer, and their number by outcome or state. The names come from the metrics:
/// `released`, `queued`.
///
/// # Errors
/// Lists all terms if the [equation](DSP_LIMITS) does not balance or a term is missing.
pub fn limit_outcomes(samples: &Samples, limit: &str) -> Result<(u64, Vec<(&'static str, u64)>)> {
    let labels = [("limit", limit)];
    let balance = Balance::of(&DSP_LIMITS, samples, &labels)?;
    ensure!(
        balance.is_balanced,
        "the ledger of limit {limit} does not balance: {}",
        balance.text
    );
    let outcomes = DSP_LIMITS.terms.iter().map(|term| {
        let name = term.count.name.strip_prefix("producer_limits_");
        let outcome = name.and_then(|name| name.split('_').next());
        let count = samples.count(term.count, &labels);
        (outcome.unwrap_or(term.count.name), count)
    });
    let accepted = samples.count(names::DSP_LIMITS_ACCEPTED, &labels);
    Ok((accepted, outcomes.collect()))
}

/// Checks the [ledger](LEDGER) of a consumer and, if it has an archive, its [recovery](RECOVERY).
///
/// # Errors
/// Lists all terms if the equation does not balance or a term is missing.
pub fn check_consumer(samples: &Samples) -> Result<()> {
    let ledger = Balance::of(&LEDGER, samples, &[])?;
    ensure!(ledger.is_balanced, "unbalanced ledger: {}", ledger.text);
    if samples.sum(consumer::RECOVERY_MISSING, &[]).is_some() {
        let recovery = Balance::of(&RECOVERY, samples, &[])?;
        ensure!(
            recovery.is_balanced,
            "unbalanced recovery: {}",
            recovery.text
        );
    }
    Ok(())
}

/// Both sides of a balance.
struct Balance {
    inputs: f64,
    /// Whether both sides are equal, and no term is negative.
    is_balanced: bool,
    /// Both sides with all terms.
    text: String,
}

impl Balance {
    fn of(equation: &Equation, samples: &Samples, labels: &[(&str, &str)]) -> Result<Self> {
        let (mut inputs, mut explained, mut is_sound) = (0.0, 0.0, true);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for metric in equation.inputs {
            let count = term(samples, *metric, labels)?;
            inputs += count;
            left.push(format!("{metric} {count}"));
        }
        for Term { count, minus } in equation.terms {
            let mut net = term(samples, *count, labels)?;
            let mut text = format!("{count} {net}");
            if let Some(minus) = minus {
                let corrections = term(samples, *minus, labels)?;
                net -= corrections;
                text += &format!(" - {minus} {corrections}");
            }
            explained += net;
            right.push(text);
            is_sound &= net >= 0.0;
        }
        let (left, right) = (left.join(" + "), right.join(" + "));
        Ok(Self {
            inputs,
            // Half a cookie allows for the rounding of sums.
            is_balanced: is_sound && (inputs - explained).abs() < 0.5,
            text: format!("{left} = {inputs}, but {right} = {explained}"),
        })
    }
}

fn term(samples: &Samples, metric: MetricDef, labels: &[(&str, &str)]) -> Result<f64> {
    match samples.sum(metric, labels) {
        Some(value) => Ok(value),
        None => bail!("{metric} is missing for {labels:?}"),
    }
}

#[cfg(test)]
mod tests;
