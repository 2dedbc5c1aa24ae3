//! A partner in the test process, and browsers that sync while the partner responds.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{admin, http_server::HttpServer};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

/// Number of users, enough for several pages of a node.
pub(super) const USERS: usize = 2_500;

/// Maximum wait for a browser, shorter than the timeout of a request.
const SYNC_WAIT: Duration = Duration::from_secs(3);

pub(super) fn user(number: usize) -> String {
    format!("user-{number:05}")
}

/// The job in which a browser syncs the user, before the partner responds for this user.
pub(super) fn job_of_sync(number: usize) -> Option<u32> {
    match (number % 250, number % 500) {
        (7, _) => Some(1),
        // The partner does not have this user.
        (_, 1) => Some(2),
        _ => None,
    }
}

/// The response of the partner. Of each fifty users, it has a new uid for the first, and does not have the second. It has the uid of a
/// browser only after the job during which the browser synced.
fn answer(number: usize, job: u32) -> (u16, Value) {
    let uid = match (number % 50, job_of_sync(number)) {
        (0, _) => format!("new-{number}"),
        (_, Some(sync)) if job > sync => "browser".to_owned(),
        (1, _) => return (404, Value::Null),
        (_, Some(_)) => "partner".to_owned(),
        _ => format!("old-{number}"),
    };
    (200, json!({ "uid": uid }))
}

/// A running partner.
pub(super) struct Partner {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    _server: HttpServer,
}

struct Shared {
    /// Address of the edge.
    producer: String,
    /// Admin addresses of the nodes.
    nodes: [String; 2],
    delay: Duration,
    job: Mutex<Job>,
    /// Syncs, which may take longer than the request that caused them.
    syncs: TaskTracker,
}

/// Requests and syncs during a job.
#[derive(Default)]
struct Job {
    /// Number of the job, from 1.
    number: u32,
    /// Number of requests by user.
    requests: BTreeMap<usize, usize>,
    /// Users whose sync both nodes have stored.
    synced: BTreeSet<usize>,
}

impl Partner {
    /// Browsers sync at `producer` until both `nodes` have stored the match.
    pub(super) async fn start(
        producer: String,
        nodes: [String; 2],
        delay: Duration,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            producer,
            nodes,
            delay,
            job: Mutex::default(),
            syncs: TaskTracker::new(),
        });
        let state = Arc::clone(&shared);
        let respond = move |request| Arc::clone(&state).respond(request);
        let server = HttpServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), respond);
        let server = server.await?;
        Ok(Self {
            address: server.address,
            shared,
            _server: server,
        })
    }

    /// Begins to count the requests of the next job.
    pub(super) fn begin_job(&self) {
        let mut job = self.shared.job();
        *job = Job {
            number: job.number + 1,
            ..Job::default()
        };
    }

    /// Requests of the job by user.
    pub(super) fn requests(&self) -> BTreeMap<usize, usize> {
        self.shared.job().requests.clone()
    }

    /// All requests of the job.
    pub(super) fn total(&self) -> usize {
        self.shared.job().requests.values().sum()
    }

    /// Users with a sync in the job that both nodes have stored.
    pub(super) fn synced(&self) -> usize {
        self.shared.job().synced.len()
    }
}

impl Shared {
    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request; returns the job, and whether a browser syncs first.
    fn arrive(&self, number: usize) -> (u32, bool) {
        let mut job = self.job();
        let requests = job.requests.entry(number).or_default();
        *requests += 1;
        let is_first = *requests == 1;
        let syncs = is_first && job_of_sync(number) == Some(job.number);
        (job.number, syncs)
    }

    /// A browser syncs a user until both nodes have stored it.
    async fn sync(self: Arc<Self>, number: usize) {
        let user = user(number);
        let attempt = async || -> Result<bool> {
            admin::sync(&self.producer, &user, 7, "browser").await?;
            for node in &self.nodes {
                let found = admin::get(node, &format!("/v1/users/{user}")).await?;
                if !found.body.contains("browser") {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        while !attempt().await.unwrap_or(false) {
            sleep(Duration::from_millis(50)).await;
        }
        self.job().synced.insert(number);
    }

    async fn respond<B>(self: Arc<Self>, request: Request<B>) -> Response<Full<Bytes>> {
        let number = request
            .uri()
            .query()
            .and_then(|it| it.strip_prefix("user=user-"));
        let number = number.and_then(|it| it.parse().ok()).expect("a user");
        let (job, syncs) = self.arrive(number);
        if syncs {
            let syncing = self.syncs.spawn(Arc::clone(&self).sync(number));
            timeout(SYNC_WAIT, syncing).await.ok();
        }
        sleep(self.delay).await;
        let (status, body) = answer(number, job);
        let mut response = Response::new(Full::new(body.to_string().into()));
        *response.status_mut() = StatusCode::from_u16(status).expect("a valid status");
        response
    }
}
