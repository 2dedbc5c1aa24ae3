//! The simulated hosts of a run, and the loop that injects faults and waits until the system has settled.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use futures_util::future::{join, join_all};
use proto::archive::Origin;
use turmoil::Sim;

use crate::{
    UNPOISONED,
    api_client::ApiClient,
    archive::SimArchive,
    check, clocks,
    delayed_cookies::DelayedSource,
    hosts::{IncarnationState, Process, run_consumer, run_producer, scrape},
    load::{self, History},
    network::GRPC,
    plan::{FaultKind, Host, Limits, Plan, START, millis},
    store::{Disk, SimStore, StoreBehavior},
    trace,
};

/// Deadline for the system to settle after the last fault and the last request.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);

/// Time for which the system must then stay settled.
const STABLE_TIME: Duration = Duration::from_secs(2);

/// Deadline of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The state that the hosts share with the driver of the run.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) producers: Vec<Arc<Process>>,
    pub(crate) consumers: Vec<Arc<Process>>,
    pub(crate) disks: Vec<Arc<Mutex<Disk>>>,
    archive: Option<SimArchive>,
    pub(crate) history: Arc<Mutex<History>>,
    /// Metrics of the last scrape, by host.
    pub(crate) metrics: Arc<Mutex<BTreeMap<String, String>>>,
    /// Whether all clients have ended. Their last requests may end after the load.
    have_clients_ended: Arc<AtomicBool>,
}

/// A scheduled action.
#[derive(Debug, Clone, Copy)]
enum Action {
    Begin(FaultKind),
    End(FaultKind),
    /// Kills a process that has not drained in time.
    Kill(Host),
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut clocks = plan.clocks_ahead.iter();
        let mut processes = |count, host: fn(usize) -> Host| {
            let hosts = (0..count).map(host).zip(clocks.by_ref());
            hosts
                .map(|(host, clock)| Process::new(host, *clock))
                .collect()
        };
        let disks = (0..plan.consumers as u64)
            .map(|at| Arc::new(Mutex::new(Disk::new(plan.seed ^ ((at + 1) << 32)))))
            .collect();
        Self {
            producers: processes(plan.producers, Host::Producer),
            consumers: processes(plan.consumers, Host::Consumer),
            disks,
            archive: plan.has_archive.then(SimArchive::default),
            history: Arc::new(Mutex::new(History::new(&plan.clocks_ahead))),
            metrics: Arc::default(),
            have_clients_ended: Arc::default(),
            plan,
        }
    }

    /// Runs the plan and checks the result.
    pub(crate) fn run(&self) -> anyhow::Result<check::RunSummary> {
        let mut sim = turmoil::Builder::new()
            .rng_seed(self.plan.seed)
            .tick_duration(self.plan.tick)
            .simulation_duration(Duration::from_secs(3600))
            .max_message_latency(self.plan.latency_max)
            .tcp_capacity(256)
            .enable_random_order()
            .build();
        while sim.elapsed() < START {
            step(&mut sim)?;
        }
        for at in 0..self.plan.producers {
            if let Some(limits) = self.plan.limits {
                limits.write(at);
            }
        }
        for process in self.producers.iter().chain(&self.consumers) {
            clocks::set(&process.name, process.clock_ahead);
        }
        self.add_hosts(&mut sim);
        self.inject_faults(&mut sim)?;
        self.settle(&mut sim)
    }

    fn add_hosts(&self, sim: &mut Sim<'_>) {
        for at in 0..self.producers.len() {
            let (process, arguments) = (Arc::clone(&self.producers[at]), self.producer(at));
            let delayed = DelayedSource {
                producer: at,
                load: self.plan.load,
                history: Arc::clone(&self.history),
                seed: self.plan.seed ^ ((at as u64 + 1) << 40),
            };
            let archive = self.archive.clone();
            sim.host(process.name.clone(), move || {
                let (process, arguments, delayed) =
                    (Arc::clone(&process), arguments.clone(), delayed.clone());
                let archive = archive.clone();
                async move { Ok(run_producer(process, arguments, delayed, archive).await?) }
            });
        }
        for at in 0..self.consumers.len() {
            let (process, arguments) = (Arc::clone(&self.consumers[at]), self.consumer(at));
            let disk = Arc::clone(&self.disks[at]);
            let archive = self.archive.clone();
            let is_follower = self.plan.follower == Some(at);
            sim.host(process.name.clone(), move || {
                let store = SimStore(Arc::clone(&disk));
                let (process, arguments) = (Arc::clone(&process), arguments.clone());
                let archive = archive.clone();
                async move { Ok(run_consumer(process, arguments, store, archive, is_follower).await?) }
            });
        }
        let browsers = (self.producers.iter().enumerate()).map(|(at, process)| {
            let seed = self.plan.seed ^ ((at as u64 + 1) << 48);
            let history = Arc::clone(&self.history);
            load::browse(at, Arc::clone(process), self.plan.load, history, seed)
        });
        let api_clients = (0..self.producers.len()).map(|at| self.api_client(at).run());
        let (browsers, api_clients) = (join_all(browsers), join_all(api_clients));
        let ended = Arc::clone(&self.have_clients_ended);
        sim.client(Host::Browsers.name(), async move {
            join(browsers, api_clients).await;
            ended.store(true, Ordering::Relaxed);
            Ok(())
        });
    }

    fn api_client(&self, at: usize) -> ApiClient {
        ApiClient {
            producer: at,
            process: Arc::clone(&self.producers[at]),
            load: self.plan.load,
            pause_millis: self.plan.api_pause_millis,
            floods: self.plan.floods,
            consumers: self.consumers.clone(),
            disks: self.disks.clone(),
            history: Arc::clone(&self.history),
            random: fastrand::Rng::with_seed(self.plan.seed ^ ((at as u64 + 1) << 56)),
            last: BTreeMap::new(),
            receipts: Vec::new(),
        }
    }

    fn producer(&self, at: usize) -> Vec<OsString> {
        let plan = &self.plan;
        let queue = plan.queue_cookies.unwrap_or(1_000_000);
        let arguments = [
            "producer".to_owned(),
            format!("--id={}", Host::Producer(at).name()),
            // The working directory of the run, see main.rs.
            "--state=.".to_owned(),
            "--log-bytes=16MiB".to_owned(),
            format!("--queue-cookies={queue}"),
            format!("--chunk-age={}ms", plan.chunk_age.as_millis()),
            format!("--subscriber-retention={}ms", plan.retention.as_millis()),
        ];
        let limits = plan.limits.iter().flat_map(|limits| {
            let spool = limits
                .is_spooled
                .then(|| format!("--limits-spool=spool-{at}"));
            [format!("--contracts={}", Limits::file(at))]
                .into_iter()
                .chain(spool)
        });
        arguments
            .into_iter()
            .chain(limits)
            .map(Into::into)
            .collect()
    }

    fn consumer(&self, at: usize) -> Vec<OsString> {
        let plan = &self.plan;
        let producers = self.producers.iter();
        let producers: Vec<_> = producers
            .map(|process| format!("http://{}:{GRPC}", process.name))
            .collect();
        let arguments = [
            "consumer".to_owned(),
            format!("--name={}", Host::Consumer(at).name()),
            format!("--producer={}", producers.join(",")),
            format!("--flush-interval={}ms", plan.flush.as_millis()),
            format!("--batch-cookies={}", plan.batch_cookies),
            format!("--buffer-bytes={}", plan.buffer_bytes),
            "--refresh-bytes=1MiB".to_owned(),
            format!("--deletion-bytes={}KiB", if plan.floods { 4 } else { 999 }),
            "--expiry-window=never".to_owned(),
            "--compaction-window=never".to_owned(),
        ];
        arguments.into_iter().map(Into::into).collect()
    }

    /// Injects all faults, then repairs everything.
    fn inject_faults(&self, sim: &mut Sim<'_>) -> anyhow::Result<()> {
        let faults = self.plan.faults.iter();
        let mut actions: Vec<_> = faults
            .map(|f| (f.at, f.duration, Action::Begin(f.kind)))
            .collect();
        let mut draining = Vec::new();
        loop {
            let now = sim.elapsed();
            actions.sort_by_key(|(at, ..)| *at);
            while actions.first().is_some_and(|(at, ..)| *at <= now) {
                let (_, duration, due) = actions.remove(0);
                trace::record("fault", format!("{due:?}"));
                tracing::info!(?due, "fault");
                match due {
                    Action::Begin(FaultKind::Stall(at)) if self.stall_must_wait(at, now) => {
                        actions.push((now + self.plan.tick, duration, due));
                    }
                    Action::Begin(fault) => {
                        if !self.begin(sim, fault) {
                            continue;
                        }
                        if let FaultKind::Restart(host) = fault {
                            draining.push((host, duration));
                            actions.push((now + DRAIN_TIMEOUT, duration, Action::Kill(host)));
                        } else {
                            actions.push((now + duration, Duration::ZERO, Action::End(fault)));
                        }
                    }
                    Action::End(fault) => self.end(sim, fault),
                    Action::Kill(host) => {
                        if draining.iter().any(|(draining, _)| *draining == host) {
                            self.crash(sim, host, IncarnationState::Crashed);
                        }
                    }
                }
            }
            draining.retain(|&(host, duration)| {
                let is_running = sim.is_host_running(host.name());
                if !is_running {
                    actions.push((
                        now + duration,
                        Duration::ZERO,
                        Action::End(FaultKind::Restart(host)),
                    ));
                }
                is_running
            });
            if actions.is_empty() && draining.is_empty() && now >= self.plan.load.until {
                break;
            }
            step(sim)?;
        }
        self.repair(sim);
        Ok(())
    }

    /// Whether a stall must wait for an open chunk.
    fn stall_must_wait(&self, producer: usize, now: Duration) -> bool {
        !self.producers[producer].has_open_chunk() && now < self.plan.load.until
    }

    /// Begins a fault. Returns false if it does not apply, because the process is not running.
    fn begin(&self, sim: &mut Sim<'_>, fault: FaultKind) -> bool {
        match fault {
            FaultKind::Partition(a, b) => sim.partition(a.name(), b.name()),
            FaultKind::PartitionOneWay(from, to) => sim.partition_oneway(from.name(), to.name()),
            FaultKind::Delay(a, b) => sim.hold(a.name(), b.name()),
            FaultKind::Isolate(host) => {
                for other in self.others(host) {
                    sim.partition(host.name(), other.name());
                }
            }
            FaultKind::Crash(host) | FaultKind::PowerLoss(host) | FaultKind::Restart(host)
                if !sim.is_host_running(host.name()) =>
            {
                return false;
            }
            FaultKind::Replace(at) if !sim.is_host_running(Host::Consumer(at).name()) => {
                return false;
            }
            FaultKind::Replace(at) => {
                self.crash(sim, Host::Consumer(at), IncarnationState::PowerLost);
                let mut disk = self.disks[at].lock().expect(UNPOISONED);
                *disk = Disk::new(disk.id + 1);
            }
            FaultKind::Stall(at) if !sim.is_host_running(Host::Producer(at).name()) => {
                return false;
            }
            FaultKind::Stall(at) => self.producers[at].stall.begin(),
            FaultKind::Crash(host) => self.crash(sim, host, IncarnationState::Crashed),
            FaultKind::PowerLoss(host) => {
                // A crashed process must not send its pending bytes.
                for other in self.others(host) {
                    sim.partition(host.name(), other.name());
                }
                self.crash(sim, host, IncarnationState::PowerLost);
                match host {
                    Host::Consumer(at) => self.disks[at].lock().expect(UNPOISONED).lose_power(),
                    Host::Producer(_) => delete_epoch_history(&host.name()),
                    Host::Browsers => {}
                }
            }
            FaultKind::Restart(host) => self
                .process(host)
                .with_current(|incarnation| incarnation.stop.cancel()),
            FaultKind::Limits(at, limits) => {
                limits.write(at);
                self.producers[at].with_current(|incarnation| {
                    let file = incarnation
                        .limits
                        .iter()
                        .filter_map(|(dsps, _)| dsps.contracts.as_ref());
                    file.for_each(|file| file.reload_once());
                });
            }
            FaultKind::Store(at, behavior) => {
                self.disks[at].lock().expect(UNPOISONED).behavior = behavior
            }
            FaultKind::StoreDsp(at, dsp) => {
                self.disks[at].lock().expect(UNPOISONED).failing_dsp =
                    Some(proto::units::DspId(dsp));
            }
            FaultKind::StoreCrash(at) => {
                let mut disk = self.disks[at].lock().expect(UNPOISONED);
                disk.behavior = StoreBehavior::Failing;
                disk.lose_power();
            }
        }
        true
    }

    fn end(&self, sim: &mut Sim<'_>, fault: FaultKind) {
        match fault {
            FaultKind::Partition(a, b) => sim.repair(a.name(), b.name()),
            FaultKind::PartitionOneWay(from, to) => sim.repair_oneway(from.name(), to.name()),
            FaultKind::Delay(a, b) => sim.release(a.name(), b.name()),
            FaultKind::Isolate(host) | FaultKind::PowerLoss(host) => {
                for other in self.others(host) {
                    sim.repair(host.name(), other.name());
                }
                if matches!(fault, FaultKind::PowerLoss(_)) {
                    start(sim, host);
                }
            }
            FaultKind::Crash(host) | FaultKind::Restart(host) => start(sim, host),
            FaultKind::Replace(at) => start(sim, Host::Consumer(at)),
            FaultKind::Stall(at) => self.producers[at].stall.end(),
            FaultKind::Limits(..) => {}
            FaultKind::StoreDsp(at, _) => {
                self.disks[at].lock().expect(UNPOISONED).failing_dsp = None;
            }
            FaultKind::Store(at, _) | FaultKind::StoreCrash(at) => {
                self.disks[at].lock().expect(UNPOISONED).behavior = StoreBehavior::Healthy;
            }
        }
    }

    fn crash(&self, sim: &mut Sim<'_>, host: Host, state: IncarnationState) {
        sim.crash(host.name());
        self.process(host).stall.end();
        self.process(host).with_current(|incarnation| {
            if incarnation.state == IncarnationState::Running {
                incarnation.state = state;
                let (log, archive) = (incarnation.log.take(), self.archive.as_ref());
                incarnation.unarchived = log.zip(archive).map_or(0, |(log, archive)| {
                    let origin = Origin {
                        producer_id: host.name(),
                        epoch: log.epoch(),
                    };
                    log.stats().appended - archive.last_number(&origin)
                });
                let limits = incarnation.limits.take();
                incarnation.queued = limits.map_or(0, |(_, inlet)| inlet.held());
            }
        });
    }

    /// Repairs all links and stores and starts all processes.
    fn repair(&self, sim: &mut Sim<'_>) {
        let hosts = self.hosts();
        for (at, a) in hosts.iter().enumerate() {
            for b in &hosts[at + 1..] {
                sim.release(a.name(), b.name());
            }
        }
        for disk in &self.disks {
            let mut disk = disk.lock().expect(UNPOISONED);
            disk.behavior = StoreBehavior::Healthy;
            disk.failing_dsp = None;
        }
        for host in hosts.into_iter().filter(|host| *host != Host::Browsers) {
            start(sim, host);
        }
    }

    /// Waits until all checks pass and keep passing.
    fn settle(&self, sim: &mut Sim<'_>) -> anyhow::Result<check::RunSummary> {
        while !self.have_clients_ended.load(Ordering::Relaxed) {
            step(sim)?;
        }
        let repaired = sim.elapsed();
        let mut round = 0;
        loop {
            let until = sim.elapsed() + millis(1_000);
            while sim.elapsed() < until {
                step(sim)?;
            }
            round += 1;
            let checked = self.check(sim, round);
            let is_late = sim.elapsed() > repaired + SETTLE_TIMEOUT;
            match checked {
                Ok(_) => break,
                Err(error) if is_late => {
                    return Err(error.context(format!("{SETTLE_TIMEOUT:?} after the last fault")));
                }
                Err(error) => tracing::debug!(%error, "not settled"),
            }
        }
        let until = sim.elapsed() + STABLE_TIME;
        while sim.elapsed() < until {
            step(sim)?;
        }
        trace::record("settled", sim.elapsed());
        self.check(sim, round + 1)
            .context("the checks passed and then failed")
    }

    fn check(&self, sim: &mut Sim<'_>, round: u32) -> anyhow::Result<check::RunSummary> {
        check::stores(self)?;
        self.scrape(sim, round)?;
        check::metrics(self)
    }

    fn scrape(&self, sim: &mut Sim<'_>, round: u32) -> anyhow::Result<()> {
        let pages = Arc::clone(&self.metrics);
        pages.lock().expect(UNPOISONED).clear();
        let hosts: Vec<_> = self.producers.iter().chain(&self.consumers).collect();
        let names: Vec<_> = hosts.iter().map(|process| process.name.clone()).collect();
        let expected = names.len();
        sim.client(format!("operator-{round}"), async move {
            for name in names {
                let page = scrape(&name).await?;
                pages.lock().expect(UNPOISONED).insert(name, page);
            }
            Ok(())
        });
        let until = sim.elapsed() + millis(10_000);
        while sim.elapsed() < until && self.metrics.lock().expect(UNPOISONED).len() < expected {
            step(sim)?;
        }
        let scraped = self.metrics.lock().expect(UNPOISONED).len();
        anyhow::ensure!(
            scraped == expected,
            "{scraped} of {expected} admin ports respond"
        );
        Ok(())
    }

    fn process(&self, host: Host) -> &Process {
        match host {
            Host::Producer(at) => &self.producers[at],
            Host::Consumer(at) => &self.consumers[at],
            Host::Browsers => unreachable!("browsers are never restarted"),
        }
    }

    fn hosts(&self) -> Vec<Host> {
        let producers = (0..self.producers.len()).map(Host::Producer);
        let consumers = (0..self.consumers.len()).map(Host::Consumer);
        let processes = producers.chain(consumers);
        processes.chain([Host::Browsers]).collect()
    }

    fn others(&self, host: Host) -> impl Iterator<Item = Host> {
        let hosts = self.hosts().into_iter();
        hosts.filter(move |other| *other != host)
    }
}

/// Deletes a producer's epoch history, which is in the memory of its machine.
fn delete_epoch_history(producer: &str) {
    let prefix = format!("cookiesync-producer-{producer}-");
    let files = fs::read_dir(".").expect("the working directory is readable");
    let mut files = files.map(|file| file.expect("the entry is readable"));
    let record = files.find(|file| file.file_name().to_string_lossy().starts_with(&prefix));
    // A producer that has not started yet has no epoch history.
    if let Some(record) = record {
        fs::remove_file(record.path()).expect("the file can be removed");
    }
}

fn step(sim: &mut Sim<'_>) -> anyhow::Result<bool> {
    sim.step()
        .map_err(|error| anyhow!("a host failed: {error}"))
}

fn start(sim: &mut Sim<'_>, host: Host) {
    if !sim.is_host_running(host.name()) {
        sim.bounce(host.name());
    }
}
