//! How a server is reached, as its definition says (BEHAVIOURS 78, 79, 82, 121).

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde_json::{Map, Value};

use super::Transport;

/// The transport, or why it is unusable. No text quotes a value.
pub(super) fn read(members: &Map<String, Value>) -> Result<Transport, String> {
    let get = |key: &str| members.get(key).filter(|value| !value.is_null());
    // `transport` is the older name; `type` wins (78).
    let kind = match get("type").or_else(|| get("transport")) {
        None => "stdio",
        Some(Value::String(kind)) => kind,
        Some(_) => return Err("its type is no text".to_owned()),
    };
    match kind {
        "stdio" => stdio(members),
        "http" => Ok(Transport::Http { url: url(members, kind)?, headers: headers(members)? }),
        "sse" => Ok(Transport::Sse { url: url(members, kind)?, headers: headers(members)? }),
        // It may be a variable's value.
        _ => Err("its type is unknown; known are stdio, http and sse".to_owned()),
    }
}

fn stdio(members: &Map<String, Value>) -> Result<Transport, String> {
    let command = match members.get("command") {
        Some(Value::String(command)) if !command.trim().is_empty() => command.clone(),
        _ => return Err("a stdio server needs a command".to_owned()),
    };
    let args = match members.get("args") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(args)) => args
            .iter()
            .map(|arg| arg.as_str().map(ToOwned::to_owned).ok_or("its args are not all texts"))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("its args are no list".to_owned()),
    };
    let env: BTreeMap<_, _> = texts(members, "env")?.into_iter().collect();
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return Err(format!("its env has the impossible name {name:?}"));
    }
    let cwd = match members.get("cwd") {
        None | Some(Value::Null) => None,
        Some(Value::String(path)) => (!path.is_empty()).then(|| path.into()),
        Some(_) => return Err("its cwd is no text".to_owned()),
    };
    Ok(Transport::Stdio { command, args, env, cwd })
}

fn url(members: &Map<String, Value>, kind: &str) -> Result<String, String> {
    let url = match members.get("url") {
        Some(Value::String(url)) if !url.trim().is_empty() => url.trim().to_owned(),
        _ => return Err(format!("a server of type {kind} needs a url")),
    };
    match url.parse::<http::Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() => Ok(url),
        _ => Err("its url is no http or https URL".to_owned()),
    }
}

fn headers(members: &Map<String, Value>) -> Result<Vec<(String, SecretString)>, String> {
    use secrecy::ExposeSecret as _;

    let headers = texts(members, "headers")?;
    for (name, value) in &headers {
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("its headers have the impossible name {name:?}"));
        }
        if !legal(value.expose_secret()) {
            return Err(format!("its header {name} has a value that cannot be sent (not shown)"));
        }
    }
    Ok(headers)
}

/// Whether a value can be sent as an HTTP header as it is: visible ASCII, no white space around it (121).
pub fn legal(value: &str) -> bool {
    let bytes = value.as_bytes();
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    bytes.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) && !blank(bytes.first()) && !blank(bytes.last())
}

/// Headers that frame the message, the connection or the protocol; those of MCP begin with `mcp-`.
const RESERVED: [&str; 17] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// Whether a header is the protocol's own: no credential travels in it.
pub fn is_reserved(name: &http::HeaderName) -> bool {
    RESERVED.contains(&name.as_str()) || name.as_str().starts_with("mcp-")
}

fn texts(members: &Map<String, Value>, key: &str) -> Result<Vec<(String, SecretString)>, String> {
    match members.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(entries)) => entries
            .iter()
            .map(|(name, value)| match value {
                Value::String(value) => Ok((name.clone(), value.clone().into())),
                _ => Err(format!("its {key}.{name} is no text")),
            })
            .collect(),
        Some(_) => Err(format!("its {key} is no object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_value_is_visible_ascii_without_blanks_around_121() {
        for good in ["Bearer abc", "a\tb", "~", ""] {
            assert!(legal(good), "{good:?}");
        }
        for bad in ["é", "a\n", "a\r", "a\0b", "a\u{b}b", "a\u{c}b", " a", "a ", "\ta", "a\t", "\u{7f}"] {
            assert!(!legal(bad), "{bad:?}");
        }
    }
}
