//! Tests of hostile requests during syncs: each hostile request is counted under its reason, and its contents are not
//! recorded, logged or exported.

use std::{collections::BTreeMap, fs};

use anyhow::{Result, ensure};
use bench::{load, verify::RequestHistory as _};
use testkit::{admin, scrape::names};
use tokio_util::sync::CancellationToken;

use crate::harness::Producer;

/// Number of requests: several rounds of the list, the last of them incomplete.
const REQUESTS: u64 = 1_000;

/// Parts of the consent strings in these requests.
const SIGNALS: [&str; 4] = ["CPGW", "BONcigu", "DBABMA", "GDPR_CONSENT_755"];

/// Flags of a producer that refuses these requests.
pub(crate) fn contracts() -> [&'static str; 2] {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hostile.toml");
    ["--contracts", FILE]
}

/// Sends hostile requests to a new producer while `honest` sends `accepted` requests, and checks how all are counted.
pub(crate) async fn send_during<T>(
    producer: &Producer,
    accepted: u64,
    honest: impl Future<Output = Result<T>>,
) -> Result<()> {
    let plan = load::Plan {
        connections: 3.try_into()?,
        pipeline: Some(16.try_into()?),
        requests: Some(REQUESTS),
        hostile: true,
        ..producer.load(7)?.rate(REQUESTS.try_into()?)
    };
    let stop = CancellationToken::new();
    let (outcome, honest) = tokio::join!(load::run(&plan, &stop), honest);
    honest?;
    let outcome = outcome?;
    ensure!(
        outcome.report().failures.is_empty() && outcome.counts.accepted == REQUESTS,
        "{}",
        outcome.report().summary()
    );

    let mut requests = BTreeMap::from([("accepted".to_owned(), accepted)]);
    let mut privacy = BTreeMap::from([("allowed".to_owned(), accepted)]);
    for (reason, sent) in &outcome.hostile {
        ensure!(*sent > 0, "no request is refused as {reason}");
        let (counts, label) = match reason.strip_prefix("privacy ") {
            Some(outcome) => {
                *requests.entry("privacy".to_owned()).or_default() += sent;
                (&mut privacy, outcome)
            }
            None => (&mut requests, *reason),
        };
        counts.insert(label.to_owned(), *sent);
    }
    let metrics = producer.metrics().await?;
    let counted = |name| {
        let by_outcome = metrics.by_label(name, "outcome").into_iter();
        by_outcome.filter(|(_, count)| *count > 0).collect()
    };
    let counted: [BTreeMap<_, _>; 2] = [names::EDGE_REQUESTS, names::PRIVACY].map(counted);
    assert_eq!(counted, [requests, privacy]);
    assert_eq!(producer.appended().await?, accepted);

    let mut text = fs::read_to_string(producer.process.log())?;
    text.push_str(&admin::get(&producer.admin, "/metrics").await?.body);
    for signal in SIGNALS {
        ensure!(!text.contains(signal), "{signal} is in the log or a metric");
    }
    for history in &outcome.histories {
        for number in 0..history.sent() {
            let cookie = plan.traffic.cookie(history.connection(), number);
            let is_absent = !text.contains(cookie.user_id()) && !text.contains(cookie.buyer_uid());
            ensure!(is_absent, "the log or a metric contains {cookie:?}");
        }
    }
    Ok(())
}
