//! Requests that a web page of another site may have sent, by name rebinding or across origins.

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri, header};

use super::Denied;

/// Where anybody on this machine may call: Host must be local, Origin absent or local.
pub fn check_local(uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
    if !host(uri, headers).is_some_and(|host| is_local(host.host())) {
        return Err(Denied::Host);
    }
    match headers.get(header::ORIGIN) {
        Some(origin) if !parse(origin).is_some_and(|origin| origin.host().is_some_and(is_local)) => Err(Denied::Origin),
        _ => Ok(()),
    }
}

/// Where a credential is needed: Origin must be absent, or this very server, under the name that it was called by or under
/// `resource`, where a proxy has it renamed. The Host may be any: a page that rebinds a name has no credential to send.
pub fn check_same(uri: &Uri, headers: &HeaderMap, resource: Option<&Uri>) -> Result<(), Denied> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = parse(origin).ok_or(Denied::ForeignOrigin)?;
    let host = host(uri, headers);
    let same = host.as_ref().is_some_and(|host| {
        // A page of another program on this machine is as good as that program.
        let both_local = is_local(host.host()) && origin.host().is_some_and(is_local);
        both_local || is_same(&origin, host)
    });
    let renamed = resource.is_some_and(|resource| {
        resource.scheme() == origin.scheme()
            && resource.authority().is_some_and(|authority| is_same(&origin, authority))
    });
    if same || renamed { Ok(()) } else { Err(Denied::ForeignOrigin) }
}

fn is_same(origin: &Uri, host: &Authority) -> bool {
    let default = if origin.scheme_str() == Some("https") { 443 } else { 80 };
    origin.host().is_some_and(|name| name.eq_ignore_ascii_case(host.host()))
        && origin.port_u16().unwrap_or(default) == host.port_u16().unwrap_or(default)
}

/// Whom the request names as its server.
pub fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok()?.parse().ok(),
        (None, _) => uri.authority().cloned(),
        // Whoever reads the other one means another.
        (Some(_), Some(_)) => None,
    }
}

fn parse(origin: &HeaderValue) -> Option<Uri> {
    let uri = origin.to_str().ok()?.parse::<Uri>().ok()?;
    (uri.scheme().is_some() && uri.host().is_some()).then_some(uri)
}

/// Whether a host is this machine by its name or address.
pub fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_local_hosts_and_origins_may_call() {
        let check = |pairs: &[(&str, &str)]| check_local(&Uri::from_static("/mcp"), &headers(pairs));
        for host in ["localhost", "LOCALHOST:8787", "127.0.0.1:1", "127.1.2.3", "[::1]:8787"] {
            assert_eq!(check(&[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "user@evil"] {
            assert_eq!(check(&[("host", host)]), Err(Denied::Host), "{host}");
        }
        assert_eq!(check(&[]), Err(Denied::Host));
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            assert_eq!(check(&[("host", "localhost"), ("origin", origin)]), Ok(()), "{origin}");
        }
        for origin in ["null", "https://evil.example", "localhost", "http://localhost.evil.example", ""] {
            assert_eq!(check(&[("host", "localhost"), ("origin", origin)]), Err(Denied::Origin), "{origin}");
        }
        let uri = Uri::from_static("http://localhost:8787/mcp");
        assert_eq!(check_local(&uri, &HeaderMap::new()), Ok(()), "HTTP/2 has it in the URI");
        let mut two = headers(&[("host", "localhost")]);
        two.append("host", HeaderValue::from_static("evil.example"));
        assert_eq!(check_local(&uri, &two), Err(Denied::Host));
    }

    #[test]
    fn with_credentials_a_page_must_be_the_servers_own() {
        let resource = Uri::from_static("https://tasks.example/mcp");
        let check = |host: &str, origin: &str| {
            check_same(&Uri::from_static("/mcp"), &headers(&[("host", host), ("origin", origin)]), Some(&resource))
        };
        for (host, origin) in [
            ("taskd.internal:8787", "http://taskd.internal:8787"),
            ("taskd.internal", "https://TASKD.internal"),
            ("taskd.internal", "https://taskd.internal:443"),
            ("10.0.0.1:8787", "https://tasks.example"),
            ("localhost:8787", "http://127.0.0.1:6274"),
        ] {
            assert_eq!(check(host, origin), Ok(()), "{host} {origin}");
        }
        for (host, origin) in [
            ("taskd.internal", "https://evil.example"),
            ("taskd.internal", "https://taskd.internal.evil.example"),
            ("taskd.internal:8787", "http://taskd.internal"),
            ("taskd.internal", "http://localhost:3000"),
            ("10.0.0.1", "http://tasks.example"),
            ("localhost", "https://evil.example"),
            ("taskd.internal", "null"),
            ("taskd.internal", ""),
        ] {
            assert_eq!(check(host, origin), Err(Denied::ForeignOrigin), "{host} {origin}");
        }
        assert_eq!(check_same(&Uri::from_static("/mcp"), &headers(&[("host", "any.example")]), None), Ok(()));
    }
}
