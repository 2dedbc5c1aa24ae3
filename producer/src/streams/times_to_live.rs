//! The times to live that all `Subscribe` streams send: after their `Hello`, and whenever these times change.
//!
//! The message is encoded once. A stream checks for a new message before each delivery, at the cost of an atomic load.
//! An idle stream thus sends it with its next heartbeat.

use bytes::Bytes;
use proto::{
    v1::{self, event::Event},
    wire,
};
use tokio::sync::watch;

/// The encoded message, empty until there are times to live; clones share it.
#[derive(Debug, Clone, Default)]
pub struct TimesToLive(watch::Sender<Bytes>);

/// The message that one stream has not sent yet, if any.
#[derive(Debug)]
pub(crate) struct Unsent(watch::Receiver<Bytes>);

impl TimesToLive {
    /// Sends new times to live on all streams, unless they equal the previous ones.
    pub fn set(&self, new: v1::TimesToLive) {
        let is_empty = new == v1::TimesToLive::default();
        let new = wire::encode_event(Event::TimesToLive(new));
        self.0.send_if_modified(|message| {
            let is_new = *message != new && !(message.is_empty() && is_empty);
            if is_new {
                *message = new;
            }
            is_new
        });
    }

    pub(crate) fn unsent(&self) -> Unsent {
        let mut unsent = Unsent(self.0.subscribe());
        unsent.resend();
        unsent
    }
}

impl Unsent {
    /// Makes the message unsent again, if there are times to live.
    pub(crate) fn resend(&mut self) {
        if !self.0.borrow().is_empty() {
            self.0.mark_changed();
        }
    }

    /// The message, if this stream has not sent it.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let has_changed = self.0.has_changed().unwrap_or(false);
        has_changed.then(|| self.0.borrow_and_update().clone())
    }
}
