//! Test of the admin port of each process.

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::admin;

use crate::harness::{Consumer, Producer, embedded};

#[tokio::test]
async fn each_process_serves_health_checks_and_the_documented_metrics() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_settled(1).await?;
    for (address, documented) in [
        (
            &producer.admin,
            &[
                "producer_edge_requests_total{outcome=\"accepted\"} 1\n",
                "producer_cookies_appended_total 1\n",
                "producer_log_retained_seconds ",
                "producer_subscriber_delivered_cookies_total{",
                "producer_subscriber_lost_cookies_total{",
                "producer_subscriber_lag_cookies{",
                "producer_subscriber_sent_bytes_total{",
            ][..],
        ),
        (
            &consumer.admin,
            &[
                "consumer_received_total 1\n",
                "consumer_written_total 1\n",
                "consumer_superseded_total 0\n",
                "consumer_failed_total{",
                "consumer_flush_seconds_bucket{",
                "consumer_batch_cookies_bucket{",
                "consumer_stored_seconds_bucket{",
                "consumer_lost_total{",
            ][..],
        ),
    ] {
        assert_eq!(admin::get(address, "/healthz").await?.body, "ok\n");
        assert_eq!(admin::readiness(address).await?, Ok(()));
        assert_eq!(admin::get(address, "/none").await?.status, 404);
        let metrics = admin::get(address, "/metrics").await?;
        assert_eq!(metrics.status, 200);
        for part in documented {
            ensure!(
                metrics.body.contains(part),
                "{part} is missing in\n{}",
                metrics.body
            );
        }
    }
    Ok(())
}
