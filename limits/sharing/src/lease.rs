//! The lease of one process: a task that asks the server for its shares again and again, and what holds meanwhile.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use redis::Value;
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    member::{Member, Plan, State},
    messages::{Answer, Granted, Question, Share},
    server::{Address, Link, ServerError, number, text},
    terms::Terms,
};

/// The ledger, as the server keeps it.
pub const SCRIPT: &str = include_str!("lease.lua");

/// Most limits that one group may have: one question is for all of them.
pub const LIMITS_MAX: usize = 1024;

/// Where the server keeps what it knows of a group.
pub(crate) fn key(group: &str) -> String {
    format!("cookiesync:{{{group}}}:lease")
}

/// How many answers may be missing before the connection is given up.
const MISSED_MAX: u32 = 3;

/// What a process needs to take part.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Address,
    /// Whose limits these are: all processes with this name share them.
    pub group: String,
    /// The name of this process, which no other has at the same time.
    pub member: String,
    /// What all agree on.
    pub terms: Terms,
}

/// How it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Questions that were answered.
    pub answered: u64,
    /// Questions that were not, or not in time.
    pub missed: u64,
    /// Why the last one was not; none when it was.
    pub error: Option<String>,
}

/// Who uses the shares of a process.
pub trait User: Send {
    /// What each limit could use since this was asked last, in millionths of it: more than the whole when more comes than may go. Limits that are not
    /// named are not shared any more.
    fn demands(&mut self) -> Vec<(String, u64)>;

    /// From the return of this on, nothing goes by an earlier plan: the server is told so, and others use what was given up.
    fn apply(&mut self, plan: &Arc<Plan>);
}

/// The shares of this process; clones are of the same.
#[derive(Debug, Clone)]
pub struct Lease {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    began: Instant,
    asks_now: Notify,
    plan: Mutex<Arc<Plan>>,
    health: Mutex<Health>,
}

impl Lease {
    /// Of a process that has not asked yet: [`run`](Self::run) does.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let nothing = Member::new(config.terms, &config.member, 0, 0);
        let plan = Mutex::new(Arc::new(nothing.plan().clone()));
        Self {
            shared: Arc::new(Shared {
                config,
                began: Instant::now(),
                asks_now: Notify::new(),
                plan,
                health: Mutex::default(),
            }),
        }
    }

    /// The time that plans go by.
    #[must_use]
    pub fn micros(&self, at: Instant) -> u64 {
        Terms::micros(at.saturating_duration_since(self.shared.began))
    }

    /// What holds now, and at every later moment until an answer changes it.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.lock_plan())
    }

    /// What it was started with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// How it goes.
    #[must_use]
    pub fn health(&self) -> Health {
        self.lock_health().clone()
    }

    /// Has it ask at once: there are limits of which it has no share yet.
    pub fn ask_now(&self) {
        self.shared.asks_now.notify_one();
    }

    /// Asks until `stop`, and says goodbye: then nothing is used any more.
    pub async fn run(self, mut user: impl User, stop: CancellationToken) {
        let Config {
            server,
            group,
            member,
            terms,
        } = &self.shared.config;
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut member = Member::new(*terms, member, Terms::micros(since_epoch), 0);
        let key = key(group);
        let refresh = Duration::from_micros(terms.refresh);
        let mut link = None;
        let mut missed = 0;
        loop {
            let began = Instant::now();
            let work = async {
                if link.is_none() {
                    link = Some(Link::open(server, SCRIPT, group, refresh).await?);
                }
                let link = link.as_ref().expect("it was opened");
                self.refresh(link, &key, &mut member, &mut user).await
            };
            let Some(outcome) = stop.run_until_cancelled(work).await else {
                break;
            };
            let asks_again = match outcome {
                Ok(asks_again) => {
                    missed = 0;
                    asks_again
                }
                Err(error) => {
                    missed += 1;
                    if missed >= MISSED_MAX || !matches!(error, ServerError::Timeout(_)) {
                        link = None;
                    }
                    self.note(Some(&error));
                    // Not again and again: two nodes may each take the other for the one.
                    missed == 1 && matches!(error, ServerError::Moved)
                }
            };
            // So that not all ask at once, nor the one that gave something up too soon again.
            let pause = match asks_again {
                true => refresh / 20,
                false => refresh
                    .mul_f64(0.95 + 0.1 * fastrand::f64())
                    .saturating_sub(began.elapsed()),
            };
            let pause = timeout(pause, self.shared.asks_now.notified());
            if stop.run_until_cancelled(pause).await.is_none() {
                break;
            }
        }
        let goodbye = member.leave();
        self.publish(&member, &mut user);
        if let Some(link) = link {
            let answer = ask(&link, &key, terms, &goodbye).await;
            if let Err(error) = answer {
                tracing::warn!(%error, "failed to leave the sharing group; this process's share stays reserved until forget_after expires");
            }
        }
    }

    /// One question; whether another should follow at once.
    async fn refresh(
        &self,
        link: &Link,
        key: &str,
        member: &mut Member,
        user: &mut impl User,
    ) -> Result<bool, ServerError> {
        member.want(user.demands());
        let before = member.plan().clone();
        let question = member.ask(self.micros(Instant::now()));
        let answer = ask(link, key, &self.shared.config.terms, &question).await?;
        let now = self.micros(Instant::now());
        if !member.hear(question.number, answer, now) {
            return Err(ServerError::Timeout(Duration::from_micros(
                self.shared.config.terms.timeout,
            )));
        }
        self.note(None);
        if let Some(why) = member
            .plan()
            .refused()
            .filter(|_| before.refused().is_none())
        {
            let why = match why {
                Answer::Full => {
                    "group already has members_max members (including ones that did not shut down cleanly)"
                }
                Answer::OtherTerms => "others go by other settings of [sharing]",
                _ => "a later process has this name",
            };
            tracing::error!(why, group = %self.shared.config.group, "server of shared limits rejected this process; it releases nothing under shared limits");
        }
        self.publish(member, user);
        Ok(member.gave_up_some(&before, now))
    }

    fn publish(&self, member: &Member, user: &mut impl User) {
        let plan = Arc::new(member.plan().clone());
        user.apply(&plan);
        *self.lock_plan() = plan;
    }

    fn note(&self, error: Option<&ServerError>) {
        let mut health = self.lock_health();
        let before = health.error.take();
        let server = &self.shared.config.server;
        match error {
            Some(error) => {
                health.missed += 1;
                if before.is_none() {
                    tracing::warn!(%server, %error, "server of shared limits unavailable, retrying");
                }
                health.error = Some(error.to_string());
            }
            None => {
                health.answered += 1;
                if before.is_some() {
                    tracing::info!(%server, "server of shared limits is back");
                }
            }
        }
    }

    fn lock_plan(&self) -> MutexGuard<'_, Arc<Plan>> {
        let plan = self.shared.plan.lock();
        plan.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.shared
            .health
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How the process stands now.
    #[must_use]
    pub fn state(&self) -> State {
        let now = self.micros(Instant::now());
        self.plan().state(now)
    }
}

async fn ask(
    link: &Link,
    key: &str,
    terms: &Terms,
    question: &Question,
) -> Result<Answer, ServerError> {
    let within = Duration::from_micros(terms.timeout);
    let values = link
        .run(&[key.to_owned()], &arguments(terms, question), within)
        .await?;
    read(&values)
}

/// A question in the form that [`SCRIPT`] takes.
#[must_use]
pub fn arguments(terms: &Terms, question: &Question) -> Vec<String> {
    let times = [
        terms.refresh,
        terms.ttl,
        terms.timeout,
        terms.forget_after,
        terms.members_max,
    ];
    let numbers = [
        question.instance,
        question.number,
        question.applied,
        u64::from(question.leaves),
    ];
    let mut arguments: Vec<String> = times.iter().map(u64::to_string).collect();
    arguments.push(question.member.clone());
    arguments.extend(numbers.iter().map(u64::to_string));
    for ask in &question.limits {
        arguments.push(ask.limit.clone());
        arguments.extend([ask.held, ask.safe, ask.demand].iter().map(u64::to_string));
    }
    arguments
}

/// The answer of [`SCRIPT`].
///
/// # Errors
/// When it has another form.
pub fn read(values: &[Value]) -> Result<Answer, ServerError> {
    let shares = values.get(5..).unwrap_or_default().chunks(4).map(|share| {
        Ok(Share {
            lease: number(share.first())?,
            safe: number(share.get(1))?,
            sum: number(share.get(2))?,
            unknown: number(share.get(3))?,
        })
    });
    Ok(match text(values.first())? {
        "granted" => Answer::Granted(Granted {
            is_learning: number(values.get(3))? == 1,
            members: number(values.get(4))?,
            shares: shares.collect::<Result<_, ServerError>>()?,
        }),
        "stale" => Answer::Stale,
        "replaced" => Answer::Replaced(number(values.get(4))?),
        "full" => Answer::Full,
        "terms" => Answer::OtherTerms,
        _ => return Err(ServerError::Form),
    })
}
