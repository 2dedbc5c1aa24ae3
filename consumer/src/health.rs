//! Health of this process, as reported by `/readyz` and `/healthz`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use proto::units::DspId;
use runtime::ready::Component;

use crate::producers::{Producers, Snapshot};

/// Health of the store, as reported by the sink, and of the producers.
#[derive(Debug)]
pub struct Health {
    store_down: Mutex<Option<StoreFailure>>,
    /// DSPs whose database fails, with the reason.
    failing_dsps: Mutex<BTreeMap<DspId, String>>,
    /// The progress of filling this node, if `--copy-from` is set.
    copy: Mutex<Option<CopyStatus>>,
    producers: Producers,
}

/// The progress of filling this node from another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CopyStatus {
    /// Its state in one line.
    pub state: String,
    /// Records received by this process.
    pub records: u64,
    /// Approximate part of the cookies that are copied, from 0 to 1.
    pub ratio: f64,
}

/// Why the store is down.
#[derive(Debug)]
struct StoreFailure {
    why: String,
    needs_restart: bool,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            store_down: Mutex::new(Some(StoreFailure {
                why: "not opened yet".to_owned(),
                needs_restart: false,
            })),
            failing_dsps: Mutex::default(),
            copy: Mutex::default(),
            producers: Producers::default(),
        }
    }
}

/// Maximum number of failing DSPs in a text.
const DSPS_NAMED_MAX: usize = 5;

/// Maximum number of addresses in a text.
const ADDRESSES_NAMED_MAX: usize = 5;

impl Health {
    /// Marks the store as up.
    pub fn set_store_up(&self) {
        *self.store_down.lock() = None;
    }

    /// Marks the store as down. `needs_restart` is true if only a restart of this process is likely to help.
    pub fn set_store_down(&self, why: String, needs_restart: bool) {
        *self.store_down.lock() = Some(StoreFailure { why, needs_restart });
    }

    /// Why the store is down, if it is.
    pub fn store_down(&self) -> Option<String> {
        self.store_down.lock().as_ref().map(|down| down.why.clone())
    }

    /// Why this process needs a restart, if it does.
    pub fn needs_restart(&self) -> Option<String> {
        let store = self.store_down.lock();
        let down = store.as_ref().filter(|down| down.needs_restart)?;
        Some(format!("store: {}", down.why))
    }

    /// Marks a DSP as failing, and logs the first failure.
    pub fn set_dsp_failing(&self, dsp_id: DspId, why: &str) {
        let previous = self.failing_dsps.lock().insert(dsp_id, why.to_owned());
        if previous.is_none() {
            tracing::warn!(
                dsp_id = dsp_id.0,
                why,
                "store is failing for a DSP; moving its cookies to the retry queue"
            );
        }
    }

    /// Marks a DSP as available.
    pub fn set_dsp_available(&self, dsp_id: DspId) {
        if self.failing_dsps.lock().remove(&dsp_id).is_some() {
            tracing::info!(dsp_id = dsp_id.0, "store available again for a DSP");
        }
    }

    /// Sets the progress of filling this node.
    pub fn set_copy(&self, status: CopyStatus) {
        *self.copy.lock() = Some(status);
    }

    /// The progress of filling this node, if `--copy-from` is set.
    pub fn copy(&self) -> Option<CopyStatus> {
        self.copy.lock().clone()
    }

    /// The failing DSPs, with the reason.
    pub fn failing_dsps(&self) -> BTreeMap<DspId, String> {
        self.failing_dsps.lock().clone()
    }

    /// Describes failing DSPs. They do not affect readiness.
    fn describe_dsps(&self) -> String {
        let failing = self.failing_dsps.lock();
        if failing.is_empty() {
            return "all available".to_owned();
        }
        let named = failing.iter().take(DSPS_NAMED_MAX);
        let named: Vec<_> = named
            .map(|(dsp_id, why)| format!("{dsp_id} ({why})"))
            .collect();
        let more = match failing.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("retry queue: {}{more}", named.join(", "))
    }

    /// Describes the addresses without a stream, with the reason.
    fn describe_disconnected(snapshot: &Snapshot) -> String {
        let disconnected = snapshot.addresses.iter().filter(|(_, it)| !it.is_connected);
        let named = disconnected.take(ADDRESSES_NAMED_MAX);
        let named = named.filter_map(|(address, it)| {
            let producer = it.producer.as_ref();
            let producer = producer.map(|id| format!(" ({id})")).unwrap_or_default();
            let why = it.error.as_ref()?;
            Some(format!("; {address} of {}{producer}: {why}", it.origin))
        });
        named.collect()
    }

    /// Describes the confirmations, without which deletions do not complete.
    fn describe_confirmations(snapshot: &Snapshot) -> Result<String, String> {
        let failing = snapshot.addresses.iter().filter_map(|(address, it)| {
            let why = it.unconfirmed.as_ref()?;
            Some(format!("{address} of {}: {why}", it.origin))
        });
        let failing: Vec<_> = failing.take(ADDRESSES_NAMED_MAX).collect();
        match &*failing.join("; ") {
            "" => Ok("accepted".to_owned()),
            why => Err(format!("failing, so deletions do not complete: {why}")),
        }
    }

    /// The table of producers.
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// The components of `/readyz`. A follower of an archive has no streams, and confirms nothing to producers.
    pub fn components(&self, is_following: bool) -> Vec<Component> {
        let store = self.store_down().map_or(Ok("up".to_owned()), Err);
        let cursors = if self.producers.is_loaded() {
            Ok("loaded".to_owned())
        } else {
            Err("not loaded yet".to_owned())
        };
        let snapshot = self.producers.snapshot();
        let mut ids = snapshot.producers.iter();
        let duplicate = ids.find_map(|(id, it)| it.has_duplicate.then_some(id));
        let connected = snapshot.addresses.values().filter(|it| it.is_connected);
        let producers = match (connected.count(), snapshot.addresses.len()) {
            _ if let Some(id) = duplicate => Err(format!(
                "two producers have the id {id}; give each its own --id"
            )),
            (0, 0) => Err("no producer is connected: no address is known".to_owned()),
            (0, all) => Err(format!(
                "no producer is connected; known addresses: {all}{}",
                Self::describe_disconnected(&snapshot)
            )),
            (some, all) => Ok(format!(
                "{some} of {all} connected{}",
                Self::describe_disconnected(&snapshot)
            )),
        };
        let copy = self.copy().map(|it| Component::new("copy", Ok(it.state)));
        let mut components = vec![
            Component::new("store", store),
            Component::new("cursors", cursors),
            Component::new("dsps", Ok(self.describe_dsps())),
        ];
        if !is_following {
            let confirmations = Self::describe_confirmations(&snapshot);
            components.push(Component::new("producers", producers));
            components.push(Component::new("confirmations", confirmations));
        }
        components.into_iter().chain(copy).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proto::units::{Epoch, Sequence};

    use super::*;
    use crate::{batch::Cursor, producers::StreamStart};

    #[track_caller]
    fn check(health: &Health, not_ready: &[(&str, &str)]) {
        let components = health
            .components(false)
            .into_iter()
            .filter(|component| !component.ready);
        let found: Vec<_> = components
            .map(|component| (component.name, component.state))
            .collect();
        let found: Vec<_> = found
            .iter()
            .map(|(component, why)| (*component, &**why))
            .collect();
        assert_eq!(found, not_ready);
    }

    #[test]
    fn consumer_is_ready_with_a_store_cursors_and_a_connected_producer() {
        let health = Health::default();
        let no_producer = ("producers", "no producer is connected: no address is known");
        let no_cursors = ("cursors", "not loaded yet");
        check(
            &health,
            &[("store", "not opened yet"), no_cursors, no_producer],
        );
        health.set_store_up();
        health.producers().load(Vec::new());
        let [one, other] = [1, 2].map(|port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            health
                .producers()
                .register(address, "http://producers:7676")
        });
        check(
            &health,
            &[("producers", "no producer is connected; known addresses: 2")],
        );
        let at = Cursor {
            producer: "p".into(),
            epoch: Epoch(7),
            sequence: Sequence(0),
            complete: false,
        };
        let start = StreamStart {
            at: &at,
            newest: Sequence(0),
            previous: None,
        };
        let connected = one.open_stream(start);
        check(&health, &[]);
        assert_eq!(health.components(false)[3].state, "1 of 2 connected");
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let why = "failing, so deletions do not complete: 127.0.0.1:1 of http://producers:7676: no";
        for (error, failed, not_ready) in [
            (Some("no"), false, &[("confirmations", why)][..]),
            (Some("no"), true, &[("confirmations", why)]),
            (None, true, &[]),
            (None, false, &[]),
        ] {
            let has_failed = health.producers().set_unconfirmed(address, error);
            assert_eq!(has_failed, failed);
            check(&health, not_ready);
        }
        health.set_store_down("gone\naway".to_owned(), false);
        check(&health, &[("store", "gone away")]);
        assert_eq!(health.needs_restart(), None);
        health.set_store_down("hangs".to_owned(), true);
        check(&health, &[("store", "hangs")]);
        assert_eq!(health.needs_restart().as_deref(), Some("store: hangs"));
        health.set_store_up();
        assert_eq!(health.needs_restart(), None);
        for dsp_id in (1..=7).map(DspId) {
            health.set_dsp_failing(dsp_id, "no right");
        }
        health.set_dsp_available(DspId(1));
        check(&health, &[]);
        assert_eq!(
            health.components(false)[2].state,
            "retry queue: 2 (no right), 3 (no right), 4 (no right), 5 (no right), 6 (no right) and 1 more"
        );
        drop(other);
        assert_eq!(health.components(false)[3].state, "1 of 1 connected");
        drop(connected);
        // Without a stream, nothing is confirmed.
        assert!(health.producers().set_unconfirmed(address, Some("no")));
        check(
            &health,
            &[("producers", "no producer is connected; known addresses: 1")],
        );
    }
}
