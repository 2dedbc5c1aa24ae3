//! The start: which limits are in force, and what was used of them.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use runtime::metrics::Registry;

use super::super::{
    clock::Clock,
    config::Config,
    engine::{Counting, Engine, Options, RestoreFailed, Unreadable},
    limit_sources::{Changes, LimitSources, Plan, at_start},
    metrics,
    saver::Saver,
    sharing::Decider,
    state::Folder,
};

/// What is kept, and what was found.
pub(super) struct Kept {
    pub(super) engine: Arc<Engine>,
    pub(super) decider: Decider,
    pub(super) sources: LimitSources,
    pub(super) clock: Clock,
    pub(super) saver: Option<Saver>,
    pub(super) is_charged: bool,
}

/// Opens the state, restores what is in it, and saves a first snapshot.
pub(super) async fn open(config: &Config, registry: &Registry) -> anyhow::Result<Kept> {
    let file = config.limits.as_ref().map(|file| file.current());
    let file = file.context("--limits: is needed")?;
    let has_collection = config.collection.is_some();
    let begin = |kept: &[u8]| {
        let plan = at_start(file.document.clone(), kept, has_collection);
        plan.map_err(|mistakes| anyhow!("--limits: {}", mistakes.0.join("; ")))
    };
    let changes = Changes::register(registry).context("metrics")?;
    let options = |plan: &Plan| Options {
        counters_max: config.counters,
        counters_bytes_max: config.counters_memory,
        learned_max: config.learned_max,
        is_saved: config.state.is_some(),
        counting: Counting::of(plan.rules.sharing.as_ref()),
    };
    let clock = Clock::start();
    let new = |plan: &Plan, now| {
        let limits = &plan.rules.limits;
        Arc::new(Engine::new(options(plan), limits, now))
    };
    let decider = |plan: &Plan, engine: &Arc<Engine>, clock| {
        let sharing = plan.rules.sharing.as_ref();
        Decider::new(Arc::clone(engine), clock, sharing)
    };
    let sources = |plan: Plan, engine: &Arc<Engine>, clock: &Clock| {
        let (engine, clock) = (Arc::clone(engine), clock.clone());
        LimitSources::new(plan, has_collection, engine, clock, changes.clone())
    };
    let metrics = metrics::Saving::register(registry).context("metrics")?;
    let Some(path) = &config.state else {
        tracing::warn!("nothing is kept: a restart gives every quota anew (--state)");
        let plan = begin(&[])?;
        let engine = new(&plan, clock.now());
        return Ok(Kept {
            decider: decider(&plan, &engine, clock.clone()),
            sources: sources(plan, &engine, &clock),
            engine,
            clock,
            saver: None,
            is_charged: false,
        });
    };
    let named = || format!("--state: {}", path.display());
    let folder = Folder::open(path).with_context(named)?;
    let mut is_charged = false;
    let unusable = || {
        format!(
            "{}: the snapshot in it cannot be used; without it every quota begins anew",
            named()
        )
    };
    let snapshot = folder.read().with_context(named)?;
    let kept = snapshot.as_deref().map(Engine::kept_in).transpose();
    let plan = begin(&kept.with_context(unusable)?.unwrap_or_default())?;
    let engine = new(&plan, clock.now());
    match snapshot {
        None => tracing::info!(folder = %path.display(), "no state yet: nothing was used"),
        Some(bytes) => {
            let restored = engine.restore(&bytes, clock.now());
            let restored = restored.with_context(|| match &restored {
                Err(RestoreFailed::NoRoom) => {
                    format!("{}: raise --counters, or --counters-memory", path.display())
                }
                Err(RestoreFailed::Unreadable(Unreadable::Damaged | Unreadable::Version))
                | Ok(_) => unusable(),
            })?;
            clock.not_before(restored.clock);
            if !restored.ahead.is_zero() {
                tracing::warn!(
                    ahead = ?restored.ahead,
                    "the previous run's clock was ahead of the system's: what was used counts as used now"
                );
            }
            is_charged = !restored.is_clean;
            let (counters, dropped) = (restored.counters, restored.dropped);
            if is_charged {
                tracing::warn!(
                    counters,
                    dropped,
                    "the run before was killed: every counter is charged a second's worth"
                );
            } else {
                tracing::info!(counters, dropped, "state is restored");
            }
        }
    }
    let decider = decider(&plan, &engine, clock.clone());
    let sources = sources(plan, &engine, &clock);
    let saver = Saver::new(Arc::clone(&engine), folder, clock.clone(), metrics);
    if !saver.save(false).await {
        bail!("{}: a snapshot cannot be written there", named());
    }
    Ok(Kept {
        engine,
        decider,
        sources,
        clock,
        saver: Some(saver),
        is_charged,
    })
}
