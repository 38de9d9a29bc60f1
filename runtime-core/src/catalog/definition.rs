//! A `Tool` object with some members changed and all others left byte for byte as they came.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object, in their order, each as its own text.
pub(super) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads `raw`; `None` where it is no object.
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    /// The text of a member that is a string.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let (_, raw) = self.0.iter().find(|(name, _)| name == key)?;
        serde_json::from_str(raw.get()).ok()
    }

    /// Whether a member is an object.
    pub(super) fn is_object(&self, key: &str) -> bool {
        self.0.iter().any(|(name, raw)| name == key && raw.get().starts_with('{'))
    }

    /// The object with these members put in the place of theirs, or at the end; `None` leaves a member out.
    pub(super) fn with(&self, changes: &[(&str, Option<&str>)]) -> Box<RawValue> {
        let mut text = String::with_capacity(self.0.iter().map(|(name, raw)| name.len() + raw.get().len() + 8).sum());
        let mut member = |name: &str, value: &str| {
            text.push(if text.is_empty() { '{' } else { ',' });
            text.push_str(&quoted(name));
            text.push(':');
            text.push_str(value);
        };
        for (name, raw) in &self.0 {
            match changes.iter().find(|(key, _)| key == name) {
                None => member(name, raw.get()),
                Some((_, Some(value))) => member(name, value),
                Some((_, None)) => {}
            }
        }
        for (key, value) in changes {
            if let Some(value) = value
                && !self.0.iter().any(|(name, _)| name == key)
            {
                member(key, value);
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
                let mut members: Vec<(String, &RawValue)> = Vec::new();
                while let Some((name, raw)) = map.next_entry::<String, &RawValue>()? {
                    // Of a member given twice the last counts, as everywhere in JSON.
                    match members.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, value)) => *value = raw,
                        None => members.push((name, raw)),
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
