//! The daemon's own gateway among its servers: it would ask itself for its tools, and that again.

use std::net::{IpAddr, SocketAddr};

use http::Uri;

use super::{Extensions, ServerConfig, Settings, Transport};

/// Where the gateway is, whatever `server.listen` is.
const GATEWAY: &str = "/mcp";

/// Finds enabled servers whose URL is the daemon's own gateway, by the address that it listens at or by the one in
/// `auth.resource`. What a proxy or a name in DNS leads back here is not seen.
pub(super) fn check(settings: &Settings, extensions: &Extensions, wrong: &mut Vec<String>) {
    let resource = settings.auth.resource.as_deref().and_then(|resource| resource.parse().ok());
    for server in extensions.servers.values().filter(|server| server.enabled) {
        let Some(url) = url(server) else { continue };
        let at = if listens_at(settings.server.listen, &url) {
            format!("server.listen {}", settings.server.listen)
        } else if resource.as_ref().is_some_and(|resource| is_same(resource, &url)) {
            "auth.resource".to_owned()
        } else {
            continue;
        };
        wrong.push(format!(
            "mcpServers.{}.url is this daemon's own gateway ({at}): it would be a server of itself; give the address of \
             another server, or remove the entry",
            server.name
        ));
    }
}

fn url(server: &ServerConfig) -> Option<Uri> {
    match &server.transport {
        Transport::Http { url, .. } | Transport::Sse { url, .. } => url.parse().ok(),
        Transport::Stdio { .. } => None,
    }
}

/// Whether a request to `url` arrives at the gateway of who listens at `listen`.
fn listens_at(listen: SocketAddr, url: &Uri) -> bool {
    let Some(host) = url.host() else { return false };
    let is_loopback = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) if address == listen.ip() => return port(url) == Some(listen.port()) && is_gateway(url),
        // Connecting to the unspecified address leads to this machine.
        Ok(address) => listen.ip().is_unspecified() && address.is_loopback() || address.is_unspecified(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    let is_heard = listen.ip().is_loopback() || listen.ip().is_unspecified();
    is_loopback && is_heard && port(url) == Some(listen.port()) && is_gateway(url)
}

fn is_same(one: &Uri, other: &Uri) -> bool {
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other) && path(one) == path(other)
}

fn is_gateway(url: &Uri) -> bool {
    path(url) == GATEWAY
}

fn path(url: &Uri) -> &str {
    url.path().trim_end_matches('/')
}

fn port(url: &Uri) -> Option<u16> {
    url.port_u16().or(match url.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_own(listen: &str, url: &str) -> bool {
        listens_at(listen.parse().unwrap(), &url.parse().unwrap())
    }

    #[test]
    fn every_way_to_write_the_own_address_is_known() {
        for (listen, url) in [
            ("127.0.0.1:8787", "http://127.0.0.1:8787/mcp"),
            ("127.0.0.1:8787", "http://LocalHost:8787/mcp/"),
            ("127.0.0.1:8787", "http://0.0.0.0:8787/mcp?x=1"),
            ("127.0.0.1:80", "http://localhost/mcp"),
            ("[::1]:8787", "http://[::1]:8787/mcp"),
            ("[::1]:8787", "http://localhost:8787/mcp"),
            ("0.0.0.0:8787", "http://localhost:8787/mcp"),
            ("0.0.0.0:8787", "http://127.0.0.1:8787/mcp"),
            ("0.0.0.0:8787", "http://0.0.0.0:8787/mcp"),
            ("[::]:8787", "http://[::1]:8787/mcp"),
            ("[::]:8787", "http://127.0.0.1:8787/mcp"),
            ("10.0.0.7:8787", "http://10.0.0.7:8787/mcp"),
        ] {
            assert!(is_own(listen, url), "{listen} {url}");
        }
    }

    #[test]
    fn another_port_path_host_or_interface_is_another_server() {
        for (listen, url) in [
            ("127.0.0.1:8787", "http://127.0.0.1:8788/mcp"),
            ("127.0.0.1:8787", "http://127.0.0.1:8787/other"),
            ("127.0.0.1:8787", "http://127.0.0.1:8787/mcp/more"),
            ("127.0.0.1:8787", "http://127.0.0.2:8787/mcp"),
            ("127.0.0.1:8787", "http://[::1]:8787/mcp"),
            ("127.0.0.1:8787", "http://tools.example:8787/mcp"),
            ("127.0.0.1:8787", "http://127.0.0.1/mcp"),
            ("10.0.0.7:8787", "http://localhost:8787/mcp"),
            ("0.0.0.0:8787", "http://10.0.0.7:8787/mcp"),
            ("127.0.0.1:0", "http://127.0.0.1:8787/mcp"),
        ] {
            assert!(!is_own(listen, url), "{listen} {url}");
        }
    }
}
