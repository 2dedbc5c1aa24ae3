//! Test helper: four processes with leased shares of one limit, their load, and a thread that checks the sum of shares.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use limits::{Algorithm, CarryOver, Decision, Demand, LimitId, Limits};
use limits_sharing::{
    Address,
    lease::{Config, Lease, ShareUser},
    member::{SharePlan, ShareState},
    terms::{Terms, WHOLE},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::server;

/// The shared limit.
pub(crate) const LIMIT: &str = "limit";

/// The group.
pub(crate) const GROUP: &str = "test";

/// Limit and load, in requests per second.
const RATE: u64 = 300;
const OFFERED: u64 = 400;

/// Percentage of the load for each process.
const SKEWED: [u64; 4] = [70, 20, 7, 3];

/// A process with its load, and the calls that its share admits.
pub(crate) struct Process {
    pub(crate) lease: Arc<Lease>,
    state: Mutex<Limiter>,
    percent: AtomicU64,
    arrived: AtomicU64,
    gone: AtomicU64,
}

struct Limiter {
    limits: Limits<()>,
    number: LimitId,
    plan: Option<Arc<SharePlan>>,
    share: u64,
}

struct Demands {
    process: Arc<Process>,
    since: Instant,
}

impl ShareUser for Demands {
    fn demands(&mut self) -> Vec<(String, u64)> {
        let arrived = self.process.arrived.swap(0, Ordering::Relaxed);
        let micros = Terms::micros(self.since.elapsed()).max(1);
        self.since = Instant::now();
        vec![(
            LIMIT.to_owned(),
            arrived * 1_000_000 * WHOLE / RATE / micros,
        )]
    }

    fn apply(&mut self, plan: &Arc<SharePlan>) {
        self.process.state.lock().unwrap().plan = Some(Arc::clone(plan));
    }
}

impl Process {
    pub(crate) fn state(&self) -> ShareState {
        self.lease.plan().state(self.lease.micros(Instant::now()))
    }

    fn new(server: Address, name: usize, terms: Terms) -> Self {
        let mut limits = Limits::new(1);
        let nothing = whole().share(0).unwrap();
        let number = limits.add(nothing).unwrap();
        Self {
            lease: Lease::new(Config {
                server,
                group: GROUP.to_owned(),
                member: format!("member-{name}"),
                terms,
            }),
            state: Mutex::new(Limiter {
                limits,
                number,
                plan: None,
                share: 0,
            }),
            percent: AtomicU64::new(SKEWED[name]),
            arrived: AtomicU64::new(0),
            gone: AtomicU64::new(0),
        }
    }

    /// One request arrives.
    fn arrive(&self, nanos: u64) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let limiter = &mut *self.state.lock().unwrap();
        let micros = self.lease.micros(Instant::now());
        let share = limiter
            .plan
            .as_ref()
            .map_or(0, |plan| plan.share(LIMIT, micros));
        if share != limiter.share {
            let limit = whole().share(share).unwrap();
            limiter
                .limits
                .change_all(
                    &[(limiter.number, limit.into(), CarryOver::Remaining)],
                    nanos,
                )
                .unwrap();
            limiter.share = share;
        }
        let call = [Demand {
            limit: limiter.number,
            key: (),
            requests: 1,
        }];
        if limiter.limits.reserve(&call, nanos, Duration::ZERO) == Decision::Now {
            self.gone.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn whole() -> Algorithm {
    Algorithm::token_bucket("300/s", 30).unwrap()
}

pub(crate) struct World {
    pub(crate) processes: Vec<Arc<Process>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<u64>>,
    terms: Terms,
}

impl World {
    /// Starts the processes, each with an address of the server.
    pub(crate) fn start(refresh: u64, servers: [Address; 4]) -> Self {
        let terms = Terms {
            refresh,
            timeout: refresh / 2,
            forget_after: 24 * 3_600_000_000,
            members_max: 0,
        };
        let terms = terms.checked().unwrap();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let servers = servers.into_iter().enumerate();
        let processes: Vec<_> = servers
            .map(|(it, server)| Arc::new(Process::new(server, it, terms)))
            .collect();
        for process in &processes {
            let user = Demands {
                process: Arc::clone(process),
                since: Instant::now(),
            };
            tasks.spawn(process.lease.clone().run(user, stop.clone()));
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = vec![watch(&processes, &is_over), offer(&processes, &is_over)];
        Self {
            processes,
            stop,
            tasks,
            is_over,
            threads,
            terms,
        }
    }

    /// Waits until a condition holds for all processes.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Process) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.processes.iter().all(|it| holds(it)) {
            let states = self.processes.iter().map(|it| {
                let plan = it.lease.plan();
                (
                    it.state(),
                    plan.group(),
                    plan.granted(LIMIT),
                    it.lease.error(),
                )
            });
            assert!(
                Instant::now() < deadline,
                "{what}: {:#?}",
                states.collect::<Vec<_>>()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until all processes have new replies and share the limit.
    pub(crate) async fn until_shared_again(&self) {
        for process in &self.processes {
            // Each reply is published as a new plan. The first one may have been under way.
            for _ in 0..2 {
                let before = process.lease.plan();
                server::until("all have new replies", async || {
                    !Arc::ptr_eq(&before, &process.lease.plan())
                })
                .await;
            }
        }
        self.until_shared().await;
    }

    /// Waits until all processes share the limit.
    pub(crate) async fn until_shared(&self) {
        self.until("all are members, and nothing is reserved", |process| {
            let plan = process.lease.plan();
            let granted = plan.granted(LIMIT);
            process.state() == ShareState::Ok
                && plan.group() == Some((4, false))
                && granted.is_some_and(|it| it.fallback == WHOLE / 4 && it.total > WHOLE / 2)
        })
        .await;
    }

    /// Waits for `count` refresh intervals.
    pub(crate) async fn refreshes(&self, count: u64) {
        tokio::time::sleep(Duration::from_micros(count * self.terms.refresh)).await;
    }

    /// Percentage of the limit that is used during the next refresh intervals.
    pub(crate) async fn used_in(&self, refreshes: u64) -> f64 {
        let gone = || -> u64 {
            self.processes
                .iter()
                .map(|it| it.gone.load(Ordering::Relaxed))
                .sum()
        };
        let (before, began) = (gone(), Instant::now());
        self.refreshes(refreshes).await;
        let gone = u32::try_from(gone() - before).unwrap();
        100.0 * f64::from(gone) / (began.elapsed().as_secs_f64() * 300.0)
    }

    /// Reverses the distribution of the load.
    pub(crate) fn reverse(&self) {
        for (process, percent) in self.processes.iter().rev().zip(SKEWED) {
            process.percent.store(percent, Ordering::Relaxed);
        }
    }

    /// Ends all tasks. Returns the number of checks.
    pub(crate) async fn end(mut self) -> u64 {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.is_over.store(true, Ordering::Relaxed);
        let looked = self
            .threads
            .into_iter()
            .map(|it| it.join().expect("no violation"));
        looked.max().unwrap()
    }
}

/// Checks the sum of shares repeatedly.
fn watch(processes: &[Arc<Process>], is_over: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (processes, is_over) = (processes.to_vec(), Arc::clone(is_over));
    thread::spawn(move || {
        let mut looked = 0;
        while !is_over.load(Ordering::Relaxed) {
            // All are locked, so that the sum is of one instant.
            let limiters: Vec<_> = processes
                .iter()
                .map(|it| it.state.lock().unwrap())
                .collect();
            let now = Instant::now();
            let share =
                |(process, limiter): (&Arc<Process>, &std::sync::MutexGuard<'_, Limiter>)| {
                    let plan = limiter.plan.as_ref();
                    plan.map_or(0, |plan| plan.share(LIMIT, process.lease.micros(now)))
                };
            let sum: u64 = processes.iter().zip(&limiters).map(share).sum();
            assert!(sum <= WHOLE, "{sum}");
            drop(limiters);
            looked += 1;
            thread::sleep(Duration::from_micros(300));
        }
        looked
    })
}

/// Sends one request every 2.5 ms to a random process.
fn offer(processes: &[Arc<Process>], is_over: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (processes, is_over) = (processes.to_vec(), Arc::clone(is_over));
    thread::spawn(move || {
        let began = Instant::now();
        let mut random = fastrand::Rng::with_seed(1);
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            let due = Duration::from_nanos(number * 1_000_000_000 / OFFERED);
            thread::sleep(due.saturating_sub(began.elapsed()));
            let mut drawn = random.u64(0..100);
            let to = processes.iter().find(|it| {
                let percent = it.percent.load(Ordering::Relaxed);
                let is_here = drawn < percent;
                drawn = drawn.saturating_sub(percent);
                is_here
            });
            let now = u64::try_from(began.elapsed().as_nanos()).expect("some minutes");
            if let Some(process) = to {
                process.arrive(1_000_000_000_000 + now);
            }
            number += 1;
        }
        0
    })
}
