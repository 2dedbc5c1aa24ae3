//! Startup: restores the usage of the limits.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, anyhow};
use fjall::Slice;
use limits::rules::Table;

use super::super::{
    clock::Clock,
    config::Config,
    engine::{Engine, Options, RestoreFailure, exact},
    limit_sources::{LimitSources, initial_limits},
    saver::Saver,
    sharing::Decider,
    store::Store,
};

/// Context of errors that only the operator can resolve.
const UNUSABLE: &str = "cannot restore the state; restore the directory from a backup, or use an empty one to start with unused quotas";

/// The decider, the sources of limits, and the saver of the state, if it is kept.
pub(super) type Restored = (Decider, Arc<LimitSources>, Option<Arc<Saver>>);

/// Opens the state directory, restores its records, and saves the changes made by the restore.
pub(super) fn restore_state(config: &Config, file: Table) -> anyhow::Result<Restored> {
    let has_collection = config.collection.is_some();

    let path = config.state.as_deref();
    let flag = || format!("--state: {}", path.unwrap_or(Path::new("none")).display());
    let store = path.map(Store::open).transpose().with_context(flag)?;
    let records = store.as_ref().map(Store::read).transpose();
    let records = records.with_context(flag)?.unwrap_or_default();
    let saved = Engine::saved_sources(&records);
    let saved = saved.context(UNUSABLE).with_context(flag)?;
    let limits = initial_limits(file, saved, has_collection);
    let limits = limits.map_err(|errors| anyhow!("invalid limits: {}", errors.0.join("; ")))?;

    let clock = Arc::new(Clock::start());
    let sharing = limits.rules.sharing.as_ref();
    let options = Options {
        counters_max: config.counters,
        counters_bytes_max: config.counters_memory,
        counted_by_server: exact(sharing).is_some(),
        is_saved: store.is_some(),
    };
    let engine = Arc::new(Engine::new(options, &limits.rules.limits));
    match path {
        None => tracing::warn!("no state is kept: a restart resets every quota; set --state"),
        Some(dir) if store.as_ref().is_some_and(|store| store.is_new) => {
            tracing::info!(dir = %dir.display(), "no state yet; all quotas are unused");
        }
        Some(dir) if records.is_empty() => {
            tracing::error!(dir = %dir.display(), "the state lost all its records; all quotas are unused");
        }
        Some(_) => restore(&engine, &clock, &records).with_context(flag)?,
    }
    let decider = Decider::new(Arc::clone(&engine), clock.clone(), sharing);
    let sources = LimitSources::new(limits, has_collection, Arc::clone(&engine), clock);
    let sources = Arc::new(sources);
    let saver = store.map(|store| Saver::new(engine, store));
    let saver = saver.transpose().with_context(flag)?.map(Arc::new);
    Ok((decider, sources, saver))
}

fn restore(engine: &Engine, clock: &Clock, records: &[(Slice, Slice)]) -> anyhow::Result<()> {
    let restored = engine.restore(records, clock.now());
    let restored = restored.with_context(|| match &restored {
        Err(RestoreFailure::CounterLimit) => "raise --counters or --counters-memory",
        _ => UNUSABLE,
    })?;
    clock.advance_to(restored.clock);
    if !restored.ahead.is_zero() {
        tracing::warn!(
            ahead = ?restored.ahead,
            "the previous run's clock was ahead of the system clock; the restored usage counts as new usage"
        );
    }
    let (counters, dropped) = (restored.counters, restored.dropped);
    tracing::info!(counters, dropped, "state restored");
    Ok(())
}
