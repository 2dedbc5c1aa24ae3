//! Places of calls in progress: in all and of each address.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use runtime::listen::{
    InProgress,
    addresses::{AddressPermit, Addresses},
};

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// `None` where there are `most` already.
    pub(super) fn enter(among: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let before = among.fetch_add(1, Ordering::Relaxed);
        let counted = Self(Arc::clone(among));
        (before < most).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The places of one kind of calls.
#[derive(Debug)]
pub(super) struct Places {
    taken: Arc<AtomicUsize>,
    most: usize,
    addresses: Addresses,
}

impl Places {
    pub(super) fn new(most: usize, of_address_max: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
            addresses: Addresses::new(of_address_max),
        }
    }

    /// `None` where all are taken, or all that one address may have.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Place> {
        let of_address = self.addresses.enter(address)?;
        let counted = Counted::enter(&self.taken, self.most)?;
        Some(Place(Mutex::new(Some((counted, of_address)))))
    }
}

/// A call's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Mutex<Option<(Counted, AddressPermit)>>);

impl Place {
    /// Gives it back before the end: who waits for a slot has bounds of its own.
    pub(super) fn give_back(&self) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held);
    }
}

/// A call in progress: what it holds until it has been answered.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Among all calls and those of its address.
    pub(super) place: Arc<Place>,
    _of_connection: Option<Counted>,
    _activity: InProgress,
}

impl InFlight {
    /// `of_connection` is its place among those of its connection that may last.
    pub(super) fn new(place: Place, of_connection: Option<Counted>, activity: InProgress) -> Self {
        Self {
            place: Arc::new(place),
            _of_connection: of_connection,
            _activity: activity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_the_places_of_others() {
        let places = Places::new(3, 2);
        let [one, two, three]: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| it.parse().expect("an address"));
        let first = places.enter(one).expect("a place");
        let second = places.enter(one).expect("a place");
        assert!(places.enter(one).is_none());
        let other = places.enter(two).expect("a place");
        assert!(places.enter(three).is_none(), "three are all");
        first.give_back();
        let again = places.enter(one).expect("a place");
        drop((first, second, other, again));
        assert_eq!(places.taken.load(Ordering::Relaxed), 0);
    }
}
