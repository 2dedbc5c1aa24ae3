//! The end: what became of every cookie, what the consumer's store has of it, and what that means.

use std::time::Duration;

use anyhow::{Result, bail};
use launcher::{
    admin, ledger,
    numbers::grouped,
    scrape::{Samples, names},
};
use tokio::time::{Instant, sleep};

use super::{
    OFFERED,
    contract::{CHANGED_RATE, Contract, LIMIT, RATE},
};
use crate::running::Running;

/// How long what was released may take to the store.
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Tells the ledger of the limit, from one scrape, and what the store has of it.
///
/// # Errors
/// When the ledger does not add up, or what was released does not come to the store.
pub(super) async fn tell(running: &Running, contract: &Contract) -> Result<()> {
    let producer = admin::metrics(&running.producer_admin).await?;
    let (accepted, fates) = ledger::of_limit(&producer, LIMIT)?;
    println!(
        "\nthe ledger of the limit, from one scrape of http://{}/metrics\n",
        running.producer_admin
    );
    println!("    {:<10} {:>10}", "accepted", grouped(accepted));
    for (index, (fate, count)) in fates.iter().enumerate() {
        let sign = if index == 0 { '=' } else { '+' };
        println!("  {sign} {fate:<10} {:>10}", grouped(*count));
    }
    let released = producer.count(names::SHAPING_RELEASED, &[("limit", LIMIT)]);
    let consumer = wait_stored(running, released).await?;
    tell_store(&consumer, released);
    tell_meaning(&producer, contract);
    Ok(())
}

/// Waits until the consumer has done with so many cookies what is to be done with them; what it then says.
async fn wait_stored(running: &Running, released: u64) -> Result<Samples> {
    let deadline = Instant::now() + STORED_PATIENCE;
    loop {
        let consumer = admin::metrics(&running.consumer_admin).await?;
        let received = consumer.count(names::RECEIVED, &[]);
        let settled = received - consumer.count(names::WAITING, &[]);
        if settled >= released {
            return Ok(consumer);
        }
        if Instant::now() > deadline {
            bail!(
                "the consumer has stored {settled} of {released} cookies after {STORED_PATIENCE:?}"
            );
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn tell_store(consumer: &Samples, released: u64) {
    let count = |figure| consumer.count(figure, &[]);
    let received = count(names::RECEIVED);
    let not_needed = [names::SUPERSEDED, names::STALE, names::SUPPRESSED].map(count);
    println!(
        "\nthe consumer's store has all that were released: {} came to it until now, {} of them since that scrape;\n\
         {} were written, {} met the same or a newer one of their pair, {} wait for the next batch, and {} were lost",
        grouped(received),
        grouped(received.saturating_sub(released)),
        grouped(count(names::WRITTEN)),
        grouped(not_needed.iter().sum()),
        grouped(count(names::WAITING)),
        grouped(count(names::LOST) + count(names::FAILED)),
    );
}

fn tell_meaning(producer: &Samples, contract: &Contract) {
    let labels = [("limit", LIMIT)];
    let over = |outcome| {
        let labels = [("limit", LIMIT), ("outcome", outcome)];
        grouped(producer.count(names::SHAPING_OVER, &labels))
    };
    let count = |figure| grouped(producer.count(figure, &labels));
    println!(
        "\nwhat it means\n  \
         {OFFERED} a second were offered, and {RATE} a second may go, {CHANGED_RATE} from half time on: up to half of it cannot go,\n  \
         whatever is done with it. A limit that shapes spreads a burst over time; it makes no room where there is none.\n  \
         The horizon refuses what would wait for longer than {:?}: {} times here. What is refused asks again later, and what\n  \
         gets older than {:?} is a dead letter: {} times here. Dead letters come back when the load falls, at up to a\n  \
         tenth of the rate, so that they do not take the place of new cookies: {} did so far.",
        contract.horizon,
        over("refused"),
        contract.max_age,
        count(names::SHAPING_DIED),
        count(names::SHAPING_REVIVED),
    );
}
