//! What waiting cookies take in memory.

use anyhow::{Context, Result, ensure};
use bench::{memory::Memory, scrape::names};
use tempfile::TempDir;

use super::{of_limit, plan, send, sending, start, told};
use crate::harness::{Producer, reserve_machine};

const OFFERED: u64 = 40_000;
const QUEUE_BYTES: u64 = 64 << 20;

/// Little, so that it is full in both runs: with limits, only half as much goes into it.
const LOG: [&str; 2] = ["--log-bytes", "16MiB"];

/// By how much a producer grows under the load, which it accepts.
async fn growth(producer: &Producer) -> Result<u64> {
    let process = producer.process.id();
    let memory = || Memory::of(process).context("it has ended");
    let before = memory()?.resident_bytes;
    let sending = sending(60);
    let accepted = send(&plan(producer, (1, 1), OFFERED, sending)?).await?;
    let most = OFFERED * sending.as_secs();
    ensure!(
        accepted > most / 2,
        "only {accepted} of {most} were accepted"
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
    let held = of_limit(&samples, names::SHAPING_BYTES, "dsp-1");
    println!("{}, {held} bytes held", told(&samples, "dsp-1")?);
    println!(
        "the producer grew by {} KiB without limits, by {} KiB with {} KiB for those that wait",
        without >> 10,
        with >> 10,
        QUEUE_BYTES >> 10
    );
    ensure!(held <= QUEUE_BYTES, "{held} bytes are held");
    ensure!(with <= without + QUEUE_BYTES, "it grew by {with} bytes");
    Ok(())
}
