//! How many connections each client address has, up to a bound.
//!
//! One lock at the begin and one at the end of a connection; a map entry for each address that has any. An IPv6
//! address counts as its first 64 bits, which is what one customer, or one machine, has to itself.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts connections by address; clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Lets one connection of an address be open; given back when dropped.
#[derive(Debug)]
pub struct AddressPermit {
    addresses: Addresses,
    network: IpAddr,
}

impl Addresses {
    /// A permit for one more connection from `address`; `None` when it has `each_max`, or one if that is zero.
    #[must_use]
    pub fn enter(&self, each_max: usize, address: IpAddr) -> Option<AddressPermit> {
        let network = network(address);
        let mut open = self.open();
        let count = open.entry(network).or_insert(0);
        if *count >= each_max.max(1) {
            return None;
        }
        *count += 1;
        Some(AddressPermit {
            addresses: self.clone(),
            network,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self.addresses.open();
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// What counts as one address: an IPv4 address, also in its IPv6 form, or an IPv6 network of 64 bits.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_its_own_permits_and_gets_them_back() {
        let addresses = Addresses::default();
        let first = addresses.enter(2, address("192.0.2.1")).unwrap();
        let second = addresses.enter(2, address("192.0.2.1")).unwrap();
        assert!(addresses.enter(2, address("192.0.2.1")).is_none());
        let other = addresses.enter(2, address("192.0.2.2"));
        assert!(other.is_some());
        drop(first);
        let again = addresses.enter(2, address("192.0.2.1"));
        assert!(again.is_some());
        drop((other, again, second));
        assert!(addresses.open().is_empty(), "entries do not pile up");
    }

    #[test]
    fn ipv6_counts_by_64_bits_and_mapped_addresses_as_ipv4() {
        let addresses = Addresses::default();
        let _permit = addresses.enter(1, address("2001:db8:0:1::1")).unwrap();
        assert!(
            addresses
                .enter(1, address("2001:db8:0:1:ffff::2"))
                .is_none()
        );
        assert!(addresses.enter(1, address("2001:db8:0:2::1")).is_some());
        let _permit = addresses.enter(1, address("::ffff:192.0.2.1")).unwrap();
        assert!(addresses.enter(1, address("192.0.2.1")).is_none());
        assert!(addresses.enter(1, address("192.0.2.2")).is_some());
    }
}
