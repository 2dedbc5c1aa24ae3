//! Tests of embedded stores on a disk that no longer responds, such as a failing disk or a disconnected volume.
//!
//! No deadline can cancel a write to this disk, and the write may still complete. So the consumer waits, and reports the state in
//! `/readyz` and later in `/healthz`. A limiter rejects calls that it cannot persist.

use std::{os::unix::fs::symlink, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testkit::{admin, http::HttpClient, limiter::Limiter, programs, tools::skip};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::harness::{Consumer, Producer, TIMEOUT, embedded, wait_logged, wait_until};

/// A file system in a file, unmounted on drop.
struct Disk(PathBuf);

fn succeeds(program: &str, args: &[&str]) -> Result<bool> {
    let output = Command::new(program).args(args).output();
    Ok(output
        .with_context(|| format!("cannot run {program}"))?
        .status
        .success())
}

impl Disk {
    /// `None` (a skipped test) without the permission to mount.
    fn mount(dir: &TempDir) -> Result<Option<Self>> {
        let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
        std::fs::File::create(&image)?.set_len(256 << 20)?;
        std::fs::create_dir(&disk)?;
        let [image, mount_point] = [&image, &disk].map(|path| path.display().to_string());
        let mounted = succeeds("mkfs.ext4", &["-q", &image]).unwrap_or(false)
            && succeeds("mount", &["-o", "loop", &image, &mount_point])?;
        if !mounted {
            skip("mkfs.ext4 or mount fails");
            return Ok(None);
        }
        Ok(Some(Self(disk)))
    }

    /// Blocks writes, and the exit of writing processes, until the result is dropped.
    fn freeze(&self) -> Result<Frozen<'_>> {
        let mount_point = self.0.display().to_string();
        ensure!(
            succeeds("fsfreeze", &["--freeze", &mount_point])?,
            "fsfreeze fails"
        );
        Ok(Frozen(self))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mount_point = self.0.display().to_string();
        if !succeeds("umount", &["-l", &mount_point]).unwrap_or(false) {
            eprintln!("cannot unmount {mount_point}");
        }
    }
}

struct Frozen<'a>(&'a Disk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mount_point = self.0.0.display().to_string();
        if !succeeds("fsfreeze", &["--unfreeze", &mount_point]).unwrap_or(false) {
            eprintln!("cannot unfreeze {mount_point}");
        }
    }
}

#[tokio::test]
async fn hanging_write_fails_both_health_checks_until_it_completes_and_loses_nothing() -> Result<()>
{
    let dir = TempDir::new()?;
    let Some(disk) = Disk::mount(&dir)? else {
        return Ok(());
    };
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&disk.0.join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept_load(41, 1_000).await?;
    consumer.wait_settled(1_000).await?;
    // Dropped before the consumer, even if the test fails, because a killed consumer would wait for the frozen disk.
    let frozen = disk.freeze()?;
    producer.accept_load(42, 1_000).await?;
    consumer.wait_not_ready("store: no response for 5s").await?;
    assert_eq!(admin::get(&consumer.admin, "/healthz").await?.status, 200);
    wait_until(2 * TIMEOUT, "/healthz fails", async || {
        Ok(admin::get(&consumer.admin, "/healthz").await?.status == 503)
    })
    .await?;
    let health = admin::get(&consumer.admin, "/healthz").await?.body;
    ensure!(
        health.starts_with("store: no response for 30s; "),
        "{health}"
    );
    consumer
        .wait_not_ready("store: no response for 30s; ")
        .await?;
    wait_logged(&consumer.process, "store is not responding, still waiting").await?;

    drop(frozen);
    consumer.wait_ready().await?;
    assert_eq!(admin::get(&consumer.admin, "/healthz").await?.body, "ok\n");
    consumer.wait_settled(2_000).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn limiter_rejects_calls_while_a_write_hangs_and_exceeds_no_quota() -> Result<()> {
    const QUOTA: u64 = 200;
    let dir = TempDir::new()?;
    let Some(disk) = Disk::mount(&dir)? else {
        return Ok(());
    };
    let state = disk.0.join("state");
    std::fs::create_dir(&state)?;
    symlink(state, dir.path().join("state"))?;
    let [program] = spawn_blocking(|| programs::find(["limiter"])).await??;
    let limits = format!(
        "[limits.a]\nrules = [{{ id = 'r', rate = '{QUOTA}/30days', algorithm = 'fixed_window', aligned = 'first_call' }}]"
    );
    let mut limiter = Limiter::start(&program, dir.path(), &limits, &[]).await?;
    let address = limiter.address.clone();
    // Sends calls and returns how many were granted; all others must have the status `other`.
    let granted_of = async |calls: u64, other: u16| -> Result<u64> {
        let mut client = HttpClient::connect(&address).await?;
        let mut granted = 0;
        for _ in 0..calls {
            let reserve = client.post("/v1/limits/a/k/reserve", &[], "{}");
            let answer = timeout(Duration::from_secs(10), reserve).await??;
            granted += u64::from(answer.status == 200);
            ensure!([200, other].contains(&answer.status), "{answer:?}");
        }
        Ok(granted)
    };
    let mut granted = granted_of(50, 200).await?;
    let frozen = disk.freeze()?;
    assert_eq!(granted_of(1, 503).await?, 0);
    wait_logged(&limiter.process, "a write of the state hangs").await?;
    let began = Instant::now();
    assert_eq!(granted_of(QUOTA, 503).await?, 0);
    ensure!(
        began.elapsed() < Duration::from_secs(3),
        "calls were blocked"
    );
    let ready = admin::get(&limiter.admin, "/readyz").await?;
    assert_eq!(ready.status, 503);
    ensure!(ready.body.contains("not synced to disk"), "{ready:?}");
    let samples = admin::metrics(&limiter.admin).await?;
    let problem = [("problem", "not-saved")];
    ensure!(samples.count("limiter_problems_total", &problem) > QUOTA);

    drop(frozen);
    wait_logged(&limiter.process, "state is writable again").await?;
    limiter.process.wait_ready(&limiter.admin, TIMEOUT).await?;
    granted += granted_of(QUOTA, 429).await?;
    // Calls that timed out before the hang was detected may count.
    ensure!((QUOTA - 3..=QUOTA).contains(&granted), "{granted}");
    limiter.process.kill()?;
    limiter.process.restart()?;
    limiter.process.wait_ready(&limiter.admin, TIMEOUT).await?;
    assert_eq!(granted_of(10, 429).await?, 0);
    Ok(())
}
