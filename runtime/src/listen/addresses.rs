//! Limits the connections per client address.
//!
//! The limit costs one lock when a connection opens and one when it closes, and a map entry per address with
//! connections. IPv6 addresses are counted per /64 network, which usually belongs to one customer or machine.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// Connection counts by address; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Permit for one connection of an address; released on drop.
#[derive(Debug)]
pub struct AddressPermit {
    addresses: Addresses,
    network: IpAddr,
}

impl Addresses {
    /// Acquires a permit for a connection from `address`; `None` if the address already has `each_max` permits. Treats 0 as 1.
    pub fn acquire(&self, each_max: usize, address: IpAddr) -> Option<AddressPermit> {
        let network = network(address);
        let mut open = self.0.lock();
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
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self.addresses.0.lock();
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// The key of an address: the IPv4 address, even if mapped to IPv6, or the IPv6 /64 network.
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
    fn permits_are_per_address_and_released_on_drop() {
        let addresses = Addresses::default();
        let first = addresses.acquire(2, address("192.0.2.1")).unwrap();
        let second = addresses.acquire(2, address("192.0.2.1")).unwrap();
        assert!(addresses.acquire(2, address("192.0.2.1")).is_none());
        let other = addresses.acquire(2, address("192.0.2.2"));
        assert!(other.is_some());
        drop(first);
        let again = addresses.acquire(2, address("192.0.2.1"));
        assert!(again.is_some());
        drop((other, again, second));
        assert!(addresses.0.lock().is_empty(), "no entries are left");
    }

    #[test]
    fn ipv6_counts_by_network_and_mapped_addresses_as_ipv4() {
        let addresses = Addresses::default();
        let _permit = addresses.acquire(1, address("2001:db8:0:1::1")).unwrap();
        assert!(
            addresses
                .acquire(1, address("2001:db8:0:1:ffff::2"))
                .is_none()
        );
        assert!(addresses.acquire(1, address("2001:db8:0:2::1")).is_some());
        let _permit = addresses.acquire(1, address("::ffff:192.0.2.1")).unwrap();
        assert!(addresses.acquire(1, address("192.0.2.1")).is_none());
        assert!(addresses.acquire(1, address("192.0.2.2")).is_some());
    }
}
