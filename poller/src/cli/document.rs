//! A JSON document as an argument: the text itself, or a file that has it.

use mcp_taskd_core::task::Json;
use serde_json::value::RawValue;

use super::output::Row;
use crate::exit::{Failure, Result};

/// The document of the argument `name`, exact but for white space: given as `text`, in the file of `@FILE`, or on standard
/// input for `@-`. What is no JSON is wrong usage.
pub fn read(name: &str, text: &str) -> Result<Row> {
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some("-") => std::io::read_to_string(std::io::stdin()).map_err(anyhow::Error::from)?,
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{name} @{path} cannot be read: {error}")))?,
    };
    let json = Json::parse(&text).map_err(|error| Failure::usage(format!("{name}: {error}{}", hint(&text))))?;
    Ok(RawValue::from_string(json.as_str().to_owned()).map_err(anyhow::Error::from)?)
}

/// What is wrong with a text that is no JSON; most often the quotes of a string were taken by the shell.
fn hint(text: &str) -> String {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Err(error) if error.line() == 1 && error.column() <= 1 => {
            "; a text needs its quotes too, as in '\"yes\"'".into()
        }
        Err(error) => format!(" ({error})"),
        Ok(_) => String::new(),
    }
}

/// The same where only an object will do.
pub fn read_object(name: &str, text: &str) -> Result<Row> {
    let document = read(name, text)?;
    if document.get().starts_with('{') {
        Ok(document)
    } else {
        Err(Failure::usage(format!("{name} must be a JSON object")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_document_is_given_or_in_a_file_and_keeps_its_digits() {
        assert_eq!(read("--arguments", r#"{ "n": 1.10 }"#).unwrap().get(), r#"{"n":1.10}"#);
        assert_eq!(read("JSON", r#""EUR""#).unwrap().get(), r#""EUR""#);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"a":[1]}"#).unwrap();
        assert_eq!(read("JSON", &format!("@{}", file.path().display())).unwrap().get(), r#"{"a":[1]}"#);
        for wrong in ["EUR", "", "@/there/is/none"] {
            let failure = read("JSON", wrong).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{wrong}");
            assert!(failure.error.to_string().starts_with("JSON"), "{failure:?}");
        }
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(read_object("--arguments", "{}").unwrap().get(), "{}");
        assert_eq!(read_object("--arguments", "[]").unwrap_err().exit, Exit::Usage);
    }
}
