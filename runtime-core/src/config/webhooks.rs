//! Entries of `webhooks` (BEHAVIOURS 64, 138): who is told of which events, and with which secret that is signed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::place::{Mistake, Place};
use super::schema::hint;
use super::value::Origin;
use super::yaml::{Node, Yaml};
use crate::task::EventKind;

const KEYS: [&str; 6] = ["name", "url", "secret", "secret_file", "events", "users"];
const NAME_MAX_CHARS: usize = 64;
/// More of them are a mistake: each costs two small queries a second in every process that delivers.
const MAX_WEBHOOKS: usize = 32;
/// Secrets that a message is signed with: the current one, and those it takes the place of.
const MAX_SECRETS: usize = 8;
/// What a secret in the specification's own form begins with; base64 follows.
const STANDARD_PREFIX: &str = "whsec_";

/// A subscriber of events.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The sink's identity and its label in metrics: 1 to 64 of `A-Za-z0-9_-`.
    pub name: String,
    /// Where it is; it may hold credentials.
    pub url: String,
    /// What messages are signed with, the newest first; at least one.
    #[serde(serialize_with = "masked")]
    pub secret: Vec<SecretString>,
    /// The kinds of event it hears of (153).
    pub events: Vec<String>,
    /// Whose tasks it hears of; everybody's where `None`.
    pub users: Option<Vec<String>>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("name", &self.name).field("events", &self.events).finish_non_exhaustive()
    }
}

impl Webhook {
    /// The keys of the secrets: the bytes that a `whsec_…` encodes, or a plain text's own.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.secret.iter().filter_map(|secret| key(secret.expose_secret())).collect()
    }
}

fn masked<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    vec![super::redact::MASK; secrets.len()].serialize(serializer)
}

fn key(secret: &str) -> Option<Vec<u8>> {
    match secret.strip_prefix(STANDARD_PREFIX) {
        Some(encoded) => STANDARD.decode(encoded).ok().filter(|key| !key.is_empty()),
        None => Some(secret.as_bytes().to_vec()).filter(|key| !key.is_empty()),
    }
}

/// The kinds of event that a sink hears of where it does not say: what waits for somebody, ends, or cannot be followed (64).
fn default_events() -> Vec<Value> {
    let of_note = |kind: &EventKind| match kind {
        EventKind::Status(status) => status.is_terminal() || *status == crate::task::Status::InputRequired,
        EventKind::TrackingDegraded => true,
        EventKind::TrackingRecovered => false,
    };
    EventKind::ALL.iter().filter(|kind| of_note(kind)).map(|kind| kind.as_str().into()).collect()
}

/// Reads the list; what is wrong is told with its place and key, and without values that could be secrets.
pub(super) fn read(nodes: Vec<Node>, origin: &Origin) -> Result<Value, Mistake> {
    if nodes.len() > MAX_WEBHOOKS {
        return Err(origin.mistake(format!("webhooks must be at most {MAX_WEBHOOKS}")));
    }
    let mut entries: Vec<Value> = Vec::new();
    for (index, node) in nodes.into_iter().enumerate() {
        let at = origin.at(Place::from(node.referenced));
        let entry = Entry { path: format!("webhooks[{index}]"), origin: at }.read(node.value)?;
        let twin = entries.iter().position(|other| other["name"] == entry["name"]);
        if let Some(twin) = twin {
            let what = format!("webhooks[{index}] has the name of webhooks[{twin}]: give each a name of its own");
            return Err(origin.at(Place::from(node.referenced)).mistake(what));
        }
        entries.push(entry);
    }
    Ok(Value::Array(entries))
}

struct Entry {
    path: String,
    origin: Origin,
}

impl Entry {
    fn read(mut self, entry: Yaml) -> Result<Value, Mistake> {
        let Yaml::Mapping(members) = entry else {
            return Err(self.origin.mistake(format!("{} is no mapping of url, secret, events and users", self.path)));
        };
        let whole = self.origin.clone();
        let mut found = Map::new();
        for (name, node) in members {
            self.origin = whole.at(Place::from(name.referenced));
            if !KEYS.contains(&name.value.as_str()) {
                let hint = hint(&name.value, KEYS, usize::MAX);
                return Err(self.wrong(&name.value, &format!("is an unknown key{hint}")));
            }
            if node.value == Yaml::Null {
                continue;
            }
            let value = match name.value.as_str() {
                "name" => self.name(node)?,
                "url" => self.url(node)?,
                "secret" => self.secret(node)?,
                "secret_file" => self.secret_file(node)?,
                "events" => self.events(node)?,
                _ => self.users(node)?,
            };
            let key = if name.value == "secret_file" { "secret" } else { name.value.as_str() };
            if found.insert(key.to_owned(), value).is_some() {
                return Err(self.wrong(key, "is given twice: give either secret or secret_file"));
            }
        }
        self.origin = whole;
        let Some(url) = found.get("url").and_then(Value::as_str).map(str::to_owned) else {
            return Err(self.wrong("url", "is missing"));
        };
        if !found.contains_key("secret") {
            return Err(self.wrong("secret", "is missing: messages are signed with it"));
        }
        found.entry("name").or_insert_with(|| derived_name(&url).into());
        found.entry("events").or_insert_with(|| default_events().into());
        Ok(Value::Object(found))
    }

    fn wrong(&self, key: &str, what: &str) -> Mistake {
        self.origin.mistake(format!("{}.{key} {what}", self.path))
    }

    fn name(&self, node: Node) -> Result<Value, Mistake> {
        let is_name = |name: &str| {
            (1..=NAME_MAX_CHARS).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        match node.value {
            Yaml::Text(name) if is_name(&name) => Ok(name.into()),
            _ => Err(self.wrong("name", &format!("must be 1 to {NAME_MAX_CHARS} of A-Z, a-z, 0-9, - and _"))),
        }
    }

    fn url(&self, node: Node) -> Result<Value, Mistake> {
        let is_url = |url: &str| {
            url.parse::<http::Uri>().is_ok_and(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
            })
        };
        match node.value {
            Yaml::Text(url) if is_url(&url) => Ok(url.into()),
            // It may hold a credential.
            _ => Err(self.wrong("url", "must be an http or https URL")),
        }
    }

    fn secret(&self, node: Node) -> Result<Value, Mistake> {
        match node.value {
            Yaml::Text(secret) => self.secrets(vec![secret], "secret"),
            Yaml::List(nodes) => {
                let texts = nodes.into_iter().map(|node| match node.value {
                    Yaml::Text(secret) => Ok(secret),
                    _ => Err(self.wrong("secret", "must be a text or a list of texts")),
                });
                self.secrets(texts.collect::<Result<_, _>>()?, "secret")
            }
            _ => Err(self.wrong("secret", "must be a text or a list of texts")),
        }
    }

    /// One secret a line.
    fn secret_file(&self, node: Node) -> Result<Value, Mistake> {
        let Yaml::Text(path) = node.value else {
            return Err(self.wrong("secret_file", "must be the path of a file"));
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let lines = text.lines().filter(|line| !line.is_empty());
                self.secrets(lines.map(str::to_owned).collect(), "secret_file")
            }
            // The secret itself, given where its file belongs, is no path to show.
            Err(error) => Err(self.wrong("secret_file", &format!("names a file that cannot be read: {error}"))),
        }
    }

    fn secrets(&self, secrets: Vec<String>, from: &str) -> Result<Value, Mistake> {
        if secrets.is_empty() || secrets.len() > MAX_SECRETS {
            return Err(self.wrong(from, &format!("must give 1 to {MAX_SECRETS} secrets")));
        }
        for secret in &secrets {
            if secret.is_empty() {
                return Err(self.wrong(from, "is empty; is the variable that it names set?"));
            }
            if key(secret).is_none() {
                return Err(self.wrong(from, &format!("begins with {STANDARD_PREFIX} and goes on with no base64")));
            }
        }
        Ok(secrets.into())
    }

    fn events(&self, node: Node) -> Result<Value, Mistake> {
        let kinds = EventKind::ALL.map(EventKind::as_str);
        let what = || format!("must be a list of {}", kinds.join(", "));
        let Yaml::List(nodes) = node.value else { return Err(self.wrong("events", &what())) };
        if nodes.is_empty() {
            return Err(self.wrong("events", "must name at least one kind"));
        }
        let mut events: Vec<Value> = Vec::new();
        for node in nodes {
            let Yaml::Text(kind) = node.value else { return Err(self.wrong("events", &what())) };
            if !kinds.contains(&kind.as_str()) {
                let at = self.origin.at(Place::from(node.referenced));
                let hint = hint(&kind, kinds, usize::MAX);
                // What was given may be a variable's value.
                return Err(at.mistake(format!("{}.events names a kind that there is not{hint}", self.path)));
            }
            if !events.iter().any(|known| *known == kind) {
                events.push(kind.into());
            }
        }
        Ok(events.into())
    }

    fn users(&self, node: Node) -> Result<Value, Mistake> {
        let wrong = || Err(self.wrong("users", "must be a list of user ids; leave it out for everybody's tasks"));
        let Yaml::List(nodes) = node.value else { return wrong() };
        let mut users: Vec<Value> = Vec::new();
        for node in nodes {
            match node.value {
                Yaml::Text(user) if !user.is_empty() => users.push(user.into()),
                _ => return wrong(),
            }
        }
        if users.is_empty() { wrong() } else { Ok(users.into()) }
    }
}

/// A name that stays while the URL does: its host, and a digest of it without user, password and parameters.
fn derived_name(url: &str) -> String {
    let uri = url.parse::<http::Uri>().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let place = format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or_default(), uri.path());
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let host: String = host.chars().map(plain).take(NAME_MAX_CHARS - 9).collect();
    let digest = super::canonical::hex(&Sha256::digest(place));
    format!("{}-{}", host.trim_matches('-'), &digest[..8])
}

/// The JSON Schema of an entry.
pub(super) fn json_schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}, "minItems": 1});
    let kinds = EventKind::ALL.map(EventKind::as_str);
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
            "url": {"type": "string"},
            "secret": {"anyOf": [{"type": "string"}, texts]},
            "secret_file": {"type": "string"},
            "events": {"type": "array", "items": {"enum": kinds}, "minItems": 1},
            "users": texts,
        },
        "required": ["url"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
#[path = "webhooks_tests.rs"]
mod tests;
