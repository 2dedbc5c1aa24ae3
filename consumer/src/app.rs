//! Builds, starts and drains all stages of a consumer.
//!
//! [`App::start`] opens the store and binds the admin port before it returns. Subscriptions begin after the cursors have
//! been read from the store. The drain is in `app/drain.rs`.
//!
//! The process ends when a stage ends before the drain.

mod config_reload;
mod drain;
mod lookup_port;
mod open_store;
mod stage_monitor;

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use http::{HeaderMap, Uri};
use runtime::{
    admin::{self, status::Progress},
    connect::{Network, Tcp, credentials::is_loopback_host},
    listen::{self, Listener, Stage},
    metrics::Registry,
    ready::{self, Component},
    reply::Reply,
    services::Services,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::stage_monitor::StageMonitor;
pub use self::{config_reload::RuntimeConfig, open_store::open_store};
use crate::{
    clock::Clock,
    config::{Config, ProducerUrl},
    cookie_pages::{self, CookiePages},
    copy::Copier,
    deletions::Deletions,
    health::Health,
    ledger::Ledger,
    lookup::{self, Lookups, stored_cookies::StoredCookies, why::Why},
    maintenance::{self, dsp_deletions},
    metrics::{Metrics, register_deletions, register_health, register_producers},
    node_reports::Reporter,
    recovery::{self, Follower, Intake, Parts, Recoverer, archive::Archive},
    sink::{Failure, Sink, StopTokens},
    store::Store,
    subscription::{self, discovery},
};

/// The archive, once for each task that reads it.
#[derive(Debug, Default)]
pub struct Archives {
    /// For recovery.
    pub recovery: Option<Box<dyn Archive>>,
    /// For a follower, which replaces subscriptions.
    pub follower: Option<Box<dyn Archive>>,
}

/// The task that recovers holes, the end of the collector, and an archive to follow.
type Recovery = (Option<Recoverer>, Intake, Option<Box<dyn Archive>>);

/// A running consumer. Its stages have clones.
#[derive(Debug, Clone)]
pub struct App {
    admin_address: SocketAddr,
    runtime_config: RuntimeConfig,
    /// Tasks on the data path. All others are `services`.
    data_path: TaskTracker,
    /// Admin port, and tasks that end last.
    pub services: Services,
    stop_reading: CancellationToken,
    fast_drain: CancellationToken,
    stop_writing: CancellationToken,
    monitor: StageMonitor,
    health: Arc<Health>,
    store: Store,
    deletions: Deletions,
}

impl App {
    /// Opens the store, binds the admin port and starts to read.
    ///
    /// # Errors
    /// When the store cannot be opened, the port is in use, or the registry already has metrics of these names.
    pub async fn start(config: Config, registry: Registry) -> anyhow::Result<Self> {
        let store = open_store(&config).await?;
        let admin = listen::bind(config.args.process.admin, "--admin")?;
        let archive = || {
            let archive = config.archive.clone();
            archive.map(|nats| Box::new(nats) as Box<dyn Archive>)
        };
        let archives = Archives {
            recovery: archive(),
            follower: archive().filter(|_| config.is_follower),
        };
        Self::start_in(store, admin, Arc::new(Tcp), archives, config, registry)
    }

    /// Starts to read, with a store, admin port, network and archive that simulations replace. Those of `config` are not used.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn start_in<L: Listener>(
        store: Store,
        listener: L,
        network: Arc<dyn Network>,
        archives: Archives,
        config: Config,
        registry: Registry,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::register(&registry)?;
        let process = fastrand::u64(..);
        let services = Services::register(&registry, "consumer", true)?;
        let stop_reading = CancellationToken::new();
        let monitor = StageMonitor {
            failed: Arc::default(),
            draining: stop_reading.clone(),
        };
        let app = Self {
            admin_address: listener.local_addr().context("admin port")?,
            runtime_config: RuntimeConfig::new(&config),
            data_path: TaskTracker::new(),
            services,
            stop_reading,
            fast_drain: CancellationToken::new(),
            stop_writing: CancellationToken::new(),
            monitor,
            health: Arc::new(Health::default()),
            store,
            deletions: Deletions::new(config.args.retention.deletion_bytes),
        };
        let health = Arc::clone(&app.health);
        let producers = health.producers().clone();
        register_producers(&registry, producers.clone(), config.ttls.clone())?;
        register_deletions(&registry, app.deletions.clone())?;
        register_health(&registry, Arc::clone(&health))?;
        let Archives { recovery, follower } = archives;
        let is_following = follower.is_some();
        let (recoverer, intake) =
            recovery::recovery(recovery, is_following, &metrics.subscription, &producers);
        let archive = intake.status().clone();
        archive.register(&registry)?;
        let lookups = Lookups {
            store: Arc::clone(&app.store.lookup),
            deletions: app.deletions.clone(),
            producers: producers.clone(),
        };
        let stored = StoredCookies::register(&registry)?;
        let Stage { tasks, stop, .. } = &app.services.stage;
        tasks.spawn(
            stored
                .clone()
                .run(Arc::clone(&app.store.lookup), stop.clone()),
        );
        app.serve_lookups(&config, &registry, lookups.clone())?;
        let why = Why {
            lookups,
            listed: config.args.storage.dsps(),
            rejected: app.runtime_config.rejected_dsps.subscribe(),
            lost: metrics.subscription.lost.clone(),
            uncertain_loss: metrics.subscription.uncertain_loss_cookies.clone(),
            slots: [&metrics.sink.dsp_slots, &metrics.sink.dsp_slots_max].map(Clone::clone),
        };
        let pages = Pages {
            why,
            archive,
            cookies: CookiePages {
                tokens: config.cookies_tokens.clone(),
                lookup: Arc::clone(&app.store.lookup),
                deletions: app.deletions.clone(),
                producers: health.producers().clone(),
                one: Semaphore::new(1),
                copies: Arc::clone(&app.store.copies),
                one_copy: Semaphore::new(1),
                process,
            },
            health: Arc::clone(&health),
            draining: app.stop_reading.clone(),
            name: config.args.producers.name.clone(),
            ledger: metrics.subscription.ledger.clone(),
            stored,
        };
        app.services.serve_admin(listener, pages)?;
        warn_about_plaintext_token(&config);
        config.security.watch(&app.services);
        let services = &app.services;
        services.watch(config.cookies_tokens.as_ref(), &services.stage);
        services.watch(config.copy_token.as_ref(), &services.stage);
        let recovery = (recoverer, intake, follower);
        let running = app
            .clone()
            .run_data_path(config, network, recovery, metrics, process);
        app.data_path
            .spawn(app.monitor.clone().run("writer", running));
        Ok(app)
    }

    /// Settings that a reload may change.
    pub fn runtime_config(&self) -> RuntimeConfig {
        self.runtime_config.clone()
    }

    /// Address of the admin port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Waits until the consumer cannot continue, and returns the reason.
    pub async fn failed(&self) -> anyhow::Error {
        anyhow::anyhow!("{}", self.monitor.failed.wait().await)
    }

    /// Runs the data path, from loading the cursors to committing the last batch.
    async fn run_data_path(
        self,
        config: Config,
        network: Arc<dyn Network>,
        (recoverer, intake, followed): Recovery,
        metrics: Metrics,
        process: u64,
    ) -> Result<(), Failure> {
        let Self {
            health,
            store,
            deletions,
            monitor,
            ..
        } = self;
        let Stage { tasks, stop, .. } = self.services.stage;
        let stops = StopTokens {
            fast_drain: self.fast_drain,
            immediate: self.stop_writing,
            retrier: stop.clone(),
        };
        let rejected_dsps = self.runtime_config.rejected_dsps.subscribe();
        let archive_status = intake.status().clone();
        let sink = Sink::open(
            &config,
            &store,
            Arc::clone(&health),
            rejected_dsps,
            deletions.clone(),
            &metrics,
            intake,
            stops,
        );
        let Sink {
            buffer,
            collecting,
            writing,
            retrying,
            copied,
            is_new,
        } = tokio::select! {
            // No cookie was received yet, so there is nothing to drain.
            () = self.stop_reading.cancelled() => return Ok(()),
            sink = sink => sink?,
        };
        tasks.spawn(monitor.clone().run("retrier", retrying.map(Ok)));
        if let Some(recoverer) = recoverer {
            let recovering = stop.clone().run_until_cancelled_owned(recoverer.run());
            tasks.spawn(monitor.clone().run("recovery", recovering.map(|_| Ok(()))));
        }
        let producers = health.producers().clone();
        let copier = Copier {
            nodes: config.args.copy.nodes().cloned().collect(),
            token: config.copy_token.clone(),
            rows_per_second: config.args.copy.copy_rows_per_second,
            process,
            network: Arc::clone(&network),
            copies: store.copies,
            upkeep: Arc::clone(&store.upkeep),
            deletions: deletions.clone(),
            health: Arc::clone(&health),
            buffer: buffer.clone(),
            durable: copied,
        };
        // Before the first cookie arrives.
        let copying = tokio::select! {
            () = self.stop_reading.cancelled() => return Ok(()),
            copying = copier.begin(is_new) => copying,
        };
        if let Some(copying) = copying {
            let copying = copying.run(self.stop_reading.clone()).map(Ok);
            self.data_path.spawn(monitor.clone().run("copier", copying));
        }
        if let Some(reports) = config.node_reports {
            let reporter = Reporter {
                reports,
                name: config.args.producers.name.clone(),
                token: config.security.token.clone(),
                producers: producers.clone(),
                deletions: deletions.clone(),
            };
            let reporting = stop.clone().run_until_cancelled_owned(reporter.run());
            tasks.spawn(
                monitor
                    .clone()
                    .run("node report", reporting.map(|_| Ok(()))),
            );
        }
        let upkeep = store.upkeep;
        let jobs = dsp_deletions::run(deletions.clone(), Arc::clone(&upkeep), stop.clone());
        tasks.spawn(monitor.clone().run("DSP deletion", jobs.map(Ok)));
        let maintenance = maintenance::run(
            Arc::clone(&upkeep),
            self.runtime_config.maintenance.subscribe(),
            Clock::System,
            producers.clone(),
            deletions.clone(),
            metrics.clone(),
            stop,
        );
        tasks.spawn(monitor.clone().run("maintenance", maintenance.map(Ok)));
        let collecting = monitor.clone().run("collector", collecting);
        self.data_path.spawn(collecting);
        if let Some(archive) = followed {
            let parts = Parts {
                producers,
                buffer,
                ttls: config.ttls,
                status: archive_status,
                metrics: metrics.subscription,
            };
            let follower = Follower::new(archive, parts, upkeep, deletions);
            let following = self.stop_reading.run_until_cancelled_owned(follower.run());
            let following = monitor.run("follower", following.map(|_| Ok(())));
            self.data_path.spawn(following);
            return writing.await;
        }
        let context = subscription::Context {
            // Each host name has at least one address, even before it is resolved.
            producers_min: config.args.producers.producer.len(),
            name: config.args.producers.name,
            network,
            security: config.security,
            producers,
            deletions,
            ttls: config.ttls,
            archive: archive_status,
            metrics: metrics.subscription,
        };
        let discovery = discovery::run(
            config.args.producers.producer,
            Arc::new(context),
            buffer,
            self.data_path.clone(),
            self.stop_reading,
        );
        let discovery = monitor.run("producer discovery", discovery.map(Ok));
        self.data_path.spawn(discovery);
        writing.await
    }
}

/// Warns if a producer on another host receives the token without TLS.
fn warn_about_plaintext_token(config: &Config) {
    let is_plain = |url: &&ProducerUrl| !url.https && !is_loopback_host(&url.host);
    if config.security.token.is_some()
        && let Some(producer) = config.args.producers.producer.iter().find(is_plain)
    {
        tracing::warn!(
            %producer,
            "token is sent in plain text and can be read in transit; use https:// for this producer"
        );
    }
}

/// The consumer's pages on the admin port.
struct Pages {
    why: Why,
    cookies: CookiePages,
    health: Arc<Health>,
    archive: recovery::Status,
    draining: CancellationToken,
    name: String,
    ledger: Ledger,
    stored: StoredCookies,
}

impl admin::Pages for Pages {
    fn components(&self) -> Vec<Component> {
        let mut components = vec![ready::drain(self.draining.is_cancelled())];
        let is_following = self.archive.is_following();
        components.extend(self.health.components(is_following));
        let archive = self.archive.describe();
        components.extend(archive.map(|state| Component::new("archive", state)));
        components
    }

    fn progress(&self) -> Progress {
        let lost = self.why.lost_cookies() + self.why.uncertain_loss.get();
        Progress {
            cookies: self.ledger.counts().received,
            lost,
        }
    }

    fn details(&self) -> Value {
        let snapshot = self.health.producers().snapshot();
        let lags = snapshot.producers.values();
        let lag: u64 = lags.filter_map(|it| it.lag_cookies).sum();
        json!({
            "name": self.name,
            "lag_cookies": lag,
            "not_durable_cookies": self.ledger.counts().waiting,
            "stored_cookies": self.stored.counts(),
        })
    }

    fn needs_restart(&self) -> Option<String> {
        self.health.needs_restart()
    }

    fn page<'a>(
        &'a self,
        headers: &'a HeaderMap,
        uri: &'a Uri,
    ) -> Pin<Box<dyn Future<Output = Option<Reply>> + Send + 'a>> {
        let query = uri.query().unwrap_or_default();
        match uri.path() {
            cookie_pages::PATH => Box::pin(self.cookies.reply(headers, uri).map(Some)),
            path if path.starts_with(cookie_pages::COPY_PATHS) => {
                Box::pin(self.cookies.reply(headers, uri).map(Some))
            }
            path if path.ends_with("/why") && path != "/v1/users/why" => {
                Box::pin(self.why.page(path, query))
            }
            path => Box::pin(lookup::user::page(&self.why.lookups, path, query)),
        }
    }
}
