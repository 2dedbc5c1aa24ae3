//! Runs the real programs on the simulated hosts, as the `main` of each program does, and records the incarnations (runs) of
//! each process.

use std::{
    ffi::OsString,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use consumer::{
    app::{App, Archives},
    recovery::archive::Archive,
};
use producer::{
    config::DspsConfig,
    inlet::Inlet,
    log::{Log, run_timers},
};
use runtime::{metrics::Registry, unix_micros};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    UNPOISONED,
    archive::{SimArchive, SimPublisher},
    delayed_cookies::DelayedSource,
    network::{ADMIN, API, GRPC, HTTP, SimListener, SimNetwork, SimStream},
    plan::Host,
    stall::Stall,
    store::SimStore,
};

/// A process of the run, with all its incarnations.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// Time by which its clock is ahead of the simulated time.
    pub(crate) clock_ahead: Duration,
    pub(crate) incarnations: Mutex<Vec<Incarnation>>,
    pub(crate) stall: Arc<Stall>,
}

/// One incarnation of a process: from its start to its end.
#[derive(Debug, Clone)]
pub(crate) struct Incarnation {
    /// Start time, in microseconds since the Unix epoch.
    pub(crate) began: u64,
    pub(crate) state: IncarnationState,
    /// Starts the drain of this incarnation.
    pub(crate) stop: CancellationToken,
    /// Metrics of a consumer. The metrics of a producer would keep its files open.
    pub(crate) registry: Registry,
    /// The log of a running producer.
    pub(crate) log: Option<Log>,
    /// Limits of a running producer.
    pub(crate) limits: Option<(DspsConfig, Inlet)>,
    /// Number of queued cookies at its crash.
    pub(crate) queued: u64,
    /// Number of cookies in its log that were not archived at its crash.
    pub(crate) unarchived: u64,
}

/// State of an incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IncarnationState {
    Running,
    /// The process crashed.
    Crashed,
    /// The machine lost power, and a producer its epoch history.
    PowerLost,
    Drained,
}

impl Process {
    pub(crate) fn new(host: Host, clock_ahead: Duration) -> Arc<Self> {
        Arc::new(Self {
            name: host.name(),
            clock_ahead,
            incarnations: Mutex::default(),
            stall: Arc::default(),
        })
    }

    /// Whether the log of this producer has an open chunk.
    pub(crate) fn has_open_chunk(&self) -> bool {
        let incarnations = self.incarnations.lock().expect(UNPOISONED);
        let log = incarnations.last().and_then(|last| last.log.as_ref());
        log.map(Log::stats)
            .is_some_and(|stats| stats.appended >= stats.span.next.0)
    }

    /// The index of the current incarnation.
    pub(crate) fn incarnation(&self) -> usize {
        self.incarnations
            .lock()
            .expect(UNPOISONED)
            .len()
            .saturating_sub(1)
    }

    fn begin(&self) -> (CancellationToken, Registry) {
        let incarnation = Incarnation {
            began: unix_micros(),
            state: IncarnationState::Running,
            stop: CancellationToken::new(),
            registry: Registry::new(),
            log: None,
            limits: None,
            queued: 0,
            unarchived: 0,
        };
        let begun = (incarnation.stop.clone(), incarnation.registry.clone());
        self.incarnations
            .lock()
            .expect(UNPOISONED)
            .push(incarnation);
        begun
    }

    pub(crate) fn with_current(&self, change: impl FnOnce(&mut Incarnation)) {
        if let Some(incarnation) = self.incarnations.lock().expect(UNPOISONED).last_mut() {
            change(incarnation);
        }
    }
}

/// Runs one incarnation of a producer.
pub(crate) async fn run_producer(
    process: Arc<Process>,
    arguments: Vec<OsString>,
    delayed: DelayedSource,
    archive: Option<SimArchive>,
) -> anyhow::Result<()> {
    let (stop, _) = process.begin();
    let stall = Arc::clone(&process.stall);
    let ports = producer::app::Ports {
        http: SimListener::bind(HTTP, &stall).await?,
        grpc: SimListener::bind(GRPC, &stall).await?,
        admin: SimListener::bind(ADMIN, &stall).await?,
        api: Some(SimListener::bind(API, &stall).await?),
    };
    let config = producer::config::Config::load(arguments)?;
    let limits = config.dsps.clone();
    let timers = |log| async move { stall.gate(run_timers(log)).await };
    let archive = archive.map(|archive| SimPublisher {
        archive,
        late: JoinSet::new(),
    });
    let app = producer::app::App::start_on(ports, config, archive, timers).await?;
    let inlet = app.inlet.clone();
    process.with_current(|incarnation| {
        incarnation.log = Some(app.log.clone());
        incarnation.limits = limits.contracts.is_some().then_some((limits, inlet));
    });
    let appending = delayed.run(process.incarnation(), app.log.clone(), &process.stall);
    if stop.run_until_cancelled(appending).await.is_some() {
        stop.cancelled().await;
    }
    let drained = app.drain().await;
    tracing::info!(?drained, "producer ended");
    process.with_current(|incarnation| {
        incarnation.state = IncarnationState::Drained;
        incarnation.log = None;
        incarnation.limits = None;
    });
    Ok(())
}

/// Runs one incarnation of a consumer, which follows the archive or reads streams.
pub(crate) async fn run_consumer(
    process: Arc<Process>,
    arguments: Vec<OsString>,
    store: SimStore,
    archive: Option<SimArchive>,
    is_follower: bool,
) -> anyhow::Result<()> {
    let (stop, registry) = process.begin();
    store.discard_uncommitted_reports(&process.name);
    let store = consumer::store::Store::with_all_roles(store);
    let admin = SimListener::bind(ADMIN, &process.stall).await?;
    let config = consumer::config::Config::load(arguments)?;
    let reader = || archive.clone().map(|it| Box::new(it) as Box<dyn Archive>);
    let archives = Archives {
        recovery: reader(),
        follower: reader().filter(|_| is_follower),
    };
    let app = App::start_in(
        store,
        admin,
        Arc::new(SimNetwork),
        archives,
        config,
        registry,
    )?;
    tokio::select! {
        error = app.failed() => return Err(error.context(format!("{} failed", process.name))),
        () = stop.cancelled() => {}
    }
    let drained = app.drain().await;
    tracing::info!(?drained, "consumer ended");
    process.with_current(|incarnation| incarnation.state = IncarnationState::Drained);
    Ok(())
}

/// Scrapes the admin port of a host.
pub(crate) async fn scrape(host: &str) -> anyhow::Result<String> {
    let head = "GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n";
    let (status, page) = request(host, ADMIN, &[head.as_bytes()], Duration::ZERO).await?;
    anyhow::ensure!(status == 200, "{host} returned {status} {page}");
    Ok(page)
}

/// Sends an HTTP request that closes the connection, with a pause before the last part. Returns status and body.
pub(crate) async fn request(
    host: &str,
    port: u16,
    parts: &[&[u8]],
    pause: Duration,
) -> io::Result<(u16, String)> {
    let mut stream = SimStream::connect((turmoil::lookup(host), port).into()).await?;
    for (at, part) in parts.iter().enumerate() {
        if at > 0 && at + 1 == parts.len() && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if !part.is_empty() {
            stream.write_all(part).await?;
        }
    }
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((status, body.to_owned()))
}
