//! What one stopped subscriber does to a server, and what becomes of it.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use bench::memory::Memory;
use rustix::process::Signal;
use tokio::time::Instant;

use super::{outcome::Stopped, scene::Scene, step::finish};

/// Subscribers in another process, which go on.
const WITNESSES: usize = 2;

/// How long all goes well before.
const BEFORE: Duration = Duration::from_secs(2);

/// How long it is published after the subscriber goes on.
const AFTER: Duration = Duration::from_secs(3);

/// Freezes one of three subscribers for `stopped_for` under a constant load.
///
/// # Errors
/// When the server, its publisher or its subscribers break off.
pub(super) async fn observe(
    scene: &Scene<'_>,
    rate: NonZeroU64,
    stopped_for: Duration,
) -> Result<Stopped> {
    let mut broker = scene.broker().await?;
    let witnesses = scene.readers("witnesses", &broker, WITNESSES).await?;
    let mut sleeper = scene.readers("sleeper", &broker, 1).await?;
    let duration = BEFORE + stopped_for + AFTER;
    let mut publisher = scene.publisher(&broker, Some(rate), duration)?;
    let began = Instant::now();
    let mut phase = Phase::Before;
    let mut memory = Watched::default();
    let published = finish(scene, &mut publisher, || {
        let (_, now) = broker.usage()?;
        if phase == Phase::Before && began.elapsed() >= BEFORE {
            memory.before_bytes = now.resident_bytes;
            sleeper.signal(Signal::STOP)?;
            phase = Phase::Stopped;
        }
        if phase == Phase::Stopped && began.elapsed() >= BEFORE + stopped_for {
            sleeper.signal(Signal::CONT)?;
            phase = Phase::After;
        }
        memory.look(now);
        Ok(())
    })
    .await?;
    // A publisher that was ended early may leave it stopped.
    sleeper.signal(Signal::CONT)?;
    let each = published.published;
    let expected = each * WITNESSES as u64;
    scene
        .settle(&[(&witnesses, expected), (&sleeper, each)], || {
            memory.look(broker.usage()?.1);
            Ok(())
        })
        .await?;
    let witnessed = witnesses.end().await?;
    let slept = sleeper.end().await?;
    broker.stop().await;
    Ok(Stopped {
        peer: scene.peer,
        batch: scene.batch,
        rate: rate.get(),
        stopped_seconds: stopped_for.as_secs_f64(),
        was_stopped: phase == Phase::After,
        published: each,
        memory_before_bytes: memory.before_bytes,
        memory_peak_bytes: memory.peak_bytes,
        others_lost: expected.saturating_sub(witnessed.delivered()),
        others_disconnects: witnessed.disconnects,
        delivered: slept.delivered(),
        lost: each.saturating_sub(slept.delivered()),
        told_lost: slept.told_lost,
        disconnects: slept.disconnects,
        repeated: slept.repeated,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Stopped,
    After,
}

/// The server's memory.
#[derive(Debug, Default)]
struct Watched {
    before_bytes: u64,
    peak_bytes: u64,
}

impl Watched {
    fn look(&mut self, now: Memory) {
        if self.before_bytes > 0 {
            self.peak_bytes = self.peak_bytes.max(now.resident_bytes);
        }
    }
}
