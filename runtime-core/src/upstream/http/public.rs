//! Where a user may have the daemon connect to: public addresses, judged when connecting (BEHAVIOURS 126).
//!
//! A check of a name beforehand would be worth nothing: what it resolves to may be another address a moment later.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Finds the addresses of a name.
type Lookup = dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> + Send + Sync;

/// A resolver that knows public addresses only.
#[derive(Clone)]
pub(super) struct PublicOnly(Arc<Lookup>);

impl PublicOnly {
    /// With the system's own resolver behind it.
    pub(super) fn system() -> Self {
        Self(Arc::new(|name| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        }))
    }
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let looking = self.0(name.as_str().to_owned());
        Box::pin(async move {
            let found = looking.await?;
            let public: Vec<_> =
                found.into_iter().filter(|ip| is_public(*ip)).map(|ip| SocketAddr::new(ip, 0)).collect();
            if public.is_empty() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its name has no public address").into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether the address that a URL spells out may be connected to. A name is judged when it is resolved; no resolver ever sees
/// an address.
pub(crate) fn may_be_public(url: &Url) -> bool {
    match url.host_str() {
        None => false,
        Some(host) => {
            let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            literal.map_or(true, is_public)
        }
    }
}

/// Whether an address is one of the public Internet's.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Less what IANA's registry of special-purpose addresses says is not globally reachable.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        // Multicast, reserved and broadcast.
        || a >= 224
        || a == 0
        // Shared by carriers.
        || (a == 100 && (64..128).contains(&b))
        // Protocol assignments, and relays of 6to4.
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        // Benchmarks.
        || (a == 198 && matches!(b, 18 | 19));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // The same address in IPv4's clothes, or behind a translator: what it leads to counts.
    let embedded = |at: usize| {
        let [high, low] = [segments[at], segments[at + 1]].map(u16::to_be_bytes);
        is_public_v4(Ipv4Addr::new(high[0], high[1], low[0], low[1]))
    };
    match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => embedded(6),
        // Teredo, ORCHID and other protocols; documentation; 6to4.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x2002, ..] => false,
        // What is given out to the Internet; everything else is local, reserved or multicast.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::Client;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const PUBLIC: [&str; 8] = [
        "8.8.8.8",
        "1.1.1.1",
        "100.63.255.255",
        "172.32.0.1",
        "192.0.1.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ];
    const OTHER: [&str; 48] = [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.170",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "100::1",
        "2001::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:808:808::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ];

    #[test]
    fn only_addresses_of_the_internet_are_public_126() {
        for address in PUBLIC {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in OTHER {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn an_address_in_a_url_is_judged_however_it_is_spelt_126() {
        let judged = |url: &str| may_be_public(&url.parse().unwrap());
        for host in [
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "[::1]",
            "[::ffff:7f00:1]",
            "169.254.169.254.",
            "①②⑦.0.0.1",
        ] {
            assert!(!judged(&format!("http://{host}:80/mcp")), "{host}");
        }
        assert!(judged("https://8.8.8.8/mcp") && judged("https://[2606:4700::1111]/mcp"));
        assert!(judged("https://localhost/mcp"), "a name is judged when connecting");
    }

    fn client(addresses: &'static [&'static str]) -> Client {
        let lookup = PublicOnly(Arc::new(move |_| {
            Box::pin(async move { Ok(addresses.iter().map(|address| address.parse().unwrap()).collect()) })
        }));
        let _ = rustls::crypto::ring::default_provider().install_default();
        Client::builder().no_proxy().dns_resolver(lookup).build().unwrap()
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_not_connected_to_126() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://rebound.example:{}/mcp", listener.local_addr().unwrap().port());
        for addresses in [&["127.0.0.1"][..], &["::ffff:127.0.0.1"], &["::1", "127.0.0.1"], &[]] {
            let error = client(addresses).get(&url).send().await.unwrap_err();
            assert!(error.is_connect(), "{error:?}");
            assert_eq!(super::super::cause(&error), "its name has no public address");
        }
        let connected = timeout(Duration::from_millis(200), listener.accept()).await;
        assert!(connected.is_err(), "nobody came");
    }

    #[tokio::test]
    async fn of_several_addresses_only_the_public_ones_are_tried_126() {
        let lookup = PublicOnly(Arc::new(|_| {
            Box::pin(async { Ok(["10.0.0.1", "8.8.8.8", "::1"].map(|address| address.parse().unwrap()).into()) })
        }));
        let found: Vec<_> = lookup.resolve("mixed.example".parse().unwrap()).await.unwrap().collect();
        assert_eq!(found, ["8.8.8.8:0".parse().unwrap()]);
    }
}
