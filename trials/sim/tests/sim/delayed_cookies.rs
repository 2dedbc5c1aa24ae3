//! Simulates a stage that delays cookies: a producer accepts cookies, and appends them to its log later, with their
//! ages and in random order.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    time::Duration,
};

use producer::log::Log;
use proto::{units::UnixMicros, wire::CookieRef};
use tokio::time::sleep;

use crate::{
    UNPOISONED,
    load::{History, SyncRequest, now},
    plan::Load,
    stall::Stall,
};

/// Maximum number of delayed cookies.
const DELAYED_MAX: usize = 40;

/// A source of delayed cookies for one producer.
#[derive(Debug, Clone)]
pub(crate) struct DelayedSource {
    pub(crate) producer: usize,
    pub(crate) load: Load,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) seed: u64,
}

impl DelayedSource {
    /// Accepts cookies and appends them later, until the load ends or the log is closed.
    pub(crate) async fn run(self, incarnation: usize, log: Log, stall: &Stall) {
        let mut random = fastrand::Rng::with_seed(self.seed ^ incarnation as u64);
        let mut delayed: Vec<(usize, UnixMicros)> = Vec::new();
        while now() < self.load.until {
            let pause = random.u64(0..=4 * self.load.pause_millis);
            sleep(Duration::from_millis(pause)).await;
            poll_fn(|context| stall.poll(context)).await;
            for _ in 0..random.usize(0..=self.load.burst.min(DELAYED_MAX - delayed.len())) {
                let pair = self.load.pair(&mut random);
                let mut history = self.history.lock().expect(UNPOISONED);
                let connection = history.connect();
                let sync = SyncRequest::new(pair, self.producer, incarnation, connection);
                let number = history.send(sync);
                delayed.push((number, log.now()));
            }
            random.shuffle(&mut delayed);
            let remaining = random.usize(0..=delayed.len());
            if !self.append(&log, &delayed.split_off(remaining)) {
                return;
            }
        }
        self.append(&log, &delayed);
    }

    /// Appends cookies; returns false if the log is closed.
    fn append(&self, log: &Log, cookies: &[(usize, UnixMicros)]) -> bool {
        let mut history = self.history.lock().expect(UNPOISONED);
        let texts: Vec<_> = cookies
            .iter()
            .map(|&(number, accepted)| {
                let pair = history.syncs[number].pair;
                (
                    pair,
                    format!("u{}", pair.user),
                    format!("b{number}"),
                    accepted,
                )
            })
            .collect();
        let appended =
            log.append_accepted(texts.iter().map(|(pair, user_id, buyer_uid, accepted)| {
                let cookie = CookieRef {
                    user_id,
                    dsp_id: pair.dsp,
                    buyer_uid,
                    age_micros: 0,
                };
                (cookie, *accepted)
            }));
        if appended.is_ok() {
            for &(number, _) in cookies {
                history.syncs[number].set_released(now());
            }
        }
        appended.is_ok()
    }
}
