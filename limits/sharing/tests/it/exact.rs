//! Tests that exact limits are never exceeded during failures of the server and the network.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use limits::Algorithm;
use limits_sharing::{
    Address,
    exact::{Config, ExactLimits, ExactRule, Operation, Outcome, RuleRequest},
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    server::{
        Server,
        proxy::{Proxy, Weather},
        until,
    },
    world::GROUP,
};

/// Limit of each key, for longer than any test runs.
pub(crate) const LIMIT: u64 = 8;

/// Number of processes.
const PROCESSES: u64 = 4;

/// Number of keys.
const KEYS: u64 = 30;

/// The budget of a call.
const BUDGET: Duration = Duration::from_millis(50);

/// Admitted calls of each key, and calls without a reply.
type Gone = BTreeMap<u64, [u64; 2]>;

/// Processes with an exact limit, and their calls.
pub(crate) struct Callers {
    exacts: Vec<Arc<ExactLimits>>,
    gone: Mutex<Gone>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Callers {
    /// Starts one process per address, and waits until all are connected.
    pub(crate) async fn start(servers: impl IntoIterator<Item = Address>) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let exacts: Vec<_> = servers
            .into_iter()
            .map(|server| {
                let exact = Arc::new(exact(server));
                let (running, stop) = (Arc::clone(&exact), stop.clone());
                tasks.spawn(async move { running.run(stop).await });
                exact
            })
            .collect();
        let callers = Self {
            exacts,
            gone: Mutex::default(),
            stop,
            tasks,
        };
        callers.until_there().await;
        callers
    }

    /// Waits until all are connected.
    pub(crate) async fn until_there(&self) {
        assert!(!self.tasks.is_empty());
        until("all processes are connected", async || {
            self.exacts.iter().all(|it| it.is_connected())
        })
        .await;
    }

    /// Whether all are connected.
    pub(crate) fn have_server(&self) -> bool {
        self.exacts.iter().all(|it| it.is_connected())
    }

    /// Makes one call. Returns whether the server decided.
    pub(crate) async fn call(&self, caller: usize, key: u64) -> bool {
        let limit = Algorithm::token_bucket("1/day", LIMIT).unwrap();
        let ask = RuleRequest {
            name: Arc::from("quota"),
            rule: ExactRule::new(&limit.into()).unwrap(),
            key: Arc::from(key.to_string()),
            requests: 1,
        };
        let max_wait = Duration::ZERO;
        let operation = Operation::Reserve { max_wait };
        let asks = [ask];
        let reply = self.exacts[caller].decide(&asks, operation, Duration::ZERO);
        let reply = reply.await.map(|it| it.outcome);
        let mut gone = self.gone.lock().unwrap();
        let count = &mut gone.entry(key).or_default()[usize::from(reply.is_err())];
        *count += u64::from(reply.is_err() || reply == Ok(Outcome::Now));
        reply.is_ok()
    }

    /// Makes concurrent calls until the server has decided `decided` calls of each process.
    async fn call_until(&self, decided: u64, seed: u64) {
        let calls = async |caller: usize| {
            let mut random = fastrand::Rng::with_seed(seed + caller as u64);
            let mut left = decided;
            until("the server decides", async || {
                // Pause while the breaker is open.
                while left > 0 && self.call(caller, random.u64(0..KEYS)).await {
                    left -= 1;
                }
                left == 0
            })
            .await;
        };
        tokio::join!(calls(0), calls(1), calls(2), calls(3));
    }

    /// Checks that no key exceeds the limit per start of an empty server. Returns the numbers of admitted calls and calls without a reply.
    pub(crate) fn check(&self, lives: u64) -> [u64; 2] {
        let gone = self.gone.lock().unwrap();
        let mut sum = [0, 0];
        for (key, [by_server, without]) in &*gone {
            assert!(
                *by_server <= lives * LIMIT,
                "{key}: {by_server} by the server"
            );
            sum = [sum[0] + by_server, sum[1] + without];
        }
        sum
    }
}

fn exact(server: Address) -> ExactLimits {
    let config = Config {
        server,
        group: GROUP.to_owned(),
        budget: BUDGET,
    };
    ExactLimits::new(config)
}

#[tokio::test]
async fn limit_holds_over_a_slow_and_lossy_link() {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut links = Vec::new();
    for seed in 10..10 + PROCESSES {
        links.push(Proxy::start(server.socket(), seed).await);
    }
    let callers = Callers::start(links.iter().map(Proxy::address)).await;
    links.iter().for_each(|it| it.set(Weather::Stormy));
    callers.call_until(100, 1).await;
    links.iter().for_each(|it| it.set(Weather::Fair));
    callers.until_there().await;
    callers.call_until(40, 2).await;
    let [by_server, without] = callers.check(1);
    assert!(by_server > 0 && without > 0, "{by_server} {without}");
}

#[tokio::test]
async fn limit_holds_during_server_failures() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let callers = Callers::start((0..PROCESSES).map(|_| server.address())).await;
    callers.call_until(20, 1).await;
    server.signal("STOP");
    for caller in 0..callers.exacts.len() {
        let mut failures = 0;
        while callers.exacts[caller].is_connected() {
            assert!(!callers.call(caller, 0).await);
            failures += 1;
        }
        assert_eq!(failures, 3, "failures open the breaker");
    }
    for key in 0..KEYS {
        assert!(!callers.call(0, key).await);
    }
    server.signal("CONT");
    callers.until_there().await;
    callers.call_until(20, 2).await;
    callers.check(1);
    server.kill();
    for key in 0..KEYS {
        for caller in 0..callers.exacts.len() {
            assert!(!callers.call(caller, key).await);
        }
    }
    assert!(!callers.have_server());
    server.restart().await;
    callers.until_there().await;
    callers.call_until(40, 3).await;
    let [by_server, without] = callers.check(2);
    assert!(by_server > 0 && without > 0, "{by_server} {without}");
}

/// Uses the paused clock of the runtime.
#[tokio::test]
async fn three_calls_that_exceed_the_budget_open_the_breaker() {
    let Some(server) = Server::start().await else {
        return;
    };
    let link = Proxy::start(server.socket(), 0).await;
    let callers = Callers::start([link.address()]).await;
    assert!(callers.call(0, 0).await);
    link.set(Weather::Silent);
    tokio::time::pause();
    for missed in 1..=5 {
        let began = Instant::now();
        assert!(!callers.call(0, 0).await);
        let took = began.elapsed();
        if missed <= 3 {
            // Timers are up to a millisecond late.
            assert!(
                took >= BUDGET && took <= BUDGET + Duration::from_millis(1),
                "{took:?}"
            );
        } else {
            assert_eq!(took, Duration::ZERO);
        }
        assert_eq!(callers.have_server(), missed < 3);
    }
    tokio::time::resume();
    link.set(Weather::Fair);
    callers.until_there().await;
    assert!(callers.call(0, 0).await);
}
