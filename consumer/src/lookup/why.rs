//! `GET /v1/users/<user id>/why?dsp=17` on the admin port: why this node has a match of a user and a DSP, or not.
//!
//! It states only what a node can know. A missing match has causes that no node can distinguish: then the response lists them, with what
//! narrows them down.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use prometheus::{IntCounter, IntCounterVec, IntGauge, core::Collector as _};
use proto::units::{DspId, UnixMicros};
use runtime::reply::{Reply, json};
use serde_json::{Map, Value, json as object};
use tokio::{sync::watch, time::Instant};

use super::{
    Lookups, MatchState,
    request::{AskedUser, DEADLINE_MAX, Rejection, user_id_of_path},
    user::{PREFIX, refused},
};

/// What a missing match can be caused by, if the node knows no reason.
const CAUSES: [&str; 7] = [
    "no producer received a match: the user was never synced with this DSP",
    "a producer refused the match: see producer_dsp_cookies_total{dsp,outcome}",
    "the match was lost: see lost_total and uncertain_loss_cookies_total",
    "the match is on its way: it was accepted after as_of",
    "the match has expired, and was removed",
    "the match was deleted more than 8 days ago",
    "the match is older than deletion_floor",
];

/// What explains a missing match.
#[derive(Debug, Clone)]
pub struct Why {
    /// The store.
    pub lookups: Lookups,
    /// DSPs that are always accepted.
    pub listed: BTreeSet<DspId>,
    /// DSPs that are never accepted.
    pub rejected: watch::Receiver<BTreeSet<DspId>>,
    /// Lost cookies by reason.
    pub lost: IntCounterVec,
    /// Upper bound of cookies that may have been lost.
    pub uncertain_loss: IntCounter,
    /// Accepted DSPs that are not listed, and their maximum.
    pub slots: [IntGauge; 2],
}

impl Why {
    /// The response to a path; `None` if it does not ask why.
    pub async fn page(&self, path: &str, query: &str) -> Option<Reply> {
        let encoded = path.strip_prefix(PREFIX)?.strip_suffix("/why")?;
        Some(match self.explain(encoded, query).await {
            Ok(explanation) => json(StatusCode::OK, &explanation),
            Err(rejection) => refused(&rejection),
        })
    }

    async fn explain(&self, encoded: &str, query: &str) -> Result<Map<String, Value>, Rejection> {
        let user_id = user_id_of_path(encoded)?;
        let dsp_id = query.strip_prefix("dsp=").and_then(|dsp| dsp.parse().ok());
        let Some(dsp_id) = dsp_id.filter(|dsp_id: &DspId| dsp_id.is_valid()) else {
            let why = "invalid query; expected one DSP, as in dsp=17";
            return Err(Rejection::Invalid(why.to_owned()));
        };
        let users = [AskedUser::Valid(user_id.clone())];
        let (dsps, deadline) = ([dsp_id].into(), Instant::now() + DEADLINE_MAX);
        let finding = self.lookups.find(&users, Some(dsps), deadline, || Ok(None));
        let found = finding.await;
        let mut explanation = Map::new();
        let cause = match &found {
            Ok(found) if found.unavailable.contains(&dsp_id) => found.why.clone(),
            Ok(found) if found.users[0].is_none() => Some("no response in time".to_owned()),
            Err(Rejection::Unavailable(why)) => Some(why.clone()),
            _ => None,
        };
        if let Some(cause) = cause {
            explanation.insert("reason".to_owned(), "unavailable".into());
            explanation.insert("cause".to_owned(), cause.into());
            return Ok(explanation);
        }
        let matches = found?.users.pop().flatten();
        let stored = matches.iter().flat_map(|it| it.iter());
        let stored = stored.into_iter().find(|it| it.dsp_id == dsp_id);
        let deletions = self.lookups.deletions.reader();
        let selection = self.lookups.selection(None);
        let state = stored.and_then(|it| selection.state(&user_id, &it, deletions.as_ref()));
        let scopes = ["match", "user", "dsp"].into_iter().zip(
            deletions
                .iter()
                .flat_map(|table| table.of_scopes(user_id.as_bytes(), dsp_id)),
        );
        let deleted = scopes
            .filter_map(|(scope, until)| Some((until?, scope)))
            .max();
        drop(deletions);
        let reason = match (state, deleted) {
            (Some((_, MatchState::Live)), _) => "found",
            (Some((_, MatchState::Expired)), _) => "expired",
            (Some((_, MatchState::Deleted)), _) | (None, Some(_)) => "deleted",
            (None, None) if self.rejected.borrow().contains(&dsp_id) => "dsp_rejected",
            (None, None) if !self.is_known(dsp_id) => "dsp_unknown",
            (None, None) => "not_stored",
        };
        explanation.insert("reason".to_owned(), reason.into());
        let more = match reason {
            "found" | "expired" => stored.map(|it| {
                let ttl = self.lookups.store.ttls().of(dsp_id);
                object!({ "accepted_at": time(it.accepted), "expires_at": time(after(it.accepted, ttl)) })
            }),
            "deleted" => deleted.map(|(until, scope)| object!({ "scope": scope, "until": time(until) })),
            "dsp_unknown" => {
                let [used, limit] = self.slots.each_ref().map(IntGauge::get);
                Some(object!({ "slots": used, "slots_limit": limit }))
            }
            "not_stored" => Some(self.circumstances()),
            _ => None,
        };
        if let Some(Value::Object(more)) = more {
            explanation.extend(more);
        }
        Ok(explanation)
    }

    /// Whether the DSP has a place in the store.
    fn is_known(&self, dsp_id: DspId) -> bool {
        self.listed.contains(&dsp_id) || self.lookups.store.dsps().contains(&dsp_id)
    }

    /// Cookies that this node will not receive.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates"
    )]
    pub fn lost_cookies(&self) -> u64 {
        let lost = self.lost.collect();
        let lost = lost.iter().flat_map(|family| family.get_metric());
        let lost: f64 = lost.map(|metric| metric.get_counter().get_value()).sum();
        lost as u64
    }

    /// What narrows down the causes of a missing match.
    fn circumstances(&self) -> Value {
        let producers = &self.lookups.producers;
        let snapshot = producers.snapshot();
        let connected = snapshot.producers.iter().filter(|(_, it)| it.streams > 0);
        let floor = self.lookups.deletions.floor();
        object!({
            "as_of": producers.complete_until().map(time),
            "producers_connected": connected.count(),
            "producers_known": snapshot.producers.len(),
            "lost_total": self.lost_cookies(),
            "uncertain_loss_cookies_total": self.uncertain_loss.get(),
            "deletion_floor": (floor > UnixMicros::NONE).then(|| time(floor)),
            "causes": CAUSES,
        })
    }
}

fn after(time: UnixMicros, ttl: Duration) -> UnixMicros {
    time.after(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))
}

/// A time in RFC 3339.
fn time(time: UnixMicros) -> String {
    let since_epoch = Duration::from_micros(time.0);
    let time = SystemTime::UNIX_EPOCH.checked_add(since_epoch);
    time.map_or_else(String::new, |time| {
        humantime::format_rfc3339_millis(time).to_string()
    })
}
