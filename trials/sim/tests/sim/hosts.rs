//! What runs on the hosts: the real programs, started and stopped as their `main` would, and their epoch histories.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex},
};

use producer::{
    config::LimitsConfig,
    log::{Log, run_timers},
    shaping::Shaping,
};
use runtime::{metrics::Registry, unix_micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::{
    UNPOISONED,
    delayed_cookies::Source,
    network::{ADMIN, GRPC, HTTP, SimListener, SimNetwork, SimStream},
    plan::Host,
    stall::Stall,
    store::SimStore,
};

/// A process' place: what outlives its incarnations.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) incarnations: Mutex<Vec<Incarnation>>,
    pub(crate) stall: Arc<Stall>,
}

/// One incarnation of a process.
#[derive(Debug, Clone)]
pub(crate) struct Incarnation {
    /// When it began, in microseconds since the Unix epoch.
    pub(crate) began: u64,
    pub(crate) end: End,
    /// Tells it to end in an orderly way.
    pub(crate) stop: CancellationToken,
    /// Of consumers.
    pub(crate) registry: Registry,
    /// Of producers, while they run.
    pub(crate) log: Option<Log>,
    /// Of producers that have limits, while they run.
    pub(crate) limits: Option<(LimitsConfig, Shaping)>,
    /// How many cookies waited when it crashed.
    pub(crate) held: u64,
}

/// How an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    NotYet,
    /// Its process did, without a word.
    Crashed,
    /// Its machine did, and with it its epoch history.
    LostPower,
    Drained,
}

impl Seat {
    pub(crate) fn new(host: Host) -> Arc<Self> {
        Arc::new(Self {
            name: host.name(),
            incarnations: Mutex::default(),
            stall: Arc::default(),
        })
    }

    /// Whether this producer has cookies in its log that are not sealed yet.
    pub(crate) fn has_open_chunk(&self) -> bool {
        let incarnations = self.incarnations.lock().expect(UNPOISONED);
        let log = incarnations.last().and_then(|last| last.log.as_ref());
        log.map(Log::stats)
            .is_some_and(|stats| stats.appended >= stats.span.next)
    }

    /// The number of the incarnation that there is now.
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
            end: End::NotYet,
            stop: CancellationToken::new(),
            registry: Registry::new(),
            log: None,
            limits: None,
            held: 0,
        };
        let begun = (incarnation.stop.clone(), incarnation.registry.clone());
        self.incarnations
            .lock()
            .expect(UNPOISONED)
            .push(incarnation);
        begun
    }

    pub(crate) fn with_last(&self, change: impl FnOnce(&mut Incarnation)) {
        if let Some(incarnation) = self.incarnations.lock().expect(UNPOISONED).last_mut() {
            change(incarnation);
        }
    }
}

/// A producer's incarnation.
pub(crate) async fn produce(
    seat: Arc<Seat>,
    arguments: Vec<OsString>,
    late: Source,
) -> anyhow::Result<()> {
    let (stop, _) = seat.begin();
    let stall = Arc::clone(&seat.stall);
    let ports = producer::app::Ports {
        http: SimListener::bind(HTTP, &stall).await?,
        grpc: SimListener::bind(GRPC, &stall).await?,
        admin: SimListener::bind(ADMIN, &stall).await?,
    };
    let config = producer::config::Config::load(arguments)?;
    let limits = config.shaping.clone();
    let timers = |log| async move { stall.hold(run_timers(log)).await };
    let app = producer::app::App::start_on(ports, config, timers).await?;
    let shaping = app.shaping().cloned();
    seat.with_last(|incarnation| {
        incarnation.log = Some(app.log().clone());
        incarnation.limits = shaping.map(|shaping| (limits, shaping));
    });
    let releasing = late.run(seat.incarnation(), app.log().clone(), &seat.stall);
    if stop.run_until_cancelled(releasing).await.is_some() {
        stop.cancelled().await;
    }
    let drained = app.drain().await;
    tracing::info!(?drained, "producer ended");
    seat.with_last(|incarnation| {
        incarnation.end = End::Drained;
        incarnation.log = None;
        incarnation.limits = None;
    });
    Ok(())
}

/// A consumer's incarnation.
pub(crate) async fn consume(
    seat: Arc<Seat>,
    arguments: Vec<OsString>,
    store: SimStore,
) -> anyhow::Result<()> {
    let (stop, registry) = seat.begin();
    store.forget_unsure(&seat.name);
    let dependencies = consumer::app::Dependencies {
        store: Arc::new(store),
        admin: SimListener::bind(ADMIN, &seat.stall).await?,
        network: Arc::new(SimNetwork),
    };
    let config = consumer::config::Config::load(arguments)?;
    let app = consumer::app::App::start_in(dependencies, config, registry)?;
    tokio::select! {
        why = app.failed() => return Err(why.context(format!("{} failed", seat.name))),
        () = stop.cancelled() => {}
    }
    let drained = app.drain().await;
    tracing::info!(?drained, "consumer ended");
    seat.with_last(|incarnation| incarnation.end = End::Drained);
    Ok(())
}

/// What an admin port says.
pub(crate) async fn metrics(host: &str) -> anyhow::Result<String> {
    let mut stream = SimStream::connect((turmoil::lookup(host), ADMIN).into()).await?;
    let request = "GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    anyhow::ensure!(page.starts_with("HTTP/1.1 200 "), "{host} says {page}");
    Ok(page)
}
