//! Completeness of this node for one producer: the time up to which the node has all cookies that this producer accepted. Does no I/O.

use proto::units::{Sequence, UnixMicros};

/// Times of one epoch of a producer by the producer's clock; 0 if unknown.
#[derive(Debug, Default)]
pub(super) struct Completeness {
    /// All cookies accepted up to this time were received.
    received: UnixMicros,
    /// All cookies accepted up to this time are durable.
    durable: UnixMicros,
    /// An earlier received position, and its time.
    mark: (Sequence, UnixMicros),
}

impl Completeness {
    /// Records that all cookies accepted up to `time` were received.
    pub(super) fn receive(&mut self, time: UnixMicros) {
        self.received = self.received.max(time);
    }

    /// Records the sequence numbers up to which all cookies are durable and received.
    pub(super) fn commit(&mut self, durable: Sequence, received: Sequence) {
        if durable >= self.mark.0 {
            self.durable = self.mark.1;
            self.mark = (received, self.received);
        }
    }

    /// Time up to which all accepted cookies are durable; `None` if it is unknown. `is_durable` means that all received cookies are.
    pub(super) fn until(&self, is_durable: bool) -> Option<UnixMicros> {
        let until = if is_durable {
            self.received
        } else {
            self.durable
        };
        (until > UnixMicros::NONE).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(it: &Completeness, is_durable: bool) -> Option<u64> {
        it.until(is_durable).map(|time| time.0)
    }

    #[test]
    fn time_is_that_of_a_received_position_that_is_durable() {
        let mut it = Completeness::default();
        assert_eq!(until(&it, true), None);
        it.receive(UnixMicros(100));
        assert_eq!((until(&it, true), until(&it, false)), (Some(100), None));
        it.commit(Sequence(3), Sequence(10));
        it.receive(UnixMicros(200));
        assert_eq!(until(&it, false), None, "position 10 is not durable");
        it.commit(Sequence(9), Sequence(20));
        assert_eq!(until(&it, false), None);
        it.commit(Sequence(10), Sequence(30));
        assert_eq!(until(&it, false), Some(100));
        it.receive(UnixMicros(300));
        it.commit(Sequence(29), Sequence(40));
        assert_eq!(until(&it, false), Some(100));
        it.commit(Sequence(30), Sequence(40));
        assert_eq!(
            (until(&it, false), until(&it, true)),
            (Some(200), Some(300))
        );
        it.receive(UnixMicros(250));
        assert_eq!(until(&it, true), Some(300), "it never decreases");
    }
}
