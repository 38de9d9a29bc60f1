//! Credentials that depend on who calls: `user_auth` and `headers_from_context` (BEHAVIOURS R, S, 121).

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::transport::{is_reserved, legal};

/// Where `user_auth.header` is not set.
const DEFAULT_HEADER: HeaderName = http::header::AUTHORIZATION;

/// What becomes of a call for which there is no credential.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// It is refused.
    #[default]
    Deny,
    /// It goes out with the server's own headers.
    Passthrough,
}

/// `user_auth`: a credential for each configured user (118).
#[derive(Debug, Clone)]
pub struct UserAuth {
    header: HeaderName,
    users: BTreeMap<String, SecretString>,
    on_missing: OnMissing,
}

/// `headers_from_context`: headers whose values come with a request (120).
#[derive(Debug, Clone)]
pub struct ContextHeaders {
    /// Each header with the key of its secret.
    headers: Vec<(HeaderName, String)>,
    on_missing: OnMissing,
}

/// Secrets that came with one request. They are nowhere kept, and never shown.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, SecretString>);

impl Secrets {
    fn find(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(ExposeSecret::expose_secret).filter(|value| !value.is_empty())
    }
}

impl FromIterator<(String, String)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(secrets: I) -> Self {
        Self(secrets.into_iter().map(|(key, value)| (key, value.into())).collect())
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Secrets").field(&self.0.len()).finish()
    }
}

impl UserAuth {
    /// Reads `user_auth`, whether it is switched on or not; an error starts with what follows that key.
    pub(super) fn read(members: &Map<String, Value>) -> Result<Self, String> {
        let header = match members.get("header") {
            None | Some(Value::Null) => DEFAULT_HEADER,
            Some(Value::String(name)) => header(name).map_err(|what| format!(".header {what}"))?,
            Some(_) => return Err(".header must be a text".to_owned()),
        };
        let mut users = BTreeMap::new();
        for (user, value) in object(members, "users")? {
            match value {
                _ if user.trim().is_empty() => return Err(".users has a blank name".to_owned()),
                Value::String(value) => users.insert(user.clone(), value.clone().into()),
                _ => return Err(format!(".users.{user} must be a text")),
            };
        }
        Ok(Self { header, users, on_missing: on_missing(members)? })
    }

    /// The users whose values no header can have.
    pub(super) fn unusable(&self) -> impl Iterator<Item = &str> {
        let unusable = self.users.iter().filter(|(_, value)| !legal(value.expose_secret()));
        unusable.map(|(user, _)| user.as_str())
    }

    /// The header for calls on behalf of `user`; none where the server's own are to be sent. An error says why the call
    /// must not be sent, and never the value.
    pub fn header_for(&self, user: &str) -> Result<Option<(HeaderName, HeaderValue)>, String> {
        let value = self.users.get(user).map(ExposeSecret::expose_secret).filter(|value| !value.is_empty());
        match value {
            Some(value) => match sensitive(value) {
                Some(value) => Ok(Some((self.header.clone(), value))),
                None => Err(format!("user_auth.users.{user} has a value that cannot be sent (not shown)")),
            },
            None if self.on_missing == OnMissing::Passthrough => Ok(None),
            None => Err(format!("user_auth has no credential for the user {user:?}")),
        }
    }
}

impl ContextHeaders {
    /// Reads `headers_from_context`, whether it is switched on or not; an error starts with what follows that key.
    pub(super) fn read(members: &Map<String, Value>) -> Result<Self, String> {
        let mut headers: Vec<(HeaderName, String)> = Vec::new();
        for (name, key) in object(members, "headers")? {
            let name = header(name).map_err(|what| format!(".headers: {name:?} {what}"))?;
            if headers.iter().any(|(known, _)| *known == name) {
                return Err(format!(".headers has {name} in two spellings"));
            }
            match key {
                Value::String(key) if !key.trim().is_empty() => headers.push((name, key.clone())),
                _ => return Err(format!(".headers.{name} must name a secret")),
            }
        }
        Ok(Self { headers, on_missing: on_missing(members)? })
    }

    /// The headers that a call carries for `secrets`. An error names keys, and never a value: what cannot be sent is refused
    /// whatever `on_missing` says (121).
    pub fn resolve(&self, secrets: &Secrets) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let (mut resolved, mut missing, mut illegal) = (Vec::new(), Vec::new(), Vec::new());
        for (name, key) in &self.headers {
            match secrets.find(key).map(sensitive) {
                Some(Some(value)) => resolved.push((name.clone(), value)),
                Some(None) => illegal.push(key.as_str()),
                None => missing.push(key.as_str()),
            }
        }
        if !illegal.is_empty() {
            return Err(format!(
                "context secrets with values that no header can have (not shown): {}",
                listed(illegal)
            ));
        }
        if !missing.is_empty() && self.on_missing == OnMissing::Deny {
            return Err(format!("missing context secrets: {}", listed(missing)));
        }
        Ok(resolved)
    }
}

/// A value as a header that is never shown, where it can be one (121).
fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok().filter(|_| legal(value))?;
    value.set_sensitive(true);
    Some(value)
}

fn listed(mut keys: Vec<&str>) -> String {
    keys.sort_unstable();
    keys.dedup();
    keys.join(", ")
}

fn header(name: &str) -> Result<HeaderName, &'static str> {
    if name.trim().is_empty() {
        return Err("must not be blank");
    }
    let name: HeaderName = name.parse().map_err(|_| "is no name that a header can have")?;
    if is_reserved(&name) { Err("is a header of the protocol itself") } else { Ok(name) }
}

fn object<'a>(
    members: &'a Map<String, Value>,
    key: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, String> {
    match members.get(key) {
        None | Some(Value::Null) => Ok(None.into_iter().flatten()),
        Some(Value::Object(entries)) => Ok(Some(entries).into_iter().flatten()),
        Some(_) => Err(format!(".{key} must be an object")),
    }
}

fn on_missing(members: &Map<String, Value>) -> Result<OnMissing, String> {
    match members.get("on_missing").map(Value::as_str) {
        None | Some(Some("deny")) => Ok(OnMissing::Deny),
        Some(Some("passthrough")) => Ok(OnMissing::Passthrough),
        Some(None) if members["on_missing"].is_null() => Ok(OnMissing::Deny),
        Some(_) => Err(".on_missing must be deny or passthrough".to_owned()),
    }
}

#[cfg(test)]
#[path = "callers_tests.rs"]
mod tests;
