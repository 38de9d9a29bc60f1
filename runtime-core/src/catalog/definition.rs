//! A `Tool` object with some members changed and all others left byte for byte as they came.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object, in their order, each as its own text.
pub(super) struct Members<'a>(Vec<Member<'a>>);

struct Member<'a> {
    /// Its name, unescaped.
    name: String,
    /// Its name as it was written.
    written: &'a RawValue,
    value: &'a RawValue,
}

impl<'a> Members<'a> {
    /// Reads `raw`; `None` where it is no object.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    /// The text of a member that is a string.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let member = self.0.iter().find(|member| member.name == key)?;
        serde_json::from_str(member.value.get()).ok()
    }

    /// Whether a member is an object.
    pub(super) fn is_object(&self, key: &str) -> bool {
        self.0.iter().any(|member| member.name == key && member.value.get().starts_with('{'))
    }

    /// The object with these members put in the place of theirs, or at the end; `None` leaves a member out.
    pub(super) fn with(&self, changes: &[(&str, Option<&str>)]) -> Box<RawValue> {
        let length = |member: &Member<'_>| member.written.get().len() + member.value.get().len() + 8;
        let mut text = String::with_capacity(self.0.iter().map(length).sum());
        let mut put = |written: &str, value: &str| {
            text.push(if text.is_empty() { '{' } else { ',' });
            text.push_str(written);
            text.push(':');
            text.push_str(value);
        };
        for member in &self.0 {
            match changes.iter().find(|(key, _)| *key == member.name) {
                None => put(member.written.get(), member.value.get()),
                Some((_, Some(value))) => put(member.written.get(), value),
                Some((_, None)) => {}
            }
        }
        for (key, value) in changes {
            if let Some(value) = value
                && !self.0.iter().any(|member| member.name == *key)
            {
                put(&quoted(key), value);
            }
        }
        if text.is_empty() {
            text.push('{');
        }
        text.push('}');
        RawValue::from_string(text).unwrap_or_default()
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered;

        impl<'de> Visitor<'de> for Ordered {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members: Vec<Member<'_>> = Vec::new();
                while let Some((written, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    let name: String = serde_json::from_str(written.get()).map_err(A::Error::custom)?;
                    // Of a member given twice the last counts, as everywhere in JSON.
                    match members.iter_mut().find(|known| known.name == name) {
                        Some(known) => known.value = value,
                        None => members.push(Member { name, written, value }),
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_stay_as_they_were_written_in_names_and_values() {
        let text = r#"{"name":"a","\u0078-\/v":"\u00e9\/","n":-0.0e-10,"big":123456789012345678901234567890}"#;
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        let changed = Members::read(&raw).unwrap().with(&[("name", Some("\"s_a\""))]);
        assert_eq!(changed.get(), text.replace("\"a\"", "\"s_a\""));
        assert_eq!(Members::read(&raw).unwrap().text("x-/v").as_deref(), Some("é/"));
    }

    #[test]
    fn members_keep_their_order_and_their_bytes() {
        let raw =
            RawValue::from_string(r#"{"z":1.50, "name":"a", "m": { "b":2,"a":[1e3] }, "gone":1}"#.to_owned()).unwrap();
        let members = Members::read(&raw).unwrap();
        let changed = members.with(&[("name", Some("\"s_a\"")), ("gone", None), ("new", Some("{}"))]);
        assert_eq!(changed.get(), r#"{"z":1.50,"name":"s_a","m":{ "b":2,"a":[1e3] },"new":{}}"#);
        assert_eq!(members.text("name").as_deref(), Some("a"));
        assert!(members.text("z").is_none());
        assert!(Members::read(&RawValue::from_string("[]".to_owned()).unwrap()).is_none());
    }
}
