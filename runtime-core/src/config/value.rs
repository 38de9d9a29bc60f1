//! From what was given for a key to its value as JSON, or to what is wrong with it.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value;

use super::place::{Mistake, Place};
use super::schema::{Key, Kind};
use super::webhooks;
use super::yaml::{self, Yaml};

/// A key's value before it is checked.
pub(super) enum Input {
    /// As the file has it.
    Yaml(Yaml),
    /// Text from outside the file, to be read as the key asks.
    Text(String),
}

/// Where a value stood.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// The file, or what it came by.
    file: String,
    place: Option<Place>,
}

impl Origin {
    /// A place in a file; none in what is no file.
    pub(super) fn new(file: &str, place: Option<Place>) -> Self {
        Self { file: file.to_owned(), place }
    }

    /// Another place in the same file; none in what is no file.
    pub(super) fn at(&self, place: Place) -> Self {
        Self { file: self.file.clone(), place: self.place.and(Some(place)) }
    }

    /// A mistake there.
    pub(super) fn mistake(&self, what: impl Display) -> Mistake {
        Mistake::new(&self.file, self.place, what)
    }
}

/// The text of the file that a secret's `…_file` twin names.
pub(super) fn secret_file(key: &Key, input: Input, origin: &Origin, referred: bool) -> Result<Value, Mistake> {
    let path = match input {
        Input::Yaml(Yaml::Null) => return Ok(Value::Null),
        Input::Text(path) | Input::Yaml(Yaml::Text(path)) if !path.is_empty() => path,
        _ => return Err(origin.mistake(format!("{}_file must be the path of a file", key.path))),
    };
    std::fs::read_to_string(Path::new(&path)).map(|text| text.trim_end_matches(['\r', '\n']).into()).map_err(|error| {
        // The secret itself, given where its file belongs, is no path to show.
        let shown = if referred || path.contains("://") { "the file" } else { &path };
        origin.mistake(format!("{}_file: {shown} cannot be read: {error}", key.path))
    })
}

/// The key's value as JSON; a text from outside the file is read as the key asks.
pub(super) fn value(key: &Key, input: Input, origin: &Origin, referred: bool) -> Result<Value, Mistake> {
    let path = key.path;
    let wrong = |what: &str| Err(origin.mistake(format!("{path} must be {what}")));
    let not = |value: &dyn std::fmt::Display| if referred { String::new() } else { format!(", not {value}") };
    let input = match input {
        Input::Text(text) if key.nullable && (text.is_empty() || text == "null") => Input::Yaml(Yaml::Null),
        Input::Text(text) => match key.kind {
            Kind::Bool | Kind::Integer(..) | Kind::Names | Kind::Webhooks => {
                // The place in such a text says nothing to anybody.
                Input::Yaml(yaml::parse(&text, &origin.file).map_err(Mistake::unplaced)?.value)
            }
            Kind::Text | Kind::Choice(_) | Kind::Address | Kind::Secret => Input::Yaml(Yaml::Text(text)),
        },
        input @ Input::Yaml(_) => input,
    };
    let Input::Yaml(tree) = input else { unreachable!("texts were turned into trees") };
    if tree == Yaml::Null {
        return match key.kind {
            _ if key.nullable => Ok(Value::Null),
            // A list whose entries are all commented out.
            Kind::Webhooks | Kind::Names => Ok(Value::Array(Vec::new())),
            _ => wrong("given a value"),
        };
    }
    match (key.kind, tree) {
        (Kind::Bool, Yaml::Bool(value)) => Ok(value.into()),
        (Kind::Bool, _) => wrong("true or false"),
        (Kind::Integer(min, max), Yaml::Integer(value)) => {
            if (min..=max).contains(&value) {
                Ok(value.into())
            } else {
                wrong(&format!("an integer from {min} to {max}{}", not(&value)))
            }
        }
        (Kind::Integer(min, max), tree) => {
            let given = match tree {
                Yaml::Float(value) => not(&value),
                Yaml::Bool(value) => not(&value),
                _ => String::new(),
            };
            wrong(&format!("an integer from {min} to {max}{given}"))
        }
        (Kind::Text, Yaml::Text(value)) if !value.is_empty() => Ok(value.into()),
        (Kind::Text, _) => wrong("a text that is not empty"),
        (Kind::Secret, Yaml::Text(value)) => Ok(value.into()),
        (Kind::Secret, _) => wrong("a text"),
        (Kind::Choice(words), Yaml::Text(value)) if words.contains(&value.as_str()) => Ok(value.into()),
        (Kind::Choice(words), tree) => {
            let given = if let Yaml::Text(value) = tree { not(&value) } else { String::new() };
            wrong(&format!("one of {}{given}", words.join(", ")))
        }
        (Kind::Address, Yaml::Text(value)) => match value.parse::<std::net::SocketAddr>() {
            Ok(address) => Ok(address.to_string().into()),
            Err(_) => wrong(&format!("an address and a port such as 127.0.0.1:8787{}", not(&value))),
        },
        (Kind::Address, _) => wrong("an address and a port such as 127.0.0.1:8787"),
        (Kind::Names, Yaml::List(nodes)) if nodes.iter().all(|node| matches!(node.value, Yaml::Text(_))) => {
            Ok(Yaml::List(nodes).into_json())
        }
        (Kind::Names, _) => wrong("a list of texts"),
        (Kind::Webhooks, Yaml::List(nodes)) => webhooks::read(nodes, origin),
        (Kind::Webhooks, _) => wrong("a list"),
    }
}
