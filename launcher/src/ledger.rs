//! Whether the books of producers and consumers balance: every cookie has exactly one fate, at any time.
//!
//! Each process makes its scrape under its own locks, so what is checked here holds exactly for every single scrape, under
//! load as well as at rest. What does not balance is a bug of the process, whatever the stores say.

use anyhow::{Result, bail, ensure};

use crate::scrape::{Samples, names};

/// Checks whatever books there are in a scrape: a producer's, a consumer's, or none.
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

/// Checks the account of each subscriber of a producer: appended since it joined = delivered - undelivered + lost -
/// recovered + queued.
///
/// # Errors
/// With all terms, when one is missing or the sum is wrong.
pub fn check_producer(samples: &Samples) -> Result<()> {
    let Some(appended) = samples.sum(names::APPENDED, &[]) else {
        bail!("not a producer's metrics: {} is missing", names::APPENDED);
    };
    for labels in samples.label_sets(names::SUBSCRIBER_APPENDED) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        Account::read(samples, &labels)?.check(appended)?;
    }
    let series = |name| samples.label_sets(name).count();
    let (accounts, others) = (series(names::SUBSCRIBER_APPENDED), series(names::DELIVERED));
    ensure!(
        accounts == others,
        "{accounts} accounts of {others} subscribers"
    );
    Ok(())
}

/// One subscriber's terms, in cookies.
struct Account<'a> {
    labels: &'a [(&'a str, &'a str)],
    appended: f64,
    delivered: f64,
    undelivered: f64,
    lost: f64,
    recovered: f64,
    queued: f64,
}

impl<'a> Account<'a> {
    fn read(samples: &Samples, labels: &'a [(&'a str, &'a str)]) -> Result<Self> {
        let term = |name| term(samples, name, labels);
        Ok(Self {
            labels,
            appended: term(names::SUBSCRIBER_APPENDED)?,
            delivered: term(names::DELIVERED)?,
            undelivered: term(names::UNDELIVERED)?,
            lost: term(names::SUBSCRIBER_LOST)?,
            recovered: term(names::RECOVERED)?,
            queued: term(names::QUEUED)?,
        })
    }

    /// Cookies that the subscriber has, and that it will not get.
    fn net(&self) -> (f64, f64) {
        (
            self.delivered - self.undelivered,
            self.lost - self.recovered,
        )
    }

    /// Checks it against what the producer has appended in all.
    fn check(&self, appended: f64) -> Result<()> {
        let (delivered, lost) = self.net();
        let is_balanced = exact(self.appended, delivered + lost + self.queued);
        let is_sound = delivered >= 0.0 && lost >= 0.0 && self.queued >= 0.0;
        ensure!(
            is_balanced && is_sound && self.appended <= appended,
            "the account of {:?} does not add up: {} appended since it joined (of {appended}) = {} delivered - {} undelivered + \
             {} lost - {} recovered + {} queued",
            self.labels,
            self.appended,
            self.delivered,
            self.undelivered,
            self.lost,
            self.recovered,
            self.queued
        );
        Ok(())
    }
}

/// Checks a consumer: received + found = written + superseded + suppressed + stale + failed + left out + waiting + set aside.
///
/// # Errors
/// With all terms, when one is missing or the sum is wrong.
pub fn check_consumer(samples: &Samples) -> Result<()> {
    let terms = [
        names::WRITTEN,
        names::SUPERSEDED,
        names::SUPPRESSED,
        names::STALE,
        names::FAILED,
        names::LEFT_OUT,
        names::WAITING,
        names::ASIDE,
    ];
    let received = term(samples, names::RECEIVED, &[])?;
    let found = term(samples, names::ASIDE_FOUND, &[])?;
    let (mut sum, mut shown) = (0.0, Vec::new());
    let mut is_sound = true;
    for name in terms {
        let value = term(samples, name, &[])?;
        sum += value;
        is_sound &= value >= 0.0;
        shown.push(format!("{name} {value}"));
    }
    ensure!(
        is_sound && exact(received + found, sum),
        "the ledger does not add up: {} {received} + found {found} = {sum} = {}",
        names::RECEIVED,
        shown.join(" + ")
    );
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
    let account = Account::read(producer, &labels)?;
    let redelivered = term(producer, names::REDELIVERED, &labels)?;
    let received = term(consumer, names::RECEIVED, &[])?;
    let (delivered, _) = account.net();
    let most = account.delivered + redelivered;
    ensure!(
        delivered <= received && received <= most,
        "{subscriber} has received {received} cookies of {} delivered - {} undelivered, with {redelivered} sent again",
        account.delivered,
        account.undelivered
    );
    Ok(())
}

fn term(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    match samples.sum(name, labels) {
        Some(value) => Ok(value),
        None => bail!("{name} is missing for {labels:?}"),
    }
}

/// Counts are whole and far below 2^53, so that floats hold them and their sums exactly.
fn exact(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.5
}

#[cfg(test)]
mod tests;
