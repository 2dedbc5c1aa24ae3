//! What is read of a group of a real server: who has which share, and how each stands. Without a server program, nothing is tested.

#![allow(
    clippy::unwrap_used,
    reason = "a test, in which all that fails is a failure"
)]

mod server;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use limits_sharing::{
    lease::{Config, Lease, User},
    member::{Plan, State},
    shares::{self, Held},
    terms::{Terms, WHOLE},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::server::Server;

/// Wants so much of one limit, always.
struct Wants(u64);

impl User for Wants {
    fn demands(&mut self) -> Vec<(String, u64)> {
        vec![("contract".to_owned(), self.0)]
    }

    fn apply(&mut self, _plan: &Arc<Plan>) {}
}

/// Reads until it is so; whatever is read on the way, no limit is given more than once.
async fn until(server: &Server, what: &str, holds: impl Fn(&[(Held, State)]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let held = shares::read(&server.address(), "test").await.unwrap();
        let sum: u64 = held.iter().map(|(it, _)| it.share).sum();
        assert!(sum <= WHOLE, "{held:?}");
        if holds(&held) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {held:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_of_all_members_are_read_and_not_changed() {
    let Some(server) = Server::start().await else {
        return;
    };
    assert_eq!(shares::read(&server.address(), "test").await.unwrap(), []);
    let refresh = 300_000;
    let terms = Terms {
        refresh,
        ttl: 3 * refresh,
        ..Terms::default()
    };
    let mut members = JoinSet::new();
    let stop = CancellationToken::new();
    for (member, wants) in [("busy", 2 * WHOLE), ("idle", WHOLE / 10)] {
        let lease = Lease::new(Config {
            server: server.address(),
            group: "test".to_owned(),
            member: member.to_owned(),
            terms: terms.checked().unwrap(),
        });
        members.spawn(lease.run(Wants(wants), stop.clone()));
    }
    until(&server, "both have what they can use", |held| {
        let found = held
            .iter()
            .map(|(it, state)| (it.member.as_deref(), it.share, *state));
        found.eq([
            (Some("busy"), WHOLE / 10 * 9, State::Ok),
            (Some("idle"), WHOLE / 10, State::Ok),
        ])
    })
    .await;
    // As after a kill: nobody says goodbye.
    members.shutdown().await;
    let mut connection = server.connect().await;
    let dump = || {
        let mut dump = redis::cmd("DUMP");
        dump.arg("cookiesync:{test}:lease").clone()
    };
    let before: Vec<u8> = dump().query_async(&mut connection).await.unwrap();
    until(&server, "they stand with their safe shares", |held| {
        held.len() == 2 && held.iter().all(|(_, state)| *state == State::Safe)
    })
    .await;
    let after: Vec<u8> = dump().query_async(&mut connection).await.unwrap();
    assert_eq!(before, after);
}
