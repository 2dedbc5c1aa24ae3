//! Test of the embedded store on a full disk.
//!
//! After a failed write, only reopening the store shows which data is on disk. So the consumer logs the error and exits. It loses
//! nothing, because its cursors match its store: after a restart with free space, producers redeliver the missing cookies.

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::{
    harness::{Consumer, Producer, TIMEOUT, accept_all, embedded, expect_exit, expected_contents},
    store::outages::SmallDisk,
};

#[tokio::test]
async fn full_embedded_store_disk_ends_the_consumer_and_loses_nothing_after_its_restart()
-> Result<()> {
    let dir = TempDir::new()?;
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), "64m")? else {
        return Ok(());
    };
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("disk/store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept_load(31, 1_000).await?;
    consumer.wait_written(1_000).await?;
    let filler = disk.fill();
    let plan = producer.ordered_load(32, 10_000, 30_000)?;
    accept_all(&plan).await?;

    let status = consumer.process.wait(TIMEOUT).await?;
    expect_exit(&consumer.process, status, 1)?;
    let log = consumer.process.last_lines(3);
    ensure!(log.contains("No space left on device"), "{log}");
    let log = consumer.process.last_lines(20);
    ensure!(log.contains(" ERROR fjall"), "{log}");
    // Restarted without free space, it exits with the same error.
    consumer.process.restart()?;
    let status = consumer.process.wait(TIMEOUT).await?;
    expect_exit(&consumer.process, status, 1)?;
    let log = consumer.process.last_lines(3);
    ensure!(log.contains("No space left on device"), "{log}");

    std::fs::remove_file(filler)?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    let mut contents = expected_contents(&plan.traffic, 30_000);
    contents.extend(expected_contents(&producer.load(31)?.traffic, 1_000));
    consumer.wait_lookups(&contents).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}
