//! The lease of one process: a task that renews its shares at the server, and the shares in effect at any time.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    member::{Member, SharePlan},
    messages::{Grant, LeaseReply, LeaseRequest, LimitShare},
    server::{Address, Link, ServerError, number, text},
    terms::Terms,
};

/// The script that keeps the ledger on the server.
pub const SCRIPT: &str = include_str!("lease.lua");

/// Maximum number of limits in a group. Each request covers all of them.
pub const LIMITS_MAX: usize = 1024;

/// The server's key for a group's ledger.
pub(crate) fn key(group: &str) -> String {
    format!("cookiesync:{{{group}}}:lease")
}

/// Consecutive failures after which the connection is closed. Errors other than timeouts close it immediately.
const FAILURES_MAX: u32 = 3;

/// Configuration of a member.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Address,
    /// Name of the group. All processes of the same group share their limits.
    pub group: String,
    /// Name of this process, unique among running processes of the group.
    pub member: String,
    /// The settings of the group.
    pub terms: Terms,
}

/// The code that enforces the shares of this process.
pub trait ShareUser: Send {
    /// Returns the share of each limit that could have been used since the last call, in millionths; above [`WHOLE`](crate::terms::WHOLE)
    /// if more calls arrive than the limit admits. The process releases its shares of all other limits.
    fn demands(&mut self) -> Vec<(String, u64)>;

    /// Applies a plan. After this returns, no earlier plan may be in use: the server gives released shares to others.
    fn apply(&mut self, plan: &Arc<SharePlan>);
}

/// Handle to the shares of this process.
#[derive(Debug)]
pub struct Lease {
    config: Config,
    began: Instant,
    wakes: Notify,
    plan: watch::Sender<Arc<SharePlan>>,
    /// Error of the last request, if it failed.
    error: watch::Sender<Option<String>>,
}

impl Lease {
    /// Creates a lease without any shares. [`run`](Self::run) requests them.
    pub fn new(config: Config) -> Arc<Self> {
        let nothing = Member::new(config.terms, &config.member, 0, 0);
        Arc::new(Self {
            config,
            began: Instant::now(),
            wakes: Notify::new(),
            plan: watch::Sender::new(Arc::new(nothing.plan().clone())),
            error: watch::Sender::default(),
        })
    }

    /// The time in plans: microseconds since this lease was created.
    pub fn micros(&self, at: Instant) -> u64 {
        Terms::micros(at.saturating_duration_since(self.began))
    }

    /// The current plan. It remains valid until a reply changes it.
    pub fn plan(&self) -> Arc<SharePlan> {
        Arc::clone(&self.plan.borrow())
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Error of the last request, if it failed.
    pub fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// Sends a request immediately, for instance when limits were added.
    pub fn refresh_now(&self) {
        self.wakes.notify_one();
    }

    /// Renews the shares until `stop`, then leaves the group and uses nothing.
    pub async fn run(self: Arc<Self>, mut user: impl ShareUser, stop: CancellationToken) {
        let Config {
            server,
            group,
            member,
            terms,
        } = &self.config;
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut member = Member::new(*terms, member, Terms::micros(since_epoch), 0);
        let key = key(group);
        let refresh = Duration::from_micros(terms.refresh);
        let mut link = None;
        let mut failures = 0;
        let (mut measured, mut confirms) = (Instant::now(), false);
        loop {
            let began = Instant::now();
            let work = async {
                if link.is_none() {
                    link = Some(Link::open(server, SCRIPT, group, refresh).await?);
                }
                let link = link.as_ref().expect("the link was opened");
                // Between a reply and its confirmation, too few calls arrive to measure a demand.
                if !confirms || measured.elapsed() >= refresh {
                    measured = Instant::now();
                    member.set_demands(user.demands());
                }
                self.refresh(link, &key, &mut member, &mut user).await
            };
            let Some(outcome) = stop.run_until_cancelled(work).await else {
                break;
            };
            confirms = match outcome {
                Ok(released_share) => {
                    failures = 0;
                    released_share
                }
                Err(error) => {
                    failures += 1;
                    if failures >= FAILURES_MAX || !matches!(error, ServerError::Timeout(_)) {
                        link = None;
                    }
                    self.record_result(Some(&error));
                    false
                }
            };
            // Jitter spreads the requests of all members. A member that released a share confirms it soon.
            let pause = match confirms {
                true => refresh / 20,
                false => refresh
                    .mul_f64(0.95 + 0.1 * fastrand::f64())
                    .saturating_sub(began.elapsed()),
            };
            let pause = timeout(pause, self.wakes.notified());
            let Some(paused) = stop.run_until_cancelled(pause).await else {
                break;
            };
            confirms &= paused.is_err();
        }
        let request = member.leave();
        self.publish(&member, &mut user);
        if let Some(link) = link
            && let Err(error) = send(&link, &key, terms, &request).await
        {
            tracing::warn!(%error, "failed to leave the sharing group; this process's share stays reserved until `forget_after` elapses");
        }
    }

    /// Sends one request and applies the reply. Returns whether it released a share, so that a confirmation should follow.
    async fn refresh(
        &self,
        link: &Link,
        key: &str,
        member: &mut Member,
        user: &mut impl ShareUser,
    ) -> Result<bool, ServerError> {
        let before = member.plan().clone();
        let request = member.request(self.micros(Instant::now()));
        let reply = send(link, key, &self.config.terms, &request).await?;
        let now = self.micros(Instant::now());
        if !member.receive(request.number, reply, now) {
            let timeout = Duration::from_micros(self.config.terms.timeout);
            return Err(ServerError::Timeout(timeout));
        }
        self.record_result(None);
        let was_refused = before.refused().is_some();
        if let Some(reply) = member.plan().refused().filter(|_| !was_refused) {
            let reason = match reply {
                LeaseReply::Full => {
                    "group already has members_max members (including ones that did not shut down cleanly)"
                }
                LeaseReply::TermsMismatch => "[sharing] settings differ from those of the group",
                _ => "another process uses the same member name",
            };
            tracing::error!(reason, group = %self.config.group, "sharing server rejected this process; its share of every shared limit is 0");
        }
        self.publish(member, user);
        Ok(member.has_released_share(&before, now))
    }

    fn publish(&self, member: &Member, user: &mut impl ShareUser) {
        let plan = Arc::new(member.plan().clone());
        user.apply(&plan);
        self.plan.send_replace(plan);
    }

    fn record_result(&self, error: Option<&ServerError>) {
        let server = &self.config.server;
        let before = self.error.send_replace(error.map(ToString::to_string));
        match (before, error) {
            (None, Some(error)) => {
                tracing::warn!(%server, %error, "sharing server unavailable, retrying");
            }
            (Some(_), None) => tracing::info!(%server, "sharing server available again"),
            _ => {}
        }
    }
}

async fn send(
    link: &Link,
    key: &str,
    terms: &Terms,
    request: &LeaseRequest,
) -> Result<LeaseReply, ServerError> {
    let within = Duration::from_micros(terms.timeout);
    let values = link
        .run(&[key.to_owned()], &arguments(terms, request), within)
        .await?;
    read(&values)
}

/// The arguments of [`SCRIPT`] for a request.
pub fn arguments(terms: &Terms, request: &LeaseRequest) -> Vec<String> {
    let times = [
        terms.refresh,
        terms.ttl(),
        terms.timeout,
        terms.forget_after,
        terms.members_max,
    ];
    let numbers = [
        request.instance,
        request.number,
        request.applied,
        u64::from(request.leaves),
    ];
    let mut arguments: Vec<String> = times.iter().map(u64::to_string).collect();
    arguments.push(request.member.clone());
    arguments.extend(numbers.iter().map(u64::to_string));
    for it in &request.limits {
        arguments.push(it.limit.clone());
        let numbers = [it.in_use, it.fallback, it.demand];
        arguments.extend(numbers.iter().map(u64::to_string));
    }
    arguments
}

/// Parses a reply of [`SCRIPT`].
///
/// # Errors
/// [`ServerError::Form`] if the reply is malformed.
pub fn read(values: &[Value]) -> Result<LeaseReply, ServerError> {
    let shares = values.get(5..).unwrap_or_default().chunks(4).map(|share| {
        Ok(LimitShare {
            lease: number(share.first())?,
            fallback: number(share.get(1))?,
            total: number(share.get(2))?,
            reserved: number(share.get(3))?,
        })
    });
    Ok(match text(values.first())? {
        "granted" => LeaseReply::Granted(Grant {
            is_learning: number(values.get(3))? == 1,
            members: number(values.get(4))?,
            shares: shares.collect::<Result<_, ServerError>>()?,
        }),
        "stale" => LeaseReply::Stale,
        "replaced" => LeaseReply::Replaced(number(values.get(4))?),
        "full" => LeaseReply::Full,
        "terms" => LeaseReply::TermsMismatch,
        _ => return Err(ServerError::Form),
    })
}
