//! Which addresses a request may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is on the public internet. Addresses that contain an IPv4 address are public only if that one is.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    let is_protocol = [a, b, c] == [192, 0, 0] || [a, b, c] == [192, 88, 99];
    !(a == 0
        || a >= 224
        || is_shared
        || is_benchmark
        || is_protocol
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        // Mapped, and NAT64 with the well-known prefix.
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => is_public_v4(v4(g, h)),
        // 6to4.
        [0x2002, high, low, ..] => is_public_v4(v4(high, low)),
        // Documentation, Teredo and other special purposes.
        [0x2001, 0xdb8, ..] | [0x2001, ..0x200, ..] | [0x3fff, ..0x1000, ..] => false,
        // Only 2000::/3 is assigned to global unicast.
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    #[track_caller]
    fn check(texts: &[&str], expected: bool) {
        for text in texts {
            assert_eq!(is_public(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn private_and_special_addresses_are_not_public() {
        check(
            &[
                "0.0.0.0",
                "0.1.2.3",
                "10.0.0.1",
                "100.64.0.1",
                "100.127.255.255",
                "127.0.0.1",
                "127.9.9.9",
                "169.254.169.254",
                "172.16.0.1",
                "172.31.255.255",
                "192.0.0.8",
                "192.0.2.1",
                "192.168.1.1",
                "198.18.0.1",
                "198.51.100.1",
                "203.0.113.1",
                "224.0.0.1",
                "240.0.0.1",
                "255.255.255.255",
            ],
            false,
        );
        check(
            &[
                "::",
                "::1",
                "::ffff:127.0.0.1",
                "::ffff:10.0.0.1",
                "::127.0.0.1",
                "64:ff9b::10.0.0.1",
                "64:ff9b:1::1",
                "100::1",
                "2001::1",
                "2001:db8::1",
                "2002:7f00:1::",
                "2002:a00:1::",
                "3fff::1",
                "fc00::1",
                "fd12::1",
                "fe80::1",
                "fec0::1",
                "ff02::1",
            ],
            false,
        );
    }

    #[test]
    fn other_addresses_are_public() {
        check(
            &[
                "1.1.1.1",
                "100.63.255.255",
                "100.128.0.0",
                "172.32.0.1",
                "198.20.0.1",
                "223.255.255.255",
            ],
            true,
        );
        check(
            &[
                "2606:4700::1",
                "2a00:1450::1",
                "::ffff:1.1.1.1",
                "64:ff9b::1.1.1.1",
                "2002:101:101::",
            ],
            true,
        );
    }

    #[test]
    fn network_contains_the_addresses_of_its_prefix() {
        let network: IpNet = "127.0.0.0/8".parse().unwrap();
        assert!(network.contains(&"127.1.2.3".parse::<IpAddr>().unwrap()));
        assert!(!network.contains(&"128.0.0.1".parse::<IpAddr>().unwrap()));
        assert!(!network.contains(&"::1".parse::<IpAddr>().unwrap()));
        let one: IpNet = "::1/128".parse().unwrap();
        assert!(
            one.contains(&"::1".parse::<IpAddr>().unwrap())
                && !one.contains(&"::2".parse::<IpAddr>().unwrap())
        );
        let all: IpNet = "0.0.0.0/0".parse().unwrap();
        assert!(
            all.contains(&"9.9.9.9".parse::<IpAddr>().unwrap())
                && !all.contains(&"::".parse::<IpAddr>().unwrap())
        );
        for text in ["127.0.0.1", "127.0.0.1/33", "x/8", "::/129", "127.0.0.1/-1"] {
            assert!(text.parse::<IpNet>().is_err(), "{text}");
        }
    }
}
