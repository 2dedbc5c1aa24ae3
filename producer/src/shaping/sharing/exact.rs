//! A server decides when cookies go. It is asked beside the work of the rooms.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use limits::rules::{Mode, Rules, Sharing, SharingMode};
use limits_sharing::{
    Address,
    exact::{Config, Exact, Rule},
};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::Standing;
use crate::shaping::{Shaping, room::Giver};

/// What a server cannot decide on, though the rules are in order.
pub(super) fn check(rules: &Rules, sharing: &Sharing) -> Vec<String> {
    let mut mistakes = Vec::new();
    if let Err(mistake) = Address::of(sharing).and_then(|it| it.check()) {
        mistakes.push(mistake);
    }
    for limit in &rules.limits {
        let name = &limit.name;
        if limit.handling.mode == Mode::Police && !limit.every_call {
            mistakes.push(format!(
                "limits.{name}: mode: what is policed goes or is dropped at once, and the server's decision comes later: \
                 shape it, or share it by sharing.mode = \"lease\""
            ));
        }
        for rule in &limit.rules {
            let id = &rule.id;
            if let Err(error) = Rule::of(&rule.limit) {
                mistakes.push(format!("limits.{name}: {id}: {error}"));
            }
            let parts = sharing.members_max.unwrap_or(1);
            if let Err(error) = rule.limit.algorithm.part(parts) {
                mistakes.push(format!(
                    "limits.{name}: {id}: the part of it that each of {parts} goes by without the server is too small ({error}): \
                     without sharing.members_max nothing goes then"
                ));
            }
        }
    }
    mistakes
}

/// Whether a server decides.
pub(in crate::shaping) fn is_exact(rules: &Rules) -> bool {
    let sharing = rules.sharing.as_ref();
    sharing.is_some_and(|it| it.mode == SharingMode::Exact)
}

/// The server of a file, if it says that one decides; for the whole of the run.
pub(in crate::shaping) fn server(rules: &Rules) -> Option<Arc<Server>> {
    let sharing = rules.sharing.as_ref().filter(|_| is_exact(rules))?;
    let address = Address::of(sharing).expect("the file was checked");
    Some(Arc::new(Server {
        address: address.to_string(),
        exact: Exact::new(Config {
            server: address,
            group: sharing.group.clone(),
            budget: sharing.timeout,
        }),
        missed: AtomicU64::new(0),
        has_questions: Notify::new(),
    }))
}

/// A server that decides.
#[derive(Debug)]
pub(in crate::shaping) struct Server {
    address: String,
    exact: Exact,
    /// Questions without an answer.
    missed: AtomicU64,
    has_questions: Notify,
}

impl Server {
    pub(in crate::shaping) fn is_there(&self) -> bool {
        self.exact.has_server()
    }

    /// Has it ask what there is to ask.
    pub(in crate::shaping) fn wake(&self) {
        self.has_questions.notify_one();
    }

    /// Keeps the connection and asks until `stop`.
    pub(super) async fn run(self: Arc<Self>, shaping: Shaping, stop: CancellationToken) {
        let asking = stop.run_until_cancelled(self.ask(&shaping));
        tokio::join!(self.exact.run(stop.clone()), asking);
    }

    async fn ask(self: &Arc<Self>, shaping: &Shaping) {
        let mut calls = JoinSet::new();
        loop {
            for question in shaping.questions() {
                let server = Arc::clone(self);
                calls.spawn(async move {
                    let reserve = limits_sharing::exact::Question::Reserve {
                        horizon: question.horizon,
                    };
                    let asked = server.exact.ask(&question.asks, reserve, Duration::ZERO);
                    (asked.await, question)
                });
            }
            tokio::select! {
                Some(ended) = calls.join_next() => {
                    let (answer, question) = ended.expect("a call does not panic");
                    if answer.is_err() {
                        self.missed.fetch_add(1, Ordering::Relaxed);
                    }
                    shaping.answered(&question, answer.as_ref().map_err(|lost| *lost));
                }
                () = self.has_questions.notified() => {}
            }
        }
    }

    pub(super) fn standing(&self, giver: Giver) -> Standing {
        let state = match giver {
            Giver::Server => "ok",
            Giver::Here => "safe",
            Giver::Nobody => "floor",
        };
        Standing {
            server: self.address.clone(),
            state,
            missed: self.missed.load(Ordering::Relaxed),
            error: None,
            group: None,
            shares: Vec::new(),
            decided: Some(self.exact.answered()),
        }
    }
}
