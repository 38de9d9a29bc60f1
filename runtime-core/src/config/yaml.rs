//! A YAML document as a tree that remembers where everything stood.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::place::{Mistake, Place};

/// A node and where it begins.
pub(super) type Node = Spanned<Yaml>;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Integer(i64),
    /// A number that is no integer within 64 bits.
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(Spanned<String>, Node)>),
}

impl Yaml {
    /// The same as JSON, for keys that take anything.
    pub(super) fn into_json(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Integer(value) => value.into(),
            Self::Float(value) => value.into(),
            Self::Text(value) => value.into(),
            Self::List(nodes) => nodes.into_iter().map(|node| node.value.into_json()).collect(),
            Self::Mapping(members) => {
                Value::Object(members.into_iter().map(|(key, node)| (key.value, node.value.into_json())).collect())
            }
        }
    }
}

/// Deepest nesting: no key needs a third of it, and each level takes a good piece of the reading thread's stack.
const MAX_DEPTH: usize = 24;

/// Reads a document; `file` is its name for messages, which quote none of its text.
pub(super) fn parse(text: &str, file: &str) -> Result<Node, Mistake> {
    let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_depth: MAX_DEPTH } };
    serde_saphyr::from_str_with_options::<Option<Node>>(text, options)
        .map(|node| {
            node.unwrap_or_else(|| {
                Spanned::new(Yaml::Null, serde_saphyr::Location::UNKNOWN, serde_saphyr::Location::UNKNOWN)
            })
        })
        .map_err(|error| {
            Mistake::new(file, error.location().map(Place::from), format!("not usable as YAML: {}", plain(&error)))
        })
}

fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let line = text.lines().next().unwrap_or_default();
    // The place is said already, and nobody here has the parser's options.
    let line = line.rsplit_once(" at line ").map_or(line, |(line, _)| line);
    line.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned()
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Yaml;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a YAML value")
            }

            fn visit_unit<E>(self) -> Result<Yaml, E> {
                Ok(Yaml::Null)
            }

            fn visit_none<E>(self) -> Result<Yaml, E> {
                Ok(Yaml::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Yaml, E> {
                Ok(Yaml::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Yaml, E> {
                Ok(Yaml::Integer(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Yaml, E> {
                Ok(i64::try_from(value).map_or(Yaml::Float(value as f64), Yaml::Integer))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Yaml, E> {
                Ok(i64::try_from(value).map_or(Yaml::Float(value as f64), Yaml::Integer))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Yaml, E> {
                Ok(i64::try_from(value).map_or(Yaml::Float(value as f64), Yaml::Integer))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Yaml, E> {
                Ok(Yaml::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Yaml, E> {
                Ok(Yaml::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Yaml, A::Error> {
                let mut nodes = Vec::new();
                while let Some(node) = list.next_element()? {
                    nodes.push(node);
                }
                Ok(Yaml::List(nodes))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Yaml::Mapping(members))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_know_where_they_stand() {
        let node = parse("a: 1\nb:\n  c: [x, 2.5, null, yes]\n", "f").unwrap();
        let Yaml::Mapping(root) = node.value else { panic!() };
        let Yaml::Mapping(b) = &root[1].1.value else { panic!() };
        let (key, list) = &b[0];
        assert_eq!((key.value.as_str(), key.referenced.line(), key.referenced.column()), ("c", 3, 3));
        let Yaml::List(list) = &list.value else { panic!() };
        assert_eq!(list[1].value, Yaml::Float(2.5));
        assert_eq!(list[2].value, Yaml::Null);
        assert_eq!(list[1].referenced.line(), 3);
    }

    #[test]
    fn an_empty_document_is_null_and_a_broken_one_names_its_place() {
        assert_eq!(parse("", "f").unwrap().value, Yaml::Null);
        assert_eq!(parse("# only a comment\n", "f").unwrap().value, Yaml::Null);
        let error = parse("a: 1\nb: [secret-value\n", "config.yaml").unwrap_err().said();
        assert!(error.starts_with("config.yaml, line ") && error.contains("column"), "{error}");
        assert!(!error.contains("secret-value"), "{error}");
        let error = parse("a: 1\na: 2\n", "config.yaml").unwrap_err().said();
        assert_eq!(error, "config.yaml, line 2, column 1: not usable as YAML: duplicate mapping key: a");
    }

    #[test]
    fn nesting_is_bounded_28() {
        let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(MAX_DEPTH - 1), "f").is_ok());
        for depth in [MAX_DEPTH, 60, 100_000] {
            let error = parse(&nested(depth), "config.yaml").unwrap_err().said();
            assert!(error.starts_with("config.yaml, line 1") && error.contains("not usable as YAML"), "{error}");
        }
    }
}
