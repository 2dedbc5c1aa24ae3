//! The hosts of a run, with the real programs on them, and the hand that lets the faults happen.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use futures_util::future::join_all;
use turmoil::Sim;

use crate::{
    UNPOISONED, check,
    delayed_cookies::Source,
    hosts::{End, Seat, consume, metrics, produce},
    load::{self, History},
    network::GRPC,
    plan::{Host, Limits, Plan, START, What, millis},
    store::{Disk, Mood, SimStore},
    trace,
};

/// How long after the last fault and the last request everything must have come where it belongs.
const SETTLE: Duration = Duration::from_secs(150);

/// How long it must then stay so.
const STAY: Duration = Duration::from_secs(2);

/// How long an orderly end may take.
const DRAIN: Duration = Duration::from_secs(20);

/// Everything that the hosts share with the one who watches.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) producers: Vec<Arc<Seat>>,
    pub(crate) consumers: Vec<Arc<Seat>>,
    pub(crate) disks: Vec<Arc<Mutex<Disk>>>,
    pub(crate) history: Arc<Mutex<History>>,
    /// What the admin ports said at the end, by host.
    pub(crate) metrics: Arc<Mutex<BTreeMap<String, String>>>,
}

/// What is to be done, and when.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(What),
    End(What),
    /// Ends what did not end in an orderly way in time.
    Kill(Host),
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let seats = |count, host: fn(usize) -> Host| (0..count).map(host).map(Seat::new).collect();
        let disks = (0..plan.consumers as u64)
            .map(|at| Arc::new(Mutex::new(Disk::new(plan.seed ^ ((at + 1) << 32)))))
            .collect();
        Self {
            producers: seats(plan.producers, Host::Producer),
            consumers: seats(plan.consumers, Host::Consumer),
            disks,
            history: Arc::default(),
            metrics: Arc::default(),
            plan,
        }
    }

    /// Runs the plan; afterwards everything is to be checked.
    pub(crate) fn run(&self) -> anyhow::Result<check::Figures> {
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
                write_limits(at, limits);
            }
        }
        self.people(&mut sim);
        self.carry_out(&mut sim)?;
        self.settle(&mut sim)
    }

    fn people(&self, sim: &mut Sim<'_>) {
        for at in 0..self.producers.len() {
            let (seat, arguments) = (Arc::clone(&self.producers[at]), self.producer(at));
            let late = Source {
                producer: at,
                load: self.plan.load,
                history: Arc::clone(&self.history),
                seed: self.plan.seed ^ ((at as u64 + 1) << 40),
            };
            sim.host(seat.name.clone(), move || {
                let (seat, arguments, late) = (Arc::clone(&seat), arguments.clone(), late.clone());
                async move { Ok(produce(seat, arguments, late).await?) }
            });
        }
        for at in 0..self.consumers.len() {
            let (seat, arguments) = (Arc::clone(&self.consumers[at]), self.consumer(at));
            let disk = Arc::clone(&self.disks[at]);
            sim.host(seat.name.clone(), move || {
                let store = SimStore(Arc::clone(&disk));
                let (seat, arguments) = (Arc::clone(&seat), arguments.clone());
                async move { Ok(consume(seat, arguments, store).await?) }
            });
        }
        let browsers = (self.producers.iter().enumerate()).map(|(at, seat)| {
            let seed = self.plan.seed ^ ((at as u64 + 1) << 48);
            let history = Arc::clone(&self.history);
            load::browse(at, Arc::clone(seat), self.plan.load, history, seed)
        });
        let browsers = join_all(browsers);
        sim.client(Host::Browsers.name(), async {
            browsers.await;
            Ok(())
        });
    }

    fn producer(&self, at: usize) -> Vec<OsString> {
        let plan = &self.plan;
        let queue = plan.queue_cookies.unwrap_or(1_000_000);
        let arguments = [
            "producer".to_owned(),
            format!("--id={}", Host::Producer(at).name()),
            // The directory in which the run is; see main.rs.
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
            [format!("--limits={}", limits_of(at))]
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
            .map(|seat| format!("http://{}:{GRPC}", seat.name))
            .collect();
        let arguments = [
            "consumer".to_owned(),
            format!("--name={}", Host::Consumer(at).name()),
            format!("--producer={}", producers.join(",")),
            "--store=none".to_owned(),
            format!("--flush-interval={}ms", plan.flush.as_millis()),
            format!("--batch-cookies={}", plan.batch_cookies),
            format!("--buffer-bytes={}", plan.buffer_bytes),
            "--refresh-bytes=1MiB".to_owned(),
            "--expiry-window=never".to_owned(),
            "--compaction-window=never".to_owned(),
        ];
        arguments.into_iter().map(Into::into).collect()
    }

    /// Lets all faults happen, and heals everything.
    fn carry_out(&self, sim: &mut Sim<'_>) -> anyhow::Result<()> {
        let faults = self.plan.faults.iter();
        let mut steps: Vec<_> = faults
            .map(|f| (f.at, f.lasts, Step::Begin(f.what)))
            .collect();
        let mut restarting = Vec::new();
        loop {
            let now = sim.elapsed();
            steps.sort_by_key(|(at, ..)| *at);
            while steps.first().is_some_and(|(at, ..)| *at <= now) {
                let (_, lasts, due) = steps.remove(0);
                trace::note("fault", format!("{due:?}"));
                tracing::info!(?due, "fault");
                match due {
                    Step::Begin(What::Stall(at)) if self.must_wait(at, now) => {
                        steps.push((now + self.plan.tick, lasts, due));
                    }
                    Step::Begin(what) => {
                        if !self.begin(sim, what) {
                            continue;
                        }
                        if let What::Restart(host) = what {
                            restarting.push((host, lasts));
                            steps.push((now + DRAIN, lasts, Step::Kill(host)));
                        } else {
                            steps.push((now + lasts, Duration::ZERO, Step::End(what)));
                        }
                    }
                    Step::End(what) => self.end(sim, what),
                    Step::Kill(host) => {
                        if restarting.iter().any(|(restarting, _)| *restarting == host) {
                            self.crash(sim, host, End::Crashed);
                        }
                    }
                }
            }
            restarting.retain(|&(host, lasts)| {
                let is_running = sim.is_host_running(host.name());
                if !is_running {
                    steps.push((now + lasts, Duration::ZERO, Step::End(What::Restart(host))));
                }
                is_running
            });
            if steps.is_empty() && restarting.is_empty() && now >= self.plan.load.until {
                break;
            }
            step(sim)?;
        }
        self.heal(sim);
        Ok(())
    }

    /// Whether a producer has no open chunk to stand still with, and may yet have one.
    fn must_wait(&self, producer: usize, now: Duration) -> bool {
        !self.producers[producer].has_open_chunk() && now < self.plan.load.until
    }

    /// Returns whether there was anything to go wrong.
    fn begin(&self, sim: &mut Sim<'_>, what: What) -> bool {
        match what {
            What::Cut(a, b) => sim.partition(a.name(), b.name()),
            What::CutOneWay(from, to) => sim.partition_oneway(from.name(), to.name()),
            What::Hold(a, b) => sim.hold(a.name(), b.name()),
            What::Isolate(host) => {
                for other in self.others(host) {
                    sim.partition(host.name(), other.name());
                }
            }
            What::Crash(host) | What::LosePower(host) | What::Restart(host)
                if !sim.is_host_running(host.name()) =>
            {
                return false;
            }
            What::Stall(at) if !sim.is_host_running(Host::Producer(at).name()) => return false,
            What::Stall(at) => self.producers[at].stall.begin(),
            What::Crash(host) => self.crash(sim, host, End::Crashed),
            What::LosePower(host) => {
                // Nothing that a dying process would still send gets out.
                for other in self.others(host) {
                    sim.partition(host.name(), other.name());
                }
                self.crash(sim, host, End::LostPower);
                match host {
                    Host::Consumer(at) => self.disks[at].lock().expect(UNPOISONED).lose_power(),
                    Host::Producer(_) => lose_record(&host.name()),
                    Host::Browsers => {}
                }
            }
            What::Restart(host) => self
                .seat(host)
                .with_last(|incarnation| incarnation.stop.cancel()),
            What::Limits(at, limits) => {
                write_limits(at, limits);
                self.producers[at].with_last(|incarnation| {
                    if let Some((file, _)) = &incarnation.limits {
                        file.look();
                    }
                });
            }
            What::Store(at, mood) => self.disks[at].lock().expect(UNPOISONED).mood = mood,
            What::StoreCrash(at) => {
                let mut disk = self.disks[at].lock().expect(UNPOISONED);
                disk.mood = Mood::Refusing;
                disk.lose_power();
            }
        }
        true
    }

    fn end(&self, sim: &mut Sim<'_>, what: What) {
        match what {
            What::Cut(a, b) => sim.repair(a.name(), b.name()),
            What::CutOneWay(from, to) => sim.repair_oneway(from.name(), to.name()),
            What::Hold(a, b) => sim.release(a.name(), b.name()),
            What::Isolate(host) | What::LosePower(host) => {
                for other in self.others(host) {
                    sim.repair(host.name(), other.name());
                }
                if matches!(what, What::LosePower(_)) {
                    start(sim, host);
                }
            }
            What::Crash(host) | What::Restart(host) => start(sim, host),
            What::Stall(at) => self.producers[at].stall.end(),
            What::Limits(..) => {}
            What::Store(at, _) | What::StoreCrash(at) => {
                self.disks[at].lock().expect(UNPOISONED).mood = Mood::Well;
            }
        }
    }

    fn crash(&self, sim: &mut Sim<'_>, host: Host, end: End) {
        sim.crash(host.name());
        self.seat(host).stall.end();
        self.seat(host).with_last(|incarnation| {
            if incarnation.end == End::NotYet {
                incarnation.end = end;
                incarnation.log = None;
                let limits = incarnation.limits.take();
                incarnation.held = limits.map_or(0, |(_, shaping)| shaping.held());
            }
        });
    }

    /// All links and stores work, all programs run.
    fn heal(&self, sim: &mut Sim<'_>) {
        let hosts = self.hosts();
        for (at, a) in hosts.iter().enumerate() {
            for b in &hosts[at + 1..] {
                sim.release(a.name(), b.name());
            }
        }
        for disk in &self.disks {
            disk.lock().expect(UNPOISONED).mood = Mood::Well;
        }
        for host in hosts.into_iter().filter(|host| *host != Host::Browsers) {
            start(sim, host);
        }
    }

    /// Waits until everything is where it belongs, and stays there.
    fn settle(&self, sim: &mut Sim<'_>) -> anyhow::Result<check::Figures> {
        let healed = sim.elapsed();
        let mut round = 0;
        loop {
            let until = sim.elapsed() + millis(1_000);
            while sim.elapsed() < until {
                step(sim)?;
            }
            round += 1;
            let checked = self.look(sim, round);
            let is_late = sim.elapsed() > healed + SETTLE;
            match checked {
                Ok(_) => break,
                Err(why) if is_late => {
                    return Err(why.context(format!("{SETTLE:?} after the last fault")));
                }
                Err(why) => tracing::debug!(%why, "not settled"),
            }
        }
        let until = sim.elapsed() + STAY;
        while sim.elapsed() < until {
            step(sim)?;
        }
        trace::note("settled", sim.elapsed());
        self.look(sim, round + 1)
            .context("all was well, and then it was not")
    }

    fn look(&self, sim: &mut Sim<'_>, round: u32) -> anyhow::Result<check::Figures> {
        check::stores(self)?;
        self.scrape(sim, round)?;
        check::figures(self)
    }

    /// Reads all admin ports.
    fn scrape(&self, sim: &mut Sim<'_>, round: u32) -> anyhow::Result<()> {
        let pages = Arc::clone(&self.metrics);
        pages.lock().expect(UNPOISONED).clear();
        let hosts: Vec<_> = self.producers.iter().chain(&self.consumers).collect();
        let names: Vec<_> = hosts.iter().map(|seat| seat.name.clone()).collect();
        let asked = names.len();
        sim.client(format!("operator-{round}"), async move {
            for name in names {
                let page = metrics(&name).await?;
                pages.lock().expect(UNPOISONED).insert(name, page);
            }
            Ok(())
        });
        let until = sim.elapsed() + millis(10_000);
        while sim.elapsed() < until && self.metrics.lock().expect(UNPOISONED).len() < asked {
            step(sim)?;
        }
        let answered = self.metrics.lock().expect(UNPOISONED).len();
        anyhow::ensure!(
            answered == asked,
            "{answered} admin ports of {asked} answer"
        );
        Ok(())
    }

    fn seat(&self, host: Host) -> &Seat {
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

/// The file with a producer's limits.
fn limits_of(producer: usize) -> String {
    format!("limits-{producer}.toml")
}

fn write_limits(producer: usize, limits: Limits) {
    fs::write(limits_of(producer), limits.text()).expect("there is room for a file");
}

/// Removes a producer's epoch history, which lies in its machine's memory.
fn lose_record(producer: &str) {
    let prefix = format!("cookiesync-producer-{producer}-");
    let files = fs::read_dir(".").expect("a run is in its directory");
    let mut files = files.map(|file| file.expect("it can be read"));
    let record = files.find(|file| file.file_name().to_string_lossy().starts_with(&prefix));
    // Where power is lost before it has begun, there is none.
    if let Some(record) = record {
        fs::remove_file(record.path()).expect("it can be removed");
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
