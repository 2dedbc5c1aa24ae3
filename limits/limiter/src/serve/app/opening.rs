//! The start: which limits are in force, and what was used of them.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, anyhow, bail};
use runtime::metrics::Registry;

use super::super::{
    clock::Clock,
    config::Config,
    engine::{Counting, Engine, Options, RestoreFailed},
    limit_sources::{Changes, LimitSources, at_start},
    metrics,
    saver::Saver,
    sharing::Decider,
    state::Folder,
};

/// What to do about a snapshot that cannot be read is for a person to decide.
const UNUSABLE: &str = "the snapshot in it cannot be used; without it every quota begins anew";

/// What is kept, and what was found.
pub(super) struct Kept {
    pub(super) engine: Arc<Engine>,
    pub(super) decider: Decider,
    pub(super) sources: LimitSources,
    pub(super) clock: Clock,
    pub(super) saver: Option<Saver>,
}

/// Opens the state, restores what is in it, and saves a first snapshot.
pub(super) async fn open(config: &Config, registry: &Registry) -> anyhow::Result<Kept> {
    let file = config.limits.as_ref().map(|file| file.current());
    let file = file.context("--limits: is needed")?;
    let has_collection = config.collection.is_some();
    let changes = Changes::register(registry).context("metrics")?;
    let metrics = metrics::Saving::register(registry).context("metrics")?;

    let path = config.state.as_deref();
    let named = || format!("--state: {}", path.unwrap_or(Path::new("none")).display());
    let folder = path.map(Folder::open).transpose().with_context(named)?;
    let snapshot = folder.as_ref().map(Folder::read).transpose();
    let snapshot = snapshot.with_context(named)?.flatten();
    let journals = folder.as_ref().map(Folder::read_journals).transpose();
    let journals = journals.with_context(named)?.unwrap_or_default();
    let kept = snapshot.as_deref();
    let kept = kept.map(|it| Engine::kept_in(it, &journals)).transpose();
    let kept = kept.context(UNUSABLE).with_context(named)?;
    let plan = at_start((*file).clone(), &kept.unwrap_or_default(), has_collection);
    let plan = plan.map_err(|mistakes| anyhow!("--limits: {}", mistakes.0.join("; ")))?;

    let clock = Clock::start();
    let sharing = plan.rules.sharing.as_ref();
    let options = Options {
        counters_max: config.counters,
        counters_bytes_max: config.counters_memory,
        learned_max: config.learned_max,
        counting: Counting::of(sharing),
    };
    let engine = Arc::new(Engine::new(options, &plan.rules.limits));
    match (path, &snapshot) {
        (None, _) => {
            tracing::warn!("nothing is kept: a restart gives every quota anew (--state)");
        }
        (Some(folder), None) => {
            tracing::info!(folder = %folder.display(), "no state yet: nothing was used");
        }
        (Some(_), Some(bytes)) => {
            restore(&engine, &clock, bytes, &journals).with_context(named)?;
        }
    }
    let decider = Decider::new(Arc::clone(&engine), clock.clone(), sharing);
    let sources = LimitSources::new(
        plan,
        has_collection,
        Arc::clone(&engine),
        clock.clone(),
        changes,
    );
    let newest = journals.last().map_or(0, |(number, _)| *number);
    let saver = folder
        .map(|folder| Saver::new(Arc::clone(&engine), folder, newest, clock.clone(), metrics));
    if let Some(saver) = &saver
        && !saver.save().await
    {
        bail!("{}: a snapshot cannot be written there", named());
    }
    Ok(Kept {
        engine,
        decider,
        sources,
        clock,
        saver,
    })
}

fn restore(
    engine: &Engine,
    clock: &Clock,
    snapshot: &[u8],
    journals: &[(u64, Vec<u8>)],
) -> anyhow::Result<()> {
    let restored = engine.restore(snapshot, journals, clock.now());
    let restored = restored.with_context(|| match &restored {
        Err(RestoreFailed::NoRoom) => "raise --counters, or --counters-memory",
        _ => UNUSABLE,
    })?;
    clock.not_before(restored.clock);
    if !restored.ahead.is_zero() {
        tracing::warn!(
            ahead = ?restored.ahead,
            "the previous run's clock was ahead of the system's: what was used counts as used now"
        );
    }
    if restored.damaged > 0 {
        tracing::warn!(
            bytes = restored.damaged,
            "a journal is damaged: what it says from there on is not known any more"
        );
    }
    let (counters, dropped, changes) = (restored.counters, restored.dropped, restored.changes);
    tracing::info!(counters, dropped, changes, "state is restored");
    Ok(())
}
