//! Observes the metrics, CPU time and memory of all processes of a cluster, and checks that the cookie counts of each process balance.
//!
//! Counters continue across restarts of a process. Counts between the last observation and a kill are lost. A process that
//! does not respond within 0.7 s, because it is suspended or overloaded, keeps its previous sample.

mod counts;
mod observation;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

pub use self::{
    counts::ProcessCounts,
    observation::{Observation, ProcessSample, Role},
};
use crate::{cpu, http::HttpClient, ledger, memory::Memory, scrape::Samples};

/// Timeout of a response: shorter than the interval between two observations.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(700);

/// A process to observe.
#[derive(Debug, Clone)]
pub struct Target {
    /// Role of the process.
    pub role: Role,
    /// Name in reports.
    pub name: String,
    /// Process id, which changes after a restart.
    pub process_id: u32,
    /// Address of the admin port, if any.
    pub admin: Option<String>,
}

/// Observes processes, and keeps all observations.
#[derive(Debug, Default)]
pub struct Observer {
    processes: Vec<MonitoredProcess>,
    observations: Vec<Observation>,
}

/// A process over its restarts.
#[derive(Debug)]
struct MonitoredProcess {
    process_id: u32,
    client: Option<HttpClient>,
    /// Totals of previous runs.
    cpu_before: Duration,
    counts_before: ProcessCounts,
    sample: ProcessSample,
    /// Number of scrapes with a balanced ledger, and the first error of an unbalanced one.
    balanced: u64,
    unbalanced: Option<String>,
}

impl Observer {
    /// Observes all processes. Only the process ids may differ between calls.
    pub async fn observe(&mut self, targets: &[Target]) -> &Observation {
        if self.processes.is_empty() {
            self.processes = targets.iter().map(MonitoredProcess::new).collect();
        }
        let at = Instant::now();
        let samples = self.processes.iter_mut().zip(targets);
        join_all(samples.map(|(process, target)| process.observe(target))).await;
        self.observations.push(Observation {
            at,
            processes: self
                .processes
                .iter()
                .map(|process| process.sample.clone())
                .collect(),
        });
        self.observations.last().expect("one was just pushed")
    }

    /// The first error of each process whose ledger did not balance.
    pub fn unbalanced(&self) -> impl Iterator<Item = String> {
        self.processes.iter().filter_map(|process| {
            let error = process.unbalanced.as_ref()?;
            Some(format!("{}: {error}", process.sample.name))
        })
    }

    /// Number of scrapes with a balanced ledger.
    pub fn balanced(&self) -> u64 {
        self.processes.iter().map(|it| it.balanced).sum()
    }

    /// All observations, in order of time.
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
            sample: ProcessSample {
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
            self.cpu_before = self.sample.cpu;
            self.counts_before = self.sample.counts.clone();
            self.sample.run = ProcessCounts::default();
        }
        if let Some(admin) = &target.admin {
            let response = timeout(RESPONSE_TIMEOUT, scrape(&mut self.client, admin));
            let Ok(Some(samples)) = response.await else {
                // The connection may be in the middle of a response.
                self.client = None;
                return;
            };
            match ledger::check(&samples) {
                Ok(()) => self.balanced += 1,
                Err(error) => {
                    self.unbalanced.get_or_insert_with(|| format!("{error:#}"));
                }
            }
            self.sample.run = ProcessCounts::read(&samples);
            self.sample.counts = self.counts_before.plus(&self.sample.run);
        }
        self.sample.at = Instant::now();
        if let Some(cpu) = cpu::of(self.process_id) {
            self.sample.cpu = self.cpu_before + cpu;
        }
        if let Some(memory) = Memory::of(self.process_id) {
            self.sample.memory = memory;
        }
    }
}

async fn scrape(client: &mut Option<HttpClient>, admin: &str) -> Option<Samples> {
    if client.is_none() {
        *client = HttpClient::connect(admin).await.ok();
    }
    let response = client.as_mut()?.get("/metrics", &[]).await.ok()?;
    (response.status == 200).then(|| Samples::parse(&response.body))
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
    async fn sample_has_the_time_of_the_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            role: Role::Producer,
            name: "slow".to_owned(),
            process_id: std::process::id(),
            admin: Some(listener.local_addr().unwrap().to_string()),
        };
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            sleep(Duration::from_millis(20)).await;
            let responded = Instant::now();
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(response).await.unwrap();
            responded
        };
        let mut observer = Observer::default();
        let targets = [target];
        let (observation, responded) = tokio::join!(observer.observe(&targets), server);
        assert!(observation.at <= responded);
        assert!(observation.processes[0].at >= responded, "{observation:?}");
    }
}
