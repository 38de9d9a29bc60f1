//! JSON kept as text: compact, bounded in depth, numbers exactly as they came (BEHAVIOURS 151).
//!
//! `serde_json::Value` would round large numbers; here a number stays the characters the server sent.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// Deepest nesting that is read (146).
pub const MAX_DEPTH: usize = 128;

/// A JSON document as compact text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Json(Box<str>);

/// Why a text is not kept as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Not JSON (NaN and infinities are not), or a string that is not Unicode.
    #[error("not valid JSON")]
    Invalid,
}

impl Json {
    /// Reads any JSON text and keeps it compact: no white space, no needless escapes, numbers untouched.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        let mut compact = String::with_capacity(text.len());
        Node::parse(text)?.write(&mut compact);
        Ok(Self(compact.into()))
    }

    /// Takes text that an earlier [`Json::parse`] made, as the store does when it reads its own columns.
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    /// The compact text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The string's own characters where the document is a string (27).
    pub fn as_string(&self) -> Option<String> {
        self.0.starts_with('"').then(|| serde_json::from_str(&self.0).ok()).flatten()
    }
}

impl Serialize for Json {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// Hashes `json` with object keys in canonical order, so that a server's changing key order is no change.
pub fn hash_canonical(json: &Json, hasher: &mut Sha256) {
    let mut text = String::with_capacity(json.0.len());
    match Node::parse(&json.0) {
        Ok(mut node) => {
            node.sort();
            node.write(&mut text);
        }
        // Text from the store that no longer parses is still itself.
        Err(_) => text.push_str(&json.0),
    }
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// A document's tree; leaves borrow from the text.
enum Node<'a> {
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    Array(Vec<Node<'a>>),
    String(Cow<'a, str>),
    Literal(&'a str),
}

impl<'a> Node<'a> {
    fn parse(text: &'a str) -> Result<Self, JsonError> {
        // serde_json judges the syntax; what follows only walks a text known to be well-formed.
        let valid: &RawValue = serde_json::from_str(text).map_err(|_| JsonError::Invalid)?;
        let mut walk = Walk { text: valid.get(), at: 0 };
        walk.node(0)
    }

    fn sort(&mut self) {
        match self {
            Self::Object(members) => {
                members.sort_by(|a, b| a.0.cmp(&b.0));
                members.iter_mut().for_each(|(_, node)| node.sort());
            }
            Self::Array(nodes) => nodes.iter_mut().for_each(Node::sort),
            Self::String(_) | Self::Literal(_) => {}
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Object(members) => {
                out.push('{');
                for (index, (key, node)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(key, out);
                    out.push(':');
                    node.write(out);
                }
                out.push('}');
            }
            Self::Array(nodes) => {
                out.push('[');
                for (index, node) in nodes.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    node.write(out);
                }
                out.push(']');
            }
            Self::String(text) => write_string(text, out),
            Self::Literal(text) => out.push_str(text),
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn peek(&mut self) -> Result<u8, JsonError> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().ok_or(JsonError::Invalid)
    }

    fn node(&mut self, depth: usize) -> Result<Node<'a>, JsonError> {
        match self.peek()? {
            b'{' | b'[' if depth >= MAX_DEPTH => Err(JsonError::TooDeep),
            b'{' => self
                .members(b'}', |walk| {
                    let key = walk.string()?;
                    walk.peek()?;
                    walk.at += 1; // the colon
                    Ok((key, walk.node(depth + 1)?))
                })
                .map(Node::Object),
            b'[' => self.members(b']', |walk| walk.node(depth + 1)).map(Node::Array),
            b'"' => self.string().map(Node::String),
            _ => {
                let rest = &self.text[self.at..];
                let end =
                    rest.find(|c: char| matches!(c, ',' | ']' | '}') || c.is_ascii_whitespace()).unwrap_or(rest.len());
                self.at += end;
                Ok(Node::Literal(&rest[..end]))
            }
        }
    }

    fn members<T>(
        &mut self,
        close: u8,
        mut member: impl FnMut(&mut Self) -> Result<T, JsonError>,
    ) -> Result<Vec<T>, JsonError> {
        self.at += 1;
        let mut members = Vec::new();
        loop {
            match self.peek()? {
                byte if byte == close => {
                    self.at += 1;
                    return Ok(members);
                }
                b',' => self.at += 1,
                _ => members.push(member(self)?),
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.peek()?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        self.at += 1;
        let mut escaped = false;
        loop {
            match bytes.get(self.at).ok_or(JsonError::Invalid)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 2;
                }
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let quoted = &self.text[start..self.at];
        if escaped {
            // A lone surrogate escape is well-formed JSON but no Unicode text; it cannot be stored.
            serde_json::from_str::<String>(quoted).map(Cow::Owned).map_err(|_| JsonError::Invalid)
        } else {
            Ok(Cow::Borrowed(&quoted[1..quoted.len() - 1]))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(text: &str) -> Vec<u8> {
        let mut hasher = Sha256::new();
        hash_canonical(&Json::parse(text).unwrap(), &mut hasher);
        hasher.finalize().to_vec()
    }

    #[test]
    fn numbers_survive_exactly_and_white_space_does_not_151() {
        let json = Json::parse("{ \"n\" : 12345678901234567890.10 ,\n \"m\":[ 1e400 , -0 ] }").unwrap();
        assert_eq!(json.as_str(), r#"{"n":12345678901234567890.10,"m":[1e400,-0]}"#);
    }

    #[test]
    fn escapes_are_written_as_the_characters_they_mean() {
        assert_eq!(Json::parse(r#""\u00e9\u0000\/""#).unwrap().as_str(), "\"é\\u0000/\"");
        assert_eq!(Json::parse(r#""\ud800""#), Err(JsonError::Invalid));
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused_146() {
        assert_eq!(Json::parse("NaN"), Err(JsonError::Invalid));
        assert_eq!(Json::parse(r#"{"a":Infinity}"#), Err(JsonError::Invalid));
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(Json::parse(&nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
        assert_eq!(Json::parse(&nested(100_000)), Err(JsonError::TooDeep));
    }

    #[test]
    fn key_order_is_no_difference_but_digits_are() {
        assert_eq!(digest(r#"{"a":1,"b":{"c":2,"d":3}}"#), digest(r#"{"b":{"d":3,"c":2},"a":1}"#));
        assert_ne!(digest("9007199254740993"), digest("9007199254740992"));
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn compact_text_means_the_same(value in any_json()) {
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let json = Json::parse(&pretty).unwrap();
            prop_assert_eq!(json.as_str(), serde_json::to_string(&value).unwrap());
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = Json::parse(&text);
        }
    }
}
