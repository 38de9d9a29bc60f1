//! Who is calling, and what they may do (INTERFACE, "Who is calling").
//!
//! With `auth.mode: none` every scope is open, on loopback, to requests whose Host is local and whose Origin is absent or
//! local; the user comes from `X-User-Id`. Other modes become further variants of [`Authenticator`].

use http::{HeaderMap, Uri, header};
use mcp_taskd_core::task::limits::CALLER_ID_MAX_CHARS;

/// The header that names the user where no key or token does.
pub const USER_HEADER: &str = "x-user-id";
/// The header that names the thread on MCP.
pub const THREAD_HEADER: &str = "x-thread-id";
/// The user and the thread of those who name none.
pub const DEFAULT_ID: &str = "default";

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Own tasks.
    Tasks,
    /// All users' tasks, workers.
    Operator,
    /// The configuration.
    Admin,
}

/// The scopes of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scopes {
    /// [`Scope::Tasks`].
    pub tasks: bool,
    /// [`Scope::Operator`].
    pub operator: bool,
    /// [`Scope::Admin`].
    pub admin: bool,
}

impl Scopes {
    /// Every scope.
    pub const ALL: Self = Self { tasks: true, operator: true, admin: true };
}

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whose tasks are meant.
    pub user_id: String,
    /// What the caller may do.
    pub scopes: Scopes,
    /// Whether the caller may speak for other users.
    pub act_as: bool,
}

impl Identity {
    /// Refuses a caller without `scope`.
    pub fn require(&self, scope: Scope) -> Result<(), Denied> {
        let (open, name) = match scope {
            Scope::Tasks => (self.scopes.tasks, "tasks"),
            Scope::Operator => (self.scopes.operator, "operator"),
            Scope::Admin => (self.scopes.admin, "admin"),
        };
        if open { Ok(()) } else { Err(Denied::Scope(name)) }
    }
}

/// Why a request is refused before it is looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A header that names a user or a thread cannot be used.
    #[error("{0} must be 1 to 255 characters without control characters")]
    Invalid(&'static str),
    /// A header that names a user or a thread is there twice: whoever reads the other one means somebody else.
    #[error("{0} must be sent only once")]
    Repeated(&'static str),
    /// The Host is not local.
    #[error("the Host header must name this machine (localhost, 127.0.0.1 or ::1)")]
    Host,
    /// The Origin is not local.
    #[error("the Origin header must be absent or local")]
    Origin,
    /// The caller lacks a scope.
    #[error("this needs the scope {0:?}")]
    Scope(&'static str),
}

/// How callers are known.
#[derive(Debug)]
pub enum Authenticator {
    /// `auth.mode: none`.
    Open,
}

impl Authenticator {
    /// The caller of a request.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Identity, Denied> {
        match self {
            Self::Open => {
                let user_id = header_id(headers, USER_HEADER, "X-User-Id")?.unwrap_or_else(|| DEFAULT_ID.into());
                Ok(Identity { user_id, scopes: Scopes::ALL, act_as: true })
            }
        }
    }

    /// Refuses requests that a web page of another site may have sent, by name rebinding or across origins.
    pub fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        match self {
            Self::Open => {
                let host = match headers.get(header::HOST) {
                    Some(host) => host.to_str().ok().and_then(|host| host.parse().ok()),
                    None => uri.authority().cloned(),
                };
                if !host.is_some_and(|host: http::uri::Authority| is_local(host.host())) {
                    return Err(Denied::Host);
                }
                match headers.get(header::ORIGIN) {
                    Some(origin) if !origin_is_local(origin) => Err(Denied::Origin),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// The id in a header, where there is one.
pub fn header_id(headers: &HeaderMap, name: &str, shown: &'static str) -> Result<Option<String>, Denied> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Denied::Repeated(shown));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| Denied::Invalid(shown))?;
    if is_valid_id(text) { Ok(Some(text.to_owned())) } else { Err(Denied::Invalid(shown)) }
}

/// Whether `text` may name a user, a thread, a run or a tool call: 1 to 255 characters, no control characters.
pub fn is_valid_id(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= CALLER_ID_MAX_CHARS && !text.chars().any(char::is_control)
}

fn origin_is_local(origin: &http::HeaderValue) -> bool {
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    uri.is_some_and(|uri| uri.scheme().is_some() && uri.host().is_some_and(is_local))
}

fn is_local(host: &str) -> bool {
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
    fn without_authentication_the_user_comes_from_a_header() {
        let user = |pairs: &[(&str, &str)]| Authenticator::Open.identify(&headers(pairs)).map(|caller| caller.user_id);
        assert_eq!(user(&[]).unwrap(), "default");
        assert_eq!(user(&[("x-user-id", "ada")]).unwrap(), "ada");
        assert_eq!(user(&[("x-user-id", &"a".repeat(255))]).unwrap().len(), 255);
        for bad in ["", "a\tb", &"a".repeat(256)] {
            assert_eq!(user(&[("x-user-id", bad)]), Err(Denied::Invalid("X-User-Id")), "{bad:?}");
        }
        let mut two = headers(&[("x-user-id", "ada")]);
        two.append("x-user-id", http::HeaderValue::from_static("bob"));
        assert_eq!(Authenticator::Open.identify(&two).unwrap_err(), Denied::Repeated("X-User-Id"));
        let mut latin = HeaderMap::new();
        latin.insert("x-user-id", http::HeaderValue::from_bytes(b"\xe9").unwrap());
        assert!(Authenticator::Open.identify(&latin).is_err());
    }

    #[test]
    fn only_local_hosts_and_origins_may_call() {
        let check =
            |pairs: &[(&str, &str)]| Authenticator::Open.check_origin(&Uri::from_static("/mcp"), &headers(pairs));
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
        assert_eq!(Authenticator::Open.check_origin(&uri, &HeaderMap::new()), Ok(()), "HTTP/2 has it in the URI");
    }

    #[test]
    fn a_scope_that_is_missing_is_named() {
        let caller = Identity {
            user_id: "ada".into(),
            scopes: Scopes { tasks: true, operator: false, admin: false },
            act_as: false,
        };
        assert_eq!(caller.require(Scope::Tasks), Ok(()));
        assert_eq!(caller.require(Scope::Operator), Err(Denied::Scope("operator")));
        assert_eq!(caller.require(Scope::Admin), Err(Denied::Scope("admin")));
    }
}
