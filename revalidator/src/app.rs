//! Composition of the components of `revalidator serve`: startup, tasks and drain.
//!
//! Both ports open at once; makers and workers begin when the broker is connected. A drain stops the API, finishes the current batches
//! within the timeout or gives them back, and frees all leases.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use gethostname::gethostname;
use runtime::{
    admin::{self, Admin},
    http_server, listen,
    metrics::{Registry, register_process},
    ready::{self, Component},
    reload,
    settings::live_config,
    unix_micros,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    apps::CurrentApps,
    batch::Checker,
    config::Config,
    engine::nats::{ConnectError, Nats, Server},
    http::Api,
    limiter::Limiter,
    maker::Maker,
    metrics::{self, Metrics},
    mirror::Mirror,
    origin::HttpOrigin,
    worker::Worker,
};

const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Time for leases to be freed after the drain timeout.
const GRACE: Duration = Duration::from_secs(3);

/// Time for which the admin port stays open at the end of the drain.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

const API_LIMITS: listen::Limits = listen::Limits {
    connections_max: 512,
    connections_per_address_max: Some(256),
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

/// A running revalidator.
pub struct App {
    api: listen::Stage,
    services: listen::Stage,
    workers: TaskTracker,
    stop_workers: CancellationToken,
    abort: CancellationToken,
    draining: CancellationToken,
    drain_timeout: watch::Sender<Duration>,
    config_reloads: live_config::Metrics,
    fatal: watch::Receiver<Option<String>>,
}

/// The connection to the broker, as the admin port shows it.
struct Broker {
    nats: Arc<OnceLock<Nats>>,
    error: Mutex<String>,
}

impl Broker {
    fn set_error(&self, error: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn state(&self, mirror: &Mirror) -> Result<String, String> {
        match self.nats.get() {
            None => Err(self
                .error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()),
            Some(nats) if !nats.is_connected() => Err("disconnected; reconnecting".to_owned()),
            Some(_) if !mirror.is_current() => Err("connected; reading jobs".to_owned()),
            Some(_) => Ok("connected".to_owned()),
        }
    }
}

/// What makers and workers share.
#[derive(Clone)]
struct Parts {
    apps: CurrentApps,
    mirror: Mirror,
    metrics: Metrics,
    limiter: Limiter,
    origin: HttpOrigin,
    workers: usize,
    is_maker: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl App {
    /// Opens both ports and starts all tasks.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub fn start(config: Config, registry: &Registry) -> anyhow::Result<Self> {
        let registered = "failed to register metrics";
        register_process(registry, "revalidator", env!("CARGO_PKG_VERSION")).context(registered)?;
        let listener = listen::bind(config.api.listen, "--listen")?;
        let admin = listen::bind(config.admin.admin, "--admin")?;
        let (fatal_sender, fatal) = watch::channel(None);
        let app = Self {
            api: listen::Stage::default(),
            services: listen::Stage::default(),
            workers: TaskTracker::new(),
            stop_workers: CancellationToken::new(),
            abort: CancellationToken::new(),
            draining: CancellationToken::new(),
            drain_timeout: watch::Sender::new(config.admin.drain_timeout),
            config_reloads: live_config::Metrics::register(registry, "revalidator")
                .context(registered)?,
            fatal,
        };
        let (tasks, stop) = (&app.services.tasks, &app.services.stop);
        let reloads =
            reload::Metrics::register(registry, "revalidator", false).context(registered)?;
        let file = config.apps.context("no applications file")?;
        tasks.spawn(Arc::clone(&file).watch(reloads.clone(), stop.clone()));
        for tokens in [&config.tokens, &config.limiter_token]
            .into_iter()
            .flatten()
        {
            tasks.spawn(Arc::clone(tokens).watch(reloads.clone(), stop.clone()));
        }
        let metrics = Metrics::register(registry).context(registered)?;
        let mirror = Mirror::new(metrics.invalid_messages.clone());
        metrics::register_state(registry, mirror.clone()).context(registered)?;
        let limiter = config.limiter.context("no limiter")?;
        let parts = Parts {
            apps: Arc::new(move || file.current()),
            mirror: mirror.clone(),
            metrics,
            limiter: Limiter::new(limiter, config.limiter_token)?,
            origin: HttpOrigin::new(config.work.body_memory),
            workers: config.work.workers,
            is_maker: !config.work.no_maker,
            tasks: app.workers.clone(),
            stop: app.stop_workers.clone(),
            abort: app.abort.clone(),
        };
        let broker = Arc::new(Broker {
            nats: Arc::default(),
            error: Mutex::new("connecting".to_owned()),
        });
        let pages = Pages {
            broker: Arc::clone(&broker),
            parts: parts.clone(),
            draining: app.draining.clone(),
        };
        app.open_admin(admin, config.common.debug_endpoints, pages, registry)?;
        let api = Api::new(
            Arc::clone(&broker.nats),
            mirror,
            Arc::clone(&parts.apps),
            config.tokens,
        );
        app.open_api(listener, api, registry)?;
        let (server, stop) = (config.nats, app.services.stop.clone());
        tasks.spawn(async move {
            let connecting = Box::pin(connect(&server, &broker, parts, stop.clone()));
            if let Some(Err(error)) = stop.run_until_cancelled(connecting).await {
                fatal_sender.send_replace(Some(error));
            }
        });
        Ok(app)
    }

    fn open_api(
        &self,
        listener: TcpListener,
        api: Api<Nats>,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let address = listener.local_addr()?;
        let api = Arc::new(api);
        let handler = move |request| {
            let api = Arc::clone(&api);
            async move { api.handle(request).await }
        };
        let connections = listen::Metrics::register(registry, "revalidator", "http");
        let connections = connections.context("failed to register metrics")?;
        let stage = self.api.clone();
        let serve = http_server::serve(listener, None, API_LIMITS, connections, stage, handler);
        self.api.tasks.spawn(serve);
        tracing::info!(%address, "API port is open");
        if !address.ip().is_loopback() {
            tracing::warn!(listen = %address, "tokens are sent in plain text and can be read in transit");
        }
        Ok(())
    }

    fn open_admin(
        &self,
        listener: TcpListener,
        debug_endpoints: bool,
        pages: Pages,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let address = listener.local_addr()?;
        let admin = Admin {
            registry: registry.clone(),
            config_reloads: self.config_reloads.clone(),
            debug_endpoints,
        };
        let connections = listen::Metrics::register(registry, "revalidator", "admin");
        let connections = connections.context("failed to register metrics")?;
        let serve = admin::serve(listener, admin, connections, pages, self.services.clone());
        self.services.tasks.spawn(serve);
        tracing::info!(%address, "admin port is open");
        admin::warn_if_open(address);
        Ok(())
    }

    /// The drain timeout, which a reload can change.
    #[must_use]
    pub fn drain_timeout(&self) -> watch::Sender<Duration> {
        self.drain_timeout.clone()
    }

    /// Metrics of configuration reloads.
    #[must_use]
    pub fn config_reloads(&self) -> live_config::Metrics {
        self.config_reloads.clone()
    }

    /// Returns an error that only an operator resolves, when there is one.
    pub async fn failed(&self) -> anyhow::Error {
        let mut fatal = self.fatal.clone();
        let error = fatal.wait_for(Option::is_some).await;
        match error.ok().and_then(|it| it.clone()) {
            Some(error) => anyhow!(error),
            None => std::future::pending().await,
        }
    }

    /// Finishes batches within the drain timeout, gives back the others, and frees all leases.
    pub async fn drain(self) {
        let began = Instant::now();
        let end = began + *self.drain_timeout.borrow();
        self.draining.cancel();
        self.stop_workers.cancel();
        self.workers.close();
        self.api.drain(end.min(began + GRACE)).await;
        if timeout_at(end, self.workers.wait()).await.is_err() {
            tracing::info!("giving back batches that are not finished");
            self.abort.cancel();
            drop(timeout(GRACE, self.workers.wait()).await);
        }
        self.services.drain(Instant::now() + ADMIN_GRACE).await;
        tracing::info!(took = ?began.elapsed(), "drained");
    }
}

/// Connects to the broker, and starts the mirror, the maker and the workers. Fails only with an error that waiting does not resolve.
async fn connect(
    server: &Server,
    broker: &Broker,
    parts: Parts,
    stop: CancellationToken,
) -> Result<(), String> {
    let mut logged = String::new();
    let nats = loop {
        match Nats::connect(server).await {
            Ok(nats) => break nats,
            Err(ConnectError::OtherSettings(error)) => return Err(error),
            Err(ConnectError::Unavailable(error)) => {
                let error = format!("{error:#}");
                if logged != error {
                    tracing::warn!(error, "NATS is unavailable; retrying");
                    logged.clone_from(&error);
                }
                broker.set_error(error);
                sleep(CONNECT_PAUSE).await;
            }
        }
    };
    tracing::info!("NATS is connected");
    if broker.nats.set(nats.clone()).is_err() {
        return Ok(());
    }
    let host = gethostname()
        .to_string_lossy()
        .replace(|it: char| !it.is_ascii_alphanumeric(), "-");
    let id = |number| format!("{host}-{:08x}-{number}", fastrand::u32(..));
    let tasks = parts.tasks.clone();
    if parts.is_maker {
        let maker = Maker {
            id: id(0),
            engine: nats.clone(),
            mirror: parts.mirror.clone(),
            apps: Arc::clone(&parts.apps),
            metrics: parts.metrics.clone(),
            stop: parts.stop.clone(),
            started_at: now(),
            clock: now,
        };
        tasks.spawn(maker.run());
    }
    for number in 1..=parts.workers {
        let worker = Worker {
            id: id(number),
            engine: nats.clone(),
            mirror: parts.mirror.clone(),
            apps: Arc::clone(&parts.apps),
            checker: Checker {
                origin: parts.origin.clone(),
                limiter: Some(parts.limiter.clone()),
                metrics: parts.metrics.clone(),
            },
            stop: parts.stop.clone(),
            abort: parts.abort.clone(),
            clock: now,
        };
        tasks.spawn(worker.run());
    }
    Box::pin(parts.mirror.run(nats, stop)).await;
    Ok(())
}

/// Milliseconds since 1970.
fn now() -> u64 {
    unix_micros() / 1000
}

/// The revalidator's part of the admin port.
struct Pages {
    broker: Arc<Broker>,
    parts: Parts,
    draining: CancellationToken,
}

impl admin::Pages for Pages {
    fn components(&self) -> Vec<Component> {
        let mut components = vec![
            ready::drain(self.draining.is_cancelled()),
            Component::new("nats", self.broker.state(&self.parts.mirror)),
        ];
        let apps = (self.parts.apps)();
        if self.parts.workers > 0 && apps.iter().any(|app| app.limit.is_some()) {
            components.push(Component::new("limiter", self.parts.limiter.state()));
        }
        components
    }
}
