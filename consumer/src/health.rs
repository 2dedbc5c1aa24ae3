//! Whether this process can do its work, whether only a restart can help, and how its producers are: what `/readyz` and
//! `/healthz` tell.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use runtime::ready::Component;

use crate::producers::Producers;

/// What is known about the store, which the sink reports here, and about the producers, which have a table of their own.
#[derive(Debug)]
pub struct Health {
    store_down: Mutex<Option<Down>>,
    /// DSPs whose slot in the store does not work, and why.
    failing_dsps: Mutex<BTreeMap<u32, String>>,
    producers: Producers,
}

/// Why the store does not work.
#[derive(Debug)]
struct Down {
    why: String,
    needs_restart: bool,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            store_down: Mutex::new(Some(Down {
                why: "not opened yet".to_owned(),
                needs_restart: false,
            })),
            failing_dsps: Mutex::default(),
            producers: Producers::default(),
        }
    }
}

/// Most DSPs that are named as failing.
const DSPS_NAMED_MAX: usize = 5;

/// Maximum number of addresses that are named as disconnected.
const ADDRESSES_NAMED_MAX: usize = 5;

impl Health {
    /// Notes that the store works.
    pub fn store_works(&self) {
        *self.store() = None;
    }

    /// Notes why the store does not work, and that it may by itself later.
    pub fn store_fails(&self, why: String) {
        *self.store() = Some(Down {
            why,
            needs_restart: false,
        });
    }

    /// Notes why the store does not work, and that only a restart of this process is likely to change that.
    pub fn store_needs_restart(&self, why: String) {
        *self.store() = Some(Down {
            why,
            needs_restart: true,
        });
    }

    /// Why the store does not work, if it does not.
    #[must_use]
    pub fn store_down(&self) -> Option<String> {
        self.store().as_ref().map(|down| down.why.clone())
    }

    /// Why only a restart can help, if so.
    #[must_use]
    pub fn needs_restart(&self) -> Option<String> {
        let store = self.store();
        let down = store.as_ref().filter(|down| down.needs_restart)?;
        Some(format!("store: {}", down.why))
    }

    /// Notes, and says once, that a DSP's slot in the store does not work.
    pub fn dsp_fails(&self, dsp_id: u32, why: &str) {
        let before = self.dsps().insert(dsp_id, why.to_owned());
        if before.is_none() {
            tracing::warn!(
                dsp_id,
                why,
                "store is failing for a DSP; moving its cookies to the retry queue"
            );
        }
    }

    /// Notes that a DSP's slot in the store works.
    pub fn dsp_works(&self, dsp_id: u32) {
        if self.dsps().remove(&dsp_id).is_some() {
            tracing::info!(dsp_id, "the store takes the cookies of a DSP again");
        }
    }

    /// The DSPs whose slot in the store does not work, and why.
    #[must_use]
    pub fn failing_dsps(&self) -> BTreeMap<u32, String> {
        self.dsps().clone()
    }

    /// That they fail is not the node's trouble: it is told, but the node is ready.
    fn dsps_state(&self) -> String {
        let failing = self.dsps();
        if failing.is_empty() {
            return "all work".to_owned();
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

    /// The addresses without a stream, and why they have none.
    fn disconnected_in_words(&self) -> String {
        let snapshot = self.producers.snapshot();
        let away = snapshot.addresses.iter().filter(|(_, it)| !it.is_connected);
        let named = away.take(ADDRESSES_NAMED_MAX).filter_map(|(address, it)| {
            let producer = it.producer.as_ref();
            let producer = producer.map(|id| format!(" ({id})")).unwrap_or_default();
            let why = it.why_not.as_ref()?;
            Some(format!("; {address} of {}{producer}: {why}", it.origin))
        });
        named.collect()
    }

    fn dsps(&self) -> MutexGuard<'_, BTreeMap<u32, String>> {
        self.failing_dsps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How the producers are.
    #[must_use]
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// How each part is.
    #[must_use]
    pub fn components(&self) -> Vec<Component> {
        let store = self.store_down().map_or(Ok("works".to_owned()), Err);
        let cursors = if self.producers.is_loaded() {
            Ok("loaded".to_owned())
        } else {
            Err("not loaded yet".to_owned())
        };
        let producers = match self.producers.connected_and_total() {
            (0, 0) => Err("no producer is connected: no address is known".to_owned()),
            (0, all) => Err(format!(
                "no producer is connected: 0 of {all}{}",
                self.disconnected_in_words()
            )),
            (some, all) => Ok(format!(
                "{some} of {all} connected{}",
                self.disconnected_in_words()
            )),
        };
        vec![
            Component::new("store", store),
            Component::new("cursors", cursors),
            Component::new("dsps", Ok(self.dsps_state())),
            Component::new("producers", producers),
        ]
    }

    fn store(&self) -> MutexGuard<'_, Option<Down>> {
        self.store_down
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{batch::Cursor, producers::StreamStart};

    #[track_caller]
    fn check(health: &Health, not_ready: &[(&str, &str)]) {
        let components = health
            .components()
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
    fn ready_with_a_store_its_cursors_and_a_producer() {
        let health = Health::default();
        let nobody = ("producers", "no producer is connected: no address is known");
        let unknown = ("cursors", "not loaded yet");
        check(&health, &[("store", "not opened yet"), unknown, nobody]);
        health.store_works();
        health.producers().loaded(Vec::new());
        let [one, other] = [1, 2].map(|port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            health.producers().listed(address, "http://producers:7676")
        });
        check(
            &health,
            &[("producers", "no producer is connected: 0 of 2")],
        );
        let at = Cursor {
            producer: "p".into(),
            epoch: 7,
            sequence: 0,
            complete: false,
        };
        let start = StreamStart {
            at: &at,
            newest: 0,
            before: None,
        };
        let connected = one.opened(start);
        check(&health, &[]);
        assert_eq!(health.components()[3].state, "1 of 2 connected");
        health.store_fails("gone\naway".to_owned());
        check(&health, &[("store", "gone away")]);
        assert_eq!(health.needs_restart(), None);
        health.store_needs_restart("hangs".to_owned());
        check(&health, &[("store", "hangs")]);
        assert_eq!(health.needs_restart().as_deref(), Some("store: hangs"));
        health.store_works();
        assert_eq!(health.needs_restart(), None);
        for dsp_id in 1..=7 {
            health.dsp_fails(dsp_id, "no right");
        }
        health.dsp_works(1);
        check(&health, &[]);
        assert_eq!(
            health.components()[2].state,
            "retry queue: 2 (no right), 3 (no right), 4 (no right), 5 (no right), 6 (no right) and 1 more"
        );
        drop(other);
        assert_eq!(health.components()[3].state, "1 of 1 connected");
        drop(connected);
        check(
            &health,
            &[("producers", "no producer is connected: 0 of 1")],
        );
    }
}
