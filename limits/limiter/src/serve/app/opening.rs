//! The start: which limits are in force, and what was used of them.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, anyhow};
use fjall::Slice;

use super::super::{
    clock::Clock,
    config::Config,
    engine::{Counting, Engine, Options, RestoreFailed},
    limit_sources::{LimitSources, at_start},
    saver::Saver,
    sharing::Decider,
    store::Store,
};

/// What to do about records that cannot be read is for a person to decide.
const UNUSABLE: &str =
    "what was used cannot be read; with another directory every quota begins anew";

/// What is kept, and what was found.
pub(super) struct Kept {
    pub(super) engine: Arc<Engine>,
    pub(super) decider: Decider,
    pub(super) sources: LimitSources,
    pub(super) clock: Clock,
    pub(super) saver: Option<Saver>,
}

/// Opens the state, restores what is in it, and saves what the start changed.
pub(super) async fn open(config: &Config) -> anyhow::Result<Kept> {
    let file = config.limits.as_ref().map(|file| file.current());
    let file = file.context("--limits: is needed")?;
    let has_collection = config.collection.is_some();

    let path = config.state.as_deref();
    let named = || format!("--state: {}", path.unwrap_or(Path::new("none")).display());
    let store = path.map(Store::open).transpose().with_context(named)?;
    let records = store.as_ref().map(Store::read).transpose();
    let records = records.with_context(named)?.unwrap_or_default();
    let kept = Engine::kept_in(&records);
    let kept = kept.context(UNUSABLE).with_context(named)?;
    let plan = at_start((*file).clone(), kept, has_collection);
    let plan = plan.map_err(|errors| anyhow!("--limits: {}", errors.0.join("; ")))?;

    let clock = Clock::start();
    let sharing = plan.rules.sharing.as_ref();
    let options = Options {
        counters_max: config.counters,
        counters_bytes_max: config.counters_memory,
        feedback_ttl_max: config.feedback_ttl_max,
        counting: Counting::of(sharing),
        is_saved: store.is_some(),
    };
    let engine = Arc::new(Engine::new(options, &plan.rules.limits));
    match path {
        None => tracing::warn!("no state is kept; a restart resets every quota (--state)"),
        Some(dir) if store.as_ref().is_some_and(|store| store.is_new) => {
            tracing::info!(dir = %dir.display(), "no state yet; all quotas are unused");
        }
        Some(dir) if records.is_empty() => {
            tracing::error!(dir = %dir.display(), "the state has no records, they were lost; all quotas are unused");
        }
        Some(_) => restore(&engine, &clock, &records).with_context(named)?,
    }
    let decider = Decider::new(Arc::clone(&engine), clock.clone(), sharing);
    let sources = LimitSources::new(plan, has_collection, Arc::clone(&engine), clock.clone());
    let saver = store.map(|store| Saver::new(Arc::clone(&engine), store));
    let saver = saver.transpose().with_context(named)?;
    Ok(Kept {
        engine,
        decider,
        sources,
        clock,
        saver,
    })
}

fn restore(engine: &Engine, clock: &Clock, records: &[(Slice, Slice)]) -> anyhow::Result<()> {
    let restored = engine.restore(records, clock.now());
    let restored = restored.with_context(|| match &restored {
        Err(RestoreFailed::NoRoom) => "raise --counters, or --counters-memory",
        _ => UNUSABLE,
    })?;
    clock.not_before(restored.clock);
    if !restored.ahead.is_zero() {
        tracing::warn!(
            ahead = ?restored.ahead,
            "the previous run's clock was ahead of the system clock; counting its usage as used now"
        );
    }
    let (counters, dropped) = (restored.counters, restored.dropped);
    tracing::info!(counters, dropped, "state restored");
    Ok(())
}
