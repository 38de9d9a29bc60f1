//! Configuration as it may be shown (BEHAVIOURS 84, 85, 141).

use serde_json::{Map, Value};

use super::extensions::Definition;
use super::{Extensions, ServerConfig, Transport};

/// What stands for a secret.
pub const MASK: &str = "***";

/// Parts of a key's normalised name that make its value a secret (84).
const SECRET_NAMES: [&str; 11] = [
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "client_secret",
    "secret",
    "token",
    "password",
    "passwd",
    "credential",
    "authorization",
];

impl Definition {
    /// The JSON with everything masked that is or could be a secret, by place or by name.
    pub fn masked(&self) -> Value {
        let mut value = self.0.clone();
        mask(&mut value);
        value
    }
}

impl Extensions {
    /// The file as it may be shown: references to variables stay, literal secrets do not.
    pub fn json(&self) -> Value {
        self.document.masked()
    }

    /// The arguments of a stdio server that are or could be secrets: what the file has as `$NAME`, and what is masked where
    /// arguments are shown; of `--name=value` and `Name: value` the value too.
    pub fn secret_args(&self, server: &ServerConfig) -> Vec<String> {
        let Transport::Stdio { args, .. } = &server.transport else { return Vec::new() };
        let raw = &self.document.expose()["mcpServers"][&server.name]["args"];
        let mut shown = Value::from(args.clone());
        mask_args(&mut shown);
        let is_secret = |at: usize| {
            raw[at].as_str().is_some_and(|raw| super::environment::reference(raw).is_some())
                || shown[at].as_str() != args.get(at).map(String::as_str)
        };
        let secrets = args.iter().enumerate().filter(|(at, _)| is_secret(*at)).map(|(_, arg)| arg);
        secrets
            .flat_map(|arg| {
                std::iter::once(arg.as_str()).chain(arg.split_once(['=', ':']).map(|(_, value)| value.trim()))
            })
            .map(str::to_owned)
            .collect()
    }
}

/// Masks what is or could be a secret, in place.
pub(super) fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => mask_members(members),
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::String(text) => mask_url(text),
        _ => {}
    }
}

fn mask_members(members: &mut Map<String, Value>) {
    for (key, value) in members.iter_mut() {
        match key.as_str() {
            "env" | "headers" | "users" | "extra_token_params" if value.is_object() => mask_values(value),
            // Names of secrets, not secrets (85).
            "headers_from_context" => {}
            "args" => mask_args(value),
            "token_url" => mask(value),
            name if is_secret(name) && !is_setting(name, value) => mask_values(value),
            _ => mask(value),
        }
    }
}

/// Masks every leaf that holds something.
fn mask_values(value: &mut Value) {
    match value {
        Value::Object(members) => members.iter_mut().for_each(|(_, value)| mask_values(value)),
        Value::Array(items) => items.iter_mut().for_each(mask_values),
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        leaf => *leaf = MASK.into(),
    }
}

/// Arguments that look like secrets: what follows `--api-key`, what comes after `--token=`, URLs with passwords.
fn mask_args(value: &mut Value) {
    let Value::Array(args) = value else { return mask(value) };
    let mut next_is_secret = false;
    for arg in args {
        let Value::String(text) = arg else { continue };
        let reference = super::environment::reference(text).is_some();
        if std::mem::take(&mut next_is_secret) && !text.starts_with('-') {
            if !reference {
                MASK.clone_into(text);
            }
            continue;
        }
        match (text.split_once('='), text.split_once(':')) {
            (Some((name, _)), _) if is_secret(name) => *text = format!("{name}={MASK}"),
            // A header, as `--header` takes it.
            (_, Some((name, value))) if is_secret(name) => {
                let blank = if value.starts_with(' ') { " " } else { "" };
                *text = format!("{name}:{blank}{MASK}");
            }
            _ if text.starts_with('-') && is_secret(text) => next_is_secret = true,
            _ if is_token(text) => MASK.clone_into(text),
            _ => mask_url(text),
        }
    }
}

/// Whether a text is a token by its looks: what well-known services begin theirs with.
fn is_token(text: &str) -> bool {
    const BEGINNINGS: [&str; 14] = [
        "sk-",
        "sk_",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "xoxp-",
        "xapp-",
        "AKIA",
        "AIza",
        "hf_",
        "eyJ",
    ];
    let text = text.strip_prefix("Bearer ").unwrap_or(text);
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    text.len() >= 16 && is_word && BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
}

/// Masks the user part of a URL, parts of its path that look like secrets, and parameters that are named or look like some.
pub(super) fn mask_url(text: &mut String) {
    let Some((scheme, rest)) = text.split_once("://") else { return };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("{MASK}@{host}"));
    let (path, query) = match tail.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (tail, None),
    };
    let masked = |part: &str, separator: char, mask: fn(&str) -> String| {
        part.split(separator).map(mask).collect::<Vec<_>>().join(&separator.to_string())
    };
    let path = masked(path, '/', |part| if is_random(part) { MASK.to_owned() } else { part.to_owned() });
    let query = query.map(|query| {
        let query = masked(query, '&', |pair| match pair.split_once('=') {
            Some((name, value)) if is_secret_parameter(name) || is_random(value) => format!("{name}={MASK}"),
            _ => pair.to_owned(),
        });
        format!("?{query}")
    });
    *text = format!("{scheme}://{host}{path}{}", query.unwrap_or_default());
}

fn is_secret_parameter(name: &str) -> bool {
    const NAMES: [&str; 6] = ["key", "sig", "signature", "auth", "pass", "pwd"];
    is_secret(name) || NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Whether a text is long and has both letters and digits in one word, as generated ones have.
fn is_random(text: &str) -> bool {
    text.len() >= 20
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'%'))
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Settings whose names only sound like secrets.
fn is_setting(name: &str, value: &Value) -> bool {
    matches!(name, "token_field" | "token_type_field" | "default_token_type") || value.is_number() || value.is_boolean()
}

pub(crate) fn is_secret(name: &str) -> bool {
    let mut normal = String::with_capacity(name.len() + 4);
    let mut lower = false;
    for c in name.chars() {
        // `apiKey` and `api-key` are `api_key`.
        if c.is_ascii_uppercase() && lower {
            normal.push('_');
        }
        lower = c.is_ascii_lowercase();
        normal.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    }
    SECRET_NAMES.iter().any(|part| normal.contains(part)) || normal.split('_').any(|word| word == "bearer")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Environment;

    #[test]
    fn secret_arguments_are_told_from_ordinary_ones_148() {
        let document = json!({"mcpServers": {"s": {
            "command": "x",
            "args": ["--verbose", "$KEY", "--token=abc123", "--api-key", "k1", "/srv/$KEY", "--header", "X-Token: def456"],
        }}});
        let environment: Environment = [("KEY", "from-outside")].into_iter().collect();
        let extensions =
            Extensions::parse(&document.to_string(), std::path::Path::new("e.json"), &environment).unwrap();
        assert_eq!(
            extensions.secret_args(&extensions.servers["s"]),
            ["from-outside", "--token=abc123", "abc123", "k1", "X-Token: def456", "def456"]
        );
    }

    #[test]
    fn secrets_by_place_and_by_name_are_masked_84_85_141() {
        let definition = Definition(json!({"mcpServers": {"s": {
            "url": "https://u:pw@h.example/p/s/4f9c1de0a7b24c6e9d13/mcp?api_key=k&x=1#f",
            "env": {"A": "plain"},
            "headers": {"X": "v", "Y": ""},
            "args": ["--header", "Authorization: Bearer k0", "Authorization:k0", "ghp_0123456789abcdef", "--api-key", "k1", "--token=k2", "$REF", "--secret", "$REF", "postgres://u:p@h/db", "plain"],
            "oauth": {"client_id": "id", "client_secret": "s", "token_field": "access_token", "refresh_skew_seconds": 60},
            "user_auth": {"users": {"ada": "Bearer x"}},
            "headers_from_context": {"headers": {"Authorization": "tenant_token"}},
            "extra": {"deep": [{"clientSecret": "z", "bearer": "b", "bearings": "ok"}]},
        }}}));
        assert_eq!(
            definition.masked()["mcpServers"]["s"],
            json!({
                "url": "https://***@h.example/p/s/***/mcp?api_key=***&x=1#f",
                "env": {"A": "***"},
                "headers": {"X": "***", "Y": ""},
                "args": ["--header", "Authorization: ***", "Authorization:***", "***", "--api-key", "***", "--token=***", "$REF", "--secret", "$REF", "postgres://***@h/db", "plain"],
                "oauth": {"client_id": "id", "client_secret": "***", "token_field": "access_token", "refresh_skew_seconds": 60},
                "user_auth": {"users": {"ada": "***"}},
                "headers_from_context": {"headers": {"Authorization": "tenant_token"}},
                "extra": {"deep": [{"clientSecret": "***", "bearer": "***", "bearings": "ok"}]},
            })
        );
    }
}
