//! Startup: restores the usage of the limits.

use std::sync::Arc;

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

/// The decider, the sources of limits, and the saver of the state.
pub(super) type Restored = (Decider, Arc<LimitSources>, Arc<Saver>);

/// Opens the state directory, restores its records, and saves the changes made by the restore.
pub(super) fn restore_state(config: &Config, file: Table) -> anyhow::Result<Restored> {
    let has_collection = config.collection.is_some();

    let dir = config.state.display();
    let flag = || format!("--state: {dir}");
    let store = Store::open(&config.state).with_context(flag)?;
    let records = store.read().with_context(flag)?;
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
    };
    let engine = Arc::new(Engine::new(options, &limits.rules.limits));
    if store.is_new {
        tracing::info!(%dir, "no state yet; all quotas are unused");
    } else if records.is_empty() {
        tracing::error!(%dir, "the state lost all its records; all quotas are unused");
    } else {
        restore(&engine, &clock, &records).with_context(flag)?;
    }
    let decider = Decider::new(Arc::clone(&engine), clock.clone(), sharing);
    let sources = LimitSources::new(limits, has_collection, Arc::clone(&engine), clock);
    let sources = Arc::new(sources);
    let saver = Saver::new(engine, store).with_context(flag)?;
    Ok((decider, sources, Arc::new(saver)))
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
