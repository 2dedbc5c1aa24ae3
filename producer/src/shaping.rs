//! Contracts at the edge: cookies are accepted at any time, and released into the log at the rate that was agreed.
//!
//! A browser is answered at once, whatever its DSP has agreed on; the *cookie* may wait. `--limits FILE` says which DSPs are under which limits,
//! and what is done with what is over: nothing but counting (`observe`), dropping (`police`), or waiting (`shape`). Without it none of this exists.
//!
//! # The way of a cookie under a limit that shapes
//!
//! Accepted, it goes into the log at once if that is within the limits, and else into the waiting room of its DSP (`room.rs`). There it is *released* at
//! its turn, with its age, so that no store takes it for newer than it is. A newer cookie of its pair takes its place. What would wait for longer than
//! the maximum wait is sent back for that long and asks again; what gets older than allowed is a dead letter, which is requeued later, at a share of the rate,
//! and at last parked. `docs/dsp-limits.md` has the life cycle.
//!
//! # What holds
//!
//! - Each cookie that is accepted has one fate or is held, in every scrape ([`figures::sums::SHAPING`](::figures::sums::SHAPING)).
//! - A cookie goes into the log before any later one of its pair, or never.
//! - Rooms are bounded in bytes, each by itself, and there is one for each DSP that the file names and one for all others.
//! - When the process is killed, the waiting cookies are lost, and no others. When it stops, they are kept in a file (`--limits-spool`), or else
//!   released before their time.
//!
//! # Cost
//!
//! A lock that all connections share, taken once for the cookies of one read and held for a lookup and a reservation for each:
//! `cargo bench -p producer` has the figures. Its task wakes when something is due, and not before.

pub mod contract;
mod counters;
mod held;
mod metrics;
mod room;
mod shaper;
mod sharing;
mod spool;
mod told;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use limits::rules::Rules;
use runtime::unix_micros;
use tokio::{sync::Notify, task::spawn_blocking, time::timeout_at};
use tokio_util::sync::CancellationToken;

use self::{
    contract::LimitsFile,
    counters::Fate,
    held::Held,
    room::Offered,
    shaper::{Shaper, TURN_COOKIES_MAX},
};
pub(crate) use self::{counters::Dropped, metrics::register, shaper::Summary, spool::Spool};
use crate::{
    config::LimitsConfig,
    log::{Burst, Closed, Log},
};

/// How often a new version of the file is looked for, where nothing else is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The limits of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Shaping {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    file: LimitsFile,
    spool: Option<Spool>,
    began: Instant,
    began_unix_nanos: u64,
    woken: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    shaper: Shaper,
    rules: Arc<Rules>,
    version: u64,
    /// When [`Shaping::run`] looks next.
    planned: u64,
    /// What of the limits is this producer's, where several share them.
    leased: Option<sharing::Leased>,
    /// When its shares change by themselves.
    shares_change: u64,
    is_over: bool,
}

impl Shaping {
    /// The limits of `file`, releasing into `log`; nothing is kept beyond this run.
    #[must_use]
    pub fn new(file: LimitsFile, log: Log) -> Self {
        Self::start("", file, None, log)
    }

    /// The limits of the producer of this name, if there are any.
    ///
    /// # Errors
    /// When another process uses the file that keeps what waits.
    pub(crate) fn open(
        name: &str,
        config: &LimitsConfig,
        log: &Log,
    ) -> anyhow::Result<Option<Self>> {
        let Some(file) = config.file.clone() else {
            return Ok(None);
        };
        let take = |path: &PathBuf| {
            let taken = Spool::take(path.clone());
            taken.with_context(|| format!("--limits-spool: {}", path.display()))
        };
        let spool = config.spool.as_ref().map(take).transpose()?;
        Ok(Some(Self::start(name, file, spool, log.clone())))
    }

    /// The limits of `file`, releasing into `log`. What an earlier run kept waits again.
    ///
    /// `name` is the producer's.
    pub(crate) fn start(name: &str, file: LimitsFile, spool: Option<Spool>, log: Log) -> Self {
        let rules = file.current();
        let leased = sharing::leased(rules.sharing.as_ref(), name);
        let began_unix_nanos = unix_micros().saturating_mul(1000);
        let shaping = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    shaper: Shaper::new(&rules, began_unix_nanos),
                    rules,
                    version: 1,
                    planned: u64::MAX,
                    leased,
                    shares_change: 0,
                    is_over: false,
                }),
                log,
                file,
                spool,
                began: Instant::now(),
                began_unix_nanos,
                woken: Notify::new(),
            }),
        };
        shaping.look_at_shares(&mut shaping.state());
        shaping.take_back();
        shaping
    }

    /// When this was, by the clock that limits go by: nanoseconds since the Unix epoch, as if nobody had set the system's clock
    /// since the start.
    fn nanos(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.shared.began);
        let elapsed = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.shared.began_unix_nanos.saturating_add(elapsed)
    }

    fn now(&self) -> u64 {
        self.nanos(Instant::now())
    }

    /// Appends those cookies of a burst that was read at `read_at` to the log that may go now, and empties it. What is held of
    /// the others is copied.
    ///
    /// All under one lock: a later cookie of the same pair can be released by nobody before these are in the log.
    ///
    /// # Errors
    /// [`Closed`] when the log is; those that might go are then counted as released all the same.
    pub fn append(&self, burst: &mut Burst, read_at: Instant) -> Result<(), Closed> {
        let now = self.nanos(read_at);
        let mut state = self.state();
        self.look_at_shares(&mut state);
        let log = &self.shared.log;
        // Else the log is about to be closed, and refuses them.
        if !state.is_over {
            let mut is_held = false;
            burst.retain(|cookie| {
                let offered = state.shaper.offer(cookie, now, || log.unix_micros());
                is_held |= offered == Offered::Held;
                offered == Offered::Release
            });
            if is_held && state.shaper.due() < state.planned {
                // Once: until the task has looked, nobody else need wake it.
                state.planned = 0;
                self.shared.woken.notify_one();
            }
        }
        log.append(burst)
    }

    /// Releases what is due, and takes new versions of the file into force, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let wait = self.turn();
            if wait.is_zero() {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.shared.woken.notified() => {}
            }
        }
    }

    /// Does what is due; returns how long nothing more is.
    fn turn(&self) -> Duration {
        let now = self.now();
        let mut state = self.state();
        if state.is_over {
            return LOOK_INTERVAL;
        }
        self.look_at_file(&mut state, now);
        self.look_at_shares(&mut state);
        let mut released = Vec::new();
        state.shaper.turn(now, |held| released.push(held));
        self.release(&mut state, &released);
        let longest = u64::try_from(LOOK_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        let wait = state.shaper.due().saturating_sub(now).min(longest);
        state.planned = now.saturating_add(wait);
        Duration::from_nanos(wait)
    }

    /// Appends what was released, while nobody else can release a later cookie of the same pair.
    fn release(&self, state: &mut State, released: &[Held]) {
        if !append(&self.shared.log, released) {
            // It is closed after this has ended; if it is closed all the same, they are gone.
            tracing::error!(
                cookies = released.len(),
                "cookies were released after the log was closed"
            );
            state.is_over = true;
        }
    }

    fn look_at_file(&self, state: &mut State, now: u64) {
        let newest = self.shared.file.current();
        if !Arc::ptr_eq(&newest, &state.rules) {
            if newest.sharing != state.rules.sharing {
                tracing::warn!("[sharing] changed; the change takes effect after a restart");
            }
            state.shaper.change(&newest, now);
            state.rules = newest;
            state.shares_change = 0;
            if let Some(leased) = &state.leased {
                leased.lease.refresh_now();
            }
            state.version += 1;
            let held_bytes_max = contract::held_bytes_max(&state.rules);
            let version = state.version;
            tracing::info!(version, held_bytes_max, "limits reloaded");
        }
    }

    /// Takes what waits out of the rooms, when no more comes: into the file if there is one and it is written by `deadline`, else into the
    /// log.
    pub(crate) async fn drain(&self, deadline: tokio::time::Instant) {
        let now = self.now();
        let held = {
            let mut state = self.state();
            state.is_over = true;
            state.shaper.take_all(now)
        };
        let (count, log) = (held.len(), &self.shared.log);
        let held = Arc::new(held);
        let is_spooled = match &self.shared.spool {
            Some(spool) if count > 0 => keep(spool, Arc::clone(&held), log.unix_micros(), deadline)
                .await
                .inspect_err(|error| {
                    tracing::error!(path = %spool.path().display(), %error, "cannot write the spool");
                })
                .is_ok(),
            _ => false,
        };
        let mut state = self.state();
        let fate = if is_spooled {
            Fate::Spooled
        } else if held.chunks(TURN_COOKIES_MAX).all(|part| append(log, part)) {
            Fate::ReleasedEarly
        } else {
            Fate::Dropped(Dropped::Drain)
        };
        state.shaper.settle(fate);
        drop(state);
        match fate {
            _ if count == 0 => {}
            Fate::Spooled => tracing::info!(cookies = count, "wrote queued cookies to the spool"),
            Fate::ReleasedEarly => tracing::info!(cookies = count, "released queued cookies early"),
            Fate::Dropped(_) => tracing::error!(
                cookies = count,
                "queued cookies lost: it could be neither kept nor released"
            ),
        }
    }

    /// Holds again what an earlier run kept, if it kept anything.
    fn take_back(&self) {
        let Some(spool) = &self.shared.spool else {
            return;
        };
        let now = self.now();
        let kept = spool.read(|cookie, accepted_unix_micros| {
            let age = self.shared.log.unix_micros();
            let age = age.saturating_sub(accepted_unix_micros);
            let accepted = now.saturating_sub(age.saturating_mul(1000));
            Held::new(&cookie, accepted_unix_micros, accepted)
        });
        let kept = kept.unwrap_or_default();
        if kept.is_empty() {
            return;
        }
        tracing::info!(
            cookies = kept.len(),
            "restored queued cookies from the spool"
        );
        let mut state = self.state();
        let take_back = |held| state.shaper.take_back(held, now);
        let at_once: Vec<_> = kept.into_iter().filter_map(take_back).collect();
        for part in at_once.chunks(TURN_COOKIES_MAX) {
            self.release(&mut state, part);
        }
        spool.remove();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends cookies with their ages; false when the log is closed.
fn append<'a>(log: &Log, held: impl IntoIterator<Item = &'a Held>) -> bool {
    let cookies = held
        .into_iter()
        .map(|held| (held.cookie(), held.accepted_unix_micros));
    log.append_accepted(cookies).is_ok()
}

/// Keeps what waited in the file, if it is written by `deadline`.
///
/// What is written later never gets the file's name, since its cookies are released. Renaming has no deadline: until its end nobody knows which of the two holds.
async fn keep(
    spool: &Spool,
    held: Arc<Vec<Held>>,
    now: u64,
    deadline: tokio::time::Instant,
) -> io::Result<()> {
    let unfinished = spool.clone();
    let writing = spawn_blocking(move || unfinished.write(&held, now));
    let late = |_| io::Error::other("it is not written in time");
    timeout_at(deadline, writing).await.map_err(late)???;
    let written = spool.clone();
    spawn_blocking(move || written.publish()).await?
}

#[cfg(test)]
mod tests;
