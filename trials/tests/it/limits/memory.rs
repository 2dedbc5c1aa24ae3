//! Test of the memory that queued cookies take.

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::{memory::Memory, scrape::names};

use super::{describe_balance, limit_metric, load_time, plan, send, start};
use crate::harness::{Producer, reserve_machine};

const OFFERED: u64 = 40_000;
const QUEUE_BYTES: u64 = 64 << 20;

/// A small log, which is full in both runs although the limits release only half of the cookies.
const LOG: [&str; 2] = ["--log-bytes", "16MiB"];

/// Growth of a producer's memory under the load, in bytes.
async fn growth(producer: &Producer) -> Result<u64> {
    let process = producer.process.id();
    let memory = || Memory::of(process).context("the producer has ended");
    let before = memory()?.resident_bytes;
    let time = load_time(60);
    let accepted = send(&plan(producer, (1, 1), OFFERED, time)?).await?;
    let offered = OFFERED * time.as_secs();
    ensure!(
        accepted > offered / 2,
        "only {accepted} of {offered} cookies were accepted"
    );
    Ok(memory()?.peak_bytes.saturating_sub(before))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes and dist builds"]
async fn dsp_queue_stays_within_its_memory_limit() -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let without = growth(&Producer::start(&dir, &LOG).await?).await?;
    let dir = TempDir::new()?;
    let limits = format!(
        "unknown = \"unlimited\"\n[limits.dsp-1]\nkeys = [1]\nmode = \"shape\"\n\
         rules = [ {{ id = \"peak\", rate = \"20000/s\", burst = 200 }} ]\n\
         shape = {{ queue_bytes = {QUEUE_BYTES} }}\n"
    );
    let producer = start(&dir, &limits, &LOG).await?;
    let with = growth(&producer).await?;
    let samples = producer.metrics().await?;
    let queued_bytes = limit_metric(&samples, names::DSP_LIMITS_BYTES, "dsp-1");
    println!(
        "{}, {queued_bytes} bytes queued",
        describe_balance(&samples, "dsp-1")?
    );
    println!(
        "the producer grew by {} KiB without limits, and by {} KiB with a queue of {} KiB",
        without >> 10,
        with >> 10,
        QUEUE_BYTES >> 10
    );
    ensure!(
        queued_bytes <= QUEUE_BYTES,
        "{queued_bytes} bytes are queued"
    );
    ensure!(
        with <= without + QUEUE_BYTES,
        "the producer grew by {with} bytes"
    );
    Ok(())
}
