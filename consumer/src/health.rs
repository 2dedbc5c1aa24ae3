//! Whether this process can do its work, as `/readyz` tells it.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// What is known about the store and the producers. The sink and the subscriptions report here.
#[derive(Debug)]
pub struct Health {
    store_down: Mutex<Option<String>>,
    producers_connected: AtomicUsize,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            store_down: Mutex::new(Some("not opened yet".to_owned())),
            producers_connected: AtomicUsize::new(0),
        }
    }
}

impl Health {
    /// Notes that the store works.
    pub fn store_works(&self) {
        *self.store() = None;
    }

    /// Notes why the store does not work.
    pub fn store_fails(&self, why: String) {
        *self.store() = Some(why);
    }

    /// Notes a stream for as long as the guard lives.
    #[must_use]
    pub fn connected(&self) -> Connected<'_> {
        self.producers_connected.fetch_add(1, Ordering::Relaxed);
        Connected(self)
    }

    /// # Errors
    /// With what is missing, in one line.
    pub fn ready(&self) -> Result<(), String> {
        if let Some(why) = &*self.store() {
            return Err(format!("store: {}", why.replace(['\n', '\r'], " ")));
        }
        if self.producers_connected.load(Ordering::Relaxed) == 0 {
            return Err("no producer is connected".to_owned());
        }
        Ok(())
    }

    fn store(&self) -> MutexGuard<'_, Option<String>> {
        self.store_down
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream; see [`Health::connected`].
#[derive(Debug)]
pub struct Connected<'a>(&'a Health);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.producers_connected.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_with_a_store_and_a_producer() {
        let health = Health::default();
        assert_eq!(health.ready(), Err("store: not opened yet".to_owned()));
        health.store_works();
        assert_eq!(health.ready(), Err("no producer is connected".to_owned()));
        let connected = health.connected();
        assert_eq!(health.ready(), Ok(()));
        health.store_fails("gone\naway".to_owned());
        assert_eq!(health.ready(), Err("store: gone away".to_owned()));
        health.store_works();
        drop(connected);
        assert_eq!(health.ready(), Err("no producer is connected".to_owned()));
    }
}
