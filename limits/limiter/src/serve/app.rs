//! All parts of a limiter that serves, put together, started and drained.
//!
//! Start: the state restored, and what that changed is on the disk, before the port is open. Drain: no new connections, those who wait are answered, and what
//! was used is synced to the disk.

mod opening;

use std::{
    future::Future, net::SocketAddr, panic::resume_unwind, pin::Pin, sync::Arc, time::Duration,
};

use anyhow::{Context as _, bail};
use runtime::{
    admin, listen,
    metrics::{Registry, register_process},
    ready::{self, Component},
    reload,
    reply::Reply,
    settings::live_config,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::opening::{Kept, open};
#[cfg(feature = "mongodb")]
use super::limit_sources::collection::Follower;
use super::{config::Config, engine::Survey, metrics, port, saver::Saver, service::Service};

/// How often it is looked for a new version of the file and at the system's clock, and idle counters are forgotten.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How often it is looked at how much of each limit is in use.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);

/// The part of a quota, in thousandths, from which on `/readyz` names the counter that has used it.
const QUOTA_NAMED_PERMILLE: u64 = 800;

/// Maximum number of counters that `/readyz` names.
const QUOTAS_NAMED_MAX: usize = 5;

/// The last part of the drain, in which the admin port still answers.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

/// A limiter that serves.
pub struct App {
    address: SocketAddr,
    admin_address: SocketAddr,
    saver: Option<Saver>,
    calls: listen::Stage,
    saving: listen::Stage,
    services: listen::Stage,
    draining: CancellationToken,
    runtime_config: RuntimeConfig,
    config_reloads: live_config::Metrics,
}

/// The settings in effect that a reload may change; clones share them.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    drain_timeout: watch::Sender<Duration>,
}

impl RuntimeConfig {
    /// Takes into use what of `config` may change.
    pub fn apply(&self, config: &Config) {
        self.drain_timeout
            .send_replace(config.running.drain_timeout);
    }
}

impl App {
    /// Restores what was used, opens both ports, and serves.
    ///
    /// # Errors
    /// When the state cannot be used, or a port is taken.
    pub async fn start(config: Config, registry: Registry) -> anyhow::Result<Self> {
        register_process(&registry, "limiter", env!("CARGO_PKG_VERSION")).context("metrics")?;
        // Before any port is open: a connection would wait for the state to be restored.
        let kept = open(&config).await?;
        let listener = listen::bind(config.listen, "--listen")?;
        let admin = listen::bind(config.running.admin, "--admin")?;
        let (address, admin_address) = (listener.local_addr()?, admin.local_addr()?);
        let app = Self {
            address,
            admin_address,
            saver: kept.saver.clone(),
            calls: listen::Stage::default(),
            saving: listen::Stage::default(),
            services: listen::Stage::default(),
            draining: CancellationToken::new(),
            runtime_config: RuntimeConfig {
                drain_timeout: watch::Sender::new(config.running.drain_timeout),
            },
            config_reloads: live_config::Metrics::register(&registry, "limiter")
                .context("metrics")?,
        };
        let stop = app.services.stop.clone();
        app.services.tasks.spawn(kept.decider.clone().run(stop));
        app.watch_files(&config, &kept, &registry)?;
        app.open_admin(admin, &config, &kept, &registry)?;
        app.open_calls(listener, &config, &kept, &registry)?;
        if let Some(saver) = kept.saver {
            let stop = app.saving.stop.clone();
            app.saving.tasks.spawn(saver.run(stop));
        }
        Ok(app)
    }

    fn open_calls(
        &self,
        listener: TcpListener,
        config: &Config,
        kept: &Kept,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let service = Service {
            engine: Arc::clone(&kept.engine),
            decider: kept.decider.clone(),
            clock: kept.clock.clone(),
            tokens: config.tokens.clone(),
            fields: config.fields,
            sources: kept.sources.clone(),
            saver: kept.saver.clone(),
            metrics: metrics::Serving::register(registry).context("metrics")?,
        };
        let (most, per_address) = config.connections;
        self.calls.tasks.spawn(service.serve(
            listener,
            port::limits(most, per_address),
            listen::Metrics::register(registry, "limiter", "http").context("metrics")?,
            self.calls.clone(),
        ));
        tracing::info!(address = %self.address, "API port is open");
        if !self.address.ip().is_loopback() {
            tracing::warn!(
                listen = %self.address,
                "tokens are sent in plain text and can be read in transit"
            );
        }
        Ok(())
    }

    fn open_admin(
        &self,
        listener: TcpListener,
        config: &Config,
        kept: &Kept,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let (newest, survey) = watch::channel(Arc::new(kept.engine.limits_now()));
        let (engine, clock) = (Arc::clone(&kept.engine), kept.clock.clone());
        let stop = self.services.stop.clone();
        self.services.tasks.spawn(async move {
            while stop
                .run_until_cancelled(sleep(SURVEY_INTERVAL))
                .await
                .is_some()
            {
                newest.send_replace(Arc::new(engine.survey(clock.now())));
            }
        });
        let (file, sources) = (config.limits.clone(), kept.sources.clone());
        let refused = move || {
            let file = file.as_ref().and_then(|file| file.refused());
            let all: Vec<String> = file.into_iter().chain(sources.refused()).collect();
            (!all.is_empty()).then(|| all.join("; "))
        };
        let overview = Arc::new(metrics::Overview {
            engine: Arc::clone(&kept.engine),
            sources: kept.sources.clone(),
            survey,
            counters_max: config.counters,
            refused: Box::new(refused),
            saver: kept.saver.clone(),
            decider: kept.decider.clone(),
            clock: kept.clock.clone(),
        });
        overview.register(registry).context("metrics")?;
        let pages = Pages {
            overview,
            draining: self.draining.clone(),
            config_reloads: self.config_reloads.clone(),
            debug_endpoints: config.common.debug_endpoints,
        };
        self.services.tasks.spawn(admin::serve(
            listener,
            registry.clone(),
            listen::Metrics::register(registry, "limiter", "admin").context("metrics")?,
            Arc::new(pages),
            self.services.clone(),
        ));
        tracing::info!(address = %self.admin_address, "admin port is open");
        admin::warn_if_open(self.admin_address);
        Ok(())
    }

    /// Looks at the files and the clock again and again, and takes new limits into force.
    fn watch_files(&self, config: &Config, kept: &Kept, registry: &Registry) -> anyhow::Result<()> {
        let files = reload::Metrics::register(registry, "limiter", false).context("metrics")?;
        let (tasks, stop) = (&self.services.tasks, &self.services.stop);
        if let Some(tokens) = &config.tokens {
            tasks.spawn(Arc::clone(tokens).watch(files.clone(), stop.clone()));
        }
        let Some(file) = config.limits.clone() else {
            bail!("--limits: is needed");
        };
        tasks.spawn(Arc::clone(&file).watch(files, stop.clone()));
        let (engine, clock, stop) = (Arc::clone(&kept.engine), kept.clock.clone(), stop.clone());
        let sources = kept.sources.clone();
        let clock_steps = metrics::clock_steps(registry).context("metrics")?;
        #[cfg(feature = "mongodb")]
        if let Some(collection) = config.collection.clone() {
            let follower = Follower::new(collection, kept.sources.clone())?;
            tasks.spawn(follower.run(self.services.stop.clone()));
        }
        let mut in_force = file.current();
        tasks.spawn(async move {
            loop {
                let slept = stop.run_until_cancelled(sleep(LOOK_INTERVAL)).await;
                if slept.is_none() {
                    return;
                }
                let newest = file.current();
                if !Arc::ptr_eq(&newest, &in_force) {
                    in_force = Arc::clone(&newest);
                    let sources = sources.clone();
                    // What may take long holds up no call.
                    if let Err(ended) = spawn_blocking(move || sources.file(&newest)).await {
                        resume_unwind(ended.into_panic());
                    }
                }
                clock.follow(&clock_steps);
                engine.tidy(clock.now());
            }
        });
        Ok(())
    }

    /// Where it listens for calls.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the admin port listens.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// What may change while it runs.
    #[must_use]
    pub fn runtime_config(&self) -> RuntimeConfig {
        self.runtime_config.clone()
    }

    /// Counts how often its settings are read again.
    #[must_use]
    pub fn config_reloads(&self) -> live_config::Metrics {
        self.config_reloads.clone()
    }

    /// Waits until the state cannot be written any more; forever if none is kept. Only opening it again tells what the disk holds.
    pub async fn state_failed(&self) {
        match &self.saver {
            Some(saver) => saver.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Answers what was asked, and syncs what was used; never longer than the drain timeout.
    ///
    /// # Errors
    /// When what was used is not on the disk.
    pub async fn drain(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let end = began + *self.runtime_config.drain_timeout.borrow();
        self.draining.cancel();
        let half = began + (end - began) / 2;
        if !self.calls.drain(half).await {
            tracing::info!("closed connections of clients that did not finish");
        }
        let is_over = self.saving.drain(end).await;
        let saved = self.saver.is_none_or(|it| is_over && it.check().is_ok());
        self.services.drain(Instant::now() + ADMIN_GRACE).await;
        if !saved {
            bail!(
                "the state was not synced to the disk: a failure of the machine would forget what was used last"
            );
        }
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }
}

/// The limiter's pages on the admin port.
struct Pages {
    overview: Arc<metrics::Overview>,
    draining: CancellationToken,
    config_reloads: live_config::Metrics,
    debug_endpoints: bool,
}

impl admin::Pages for Pages {
    fn components(&self) -> Vec<Component> {
        let kept = || Ok("nothing is kept over a restart".to_owned());
        let of = &self.overview;
        let state = of.saver.as_ref().map_or_else(kept, Saver::state);
        let limits = limits_in_words(&of.survey.borrow(), (of.refused)());
        let mut components = vec![
            ready::drain(self.draining.is_cancelled()),
            Component::new("state", state),
            Component::new("clock", Ok(of.clock.state())),
            Component::new("limits", Ok(limits)),
        ];
        let sharing = of.decider.state();
        components.extend(sharing.map(|state| Component::new("sharing", state)));
        components.push(self.config_reloads.component());
        components
    }

    fn debug_endpoints(&self) -> bool {
        self.debug_endpoints
    }

    fn page<'a>(
        &'a self,
        _path: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<Reply>> + Send + 'a>> {
        Box::pin(async { None })
    }
}

/// Which limits are in force, and which quotas are nearly used.
fn limits_in_words(survey: &Survey, refused: Option<String>) -> String {
    let mut words = format!("version {} is in force", survey.version);
    if let Some(why) = refused {
        words.push_str(&format!(", the newest is refused: {why}"));
    }
    let quotas = survey.limits.iter().filter_map(|limit| {
        let fullest = limit.quota.as_ref()?;
        (fullest.used_permille >= QUOTA_NAMED_PERMILLE).then_some((&limit.name, fullest))
    });
    for (limit, fullest) in quotas.take(QUOTAS_NAMED_MAX) {
        let (percent, counter) = (fullest.used_permille / 10, &fullest.counter);
        words.push_str(&format!(
            "; counter {counter:?} of {limit} has used {percent} % of its quota"
        ));
    }
    words
}
