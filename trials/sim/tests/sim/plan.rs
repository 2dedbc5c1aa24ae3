//! The plan of a run, drawn from its seed only: processes, settings, load, and the time and kind of each fault.

use std::{fmt, fs, time::Duration};

use fastrand::Rng;
use proto::units::DspId;

use crate::store::StoreBehavior;

/// Simulated time before the first host starts. An epoch is a start time and must not be 0.
pub(crate) const START: Duration = Duration::from_secs(1);

/// The plan of one run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) fault_class: FaultClass,
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) tick: Duration,
    pub(crate) latency_max: Duration,
    pub(crate) load: Load,
    /// Value of `--queue-cookies`, if it may be too small.
    pub(crate) queue_cookies: Option<u64>,
    /// Whether the producers have an archive.
    pub(crate) has_archive: bool,
    /// The consumer that only reads the archive.
    pub(crate) follower: Option<usize>,
    pub(crate) chunk_age: Duration,
    pub(crate) retention: Duration,
    pub(crate) flush: Duration,
    pub(crate) batch_cookies: u64,
    pub(crate) buffer_bytes: u64,
    /// DSP limits of each producer.
    pub(crate) limits: Option<Limits>,
    /// Mean pause of the client of an API between two requests.
    pub(crate) api_pause_millis: u64,
    /// Whether deletions may fill the table of a consumer, which then has the minimum size.
    pub(crate) floods: bool,
    /// Times by which the clocks of producers, then of consumers, are ahead of the simulated time.
    pub(crate) clocks_ahead: Vec<Duration>,
    /// Faults, sorted by time.
    pub(crate) faults: Vec<Fault>,
}

/// Which kinds of faults a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultClass {
    /// No faults.
    None,
    /// Clean restarts, one at a time: nothing may be lost.
    CleanRestarts,
    /// Network faults: nothing may be lost.
    Network,
    /// Faults of consumers and their stores: nothing may be lost.
    Consumers,
    /// All kinds, including crashes of producers.
    All,
}

/// The load of browsers on each producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) until: Duration,
    pub(crate) users: u64,
    /// Maximum number of requests in one write.
    pub(crate) burst: usize,
    /// Mean pause between two bursts.
    pub(crate) pause_millis: u64,
}

/// DSP limits of a producer: DSP 1 is shaped, DSP 2 is observed or shaped, DSP 3 has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Rate of DSP 1 and of DSP 2, in cookies per second.
    pub(crate) rate: u64,
    /// Mode of the limit of DSP 2.
    pub(crate) second_mode: &'static str,
    /// Whether queued cookies are spooled at shutdown.
    pub(crate) is_spooled: bool,
}

impl Limits {
    fn draw(r: &mut Rng) -> Self {
        Self {
            rate: r.u64(3..60),
            second_mode: r.choice(["observe", "shape"]).unwrap_or("observe"),
            is_spooled: r.bool(),
        }
    }

    /// Whether cookies of this DSP may be appended later than they were accepted.
    pub(crate) fn may_delay(dsp: DspId) -> bool {
        dsp != DspId(3)
    }

    /// The name of a producer's limits file.
    pub(crate) fn file(producer: usize) -> String {
        format!("limits-{producer}.toml")
    }

    /// Writes a producer's limits file.
    pub(crate) fn write(self, producer: usize) {
        fs::write(Self::file(producer), self.text()).expect("the directory is writable");
    }

    /// The contents of the limits file. Cookies that exceed `max_wait` are requeued soon and often.
    fn text(self) -> String {
        let Self {
            rate, second_mode, ..
        } = self;
        let shape = r#"
            shape = { max_wait = "3s", max_age = "5s" }
            requeue = { base = "1s", cap = "3s", max = 64, share = 0.5 }"#;
        let second_shape = if second_mode == "shape" { shape } else { "" };
        format!(
            r#"
            unknown = "unlimited"
            [limits.first]
            keys = [1]
            mode = "shape"
            {shape}
            rules = [ {{ id = "rate", rate = "{rate}/s", burst = 2 }} ]
            [limits.second]
            keys = [2]
            mode = "{second_mode}"
            {second_shape}
            rules = [ {{ id = "rate", rate = "{rate}/s" }} ]
            "#
        )
    }
}

/// A simulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    Producer(usize),
    Consumer(usize),
    Browsers,
}

/// A fault that begins at `at`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) duration: Duration,
    pub(crate) kind: FaultKind,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FaultKind {
    /// Messages between the two hosts are dropped.
    Partition(Host, Host),
    /// Messages from the first host to the second are dropped: the connection is half open.
    PartitionOneWay(Host, Host),
    /// Messages between the two hosts are delivered after the fault.
    Delay(Host, Host),
    /// A host is partitioned from all others.
    Isolate(Host),
    /// A process crashes and is restarted.
    Crash(Host),
    /// The machine of a consumer is replaced by one with an empty store.
    Replace(usize),
    /// A machine loses power, and with it all uncommitted writes of a store, or the epoch history of a producer.
    PowerLoss(Host),
    /// A process drains, and is restarted after the duration of the fault.
    Restart(Host),
    /// A consumer's store behaves differently.
    Store(usize, StoreBehavior),
    /// A producer stalls as soon as its log has an open chunk.
    Stall(usize),
    /// A producer's limits change permanently.
    Limits(usize, Limits),
    /// A consumer's store loses uncommitted writes and is unavailable.
    StoreCrash(usize),
    /// A consumer's store cannot write the cookies of a DSP.
    StoreDsp(usize, u32),
}

impl Plan {
    /// The plan with an archive, and small queues, so that streams have gaps. In half of the plans, a consumer follows the archive; in
    /// half of these, it is replaced.
    pub(crate) fn with_archive(mut self) -> Self {
        let last = self.consumers - 1;
        if self.seed % 4 == 1 {
            self.faults.push(Fault {
                at: (START + self.load.until) / 2,
                duration: millis(100 + self.seed % 1_000 * 10),
                kind: FaultKind::Replace(last),
            });
            self.faults.sort_by_key(|fault| fault.at);
        }
        Self {
            queue_cookies: self.queue_cookies.or(Some(50)),
            has_archive: true,
            follower: (self.seed % 2 == 1).then_some(last),
            ..self
        }
    }

    /// Draws the plan of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let r = &mut random;
        let fault_class = match r.u32(0..100) {
            0..4 => FaultClass::None,
            4..14 => FaultClass::CleanRestarts,
            14..40 => FaultClass::Network,
            40..60 => FaultClass::Consumers,
            _ => FaultClass::All,
        };
        let (producers, consumers) = (r.usize(2..=3), r.usize(2..=4));
        let load_for = r.u64(5_000..30_000);
        let pause_millis = r.u64(40..=300);
        let mut plan = Self {
            seed,
            fault_class,
            producers,
            consumers,
            tick: millis(r.choice([10, 20, 50]).unwrap_or(20)),
            latency_max: millis(r.choice([1, 10, 100, 500]).unwrap_or(10)),
            load: Load {
                until: START + millis(load_for),
                users: r.u64(5..200),
                burst: r.usize(1..=12),
                pause_millis,
            },
            queue_cookies: (r.u32(0..5) == 0).then(|| r.u64(5..200)),
            has_archive: false,
            follower: None,
            chunk_age: millis(r.u64(1..=20)),
            retention: millis(r.u64(1_000..60_000)),
            flush: millis(r.u64(20..=400)),
            batch_cookies: r.choice([1_000, 2_000, 100_000]).unwrap_or(1_000),
            buffer_bytes: r.choice([1 << 20, 16 << 20]).unwrap_or(1 << 20),
            limits: r.bool().then(|| Limits::draw(r)),
            api_pause_millis: 0,
            floods: false,
            clocks_ahead: Vec::new(),
            faults: Vec::new(),
        };
        plan.faults = match fault_class {
            FaultClass::None => Vec::new(),
            FaultClass::CleanRestarts => plan.restarts(r),
            _ => (0..r.u32(1..=7)).map(|_| plan.fault(r)).collect(),
        };
        plan.change_limits(r);
        if fault_class != FaultClass::None && r.bool() {
            plan.stall(r);
        }
        plan.api_pause_millis = r.u64(100..1_000);
        plan.floods = r.u32(0..5) == 0;
        let clock_ahead_max = r.choice([0, 0, 200, 5_000]).unwrap_or(0);
        let clocks = (0..producers + consumers).map(|_| millis(r.u64(0..=clock_ahead_max)));
        plan.clocks_ahead = clocks.collect();
        if fault_class != FaultClass::None && r.bool() {
            plan.fail_dsp(r);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// Changes limits during the load. At its end, all producers get a high rate so that their queues drain.
    fn change_limits(&mut self, r: &mut Rng) {
        let Some(limits) = self.limits else {
            return;
        };
        let until = u64::try_from(self.load.until.as_millis()).expect("minutes");
        let mut change = |at, producer, limits| {
            self.faults.push(Fault {
                at: millis(at),
                duration: Duration::ZERO,
                kind: FaultKind::Limits(producer, limits),
            });
        };
        for _ in 0..r.u32(0..4) {
            let other = Limits {
                is_spooled: limits.is_spooled,
                ..Limits::draw(r)
            };
            change(r.u64(1_200..until), r.usize(0..self.producers), other);
        }
        for producer in 0..self.producers {
            let last = Limits { rate: 60, ..limits };
            change(until, producer, last);
        }
    }

    /// Stalls a producer near the end of the load, so that later cookies do not replace the cookies accepted during the stall.
    fn stall(&mut self, r: &mut Rng) {
        self.faults.push(Fault {
            at: self.load.until - millis(r.u64(500..2_500)),
            duration: millis(r.u64(300..2_500)),
            kind: FaultKind::Stall(r.usize(0..self.producers)),
        });
    }

    /// Lets a database of a DSP fail, so that its cookies and deletions go to the retry queue.
    fn fail_dsp(&mut self, r: &mut Rng) {
        let until = u64::try_from(self.load.until.as_millis()).expect("minutes");
        self.faults.push(Fault {
            at: millis(r.u64(1_200..until)),
            duration: millis(r.u64(500..15_000)),
            kind: FaultKind::StoreDsp(r.usize(0..self.consumers), r.u32(1..=3)),
        });
    }

    fn restarts(&mut self, r: &mut Rng) -> Vec<Fault> {
        // Restarts do not overlap, because a subscriber that is down misses the goodbye.
        let mut at = START + millis(r.u64(4_000..8_000));
        let mut faults = Vec::new();
        for _ in 0..r.u32(1..=3) {
            let duration = millis(r.u64(100..5_000));
            faults.push(Fault {
                at,
                duration,
                kind: FaultKind::Restart(self.process(r)),
            });
            at += duration + millis(20_000);
        }
        self.load.until = at;
        self.load.pause_millis *= 2;
        faults
    }

    fn fault(&self, r: &mut Rng) -> Fault {
        let (p, c) = (
            Host::Producer(r.usize(0..self.producers)),
            r.usize(0..self.consumers),
        );
        let consumer = Host::Consumer(c);
        let peer = if r.u32(0..5) == 0 {
            Host::Browsers
        } else {
            consumer
        };
        let kind = match (self.fault_class, r.u32(0..100)) {
            (FaultClass::Consumers, 0..35) => FaultKind::Crash(consumer),
            (FaultClass::Consumers, 35..55) => FaultKind::PowerLoss(consumer),
            (FaultClass::Consumers, 55..60) => FaultKind::Restart(consumer),
            (FaultClass::Consumers, _) => store_fault(r, c),
            (FaultClass::All, 0..15) => FaultKind::Crash(p),
            (FaultClass::All, 15..25) => FaultKind::PowerLoss(p),
            (FaultClass::All, 25..35) => FaultKind::Restart(self.process(r)),
            (FaultClass::All, 35..45) => FaultKind::Crash(consumer),
            (FaultClass::All, 45..55) => FaultKind::PowerLoss(consumer),
            (FaultClass::All, 55..70) => store_fault(r, c),
            _ => match r.u32(0..6) {
                0 => FaultKind::Partition(p, peer),
                1 => FaultKind::PartitionOneWay(p, peer),
                2 => FaultKind::PartitionOneWay(peer, p),
                3 => FaultKind::Delay(p, peer),
                4 => FaultKind::Isolate(consumer),
                _ => FaultKind::Isolate(p),
            },
        };
        let duration = match kind {
            FaultKind::Crash(_) | FaultKind::PowerLoss(_) | FaultKind::Restart(_) => {
                r.u64(50..15_000)
            }
            _ if r.bool() => r.u64(100..3_000),
            _ => r.u64(1_000..=60_000),
        };
        let until = u64::try_from(self.load.until.as_millis()).expect("a minute");
        Fault {
            at: millis(r.u64(1_200..until + 2_000)),
            duration: millis(duration),
            kind,
        }
    }

    fn process(&self, r: &mut Rng) -> Host {
        if r.bool() {
            Host::Producer(r.usize(0..self.producers))
        } else {
            Host::Consumer(r.usize(0..self.consumers))
        }
    }
}

fn store_fault(r: &mut Rng, consumer: usize) -> FaultKind {
    match r.u32(0..5) {
        0 => FaultKind::Store(consumer, StoreBehavior::Slow),
        1 => FaultKind::Store(consumer, StoreBehavior::Failing),
        2 => FaultKind::Store(consumer, StoreBehavior::Hanging),
        3 => FaultKind::Store(consumer, StoreBehavior::FalseErrors),
        _ => FaultKind::StoreCrash(consumer),
    }
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Host {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Producer(at) => format!("producer-{at}"),
            Self::Consumer(at) => format!("consumer-{at}"),
            Self::Browsers => "browsers".to_owned(),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?}, {} producers, {} consumers, tick {:?}, latency up to {:?}",
            self.seed,
            self.fault_class,
            self.producers,
            self.consumers,
            self.tick,
            self.latency_max
        )?;
        writeln!(f, "  {:?}", self.load)?;
        writeln!(
            f,
            "  queue {:?}, chunk age {:?}, retention {:?}, flush {:?}, batch {}, buffer {}",
            self.queue_cookies,
            self.chunk_age,
            self.retention,
            self.flush,
            self.batch_cookies,
            self.buffer_bytes
        )?;
        writeln!(f, "  {:?}", self.limits)?;
        writeln!(
            f,
            "  API pause {} ms, floods {}, clocks {:?}",
            self.api_pause_millis, self.floods, self.clocks_ahead
        )?;
        for Fault { at, duration, kind } in &self.faults {
            writeln!(f, "  at {at:?} for {duration:?}: {kind:?}")?;
        }
        Ok(())
    }
}
