//! The embedded store on a disk that has no more room.
//!
//! It cannot go on by itself: after a failed write only opening it again tells what the disk holds. So the consumer ends, says why,
//! and loses nothing, because its cursors stand where its store does: anyone who starts it again when there is room gets
//! all that the producers still have.

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::{
    harness::{Consumer, Producer, TIMEOUT, accept_all, embedded, expect_exit, newest},
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
    let words = consumer.process.last_lines(3);
    ensure!(words.contains("No space left on device"), "{words}");
    let words = consumer.process.last_lines(20);
    ensure!(words.contains(" ERROR fjall"), "{words}");
    // Without room it does not begin to read either, and tells why.
    consumer.process.restart()?;
    let status = consumer.process.wait(TIMEOUT).await?;
    expect_exit(&consumer.process, status, 1)?;
    let words = consumer.process.last_lines(3);
    ensure!(words.contains("No space left on device"), "{words}");

    std::fs::remove_file(filler)?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    let mut known = newest(&plan.traffic, 30_000);
    known.extend(newest(&producer.load(31)?.traffic, 1_000));
    consumer.wait_knows(&known).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}
