//! Completeness of this node for one producer: the time up to which the node has all cookies that this producer accepted. Does no I/O.

/// Times of one epoch of a producer by the producer's clock, in microseconds since the Unix epoch; 0 if unknown.
#[derive(Debug, Default)]
pub(super) struct Completeness {
    /// All cookies accepted up to this time were received.
    received: u64,
    /// All cookies accepted up to this time are durable.
    durable: u64,
    /// An earlier received position, and its time.
    mark: (u64, u64),
}

impl Completeness {
    /// Records that all cookies accepted up to `time` were received.
    pub(super) fn receive(&mut self, time: u64) {
        self.received = self.received.max(time);
    }

    /// Records the sequence numbers up to which all cookies are durable and received.
    pub(super) fn commit(&mut self, durable: u64, received: u64) {
        if durable >= self.mark.0 {
            self.durable = self.mark.1;
            self.mark = (received, self.received);
        }
    }

    /// Time up to which all accepted cookies are durable; `None` if it is unknown. `is_durable` means that all received cookies are.
    pub(super) fn until(&self, is_durable: bool) -> Option<u64> {
        let until = if is_durable {
            self.received
        } else {
            self.durable
        };
        (until > 0).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_of_a_received_position_that_is_durable() {
        let mut it = Completeness::default();
        assert_eq!(it.until(true), None);
        it.receive(100);
        assert_eq!((it.until(true), it.until(false)), (Some(100), None));
        it.commit(3, 10);
        it.receive(200);
        assert_eq!(it.until(false), None, "position 10 is not durable");
        it.commit(9, 20);
        assert_eq!(it.until(false), None);
        it.commit(10, 30);
        assert_eq!(it.until(false), Some(100));
        it.receive(300);
        it.commit(29, 40);
        assert_eq!(it.until(false), Some(100));
        it.commit(30, 40);
        assert_eq!((it.until(false), it.until(true)), (Some(200), Some(300)));
        it.receive(250);
        assert_eq!(it.until(true), Some(300), "it never decreases");
    }
}
