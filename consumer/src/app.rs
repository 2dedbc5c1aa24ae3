//! All stages of one consumer, put together, started and drained. Only this module knows them all.
//!
//! Start: the store is opened and the admin port bound before [`App::start`] returns; then, as soon as the store
//! can say where it stands, producers are subscribed to. Drain follows the data: reading stops, the last batch
//! is written with its cursors, then the rest stops; all within one deadline. If it comes near, what is still in
//! the buffer is left out: its cursors are not committed, so the producers send it again.
//!
//! Each stage of the pipeline runs under a watch: one that ends before it was told to ends the process.

mod live;
mod opening;
mod watch;

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use runtime::{
    admin::{self, ready::Part},
    connect::{Network, Tcp, credentials::stays_here},
    listen::{self, Listener},
    metrics::Registry,
    reload,
    settings::renewal,
    status::{Board, page::Page},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::watch::{Failed, Watch};
pub use self::{live::Live, opening::open_store};
use crate::{
    aside,
    clock::Clock,
    config::{Config, ProducerUrl, StoreConfig},
    health::Health,
    lookup,
    losses::{self, Losses},
    maintenance,
    metrics::{Metrics, register_producers},
    sink::{Failure, Pipeline, Stops},
    status::{self, ConsumerStatus},
    store::Store,
    subscription::{self, discovery},
};

/// How long the admin port and maintenance may take to end once all data is safe, and then the store to close.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a drain waits for a store that does not work.
const STORE_DOWN_PATIENCE: Duration = Duration::from_secs(2);

/// Of the drain timeout, what is not the pipeline's.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// A running consumer.
#[derive(Debug)]
pub struct App {
    admin_address: SocketAddr,
    live: Live,
    renewals: renewal::Metrics,
    /// The tasks that carry data, and the ones that do not.
    pipeline: TaskTracker,
    services: TaskTracker,
    stop_reading: CancellationToken,
    hurry: CancellationToken,
    stop_writing: CancellationToken,
    stop_services: CancellationToken,
    failed: Arc<Failed>,
    health: Arc<Health>,
    store: Arc<dyn Store>,
}

/// What a consumer has of the world around it.
#[derive(Debug)]
pub struct Surroundings<L> {
    /// Where cookies go.
    pub store: Arc<dyn Store>,
    /// Where those go that the store does not take of one DSP alone, if it may fail so.
    pub aside: Option<aside::Folder>,
    /// The admin port.
    pub admin: L,
    /// The way to the producers.
    pub network: Arc<dyn Network>,
}

impl App {
    /// Opens the store, binds the admin port and starts to read.
    ///
    /// # Errors
    /// When the store can never work, the port is taken, or the registry has metrics of these names.
    pub async fn start(config: Config, registry: Registry) -> anyhow::Result<Self> {
        let store = open_store(&config).await?;
        let aside = match config.storing.store {
            StoreConfig::Mongodb(_) => {
                let folder = config.storing.set_aside();
                Some(aside::Folder::open(folder, config.storing.set_aside_bytes).await?)
            }
            StoreConfig::Embedded(_) | StoreConfig::Discard => None,
        };
        let admin = listen::bind(config.running.admin, "--admin")?;
        let surroundings = Surroundings {
            store,
            aside,
            admin,
            network: Arc::new(Tcp),
        };
        Self::start_in(surroundings, config, registry)
    }

    /// Starts to read in the surroundings given; the settings' own store and admin address are not used.
    ///
    /// # Errors
    /// When the registry has metrics of these names.
    pub fn start_in<L: Listener>(
        surroundings: Surroundings<L>,
        config: Config,
        registry: Registry,
    ) -> anyhow::Result<Self> {
        let Surroundings {
            store,
            aside,
            admin: listener,
            network,
        } = surroundings;
        let metrics = Metrics::register(&registry).context("metrics")?;
        let credentials = reload::Metrics::register(&registry, "consumer").context("metrics")?;
        let admin_metrics = listen::Metrics::register(&registry, "consumer", "admin")?;
        let app = Self {
            admin_address: listener.local_addr().context("admin port")?,
            live: Live::new(&config),
            renewals: renewal::Metrics::register(&registry, "consumer").context("metrics")?,
            pipeline: TaskTracker::new(),
            services: TaskTracker::new(),
            stop_reading: CancellationToken::new(),
            hurry: CancellationToken::new(),
            stop_writing: CancellationToken::new(),
            stop_services: CancellationToken::new(),
            failed: Arc::default(),
            health: Arc::new(Health::default()),
            store,
        };
        let health = Arc::clone(&app.health);
        let producers = health.producers().clone();
        register_producers(&registry, producers.clone()).context("metrics")?;
        let sources = status::Sources::of(
            &config,
            app.live.night.subscribe(),
            &metrics,
            &health,
            &app.stop_reading,
        );
        let board = Board::register(
            &registry,
            "consumer",
            Page::new(status::PAGE),
            Box::new(ConsumerStatus::new(sources)),
            app.stop_services.clone(),
        )?;
        app.services.spawn(board.clone().run());
        let pages = Arc::new(Pages {
            losses: producers.losses().clone(),
            store: Arc::clone(&app.store),
            health: Arc::clone(&health),
            draining: app.stop_reading.clone(),
            board,
            debug_endpoints: config.common.debug_endpoints,
        });
        app.services.spawn(admin::serve(
            listener,
            registry,
            admin_metrics,
            pages,
            listen::Stage::new(app.services.clone(), app.stop_services.clone()),
        ));
        tracing::info!(address = %app.admin_address, "admin port is open");
        admin::say_if_open(app.admin_address);
        say_plain_tokens(&config);
        let (services, stop) = (&app.services, &app.stop_services);
        config.security.watch(&credentials, services, stop);
        let pipeline = app.pipeline(config, aside, network, metrics, health);
        let watch = app.watch();
        app.pipeline.spawn(watch.run("the writer", pipeline));
        Ok(app)
    }

    /// What may change while it runs.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Counts how often its settings are read again.
    #[must_use]
    pub fn renewals(&self) -> renewal::Metrics {
        self.renewals.clone()
    }

    /// Where the admin port listens.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Returns when the consumer cannot go on, with the reason.
    pub async fn failed(&self) -> anyhow::Error {
        self.failed.happened().await;
        self.failed.error()
    }

    /// Stops reading, writes what was received, commits the cursors, stops; never longer than the drain timeout.
    ///
    /// Of that time the pipeline gets all but two seconds (half, if that is less). After half of its time it
    /// leaves out what is still in the buffer. A store that does not work is waited for no longer than
    /// two seconds.
    ///
    /// A batch that could not be stored is no error: its cursors stand where the store stands, so it comes again after
    /// the next start, as far as producers still have it.
    ///
    /// # Errors
    /// When a stage failed.
    pub async fn drain(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let pipeline_time = pipeline_time(*self.live.drain_timeout.borrow());
        self.stop_reading.cancel();
        self.pipeline.close();
        let writing = async {
            let half = began + pipeline_time / 2;
            if timeout_at(half, self.pipeline.wait()).await.is_err() {
                self.hurry.cancel();
            }
            timeout_at(began + pipeline_time, self.pipeline.wait()).await
        };
        let written = tokio::select! {
            biased;
            written = writing => written.is_ok(),
            () = self.store_is_down() => false,
        };
        if self.failed.has_happened() {
            let error = self.failed.error();
            self.stop_at_once().await;
            return Err(error);
        }
        if !written {
            let why = self
                .health
                .store_down()
                .unwrap_or_else(|| "it is slow".to_owned());
            tracing::warn!(
                why,
                "the last batch is not stored: it comes again after the next start"
            );
        }
        self.stop_at_once().await;
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }

    /// Returns when the store has not worked for [`STORE_DOWN_PATIENCE`] from now on, without a break.
    async fn store_is_down(&self) {
        let mut works_at = Instant::now();
        while works_at.elapsed() < STORE_DOWN_PATIENCE {
            sleep(STORE_DOWN_PATIENCE / 20).await;
            if self.health.store_down().is_none() {
                works_at = Instant::now();
            }
        }
    }

    /// Stops without waiting for the store.
    pub async fn stop_at_once(self) {
        self.stop_reading.cancel();
        self.hurry.cancel();
        self.stop_writing.cancel();
        self.stop_services.cancel();
        self.pipeline.close();
        self.services.close();
        let all = async {
            self.pipeline.wait().await;
            self.services.wait().await;
        };
        if timeout(SERVICES_TIMEOUT, all).await.is_err() {
            tracing::debug!("some work was left to end by itself");
        }
        // Closing the embedded store may block for a moment.
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || drop(store));
        match timeout(SERVICES_TIMEOUT, closed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the store failed to close"),
            Err(_) => tracing::debug!("the store was left to close by itself"),
        }
    }

    /// From the store's cursors to the last batch.
    fn pipeline(
        &self,
        config: Config,
        aside: Option<aside::Folder>,
        network: Arc<dyn Network>,
        metrics: Metrics,
        health: Arc<Health>,
    ) -> impl Future<Output = Result<(), Failure>> + use<> {
        let (buffer, mut pipeline) = Pipeline::new(
            &config,
            Arc::clone(&self.store),
            aside,
            Arc::clone(&health),
            self.live.dsps_refused.subscribe(),
            &metrics,
            Stops {
                hurry: self.hurry.clone(),
                at_once: self.stop_writing.clone(),
            },
        );
        let (tracker, services) = (self.pipeline.clone(), self.services.clone());
        let (stop_reading, stop_services) = (self.stop_reading.clone(), self.stop_services.clone());
        let watch = self.watch();
        let store = Arc::clone(&self.store);
        let night = self.live.night.subscribe();
        async move {
            tokio::select! {
                // Nothing was received yet, so nothing is lost.
                () = stop_reading.cancelled() => return Ok(()),
                loaded = pipeline.load_cursors() => loaded?,
            }
            if let Some(retries) = pipeline.take_retries() {
                let stop = stop_services.clone();
                services.spawn(watch.clone().run("what tries again", async {
                    retries.run(stop).await;
                    Ok(())
                }));
            }
            let producers = health.producers().clone();
            let maintenance = maintenance::run(
                store,
                night,
                Clock::System,
                producers.clone(),
                buffer.reporter(),
                metrics.clone(),
                stop_services,
            );
            services.spawn(watch.clone().run("maintenance", async {
                maintenance.await;
                Ok(())
            }));
            let context = subscription::Context {
                producers_expected: config.reading.producers_expected(),
                name: config.reading.name,
                network,
                security: config.security,
                producers,
                metrics: metrics.subscription,
            };
            let discovery = discovery::run(
                config.reading.producer,
                Arc::new(context),
                buffer,
                tracker.clone(),
                stop_reading,
            );
            tracker.spawn(watch.clone().run("the search for producers", async {
                discovery.await;
                Ok(())
            }));
            let (collecting, writing) = pipeline.into_tasks();
            tracker.spawn(watch.run("the collector", collecting));
            writing.await
        }
    }

    fn watch(&self) -> Watch {
        Watch::new(Arc::clone(&self.failed), self.stop_reading.clone())
    }
}

/// Says once which producers get the token in plain text over a network.
fn say_plain_tokens(config: &Config) {
    let is_plain = |url: &&ProducerUrl| !url.https && !stays_here(&url.host);
    if config.security.token.is_some()
        && let Some(producer) = config.reading.producer.iter().find(is_plain)
    {
        tracing::warn!(
            %producer,
            "the token is sent in plain text: others on the way can read it (https://)"
        );
    }
}

fn pipeline_time(drain_timeout: Duration) -> Duration {
    drain_timeout
        .saturating_sub(CLOSING_TIMEOUT)
        .max(drain_timeout / 2)
}

/// The consumer's own pages on the admin port.
struct Pages {
    losses: Losses,
    store: Arc<dyn Store>,
    health: Arc<Health>,
    draining: CancellationToken,
    board: Board,
    debug_endpoints: bool,
}

impl admin::Pages for Pages {
    fn parts(&self) -> Vec<Part> {
        status::parts(&self.health, &self.draining)
    }

    fn needs_restart(&self) -> Option<String> {
        self.health.needs_restart()
    }

    fn board(&self) -> &Board {
        &self.board
    }

    fn debug_endpoints(&self) -> bool {
        self.debug_endpoints
    }

    fn page<'a>(
        &'a self,
        path: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<admin::Answer>> + Send + 'a>> {
        Box::pin(async move {
            match losses::page(&self.losses, path) {
                Some(answer) => Some(answer),
                None => lookup::page(&*self.store, path).await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(store: &str, drain_timeout: &str) -> Config {
        let arguments = [
            "consumer",
            "--admin=127.0.0.1:0",
            "--producer=http://127.0.0.1:1",
        ];
        let arguments = arguments.into_iter().map(str::to_owned);
        let more = [
            format!("--store={store}"),
            format!("--drain-timeout={drain_timeout}"),
        ];
        Config::load(arguments.chain(more).map(Into::into)).unwrap()
    }

    #[tokio::test]
    async fn drains_at_once_when_there_is_nothing_to_do() {
        let app = App::start(config("none", "10s"), Registry::new())
            .await
            .unwrap();
        let began = Instant::now();
        app.drain().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn pipeline_gets_all_of_the_drain_timeout_but_what_closing_takes() {
        let seconds = Duration::from_secs;
        assert_eq!(pipeline_time(seconds(10)), seconds(8));
        assert_eq!(pipeline_time(seconds(2)), seconds(1));
        assert_eq!(pipeline_time(seconds(0)), seconds(0));
    }
}
