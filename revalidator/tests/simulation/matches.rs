//! Test that revalidates the matches of a DSP over several days, with a node and a producer on real sockets, a partner,
//! browsers, failures and kills.
//!
//! The node applies the rows sent to the producer as a store does: the newest time wins. It checks each row that changes a match.

#[path = "../../src/tests/server.rs"]
mod server;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use revalidator::{
    apps::App,
    messages::{AllowDelete, Asset, ServerState},
    origin::Origin,
    outcome::{Answer, Body, Response},
};
use serde_json::{Value, json};
use tokio::time::{advance, sleep, timeout};

use super::{
    fresh,
    harness::{START, Simulation, clock},
};

const USERS: usize = 300;
const DAYS: u64 = 6;
const HOUR: u64 = 3_600_000;

/// Age at which a match is checked, in hours.
const AFTER: u64 = 36;

/// Maximum difference between the clocks of two workers.
const SKEW: u64 = 5_000;

/// How the partner responds for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    Gone,
    /// With a uid that differs from that of the nodes.
    Moved,
    /// Missing on the first day, and for some users again later.
    Missing,
    Fresh,
}

struct User {
    truth: Truth,
    /// Its uid in the stores; `None` after a deletion.
    uid: Option<String>,
    /// Time of the match or of the deletion.
    time: u64,
    /// The last sync of a browser.
    synced: Option<u64>,
    /// `as_of` of the last page with the match, and the time at which the page was read.
    page: (u64, u64),
    /// Day of the last failure.
    failed_on: Option<u64>,
    /// Times of the responses of the partner, and whether the user was missing.
    responses: Vec<(u64, bool)>,
}

struct World {
    users: BTreeMap<String, User>,
    day: u64,
    random: fastrand::Rng,
    violations: Vec<String>,
    /// Rows that arrived too late, because a browser had synced the user.
    late: usize,
}

/// All servers but the broker; clones share them.
#[derive(Clone)]
struct Servers(Arc<Mutex<World>>);

fn partner_uid(truth: Truth, user: &str, day: u64) -> Option<String> {
    match truth {
        Truth::Gone => None,
        Truth::Missing
            if day == 0 || (day == 3 && ["02", "32", "62"].iter().any(|it| user.ends_with(it))) =>
        {
            None
        }
        Truth::Moved => Some(format!("new-{user}")),
        Truth::Missing | Truth::Fresh => Some(format!("old-{user}")),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let user = |number: usize| {
            let truth = match number % 10 {
                0 => Truth::Gone,
                1 => Truth::Moved,
                2 => Truth::Missing,
                _ => Truth::Fresh,
            };
            let name = format!("u{number:04}");
            let user = User {
                truth,
                uid: Some(format!("old-{name}")),
                time: START - 240 * HOUR,
                synced: None,
                page: (0, 0),
                failed_on: None,
                responses: Vec::new(),
            };
            (name, user)
        };
        Self {
            users: (0..USERS).map(user).collect(),
            day: 0,
            random: fastrand::Rng::with_seed(seed),
            violations: Vec::new(),
            late: 0,
        }
    }

    fn is_likely(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// Users whose match must be requested by a job that is created now, whatever fails.
    fn due(&self) -> Vec<String> {
        let last = |user: &User| {
            let confirmed = user.responses.iter().rfind(|(_, is_missing)| !is_missing);
            confirmed.map_or(user.time, |it| it.0.max(user.time))
        };
        // The note of a match is written after the response.
        let is_due = |user: &User| user.uid.is_some() && last(user) + (AFTER + 1) * HOUR <= clock();
        let due = self.users.iter().filter(|(_, user)| is_due(user));
        due.map(|(name, _)| name.clone()).collect()
    }

    fn sync(&mut self, name: &str) {
        let now = clock();
        let user = self.users.get_mut(name).unwrap();
        (user.uid, user.time) = (Some(format!("browser-{now}")), now);
        user.synced = Some(now);
    }

    /// Up to 100 matches after a user, in the order of users.
    fn page(&mut self, query: &str) -> String {
        let value = |name: &str| query.split(['?', '&']).find_map(|it| it.strip_prefix(name));
        let (now, as_of) = (clock(), clock() - 60_000);
        let before = value("before=").unwrap().parse::<u64>().unwrap().min(as_of);
        let after = value("next=").unwrap_or_default().to_owned();
        let rest = self.users.iter_mut().filter(|(name, _)| **name > after);
        let (mut lines, mut next) = (String::new(), Value::Null);
        for (index, (name, user)) in rest.enumerate() {
            if index == 100 {
                break;
            }
            next = if index == 99 {
                json!(name)
            } else {
                Value::Null
            };
            if let Some(uid) = user.uid.as_ref().filter(|_| user.time < before) {
                user.page = (as_of, now);
                lines += &format!("{}\n", json!({"u": name, "b": uid, "t": user.time}));
            }
        }
        lines + &json!({"next": next, "as_of": as_of}).to_string()
    }

    /// Applies a published row or a deletion.
    fn apply(&mut self, row: &Value) {
        let (name, time) = (row["u"].as_str().unwrap(), row["t"].as_u64().unwrap());
        let user = self.users.get_mut(name).unwrap();
        let mut violations = Vec::new();
        if time > user.page.0 {
            violations.push("the time is later than that of the page");
        }
        let uid = row["b"].as_str().map(ToOwned::to_owned);
        if uid.is_some() && user.truth == Truth::Fresh && user.synced.is_none() {
            violations.push("a confirmed match was written");
        }
        if time < user.time {
            self.late += 1;
        } else if (&uid, time) != (&user.uid, user.time) {
            if user.synced.is_some_and(|at| at > user.page.1) {
                violations.push("a newer sync of a browser was replaced");
            }
            let responses = user.responses.iter().filter(|it| it.0 > user.time);
            let missing = responses.rev().take_while(|(_, is_missing)| *is_missing);
            let first = missing.last().map_or(u64::MAX, |it| it.0);
            if uid.is_none() && first.saturating_add(24 * HOUR) > clock() + SKEW {
                violations.push("removed without two responses");
            }
            (user.uid, user.time) = (uid, time);
        }
        let (responses, synced) = (&user.responses, user.synced);
        let found = violations.iter().map(|violation| {
            format!("{name}: {violation}, {row}, synced {synced:?}, responses {responses:?}")
        });
        self.violations.extend(found);
    }

    fn respond(&mut self, request: &str) -> (u16, String) {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let path = head.split(' ').nth(1).unwrap();
        if self.is_likely(0.03) {
            return (503, String::new());
        }
        if path.starts_with("/v1/cookies?") {
            return (200, self.page(path));
        }
        let rows: Vec<Value> = body
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        rows.iter().for_each(|row| self.apply(row));
        // The response may be lost.
        let status = if self.is_likely(0.03) { 503 } else { 200 };
        (status, json!({"accepted": rows.len()}).to_string())
    }
}

impl Servers {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

/// The partner.
impl Origin for Servers {
    async fn request(&self, _: &App, asset: &Asset, _: bool) -> Answer {
        let time = Duration::from_millis(self.lock().random.u64(10..300));
        sleep(time).await;
        let mut world = self.lock();
        let day = world.day;
        let (fails, is_synced) = (world.is_likely(0.02), world.is_likely(0.03));
        let user = world.users.get_mut(&asset.key).unwrap();
        // The retry succeeds.
        if fails && user.failed_on.replace(day) != Some(day) {
            return Answer::None;
        }
        let uid = partner_uid(user.truth, &asset.key, day);
        user.responses.push((clock(), uid.is_none()));
        if is_synced {
            world.sync(&asset.key);
        }
        Answer::Response(Response {
            status: if uid.is_some() { 200 } else { 404 },
            time,
            body: Body::Complete(Bytes::from(json!({ "uid": uid }).to_string())),
            ..Response::default()
        })
    }
}

/// Runs a job each day, with kills; returns the number of rows that arrived too late.
async fn run(seed: u64) -> usize {
    let servers = Servers(Arc::new(Mutex::new(World::new(seed))));
    let shared = servers.clone();
    let respond = move |request: &str| {
        let (status, body) = shared.lock().respond(request);
        let length = body.len();
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let (address, _tasks) = server::serve(None, respond).await;
    let apps = format!(
        "[apps.dsp]\nkind = \"cookies\"\nhosts = [\"partner.example\"]\nallow_delete = \"partial\"\nworkers = 2\n\
         [apps.dsp.cookies]\ndsp = 17\nafter = \"{AFTER}h\"\nurl = \"https://partner.example/?u={{user}}\"\n\
         nodes = {{ urls = [\"http://{address}\"] }}\nproducers = {{ urls = [\"http://{address}\"] }}\n"
    );
    let mut simulation = Simulation::new(&apps, fresh);
    let mut random = fastrand::Rng::with_seed(seed);
    simulation.skew_clocks();
    simulation.model.set_latency(random.u64(0..20), seed);
    let mut makers = vec![simulation.maker(), simulation.maker()];
    let mut workers: Vec<_> = (0..2)
        .map(|_| simulation.worker_with(|_| servers.clone()))
        .collect();
    let mut dues = 0;
    for day in 0..DAYS {
        servers.lock().day = day;
        let id = format!("day-{day}");
        let (due, created) = (servers.lock().due(), clock());
        dues += due.len();
        simulation
            .list_job("dsp", &id, |new| new.allow_delete = AllowDelete::Partial)
            .await;
        for _ in 0..random.usize(0..3) {
            sleep(Duration::from_millis(random.u64(0..10_000))).await;
            if random.bool() {
                let index = random.usize(0..workers.len());
                workers.swap_remove(index).abort();
                workers.push(simulation.worker_with(|_| servers.clone()));
            } else {
                let index = random.usize(0..makers.len());
                makers.swap_remove(index).abort();
                makers.push(simulation.maker());
            }
        }
        let ended = timeout(Duration::from_secs(6 * 3600), simulation.wait_ended(&id)).await;
        let Ok(ended) = ended else {
            panic!("{:?}", simulation.status(&id).await);
        };
        assert_eq!(ended.server_state, ServerState::Finished, "{ended:?}");
        for name in due {
            let responses = &servers.lock().users[&name].responses;
            let is_requested = responses.last().is_some_and(|it| it.0 >= created);
            assert!(is_requested, "{name} on day {day}: {responses:?}");
        }
        let next = START + (day + 1) * 25 * HOUR;
        advance(Duration::from_millis(next - clock())).await;
    }
    // All matches are due on the first day, and most of them twice more.
    assert!(dues > 2 * USERS, "{dues}");
    let world = servers.lock();
    assert_eq!(world.violations, Vec::<String>::new());
    for (name, user) in world.users.iter().filter(|it| it.1.synced.is_none()) {
        let expected = partner_uid(user.truth, name, DAYS);
        assert_eq!(user.uid, expected, "{name}: {:?}", user.responses);
        if user.truth == Truth::Fresh {
            assert_eq!(user.time, START - 240 * HOUR, "{name}");
            let times = user.responses.windows(2).map(|it| it[1].0 - it[0].0);
            let times: Vec<_> = times.filter(|it| *it > HOUR).collect();
            // Shorter times are from repeated batches.
            let is_late = times.iter().all(|it| *it + SKEW >= AFTER * HOUR);
            assert!(is_late && !times.is_empty(), "{name}: {times:?}");
        }
    }
    world.late
}

/// `SIM_SEEDS=100..1000` runs other seeds.
#[test]
fn a12_browsers_win_and_nothing_is_removed_without_two_responses() {
    let seeds = std::env::var("SIM_SEEDS").unwrap_or_else(|_| "0..6".to_owned());
    let (first, end) = seeds.split_once("..").unwrap();
    let mut late = 0;
    for seed in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        println!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        late += runtime.unwrap().block_on(run(seed));
    }
    assert!(late > 0, "no browser was faster than a row");
}
