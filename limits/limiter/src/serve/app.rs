//! Composition of the components of `limiter serve`: startup, tasks and drain.
//!
//! Before any port opens, startup restores the state, and writes the changes that restoring it made. A drain stops
//! accepting connections, responds to waiting reservations, and syncs the state.

mod startup;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use runtime::{
    admin, listen,
    metrics::Registry,
    open_files,
    ready::{self, Component},
    services::Services,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::startup::restore_state;
#[cfg(feature = "mongodb")]
use super::limit_sources::collection::CollectionWatcher;
use super::{
    config::Config,
    connection,
    engine::UsageSummary,
    metrics::{self, StateMetrics},
    saver::Saver,
    service::Service,
    sharing::Decider,
};

/// Interval of comparisons with the system clock, and of evictions of idle counters.
const TICK_INTERVAL: Duration = Duration::from_millis(25);

/// Minimum usage, in thousandths of a quota, at which `/readyz` names the counter.
const QUOTA_NAMED_PERMILLE: u64 = 800;

/// Maximum number of counters that `/readyz` names.
const QUOTAS_NAMED_MAX: usize = 5;

/// A running limiter.
pub struct App {
    saver: Arc<Saver>,
    api: listen::Stage,
    saving: listen::Stage,
    /// Admin port, and tasks that end last.
    pub services: Services,
    draining: CancellationToken,
    /// Drain timeout, which a reload can change.
    pub drain_timeout: watch::Sender<Duration>,
}

impl App {
    /// Restores the state, opens both ports, and starts all tasks.
    ///
    /// # Errors
    /// When the state cannot be restored, or a port cannot be opened.
    pub async fn start(config: Config, registry: Registry) -> anyhow::Result<Self> {
        let services = Services::register(&registry, "limiter", false)?;
        // If a port were open already, its clients would wait for the restore.
        let file = config.limits.clone().context("--limits: missing")?;
        let (decider, sources, saver) = restore_state(&config, (*file.current()).clone())?;
        let listener = listen::bind(config.api.listen, "--listen")?;
        let admin = listen::bind(config.admin.admin, "--admin")?;
        let app = Self {
            saver: saver.clone(),
            api: listen::Stage::default(),
            saving: listen::Stage::default(),
            services,
            draining: CancellationToken::new(),
            drain_timeout: watch::Sender::new(config.admin.drain_timeout),
        };
        let listen::Stage { tasks, stop, .. } = &app.services.stage;
        tasks.spawn(decider.clone().run(stop.clone()));
        #[cfg(feature = "mongodb")]
        if let Some(collection) = &config.collection {
            let watcher = CollectionWatcher::new(collection, sources.clone()).await?;
            tasks.spawn(watcher.run(stop.clone()));
        }
        let watch = &app.services;
        watch.watch(config.tokens.as_ref(), &watch.stage);
        file.source().sources.get_or_init(|| sources.clone());
        watch.watch(Some(&file), &watch.stage);
        let Decider { engine, clock, .. } = decider.clone();
        let stop = stop.clone();
        tasks.spawn(async move {
            while stop
                .run_until_cancelled(sleep(TICK_INTERVAL))
                .await
                .is_some()
            {
                clock.follow();
                engine.tidy(clock.now());
            }
        });
        let state = StateMetrics {
            file,
            draining: app.draining.clone(),
            sources,
            counters_max: config.counters,
            saver: saver.clone(),
            decider: decider.clone(),
        };
        state.register(&registry)?;
        app.services.serve_admin(admin, state)?;
        let service = Arc::new(Service {
            decider,
            tokens: config.tokens,
            fields: config.api.ratelimit_fields,
            saver: saver.clone(),
            metrics: metrics::RequestMetrics::register(&registry)?,
        });
        let configured = [("--connections", config.api.connections)];
        let [connections] = open_files::connections(open_files::of_store(), configured);
        let limits = config.api.limits().with(connections);
        let stop = app.api.stop.clone();
        let serve = move |stream, activity| {
            connection::serve(Arc::clone(&service), stream, activity, stop.clone())
        };
        app.services.serve_api(listener, limits, &app.api, serve)?;
        let stop = app.saving.stop.clone();
        app.saving.tasks.spawn(saver.run(stop));
        Ok(app)
    }

    /// Returns when a write of the state has failed, which only a restart resolves.
    pub async fn state_failed(&self) {
        self.saver.wait_failed().await;
    }

    /// Finishes requests and syncs the state, within the drain timeout.
    ///
    /// # Errors
    /// When the state is not synced.
    pub async fn drain(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let end = began + *self.drain_timeout.borrow();
        self.draining.cancel();
        let half = began + (end - began) / 2;
        if !self.api.drain(half).await {
            tracing::info!("closed connections with unfinished requests");
        }
        let is_over = self.saving.drain(end).await;
        let saved = is_over && self.saver.is_writable();
        self.services.drain().await;
        if !saved {
            bail!("the state is not synced to disk; a machine failure would lose the latest usage");
        }
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }
}

impl admin::Pages for StateMetrics {
    fn components(&self) -> Vec<Component> {
        let limits = describe_limits(&self.usage(), self.rejected_limits());
        let sharing = self.decider.state();
        let sharing = sharing.map(|sharing| Component::new("sharing", sharing));
        [
            ready::drain(self.draining.is_cancelled()),
            Component::new("state", self.saver.state()),
            Component::new("limits", Ok(limits)),
        ]
        .into_iter()
        .chain(sharing)
        .collect()
    }
}

/// Describes the active limits and the quotas that are nearly exhausted, for `/readyz`.
fn describe_limits(usage: &UsageSummary, rejected: Option<String>) -> String {
    let mut text = format!("version {} in effect", usage.version);
    if let Some(why) = rejected {
        text.push_str(&format!(", but the newest version is rejected: {why}"));
    }
    let quotas = usage.limits.iter().filter_map(|limit| {
        let top = limit.quota.as_ref()?;
        (top.used_permille >= QUOTA_NAMED_PERMILLE).then_some((&limit.name, top))
    });
    for (limit, top) in quotas.take(QUOTAS_NAMED_MAX) {
        let (percent, counter) = (top.used_permille / 10, &top.counter);
        text.push_str(&format!(
            "; counter {counter:?} of {limit} has used {percent} % of its quota"
        ));
    }
    text
}
