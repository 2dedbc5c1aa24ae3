//! Runs the parts of a test in simulated time: makers (which send the batches of jobs), workers (which check them), and the origin.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    env,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use revalidator::{
    apps::{App, Apps, CurrentApps},
    batch::Checker,
    engine::Engine as _,
    limiter::Limiter,
    maker::{Maker, bodies::Bodies},
    messages::{Asset, JobBatch, JobResult, JobStatus, ServerState},
    metrics::Metrics,
    mirror::{Mirror, change_job, create_job, new_job},
    origin::Origin,
    outcome::{Answer, Body, Response},
    worker::Worker,
};
use runtime::{limit_headers::LimitHeaders, metrics::Registry};
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::model::Model;

/// Unix time at the start of a simulation, in milliseconds.
pub(crate) const START: u64 = 1_705_651_200_000;

thread_local! {
    static BASE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Seeds like `0..25`, or those of `$SIM_SEEDS`.
pub(crate) fn seeds(default: &str) -> Range<u64> {
    let seeds = env::var("SIM_SEEDS").unwrap_or_else(|_| default.to_owned());
    let (first, end) = seeds.split_once("..").expect("first..end");
    first.parse().unwrap()..end.parse().unwrap()
}

/// Clocks of participants.
type Clock = fn() -> u64;

/// The simulated clock.
pub(crate) fn clock() -> u64 {
    let base = BASE.get().expect("a simulation runs");
    START + u64::try_from(base.elapsed().as_millis()).expect("a short time")
}

fn fast_clock() -> u64 {
    clock() + 2_000
}

fn slow_clock() -> u64 {
    clock() - 1_500
}

/// Entity tag and body of a changed object.
pub(crate) const CHANGED: (&str, &[u8]) = ("\"2\"", b"changed");

/// Status and response time of a request.
pub(crate) type Behavior = Box<dyn Fn(&Asset, u64) -> (u16, Duration) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct SimOrigin {
    worker: String,
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    behavior: Behavior,
    requests: Mutex<HashMap<String, u32>>,
    total: AtomicUsize,
    /// Workers with requests in progress for each job.
    active: Mutex<HashMap<String, HashMap<String, usize>>>,
    /// Largest number of workers of each job.
    workers_max: Mutex<HashMap<String, usize>>,
}

impl Origin for SimOrigin {
    async fn request(&self, _: &App, asset: &Asset, _: bool) -> Answer {
        let behavior = &self.shared.behavior;
        let (status, time) = behavior(asset, clock());
        self.shared.total.fetch_add(1, Ordering::Relaxed);
        *self
            .shared
            .requests
            .lock()
            .unwrap()
            .entry(asset.key.clone())
            .or_default() += 1;
        let job = asset.key.split('/').next().unwrap_or_default().to_owned();
        let workers = {
            let mut active = self.shared.active.lock().unwrap();
            let active = active.entry(job.clone()).or_default();
            *active.entry(self.worker.clone()).or_default() += 1;
            active.len()
        };
        {
            let mut max = self.shared.workers_max.lock().unwrap();
            let max = max.entry(job.clone()).or_default();
            *max = workers.max(*max);
        }
        let _active = Active { origin: self, job };
        sleep(time).await;
        if status == 0 {
            return Answer::None;
        }
        let mut response = Response {
            status,
            time,
            limits: LimitHeaders {
                retry_after: (status == 429).then(|| "30".to_owned()),
                ..LimitHeaders::default()
            }
            .into(),
            ..Response::default()
        };
        if status == 200 {
            response.e_tag = CHANGED.0.to_owned();
            response.body = Body::Complete(CHANGED.1.into());
        }
        Answer::Response(response)
    }
}

/// A request in progress; it may be dropped.
struct Active<'a> {
    origin: &'a SimOrigin,
    job: String,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let mut active = self.origin.shared.active.lock().unwrap();
        let workers = active.get_mut(&self.job).expect("it is active");
        let count = workers.get_mut(&self.origin.worker).expect("it is active");
        *count -= 1;
        if *count == 0 {
            workers.remove(&self.origin.worker);
        }
    }
}

pub(crate) struct Simulation {
    pub(crate) model: Model,
    pub(crate) mirror: Mirror,
    pub(crate) metrics: Metrics,
    origin: Arc<Shared>,
    apps: CurrentApps,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    /// Clocks of the next participants, used in rotation.
    pub(crate) clocks: Vec<Clock>,
    next: usize,
}

impl Drop for Simulation {
    /// Fails the test if a worker or a maker has panicked.
    fn drop(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

impl Simulation {
    /// A simulation without workers and makers, with these applications.
    pub(crate) fn new(
        apps: &str,
        behavior: impl Fn(&Asset, u64) -> (u16, Duration) + Send + Sync + 'static,
    ) -> Self {
        BASE.set(Some(Instant::now()));
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let model = Model::default();
        let mirror = Mirror::new(metrics.invalid_messages.clone());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(mirror.clone().run(model.clone(), stop.clone()));
        let apps = Arc::new(Apps::parse(apps).unwrap());
        Self {
            model,
            mirror,
            metrics,
            origin: Arc::new(Shared {
                behavior: Box::new(behavior),
                requests: Mutex::default(),
                total: AtomicUsize::new(0),
                active: Mutex::default(),
                workers_max: Mutex::default(),
            }),
            apps: Arc::new(move || Arc::clone(&apps)),
            tasks,
            stop,
            clocks: vec![clock],
            next: 0,
        }
    }

    /// The applications of the next participants.
    pub(crate) fn apps(&self) -> CurrentApps {
        Arc::clone(&self.apps)
    }

    /// Sets the applications of the next participants.
    pub(crate) fn set_apps(&mut self, apps: &str) {
        let apps = Arc::new(Apps::parse(apps).unwrap());
        self.apps = Arc::new(move || Arc::clone(&apps));
    }

    /// Sets the clocks of the next participants to different times.
    pub(crate) fn skew_clocks(&mut self) {
        self.clocks = vec![clock, fast_clock, slow_clock];
    }

    /// The copy of the broker's buckets and the clock of a new participant.
    fn participant(&self) -> (Mirror, Clock) {
        let mirror = Mirror::new(self.metrics.invalid_messages.clone());
        (mirror, self.clocks[self.next % self.clocks.len()])
    }

    /// Runs a participant with its copy of the buckets; they end together.
    fn spawn(
        &mut self,
        mirror: Mirror,
        running: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let (model, never) = (self.model.clone(), CancellationToken::new());
        self.tasks.spawn(async move {
            tokio::select! {
                () = running => {}
                () = mirror.run(model, never) => {}
            }
        })
    }

    pub(crate) fn requests(&self) -> usize {
        self.origin.total.load(Ordering::Relaxed)
    }

    /// Number of requests for an asset.
    pub(crate) fn requests_for(&self, key: &str) -> u32 {
        self.origin
            .requests
            .lock()
            .unwrap()
            .get(key)
            .copied()
            .unwrap_or(0)
    }

    /// Largest number of workers that had requests of a job in progress.
    pub(crate) fn workers_max(&self, job: &str) -> usize {
        self.origin
            .workers_max
            .lock()
            .unwrap()
            .get(job)
            .copied()
            .unwrap_or(0)
    }

    fn id(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{}", self.next)
    }

    /// Starts a worker; abort it to simulate a crash.
    pub(crate) fn worker(&mut self) -> AbortHandle {
        let shared = Arc::clone(&self.origin);
        self.worker_with(|worker| SimOrigin { worker, shared })
    }

    /// Starts a worker with another origin, which gets its id.
    pub(crate) fn worker_with<O: Origin>(
        &mut self,
        origin: impl FnOnce(String) -> O,
    ) -> AbortHandle {
        let id = self.id("worker");
        let (mirror, clock) = self.participant();
        let worker = Worker {
            engine: self.model.clone(),
            mirror: mirror.clone(),
            apps: Arc::clone(&self.apps),
            checker: Checker {
                origin: origin(id.clone()),
                limiter: Limiter::new("http://127.0.0.1:1".parse().unwrap(), None).unwrap(),
                metrics: self.metrics.clone(),
            },
            stop: self.stop.clone(),
            abort: CancellationToken::new(),
            clock,
            id,
        };
        self.spawn(mirror, worker.run())
    }

    /// Starts a maker.
    pub(crate) fn maker(&mut self) -> AbortHandle {
        self.maker_with(Bodies::default())
    }

    /// Starts a maker whose process has received assets.
    pub(crate) fn maker_with(&mut self, bodies: Bodies) -> AbortHandle {
        let id = self.id("maker");
        let (mirror, clock) = self.participant();
        let maker = Maker {
            id,
            engine: self.model.clone(),
            mirror: mirror.clone(),
            apps: Arc::clone(&self.apps),
            metrics: self.metrics.clone(),
            bodies,
            write_back: Arc::new(Semaphore::new(1)),
            stop: self.stop.clone(),
            clock,
        };
        self.spawn(mirror, maker.run())
    }

    /// Creates a job with its assets, whose keys are `<job>/<number>`.
    pub(crate) async fn job(
        &self,
        app: &str,
        id: &str,
        assets: usize,
        change: impl FnOnce(&mut JobStatus),
    ) {
        let assets: Vec<Asset> = (0..assets)
            .map(|number| Asset {
                key: format!("{id}/{number}"),
                url: format!("https://origin.example/{number}"),
                e_tag: "\"1\"".to_owned(),
                ..Asset::default()
            })
            .collect();
        let batches = assets.chunks(100).enumerate();
        for (number, assets) in batches.clone() {
            let batch = JobBatch {
                assets: assets.to_vec(),
                job_id: id.to_owned(),
                batch: number as u64,
                attempt: 1,
                restarts: 0,
            };
            let payload = serde_json::to_vec(&batch).unwrap();
            while self
                .model
                .send_batch(id, &batch.id(), payload.clone().into())
                .await
                .is_err()
            {
                sleep(Duration::from_secs(1)).await;
            }
        }
        let (asset_count, batch_count) = (assets.len() as u64, batches.count() as u64);
        self.list_job(app, id, |job| {
            (job.asset_count, job.batch_count) = (asset_count, batch_count);
            job.server_state = ServerState::WaitForResults;
            change(job);
        })
        .await;
    }

    /// Creates a job of the assets in the file of its application.
    pub(crate) async fn list_job(&self, app: &str, id: &str, change: impl FnOnce(&mut JobStatus)) {
        let app = (self.apps)().get(app).unwrap();
        let mut job = new_job(&app, id.to_owned(), clock());
        change(&mut job);
        while create_job(&self.model, &job).await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// The status of a job.
    pub(crate) async fn status(&self, id: &str) -> JobStatus {
        change_job(&self.model, id, |_| ())
            .await
            .unwrap()
            .expect("the job exists")
    }

    /// Waits until a job meets a condition.
    pub(crate) async fn wait(&self, id: &str, condition: impl Fn(&JobStatus) -> bool) -> JobStatus {
        let mut changes = self.mirror.changes();
        loop {
            changes.mark_unchanged();
            if let Ok(Some(status)) = change_job(&self.model, id, |_| ()).await
                && condition(&status)
            {
                return status;
            }
            assert!(
                clock() < START + 40 * 24 * 3_600_000,
                "{:?}",
                self.mirror.job(id)
            );
            drop(timeout(Duration::from_secs(10), changes.changed()).await);
        }
    }

    /// Waits until a job has ended.
    pub(crate) async fn wait_ended(&self, id: &str) -> JobStatus {
        self.wait(id, |job| job.ended_at.is_some()).await
    }

    /// Results of a job.
    pub(crate) fn results(&self, id: &str) -> Vec<JobResult> {
        let results = self.model.all_results(id).into_iter();
        results
            .map(|it| serde_json::from_slice(&it).unwrap())
            .collect()
    }

    /// Batches of a job with more than one result.
    pub(crate) fn repeated(&self, id: &str) -> usize {
        let results = self.results(id);
        let distinct: HashSet<_> = results.iter().map(|it| (it.batch, it.attempt)).collect();
        results.len() - distinct.len()
    }
}
