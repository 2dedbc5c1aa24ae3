//! A simulated client of a producer's API: bulk syncs with times, deletions and their receipts, and lookups at consumers.
//!
//! Some users send no syncs, so their final state depends only on the client's last requests.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use proto::units::DspId;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    UNPOISONED, check,
    hosts::{Process, request},
    load::{History, Pair, SyncRequest, now},
    network::{ADMIN, API},
    plan::{Load, millis},
    store::Disk,
    trace,
};

/// Earliest time of a row. The table of stored cookies counts seconds from 1, and a run begins at the Unix epoch.
const EARLIEST_MILLIS: u64 = 1_000;

/// Timeout of a request. A deletion waits two seconds for a node.
const TIMEOUT: Duration = Duration::from_secs(8);

/// The first of the users without browsers. All clients share these users.
const SHARED_USERS: u64 = 1_000;

/// The first user that only occurs in a deletion.
const UNKNOWN_USERS: u64 = 1_000_000;

/// Deletions that fill the smallest table of a consumer.
const FLOOD: u64 = 130;

/// The client of one producer.
pub(crate) struct ApiClient {
    pub(crate) producer: usize,
    pub(crate) process: Arc<Process>,
    pub(crate) load: Load,
    /// Mean pause between two requests.
    pub(crate) pause_millis: u64,
    /// Whether the client may fill the deletion tables of consumers.
    pub(crate) floods: bool,
    pub(crate) consumers: Vec<Arc<Process>>,
    pub(crate) disks: Vec<Arc<Mutex<Disk>>>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) random: Rng,
    /// The last sync of each pair that this client sent.
    pub(crate) last: BTreeMap<Pair, usize>,
    pub(crate) receipts: Vec<Receipt>,
}

/// A receipt and the numbers of its deletions.
#[derive(Debug, Clone)]
pub(crate) struct Receipt {
    text: String,
    pub(crate) deletions: Vec<usize>,
}

impl ApiClient {
    /// Sends requests until the end of the load.
    pub(crate) async fn run(mut self) {
        while now() < self.load.until {
            let pause = self.random.u64(0..=2 * self.pause_millis);
            sleep(millis(pause)).await;
            let sent = timeout(TIMEOUT, self.send_some()).await;
            let error = sent.map_or(Some("timeout".to_owned()), |sent| {
                sent.err().map(|error| error.to_string())
            });
            if let Some(error) = error {
                trace::record("api client", error);
            }
        }
    }

    async fn send_some(&mut self) -> io::Result<()> {
        match self.random.u32(0..100) {
            0..30 => self.add_random().await,
            30..50 => {
                let scope = self.scope();
                self.delete(scope).await
            }
            50..70 => self.delete_and_add().await,
            70..80 => self.tie().await,
            80..90 => self.check_receipt().await,
            _ => self.look_up().await,
        }
    }

    /// The time of the producer's clock, in milliseconds.
    fn clock_millis(&self) -> u64 {
        let time = now() + self.process.clock_ahead;
        u64::try_from(time.as_millis()).expect("minutes")
    }

    fn pair(&mut self) -> Pair {
        let own = SHARED_USERS + 100 * (self.producer as u64 + 1);
        let user = match self.random.u32(0..4) {
            0 => self.random.u64(0..self.load.users),
            1 => SHARED_USERS + self.random.u64(0..2),
            _ => own + self.random.u64(0..3),
        };
        let dsp = DspId(self.random.u32(1..=3));
        Pair { user, dsp }
    }

    fn scope(&mut self) -> Pair {
        let pair = self.pair();
        match self.random.u32(0..40) {
            0 => Pair {
                user: Pair::ALL_USERS,
                ..pair
            },
            1..15 => Pair {
                dsp: DspId::NONE,
                ..pair
            },
            _ => pair,
        }
    }

    /// A random time for a request: missing, past or future.
    fn time(&mut self) -> Option<u64> {
        let now = self.clock_millis();
        match self.random.u32(0..6) {
            0..2 => None,
            2 => Some(now + self.random.u64(1..60_000)),
            3 => Some(now),
            _ => Some(
                now.saturating_sub(self.random.u64(0..15_000))
                    .max(EARLIEST_MILLIS),
            ),
        }
    }

    async fn add_random(&mut self) -> io::Result<()> {
        let rows = (0..self.random.u32(1..=5)).map(|_| (self.pair(), self.time(), None));
        let rows: Vec<_> = rows.collect();
        self.add(&rows).await
    }

    /// Deletes a pair and then sends older cookies and the same cookie again.
    async fn delete_and_add(&mut self) -> io::Result<()> {
        let pair = self.pair();
        let user = Pair {
            dsp: DspId::NONE,
            ..pair
        };
        let scope = self.random.choice([pair, pair, user]).unwrap_or(pair);
        let before = self.clock_millis();
        self.delete(scope).await?;
        let pause = self.random.u64(0..600);
        sleep(millis(pause)).await;
        let mut rows = Vec::new();
        if self.random.bool() {
            rows.push((
                pair,
                Some(before.saturating_sub(10).max(EARLIEST_MILLIS)),
                None,
            ));
        }
        if self.random.bool() {
            rows.push((pair, None, self.last.get(&pair).copied()));
        }
        self.add(&rows).await
    }

    /// Sends cookies and a deletion with the same time, in any order.
    async fn tie(&mut self) -> io::Result<()> {
        let pair = self.pair();
        let millis = self.clock_millis() - self.random.u64(0..900);
        let row = [(pair, Some(millis), None)];
        if self.random.bool() {
            self.add(&row).await?;
        }
        self.delete_at(pair, millis).await?;
        for _ in 0..self.random.u32(0..3) {
            let pause = self.random.u64(0..3_000);
            sleep(Duration::from_millis(pause)).await;
            self.add(&row).await?;
        }
        Ok(())
    }

    /// Sends cookies. A row has a pair, a time, and the number of the sync whose buyer uid it repeats.
    async fn add(&mut self, rows: &[(Pair, Option<u64>, Option<usize>)]) -> io::Result<()> {
        let incarnation = self.process.incarnation();
        let clock = self.clock_millis();
        let (mut numbers, mut body) = (Vec::new(), String::new());
        for &(pair, time, value) in rows {
            let mut history = self.history.lock().expect(UNPOISONED);
            let connection = history.connect();
            let number = history.send(SyncRequest {
                value: value.unwrap_or(usize::MAX),
                dated: time.filter(|it| *it <= clock).map(|millis| millis * 1_000),
                ..SyncRequest::new(pair, self.producer, incarnation, connection)
            });
            let value = history.syncs[number].value;
            let mut row = json!({ "u": pair.user_text(), "d": pair.dsp, "b": format!("b{value}") });
            if let Some(millis) = time {
                row["t"] = millis.into();
            }
            body += &format!("{row}\n");
            numbers.push(number);
            self.last.insert(pair, value);
        }
        if numbers.is_empty() {
            return Ok(());
        }
        let (status, response) = self.post("/v1/cookies", &body).await?;
        match status {
            200 => self.answered(&numbers),
            429 | 503 => {}
            _ => self.reject(format!("{status} {response} to {body}")),
        }
        Ok(())
    }

    async fn delete(&mut self, scope: Pair) -> io::Result<()> {
        let path = match scope {
            Pair {
                user: Pair::ALL_USERS,
                dsp,
            } => format!("/v1/dsps/{dsp}?confirm={dsp}"),
            Pair {
                dsp: DspId::NONE, ..
            } => format!("/v1/users/{}", scope.user_text()),
            Pair { dsp, .. } => format!("/v1/users/{}/dsps/{dsp}", scope.user_text()),
        };
        let number = self.send_deletion(scope, None);
        let head =
            format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let parts = [head.as_bytes()];
        let (status, body) = request(&self.process.name, API, &parts, Duration::ZERO).await?;
        self.deleted(vec![number], status, &body);
        Ok(())
    }

    /// Deletes a pair with a time, and maybe users that fill the tables.
    async fn delete_at(&mut self, pair: Pair, millis: u64) -> io::Result<()> {
        let number = self.send_deletion(pair, Some(millis * 1_000));
        let mut rows = json!({ "u": pair.user_text(), "d": pair.dsp, "t": millis }).to_string();
        if self.floods {
            for _ in 0..FLOOD {
                let user = UNKNOWN_USERS + self.random.u64(0..1_000_000);
                rows += &format!("\n{}", json!({ "u": format!("u{user}"), "t": millis }));
            }
        }
        let (status, body) = self.post("/v1/deletions", &rows).await?;
        self.deleted(vec![number], status, &body);
        Ok(())
    }

    fn send_deletion(&self, scope: Pair, dated: Option<u64>) -> usize {
        let mut history = self.history.lock().expect(UNPOISONED);
        let connection = history.connect();
        let incarnation = self.process.incarnation();
        history.send(SyncRequest {
            is_deletion: true,
            dated,
            ..SyncRequest::new(scope, self.producer, incarnation, connection)
        })
    }

    fn deleted(&mut self, deletions: Vec<usize>, status: u16, body: &str) {
        let response: Value = serde_json::from_str(body).unwrap_or_default();
        match (status, response["receipt"].as_str()) {
            (202, Some(receipt)) => {
                self.answered(&deletions);
                if response["at_risk"] == false {
                    let history = self.history.lock().expect(UNPOISONED);
                    let checked = check::deletions::is_durable(self, &history, &deletions);
                    drop(history);
                    self.note(checked);
                }
                self.receipts.push(Receipt {
                    text: receipt.to_owned(),
                    deletions,
                });
            }
            (429 | 503, _) => {}
            _ => self.reject(format!("{status} {body} to a deletion")),
        }
    }

    async fn check_receipt(&mut self) -> io::Result<()> {
        let receipts = self.receipts.len();
        // The state of the latest receipts still changes.
        let recent = receipts.saturating_sub(self.random.usize(1..=3));
        let Some(receipt) = self.receipts.get(recent).cloned() else {
            return Ok(());
        };
        let path = format!("/v1/receipts/{}", receipt.text);
        let (status, body) = get(&self.process.name, API, &path).await?;
        if status != 200 {
            self.reject(format!("{status} {body} to {path}"));
            return Ok(());
        }
        let history = self.history.lock().expect(UNPOISONED);
        let checked = check::deletions::receipt(self, &history, &receipt, &body);
        drop(history);
        self.note(checked);
        Ok(())
    }

    /// Looks up a user at a consumer, preferably one whose deletion was sent recently.
    async fn look_up(&mut self) -> io::Result<()> {
        let at = self.random.usize(0..self.consumers.len());
        let user = {
            let history = self.history.lock().expect(UNPOISONED);
            let deletions = history.syncs.iter().rev().filter(|it| it.is_deletion);
            let users = deletions.map(|it| it.pair.user).take(8);
            let users: Vec<u64> = users.filter(|user| *user != Pair::ALL_USERS).collect();
            self.random.choice(users)
        };
        let user = user.unwrap_or_else(|| self.pair().user);
        let (id, deleted) = {
            let disk = self.disks[at].lock().expect(UNPOISONED);
            (disk.id, check::deletions::deleted(&disk, user))
        };
        let host = self.consumers[at].name.clone();
        let (status, body) = get(&host, ADMIN, &format!("/v1/users/u{user}")).await?;
        let disk = self.disks[at].lock().expect(UNPOISONED);
        if disk.id != id {
            return Ok(());
        }
        let checked = check::deletions::lookup(&disk, user, deleted, status, &body);
        drop(disk);
        self.note(checked.map_err(|error| error.context(host)));
        Ok(())
    }

    async fn post(&mut self, path: &str, body: &str) -> io::Result<(u16, String)> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let (first, last) = body.as_bytes().split_at(self.random.usize(0..=body.len()));
        let pause = match self.random.u32(0..3) {
            0 => self.random.u64(0..3_000),
            _ => 0,
        };
        let parts = [head.as_bytes(), first, last];
        request(&self.process.name, API, &parts, millis(pause)).await
    }

    fn answered(&self, numbers: &[usize]) {
        let mut history = self.history.lock().expect(UNPOISONED);
        for number in numbers {
            history.syncs[*number].answered_at = Some(now());
        }
    }

    fn note(&self, checked: anyhow::Result<()>) {
        if let Err(error) = checked {
            self.reject(format!("at {:?}: {error:#}", now()));
        }
    }

    fn reject(&self, violation: String) {
        let mut history = self.history.lock().expect(UNPOISONED);
        history.rejections.push(violation);
    }
}

async fn get(host: &str, port: u16, path: &str) -> io::Result<(u16, String)> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    request(host, port, &[head.as_bytes()], Duration::ZERO).await
}
