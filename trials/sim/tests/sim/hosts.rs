//! What runs on the hosts: the real programs, started and stopped as their `main` would, and their epoch histories.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex},
};

use producer::{config::LimitsConfig, shaping::Shaping};
use runtime::{metrics::Registry, unix_micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::{
    UNPOISONED,
    late::Source,
    network::{ADMIN, GRPC, HTTP, SimListener, SimNetwork, SimStream},
    plan::Host,
    store::SimStore,
};

/// A process' place: what outlives its incarnations.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) incarnations: Mutex<Vec<Incarnation>>,
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
        })
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
    let ports = producer::app::Ports {
        http: SimListener::bind(HTTP).await?,
        grpc: SimListener::bind(GRPC).await?,
        admin: SimListener::bind(ADMIN).await?,
    };
    let config = producer::config::Config::load(arguments)?;
    let limits = config.shaping.clone();
    let app = producer::app::App::start_on(ports, config).await?;
    let shaping = app.shaping().cloned();
    seat.with_last(|incarnation| incarnation.limits = shaping.map(|shaping| (limits, shaping)));
    let releasing = late.run(seat.incarnation(), app.log().clone());
    if stop.run_until_cancelled(releasing).await.is_some() {
        stop.cancelled().await;
    }
    let drained = app.drain().await;
    tracing::info!(?drained, "producer ended");
    seat.with_last(|incarnation| {
        incarnation.end = End::Drained;
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
    let surroundings = consumer::app::Surroundings {
        store: Arc::new(store),
        admin: SimListener::bind(ADMIN).await?,
        network: Arc::new(SimNetwork),
    };
    let config = consumer::config::Config::load(arguments)?;
    let app = consumer::app::App::start_in(surroundings, config, registry)?;
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
