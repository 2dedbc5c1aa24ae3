//! Starts, connects and drains the components of the program.
//!
//! Both ports open at startup; [makers](crate::maker) and workers start when the broker is connected. A drain
//! stops the API and finishes the current batches within the timeout. It releases unfinished batches and all leases.

use std::{
    future::pending,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context as _, Error, Result};
use gethostname::gethostname;
use parking_lot::Mutex;
use runtime::{
    admin, http_server, listen,
    metrics::Registry,
    open_files,
    ready::{self, Component},
    services::Services,
    unix_micros,
};
use runtime_nats::Servers;
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    apps::{Apps, CurrentApps},
    batch::Checker,
    config::{Config, WorkArgs},
    engine::{
        RETRY_PAUSE,
        nats::{Nats, OtherSettings},
    },
    http::Api,
    limiter::Limiter,
    maker::{Maker, bodies::Bodies},
    messages::BATCH_ASSETS_MAX,
    metrics::{self, Metrics},
    mirror::Mirror,
    origin::HttpOrigin,
    worker::Worker,
};

/// Time to release leases after the drain timeout.
const GRACE: Duration = Duration::from_secs(3);

/// Maximum memory for response bodies; when it is used up, requests wait.
const BODY_MEMORY: usize = 64 << 20;

/// A running revalidator.
pub struct Program {
    api: listen::Stage,
    shared: Arc<Shared>,
    /// Admin port, and tasks that end last.
    pub services: Services,
    /// Drain timeout, which a reload can change.
    pub drain_timeout: watch::Sender<Duration>,
    running: JoinHandle<Result<()>>,
}

/// State shared by makers, workers and pages.
struct Shared {
    nats: Arc<OnceLock<Nats>>,
    /// Why there is no connection to NATS yet.
    nats_error: watch::Sender<String>,
    apps: CurrentApps,
    mirror: Mirror,
    checker: Checker<HttpOrigin>,
    bodies: Bodies,
    /// Makers and workers.
    tasks: TaskTracker,
    draining: CancellationToken,
    abort: CancellationToken,
}

impl Program {
    /// Opens both ports and starts all tasks.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub fn start(config: Config, registry: &Registry) -> Result<Self> {
        let args = config.args;
        let services = Services::register(registry, "revalidator", false)?;
        let listener = listen::bind(args.api.listen, "--listen")?;
        let admin = listen::bind(args.admin.admin, "--admin")?;
        let metrics = Metrics::register(registry)?;
        let file = config.apps.context("--apps is not set")?;
        let limiter = Limiter::new(args.limiter.limiter, config.limiter_token.clone())?;
        let requests = args.work.workers * BATCH_ASSETS_MAX;
        let [connections, requests] = open_files::connections(
            // Files of results and contents, and idle connections to origins.
            open_files::of_store(),
            [
                ("API connections", admin::LIMITS.connections_max),
                ("parallel requests", requests),
            ],
        );
        let newest = Arc::clone(&file);
        let current: CurrentApps = Arc::new(move || newest.current());
        let shared = Shared {
            nats: Arc::default(),
            nats_error: watch::Sender::new("connecting".to_owned()),
            apps: current,
            mirror: Mirror::new(metrics.invalid_messages.clone()),
            checker: Checker {
                origin: HttpOrigin::new(BODY_MEMORY, requests),
                limiter,
                metrics,
            },
            bodies: Bodies::default(),
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        metrics::register_state(registry, shared.mirror.clone(), Arc::clone(&shared.apps))?;
        let (shared, stage) = (Arc::new(shared), listen::Stage::default());
        services.watch(Some(&file), &services.stage);
        services.watch(config.tokens.as_ref(), &services.stage);
        services.watch(config.limiter_token.as_ref(), &services.stage);
        services.serve_admin(admin, Pages(Arc::clone(&shared)))?;
        let api = Arc::new(Api {
            engine: Arc::clone(&shared.nats),
            mirror: shared.mirror.clone(),
            apps: Arc::clone(&shared.apps),
            bodies: (!args.work.no_maker).then(|| shared.bodies.clone()),
            tokens: config.tokens,
            budget: Mutex::default(),
        });
        let handler = move |request| {
            let api = Arc::clone(&api);
            async move { api.handle(request).await }
        };
        let serve = http_server::connections(None, stage.stop.clone(), handler);
        services.serve_api(listener, admin::LIMITS.with(connections), &stage, serve)?;
        let (stop, to_run) = (services.stage.stop.clone(), Arc::clone(&shared));
        let servers = config.nats.context("--nats is invalid")?;
        let running = services.stage.tasks.spawn(async move {
            let running = Box::pin(to_run.run(&servers, &args.work, stop.clone()));
            stop.run_until_cancelled(running).await.unwrap_or(Ok(()))
        });
        Ok(Self {
            api: stage,
            services,
            shared,
            drain_timeout: watch::Sender::new(args.admin.drain_timeout),
            running,
        })
    }

    /// Waits for an error that only an operator or a restart can resolve.
    pub async fn failed(&mut self) -> Error {
        match (&mut self.running).await.map_err(Error::from).flatten() {
            Ok(()) => pending().await,
            Err(error) => error,
        }
    }

    /// Finishes batches within the drain timeout. Releases unfinished batches and all leases.
    pub async fn drain(self) {
        let began = Instant::now();
        let end = began + *self.drain_timeout.borrow();
        let (tasks, abort) = (&self.shared.tasks, &self.shared.abort);
        self.shared.draining.cancel();
        tasks.close();
        self.api.drain(end.min(began + GRACE)).await;
        if timeout_at(end, tasks.wait()).await.is_err() {
            tracing::info!("drain timed out; releasing unfinished batches");
            abort.cancel();
            drop(timeout(GRACE, tasks.wait()).await);
        }
        self.services.drain().await;
        tracing::info!(took = ?began.elapsed(), "drained");
    }
}

impl Shared {
    /// Connects to the broker, and runs the mirror, the maker and the workers until `stop`. Fails only with errors that a retry
    /// cannot resolve.
    async fn run(&self, servers: &Servers, work: &WorkArgs, stop: CancellationToken) -> Result<()> {
        let nats = loop {
            match Box::pin(Nats::connect(servers)).await {
                Ok(nats) => break nats,
                Err(error) if error.is::<OtherSettings>() => return Err(error),
                Err(error) => {
                    let error = format!("{error:#}");
                    if self.nats_error.send_replace(error.clone()) != error {
                        tracing::warn!(error, "NATS unavailable, retrying");
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        };
        tracing::info!("connected to NATS");
        let nats = self.nats.get_or_init(|| nats);
        let host = gethostname().to_string_lossy().into_owned();
        let host = host.replace(|it: char| !it.is_ascii_alphanumeric(), "-");
        let id = |number| format!("{host}-{:08x}-{number}", fastrand::u32(..));
        let mut tasks = JoinSet::new();
        tasks.spawn(nats.clone().supervise(stop.clone()));
        tasks.spawn(self.mirror.clone().run(nats.clone(), stop));
        if !work.no_maker {
            let maker = Maker {
                id: id(0),
                engine: nats.clone(),
                mirror: self.mirror.clone(),
                apps: Arc::clone(&self.apps),
                metrics: self.checker.metrics.clone(),
                bodies: self.bodies.clone(),
                write_back: Arc::new(Semaphore::new(1)),
                stop: self.draining.clone(),
                clock: now,
            };
            tasks.spawn(self.tasks.track_future(maker.run()));
        }
        for number in 1..=work.workers {
            let worker = Worker {
                id: id(number),
                engine: nats.clone(),
                mirror: self.mirror.clone(),
                apps: Arc::clone(&self.apps),
                checker: self.checker.clone(),
                stop: self.draining.clone(),
                abort: self.abort.clone(),
                clock: now,
            };
            tasks.spawn(self.tasks.track_future(worker.run()));
        }
        all(tasks).await
    }
}

/// Waits until all tasks have ended or one has panicked. After a panic, the others run until a drain ends them.
async fn all(mut tasks: JoinSet<()>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tasks.detach_all();
            return Err(error).context("a task that reads or processes jobs ended unexpectedly");
        }
    }
    Ok(())
}

/// Milliseconds since 1970.
fn now() -> u64 {
    unix_micros() / 1000
}

/// The revalidator's components on the admin port.
struct Pages(Arc<Shared>);

impl admin::Pages for Pages {
    fn components(&self) -> Vec<Component> {
        let shared = &self.0;
        let nats = match shared.nats.get() {
            None => Err(shared.nats_error.borrow().clone()),
            Some(nats) if nats.state().is_err() => nats.state().map(|()| String::new()),
            Some(_) if !shared.mirror.is_current() => Err("connected, still reading jobs".into()),
            Some(_) => Ok("connected".to_owned()),
        };
        let mut components = vec![
            ready::drain(shared.draining.is_cancelled()),
            Component::new("nats", nats),
        ];
        let has_limit = |apps: &Apps| apps.iter().any(|it| it.settings.limit.is_some());
        if has_limit(&(shared.apps)()) {
            let limiter = shared.checker.limiter.state();
            components.push(Component::new("limiter", limiter));
        }
        components
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_one_task_is_an_error_and_the_others_continue() {
        let (mut tasks, others) = (JoinSet::new(), TaskTracker::new());
        let drain = CancellationToken::new();
        tasks.spawn(others.track_future(drain.clone().cancelled_owned()));
        tasks.spawn(async { panic!("on purpose") });
        let error = format!("{:#}", all(tasks).await.unwrap_err());
        assert!(
            error.contains("ended unexpectedly") && error.contains("on purpose"),
            "{error}"
        );
        others.close();
        assert_eq!(others.len(), 1);
        drain.cancel();
        others.wait().await;
    }

    #[tokio::test]
    async fn tasks_that_end_are_no_error() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        assert!(all(tasks).await.is_ok());
    }
}
