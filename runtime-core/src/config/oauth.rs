//! `oauth` of a server, as its definition says (BEHAVIOURS 110–112).

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::canonical::hex;

/// Every key of `oauth` that means something.
pub(super) const KEYS: [&str; 14] = [
    "enabled",
    "token_url",
    "grant_type",
    "client_id",
    "client_secret",
    "refresh_token",
    "scope",
    "audience",
    "token_field",
    "token_type_field",
    "expires_in_field",
    "default_token_type",
    "refresh_skew_seconds",
    "extra_token_params",
];

/// The longest that a token may be renewed ahead of its end: longer says that nothing is ever fresh.
const MAX_SKEW_SECONDS: f64 = 86_400.0;

/// How the tokens for one server are obtained.
#[derive(Debug, Clone)]
pub struct OAuth {
    /// Where they are asked for.
    pub token_url: String,
    /// With what.
    pub grant: Grant,
    /// `client_id`; there with `client_credentials`.
    pub client_id: Option<String>,
    /// `client_secret`; there with `client_credentials`.
    pub client_secret: Option<SecretString>,
    /// `scope`, where it is asked for.
    pub scope: Option<String>,
    /// `audience`, where it is asked for.
    pub audience: Option<String>,
    /// The answer's member with the access token.
    pub token_field: String,
    /// The answer's member with its type.
    pub token_type_field: String,
    /// The answer's member with its lifetime in seconds.
    pub expires_in_field: String,
    /// The type where the answer names none.
    pub default_token_type: String,
    /// How long before its end a token is renewed.
    pub refresh_skew: Duration,
    /// Further fields of the request. They may hold credentials.
    pub extra_token_params: Vec<(String, SecretString)>,
}

/// `grant_type`.
#[derive(Debug, Clone)]
pub enum Grant {
    /// The client speaks for itself.
    ClientCredentials,
    /// It continues what a person has agreed to: the refresh token that a chain begins with.
    RefreshToken(SecretString),
}

impl Grant {
    /// The word on the wire.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::ClientCredentials => "client_credentials",
            Self::RefreshToken(_) => "refresh_token",
        }
    }
}

impl OAuth {
    /// What decides whether a stored chain of tokens continues this configuration: a SHA-256 over `token_url`, `client_id`,
    /// `grant_type`, `scope`, `audience` and the configured refresh token (116). A new `client_secret` changes nothing.
    pub fn fingerprint(&self) -> String {
        let seed = match &self.grant {
            Grant::ClientCredentials => None,
            Grant::RefreshToken(seed) => Some(seed.expose_secret()),
        };
        digest(&[
            Some(&self.token_url),
            self.client_id.as_deref(),
            Some(self.grant.as_str()),
            self.scope.as_deref(),
            self.audience.as_deref(),
            seed,
        ])
    }

    /// What decides whether an access token that was obtained with another configuration of the same fingerprint may be used:
    /// a SHA-256 over the further parameters and the fields of the answer (116).
    pub fn request_digest(&self) -> String {
        let mut parts = vec![
            Some(self.token_field.as_str()),
            Some(&self.token_type_field),
            Some(&self.expires_in_field),
            Some(&self.default_token_type),
        ];
        let mut extra: Vec<_> = self.extra_token_params.iter().collect();
        extra.sort_by(|one, other| one.0.cmp(&other.0));
        parts.extend(extra.into_iter().flat_map(|(name, value)| [Some(name.as_str()), Some(value.expose_secret())]));
        digest(&parts)
    }
}

/// A digest of texts, none of which can be taken for a part of another.
fn digest(parts: &[Option<&str>]) -> String {
    let parts: Value = parts.iter().map(|part| part.map_or(Value::Null, Into::into)).collect();
    hex(&Sha256::digest(parts.to_string()))
}

/// Why `oauth` cannot be read. No text quotes a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A member that nobody could mean so: its key below the server, and what it must be.
    Key(String, &'static str),
    /// What is needed and cannot be used, perhaps because a variable is not set: its key below the server, and why.
    Needed(String, String),
}

/// The keys that mean nothing.
pub(super) fn unknown(members: &Map<String, Value>) -> impl Iterator<Item = &String> {
    members.keys().filter(|key| !KEYS.contains(&key.as_str()))
}

/// What `members` say.
pub(super) fn read(members: &Map<String, Value>) -> Result<OAuth, Wrong> {
    let reader = Reader(members);
    let token_url = reader.text("token_url")?.ok_or_else(|| missing("token_url", "oauth"))?;
    if !is_web_address(&token_url) {
        return Err(Wrong::Needed("oauth.token_url".to_owned(), "is no http or https URL".to_owned()));
    }
    let client_id = reader.text("client_id")?;
    let client_secret = reader.text("client_secret")?;
    let refresh_token = reader.text("refresh_token")?;
    let grant = match reader.text("grant_type")?.as_deref() {
        None | Some("client_credentials") => {
            let needed = [("client_id", &client_id), ("client_secret", &client_secret)];
            if let Some((key, _)) = needed.into_iter().find(|(_, value)| value.is_none()) {
                return Err(missing(key, "grant_type client_credentials"));
            }
            Grant::ClientCredentials
        }
        Some("refresh_token") => {
            let seed = refresh_token.ok_or_else(|| missing("refresh_token", "grant_type refresh_token"))?;
            Grant::RefreshToken(seed.into())
        }
        Some(_) => return Err(wrong("grant_type", "must be client_credentials or refresh_token")),
    };
    let word = |key: &str, default: &str| Ok(reader.text(key)?.unwrap_or_else(|| default.to_owned()));
    Ok(OAuth {
        token_url,
        grant,
        client_id,
        client_secret: client_secret.map(Into::into),
        scope: reader.text("scope")?,
        audience: reader.text("audience")?,
        token_field: word("token_field", "access_token")?,
        token_type_field: word("token_type_field", "token_type")?,
        expires_in_field: word("expires_in_field", "expires_in")?,
        default_token_type: word("default_token_type", "Bearer")?,
        refresh_skew: reader.skew()?,
        extra_token_params: reader.extra()?,
    })
}

fn wrong(key: &str, what: &'static str) -> Wrong {
    Wrong::Key(format!("oauth.{key}"), what)
}

fn missing(key: &str, needed_by: &str) -> Wrong {
    Wrong::Needed(format!("oauth.{key}"), format!("is missing or empty, and {needed_by} needs it"))
}

fn is_web_address(text: &str) -> bool {
    text.parse::<http::Uri>()
        .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
}

struct Reader<'a>(&'a Map<String, Value>);

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A text; an empty one, as of a variable that is not set, is none.
    fn text(&self, key: &str) -> Result<Option<String>, Wrong> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Some(_) => Err(wrong(key, "must be a text")),
        }
    }

    fn skew(&self) -> Result<Duration, Wrong> {
        let Some(value) = self.get("refresh_skew_seconds") else { return Ok(Duration::from_mins(1)) };
        // A reference to a variable makes a text of a number.
        let seconds = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
        seconds
            .filter(|seconds| (0.0..=MAX_SKEW_SECONDS).contains(seconds))
            .map(Duration::from_secs_f64)
            .ok_or_else(|| wrong("refresh_skew_seconds", "must be a number of seconds from 0 to 86400"))
    }

    fn extra(&self) -> Result<Vec<(String, SecretString)>, Wrong> {
        let texts = "must be an object of texts";
        match self.get("extra_token_params") {
            None => Ok(Vec::new()),
            Some(Value::Object(members)) => members
                .iter()
                .map(|(name, value)| match value {
                    Value::String(value) => Ok((name.clone(), value.clone().into())),
                    _ => Err(wrong("extra_token_params", texts)),
                })
                .collect(),
            Some(_) => Err(wrong("extra_token_params", texts)),
        }
    }
}

#[cfg(test)]
#[path = "oauth_tests.rs"]
mod tests;
