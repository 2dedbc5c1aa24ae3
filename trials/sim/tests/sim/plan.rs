//! What happens in a run, drawn from its seed alone: who is there, how they are set, and which faults come when.

use std::{fmt, time::Duration};

use fastrand::Rng;

use crate::store::Mood;

/// The simulated time before the first host starts: an epoch is a time, and 0 is none.
pub(crate) const START: Duration = Duration::from_secs(1);

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) tick: Duration,
    pub(crate) latency_max: Duration,
    pub(crate) load: Load,
    /// A bound of the queues that may be too small.
    pub(crate) queue_cookies: Option<u64>,
    pub(crate) chunk_age: Duration,
    pub(crate) retention: Duration,
    pub(crate) flush: Duration,
    pub(crate) batch_cookies: u64,
    pub(crate) buffer_bytes: u64,
    /// Limits of the DSPs at each producer, if there are any.
    pub(crate) limits: Option<Limits>,
    /// In the order of time.
    pub(crate) faults: Vec<Fault>,
}

/// What sort of faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// None.
    Calm,
    /// One orderly restart after the other: nothing may be lost.
    Orderly,
    /// Of the network: nothing may be lost.
    Network,
    /// Of consumers and their stores: nothing may be lost.
    Nodes,
    /// All, crashes of producers included.
    Everything,
}

/// What browsers send, to each producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) until: Duration,
    pub(crate) users: u64,
    /// Most requests sent at once.
    pub(crate) burst: usize,
    /// Between two bursts, on average.
    pub(crate) pause_millis: u64,
}

/// What DSPs may send each producer: the first is shaped, the second observed, the third has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of the first two, each: cookies a second.
    pub(crate) rate: u64,
    /// What is done with the second.
    pub(crate) second: &'static str,
    /// Whether what waits is kept when a producer stops.
    pub(crate) is_spooled: bool,
}

impl Limits {
    fn draw(r: &mut Rng) -> Self {
        Self {
            rate: r.u64(3..60),
            second: r.choice(["observe", "shape"]).unwrap_or("observe"),
            is_spooled: r.bool(),
        }
    }

    /// Whether cookies of this DSP may come into the log later than they were accepted.
    pub(crate) fn may_hold(dsp: u32) -> bool {
        dsp != 3
    }

    /// As a file: what waits for too long comes back soon, and again and again.
    pub(crate) fn text(self) -> String {
        let Self { rate, second, .. } = self;
        let shape = r#"
            shape = { max_wait = "3s", max_age = "5s" }
            dead_letter = { base = "1s", cap = "3s", max_requeues = 64, share = 0.5 }"#;
        let of_second = if second == "shape" { shape } else { "" };
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
            mode = "{second}"
            {of_second}
            rules = [ {{ id = "rate", rate = "{rate}/s" }} ]
            "#
        )
    }
}

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    Producer(usize),
    Consumer(usize),
    Browsers,
}

/// Something that goes wrong at `at`, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) what: What,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// What the two send each other is dropped.
    Cut(Host, Host),
    /// What the first sends to the second is dropped: the connection is half open.
    CutOneWay(Host, Host),
    /// What the two send each other comes late, after the fault.
    Hold(Host, Host),
    /// A host is cut off from all others.
    Isolate(Host),
    /// A process ends without a word, and is started again.
    Crash(Host),
    /// A machine goes down without a word, and what its disk had not got is lost; of a producer's, its epoch history.
    LosePower(Host),
    /// A process is told to end, and started again this long after it has.
    Restart(Host),
    /// A consumer's store changes its mood.
    Store(usize, Mood),
    /// A producer stands still, from the next moment on at which a chunk is open in its log.
    Stall(usize),
    /// A producer's limits are others from now on.
    Limits(usize, Limits),
    /// A consumer's store loses what was not committed, and is away.
    StoreCrash(usize),
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let r = &mut random;
        let kind = match r.u32(0..100) {
            0..4 => Kind::Calm,
            4..14 => Kind::Orderly,
            14..40 => Kind::Network,
            40..60 => Kind::Nodes,
            _ => Kind::Everything,
        };
        let (producers, consumers) = (r.usize(2..=3), r.usize(2..=4));
        let load_for = r.u64(5_000..30_000);
        let pause_millis = r.u64(40..=300);
        let mut plan = Self {
            seed,
            kind,
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
            chunk_age: millis(r.u64(1..=20)),
            retention: millis(r.u64(1_000..60_000)),
            flush: millis(r.u64(20..=400)),
            batch_cookies: r.choice([1_000, 2_000, 100_000]).unwrap_or(1_000),
            buffer_bytes: r.choice([1 << 20, 16 << 20]).unwrap_or(1 << 20),
            limits: r.bool().then(|| Limits::draw(r)),
            faults: Vec::new(),
        };
        plan.faults = match kind {
            Kind::Calm => Vec::new(),
            Kind::Orderly => plan.restarts(r),
            _ => (0..r.u32(1..=7)).map(|_| plan.fault(r)).collect(),
        };
        plan.change_limits(r);
        if kind != Kind::Calm && r.bool() {
            plan.stall(r);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// While it runs, and again for all at the end: what waits must come to its end.
    fn change_limits(&mut self, r: &mut Rng) {
        let Some(limits) = self.limits else {
            return;
        };
        let until = u64::try_from(self.load.until.as_millis()).expect("minutes");
        let mut change = |at, producer, limits| {
            self.faults.push(Fault {
                at: millis(at),
                lasts: Duration::ZERO,
                what: What::Limits(producer, limits),
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

    /// Near the end, so that what is accepted then is not replaced by what comes later.
    fn stall(&mut self, r: &mut Rng) {
        self.faults.push(Fault {
            at: self.load.until - millis(r.u64(500..2_500)),
            lasts: millis(r.u64(300..2_500)),
            what: What::Stall(r.usize(0..self.producers)),
        });
    }

    fn restarts(&mut self, r: &mut Rng) -> Vec<Fault> {
        // A subscriber that another restart keeps away is not told goodbye, so they keep clear of each other.
        let mut at = START + millis(r.u64(4_000..8_000));
        let mut faults = Vec::new();
        for _ in 0..r.u32(1..=3) {
            let lasts = millis(r.u64(100..5_000));
            faults.push(Fault {
                at,
                lasts,
                what: What::Restart(self.process(r)),
            });
            at += lasts + millis(20_000);
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
        let what = match (self.kind, r.u32(0..100)) {
            (Kind::Nodes, 0..35) => What::Crash(consumer),
            (Kind::Nodes, 35..55) => What::LosePower(consumer),
            (Kind::Nodes, 55..60) => What::Restart(consumer),
            (Kind::Nodes, _) => store_fault(r, c),
            (Kind::Everything, 0..15) => What::Crash(p),
            (Kind::Everything, 15..25) => What::LosePower(p),
            (Kind::Everything, 25..35) => What::Restart(self.process(r)),
            (Kind::Everything, 35..45) => What::Crash(consumer),
            (Kind::Everything, 45..55) => What::LosePower(consumer),
            (Kind::Everything, 55..70) => store_fault(r, c),
            _ => match r.u32(0..6) {
                0 => What::Cut(p, peer),
                1 => What::CutOneWay(p, peer),
                2 => What::CutOneWay(peer, p),
                3 => What::Hold(p, peer),
                4 => What::Isolate(consumer),
                _ => What::Isolate(p),
            },
        };
        let lasts = match what {
            What::Crash(_) | What::LosePower(_) | What::Restart(_) => r.u64(50..15_000),
            _ if r.bool() => r.u64(100..3_000),
            _ => r.u64(1_000..=60_000),
        };
        let until = u64::try_from(self.load.until.as_millis()).expect("a minute");
        Fault {
            at: millis(r.u64(1_200..until + 2_000)),
            lasts: millis(lasts),
            what,
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

fn store_fault(r: &mut Rng, consumer: usize) -> What {
    match r.u32(0..5) {
        0 => What::Store(consumer, Mood::Slow),
        1 => What::Store(consumer, Mood::Refusing),
        2 => What::Store(consumer, Mood::Hanging),
        3 => What::Store(consumer, Mood::Lying),
        _ => What::StoreCrash(consumer),
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
            self.seed, self.kind, self.producers, self.consumers, self.tick, self.latency_max
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
        for Fault { at, lasts, what } in &self.faults {
            writeln!(f, "  at {at:?} for {lasts:?}: {what:?}")?;
        }
        Ok(())
    }
}
