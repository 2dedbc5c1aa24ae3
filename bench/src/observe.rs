//! Looks at all processes of a cluster once a second: their metrics, CPU time and memory. Each time it checks that their
//! ledger balances.
//!
//! Counters go on over the runs of a process that was started again; what it counted between the last look and a kill
//! is not known. A process that does not answer within 0.7 s, because it is stopped or too busy, is shown as
//! it was seen last.

mod counts;
mod outcomes;
mod plots;

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, timeout};

pub use self::{counts::ProcessCounts, outcomes::CookieOutcomes, plots::plots};
use crate::{
    cpu,
    http::HttpClient,
    ledger,
    memory::Memory,
    report::per_second,
    scrape::{Buckets, Samples},
};

/// Less than the time between two looks.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes requests.
    Producer,
    /// Writes to a store.
    Consumer,
    /// Is that store.
    Mongod,
    /// This process.
    Generator,
}

/// A process to look at.
#[derive(Debug, Clone)]
pub struct Target {
    /// What it is.
    pub role: Role,
    /// What it is called in reports.
    pub name: String,
    /// Changes when it is started again.
    pub process_id: u32,
    /// Address of its admin port, if it has one.
    pub admin: Option<String>,
}

/// What was seen of all processes at about one time: each has its own, since one may answer later than others.
#[derive(Debug, Clone)]
pub struct Observation {
    /// When the first was looked at.
    pub at: Instant,
    /// In the order of the targets.
    pub processes: Vec<ProcessSample>,
}

/// What was seen of one process.
#[derive(Debug, Clone)]
pub struct ProcessSample {
    /// What it is.
    pub role: Role,
    /// What it is called in reports.
    pub name: String,
    /// When.
    pub at: Instant,
    /// CPU time of all its runs.
    pub cpu: Duration,
    /// Its memory.
    pub memory: Memory,
    /// What all its runs counted.
    pub counts: ProcessCounts,
    /// What its present run counted.
    pub run: ProcessCounts,
}

/// Keeps what was seen.
#[derive(Debug, Default)]
pub struct Observer {
    processes: Vec<MonitoredProcess>,
    observations: Vec<Observation>,
}

/// A process over its runs.
#[derive(Debug)]
struct MonitoredProcess {
    process_id: u32,
    client: Option<HttpClient>,
    /// The sums of the runs before this one.
    cpu_before: Duration,
    counts_before: ProcessCounts,
    seen: ProcessSample,
    /// How many scrapes had a ledger that balances, and the first that had not.
    balanced: u64,
    unbalanced: Option<String>,
}

impl Observer {
    /// Looks at all processes now. The targets are the same each time, but for their process ids.
    pub async fn observe(&mut self, targets: &[Target]) -> &Observation {
        if self.processes.is_empty() {
            self.processes = targets.iter().map(MonitoredProcess::new).collect();
        }
        let at = Instant::now();
        let samples = self.processes.iter_mut().zip(targets);
        join_all(samples.map(|(processes, target)| processes.observe(target))).await;
        self.observations.push(Observation {
            at,
            processes: self
                .processes
                .iter()
                .map(|processes| processes.seen.clone())
                .collect(),
        });
        self.observations.last().expect("one was just pushed")
    }

    /// Of each process whose ledger did not balance: its name and what was wrong the first time.
    pub fn unbalanced(&self) -> impl Iterator<Item = String> {
        self.processes.iter().filter_map(|processes| {
            let why = processes.unbalanced.as_ref()?;
            Some(format!("{}: {why}", processes.seen.name))
        })
    }

    /// How many scrapes had a ledger that balances.
    #[must_use]
    pub fn balanced(&self) -> u64 {
        self.processes
            .iter()
            .map(|processes| processes.balanced)
            .sum()
    }

    /// All that was seen, in the order of time.
    #[must_use]
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }
}

impl MonitoredProcess {
    fn new(target: &Target) -> Self {
        Self {
            process_id: target.process_id,
            client: None,
            cpu_before: Duration::ZERO,
            counts_before: ProcessCounts::default(),
            seen: ProcessSample {
                role: target.role,
                name: target.name.clone(),
                at: Instant::now(),
                cpu: Duration::ZERO,
                memory: Memory::default(),
                counts: ProcessCounts::default(),
                run: ProcessCounts::default(),
            },
            balanced: 0,
            unbalanced: None,
        }
    }

    async fn observe(&mut self, target: &Target) {
        if self.process_id != target.process_id {
            self.process_id = target.process_id;
            self.client = None;
            self.cpu_before = self.seen.cpu;
            self.counts_before = self.seen.counts.clone();
            self.seen.run = ProcessCounts::default();
        }
        if let Some(admin) = &target.admin {
            let answer = timeout(ANSWER_TIMEOUT, scrape(&mut self.client, admin));
            let Ok(Some(samples)) = answer.await else {
                // The connection may be in the middle of an answer.
                self.client = None;
                return;
            };
            match ledger::check(&samples) {
                Ok(()) => self.balanced += 1,
                Err(error) => {
                    self.unbalanced.get_or_insert_with(|| format!("{error:#}"));
                }
            }
            self.seen.run = ProcessCounts::read(&samples);
            self.seen.counts = self.counts_before.plus(&self.seen.run);
        }
        self.seen.at = Instant::now();
        if let Some(cpu) = cpu::of(self.process_id) {
            self.seen.cpu = self.cpu_before + cpu;
        }
        if let Some(memory) = Memory::of(self.process_id) {
            self.seen.memory = memory;
        }
    }
}

async fn scrape(client: &mut Option<HttpClient>, admin: &str) -> Option<Samples> {
    if client.is_none() {
        *client = HttpClient::connect(admin).await.ok();
    }
    let answer = client.as_mut()?.get("/metrics", &[]).await.ok()?;
    (answer.status == 200).then(|| Samples::parse(&answer.body))
}

impl Observation {
    /// Those with this role, in order.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &ProcessSample> {
        self.processes.iter().filter(move |seen| seen.role == role)
    }

    /// Cookies in the logs of all producers since their start.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.of(Role::Producer)
            .map(|seen| seen.counts.appended)
            .sum()
    }

    /// Of each node: cookies that were accepted and are neither stored nor known to be lost.
    #[must_use]
    pub fn waiting(&self) -> Vec<u64> {
        let accepted = self.accepted();
        self.of(Role::Consumer)
            .map(|seen| {
                let counts = &seen.counts;
                accepted.saturating_sub(counts.outcomes.settled() + counts.lost)
            })
            .collect()
    }

    /// The backlog of the node that is furthest behind.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.waiting().into_iter().max().unwrap_or(0)
    }

    /// Cookies in the logs of all producers, a second since `earlier`.
    #[must_use]
    pub fn accepted_per_second(&self, earlier: &Self) -> f64 {
        self.per_second(earlier, Role::Producer, |seen| seen.counts.appended)
            .sum()
    }

    /// Of each node: cookies whose fate became known, a second since `earlier`.
    pub fn settled_per_second(&self, earlier: &Self) -> impl Iterator<Item = f64> {
        self.per_second(earlier, Role::Consumer, |seen| {
            seen.counts.outcomes.settled()
        })
    }

    fn per_second(
        &self,
        earlier: &Self,
        role: Role,
        count: impl Fn(&ProcessSample) -> u64,
    ) -> impl Iterator<Item = f64> {
        let pairs = self.of(role).zip(earlier.of(role));
        pairs.map(move |(now, before)| {
            let plural = count(now).saturating_sub(count(before));
            per_second(plural, (now.at - before.at).as_secs_f64())
        })
    }

    /// What all nodes have in this histogram.
    pub(crate) fn histogram(&self, of: fn(&ProcessCounts) -> &Buckets) -> Buckets {
        let nodes = self.of(Role::Consumer);
        nodes.fold(Buckets::default(), |sum, seen| sum.plus(of(&seen.counts)))
    }

    /// Share of one core that each process has used since `earlier`.
    #[must_use]
    pub fn cores_since(&self, earlier: &Self) -> Vec<f64> {
        let pairs = self.processes.iter().zip(&earlier.processes);
        pairs
            .map(|(now, before)| {
                let seconds = (now.at - before.at).as_secs_f64();
                let used = now.cpu.saturating_sub(before.cpu).as_secs_f64();
                if seconds > 0.0 { used / seconds } else { 0.0 }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::sleep,
    };

    use super::*;

    #[tokio::test]
    async fn process_that_answers_late_is_seen_when_it_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            role: Role::Producer,
            name: "late".to_owned(),
            process_id: std::process::id(),
            admin: Some(listener.local_addr().unwrap().to_string()),
        };
        let answers = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            sleep(Duration::from_millis(20)).await;
            let answered = Instant::now();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            answered
        };
        let mut observer = Observer::default();
        let targets = [target];
        let (seen, answered) = tokio::join!(observer.observe(&targets), answers);
        assert!(seen.at <= answered);
        assert!(seen.processes[0].at >= answered, "{seen:?}");
    }
}
