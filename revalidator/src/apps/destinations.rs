//! The HTTP client of an application, and the hosts and addresses that it may reach.
//!
//! Requests are sent only to listed hosts and public addresses, over HTTPS; the settings list exceptions. Addresses are checked
//! when a connection is opened. Redirects are not followed, and proxies are not used.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, LazyLock},
};

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use runtime::open_files;
use tokio::net::lookup_host;
use url::{Host, Url};

use super::settings::AppSettings;
use crate::{
    client::{builder, http_url, trust},
    messages::URL_BYTES_MAX,
};

/// HTTP client of an application.
pub(super) fn client(settings: &Arc<AppSettings>) -> Result<reqwest::Client, String> {
    // Idle connections of 16 hosts need no more files than are reserved.
    let idle_max = settings.concurrency.max.min(open_files::of_store() / 16);
    let builder = builder()
        .dns_resolver(Resolver(Arc::clone(settings)))
        .pool_max_idle_per_host(idle_max);
    let client = trust(builder, settings.ca_file.as_deref())?.build();
    client.map_err(|error| error.to_string())
}

impl AppSettings {
    fn allows_address(&self, address: IpAddr) -> bool {
        is_public(address) || self.allow_networks.iter().any(|it| it.contains(&address))
    }

    /// Parses a URL; `None` if requests to it are not allowed. Addresses of names are checked later, when connecting.
    pub fn allowed(&self, text: &str) -> Option<Url> {
        let url = http_url(text).filter(|_| text.len() <= URL_BYTES_MAX)?;
        let host = url.host()?.to_owned();
        let is_allowed_address = match host {
            Host::Domain(_) => true,
            Host::Ipv4(address) => self.allows_address(address.into()),
            Host::Ipv6(address) => self.allows_address(address.into()),
        };
        let has_tls = url.scheme() == "https" || self.http_hosts.contains(&host);
        let is_allowed = has_tls && self.hosts.contains(&host) && is_allowed_address;
        is_allowed.then_some(url)
    }
}

/// A host has only addresses that are not allowed.
#[derive(Debug, thiserror::Error)]
#[error("the host has no allowed address")]
pub struct NoAllowedAddress;

/// Resolves names to allowed addresses only.
struct Resolver(Arc<AppSettings>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let settings = Arc::clone(&self.0);
        Box::pin(async move {
            let found = lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| settings.allows_address(address.ip()))
                .collect();
            if allowed.is_empty() {
                return Err(NoAllowedAddress.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Special-purpose networks of the IANA registries.
const SPECIAL: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 \
                       192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 \
                       224.0.0.0/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20";

static SPECIAL_NETWORKS: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    let networks = SPECIAL.split_ascii_whitespace().map(str::parse);
    networks.map(|it| it.expect("a valid network")).collect()
});

/// Whether an address is on the public internet. An IPv6 address that contains an IPv4 address is public only if the latter is.
fn is_public(address: IpAddr) -> bool {
    let address = match address.to_canonical() {
        // NAT64 with the well-known prefix.
        IpAddr::V6(it) if it.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = it.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    };
    let is_unicast = match address {
        IpAddr::V4(_) => true,
        // Only 2000::/3 is assigned.
        IpAddr::V6(it) => it.segments()[0] >> 13 == 1,
    };
    is_unicast && !SPECIAL_NETWORKS.iter().any(|it| it.contains(&address))
}

#[cfg(test)]
mod tests {
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
                "2002:101:101::",
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
            ],
            true,
        );
    }

    fn settings(allow_networks: &str) -> AppSettings {
        let text = format!(
            "kind = \"list\"\nhttp_hosts = [\"plain.example\"]\nallow_networks = [{allow_networks}]\n\
             hosts = [\"Shop.example\", \"b\u{fc}cher.example\", \"plain.example\", \"127.0.0.1\", \"10.0.0.1\", \"8.8.8.8\", \"[::1]\"]\n"
        );
        toml::from_str(&text).unwrap()
    }

    #[track_caller]
    fn check_urls(urls: &[&str], expected: bool) {
        for url in urls {
            assert_eq!(
                settings("\"127.0.0.0/8\"").allowed(url).is_some(),
                expected,
                "{url}"
            );
        }
    }

    #[test]
    fn only_listed_hosts_are_requested() {
        check_urls(
            &[
                "https://shop.example/a?b=c",
                "https://SHOP.example:8443/",
                "https://b\u{fc}cher.example/",
                "https://xn--bcher-kva.example/",
                "http://plain.example/",
            ],
            true,
        );
        check_urls(
            &[
                "http://shop.example/",
                "https://other.example/",
                "https://shop.example.evil.example/",
                "ftp://shop.example/",
                "https://user@shop.example/",
                "https://:pw@shop.example/",
                "file:///etc/passwd",
                "shop.example",
                "",
                "//shop.example/",
                "https://other.example\\@shop.example/",
            ],
            false,
        );
        let long = format!("https://shop.example/{}", "a".repeat(URL_BYTES_MAX));
        check_urls(&[&long], false);
    }

    #[test]
    fn literal_addresses_are_checked() {
        check_urls(
            &[
                "https://127.0.0.1/",
                "https://0x7f.1/",
                "https://2130706433/",
                "https://8.8.8.8/",
            ],
            true,
        );
        check_urls(
            &[
                "https://10.0.0.1/",
                "https://167772161/",
                "https://[::1]/",
                "https://[::ffff:10.0.0.1]/",
            ],
            false,
        );
    }

    #[tokio::test]
    async fn names_of_private_addresses_do_not_resolve() {
        let resolve = async |networks: &str| {
            let name: Name = "localhost".parse().unwrap();
            let found = Resolver(Arc::new(settings(networks))).resolve(name).await;
            found.is_ok()
        };
        assert!(resolve("\"127.0.0.0/8\", \"::1/128\"").await);
        assert!(!resolve("").await);
    }
}
