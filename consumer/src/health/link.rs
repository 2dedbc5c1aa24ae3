//! What is known of one producer's address.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// An address that is subscribed to; its subscription reports here.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    origin: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    why_not: Option<String>,
    producer: Option<Arc<str>>,
    epoch: u64,
    sequence: u64,
    age: Option<Duration>,
    heard: Option<Instant>,
}

/// The figures of one address at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkFigures {
    /// The address.
    pub address: SocketAddr,
    /// The setting that stands for it.
    pub origin: String,
    /// The id of the producer that has or had a stream here.
    pub producer: Option<Arc<str>>,
    /// Whether a stream is open.
    pub is_connected: bool,
    /// Why not, if an attempt failed.
    pub why_not: Option<String>,
    /// The life of the producer that the sequence is of.
    pub epoch: u64,
    /// The newest sequence received, or declared lost.
    pub sequence: u64,
    /// How old the newest cookies were when they came.
    pub age: Option<Duration>,
    /// How long ago anything came.
    pub silent: Option<Duration>,
}

impl Link {
    pub(super) fn new(address: SocketAddr, origin: &str) -> Self {
        Self {
            address,
            origin: origin.to_owned(),
            state: Mutex::default(),
        }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state().is_connected
    }

    /// Notes a stream of this producer, which goes on after `sequence`, for as long as the guard lives.
    #[must_use]
    pub fn connected<'a>(
        self: &'a Arc<Self>,
        producer: &Arc<str>,
        epoch: u64,
        sequence: u64,
    ) -> Connected<'a> {
        let mut state = self.state();
        state.is_connected = true;
        state.why_not = None;
        state.producer = Some(Arc::clone(producer));
        (state.epoch, state.sequence) = (epoch, sequence);
        state.heard = Some(Instant::now());
        Connected(self)
    }

    /// Notes that everything up to `sequence` came, and how old it was if it was cookies.
    pub fn received(&self, sequence: u64, age: Option<Duration>) {
        let mut state = self.state();
        state.sequence = sequence;
        state.age = age.or(state.age);
        state.heard = Some(Instant::now());
    }

    /// Notes why there is no stream.
    pub fn down(&self, why: &str) {
        self.state().why_not = Some(why.to_owned());
    }

    pub(super) fn figures(&self) -> LinkFigures {
        let state = self.state();
        LinkFigures {
            address: self.address,
            origin: self.origin.clone(),
            producer: state.producer.clone(),
            is_connected: state.is_connected,
            why_not: state.why_not.clone(),
            epoch: state.epoch,
            sequence: state.sequence,
            age: state.age,
            silent: state.heard.map(|heard| heard.elapsed()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream; see [`Link::connected`].
#[derive(Debug)]
pub struct Connected<'a>(&'a Link);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.state().is_connected = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn figures_are_those_of_the_last_stream() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7676));
        let link = Arc::new(Link::new(address, "http://p:7676"));
        link.down("Connection refused");
        assert_eq!(
            link.figures().why_not.as_deref(),
            Some("Connection refused")
        );
        let connected = link.connected(&"p".into(), 7, 41);
        link.received(50, Some(Duration::from_millis(12)));
        link.received(60, None);
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(connected);
        let expected = LinkFigures {
            address,
            origin: "http://p:7676".to_owned(),
            producer: Some("p".into()),
            is_connected: false,
            why_not: None,
            epoch: 7,
            sequence: 60,
            age: Some(Duration::from_millis(12)),
            silent: Some(Duration::from_secs(3)),
        };
        assert_eq!(link.figures(), expected);
    }
}
