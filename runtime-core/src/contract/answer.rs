//! A tool's answer, less everything that the contract does not look at.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::task::limits::{SNIPPET_MAX_CHARS, clip};

/// The three things of a `CallToolResult` that count: structured content, the error flag, the first text.
///
/// Content blocks of kinds unknown to this program are skipped, so that they cannot make an answer unreadable.
#[derive(Debug, Clone, Default)]
pub struct ToolAnswer {
    /// `structuredContent`, as it came.
    pub structured: Option<Box<RawValue>>,
    /// `isError`.
    pub is_error: bool,
    /// The first text block that is not blank, trimmed and bounded (5, 16).
    pub snippet: Snippet,
}

/// At most 500 characters of a tool's own error text; empty where it gave none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snippet(pub String);

impl std::fmt::Display for Snippet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "no text" } else { &self.0 })
    }
}

impl ToolAnswer {
    /// Reads a `CallToolResult` from its JSON text; fails only where it is no JSON object at all.
    pub fn read(result: &RawValue) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(borrow, rename = "structuredContent", default)]
            structured: Option<&'a RawValue>,
            #[serde(borrow, rename = "isError", default)]
            is_error: Option<&'a RawValue>,
            #[serde(borrow, default)]
            content: Option<&'a RawValue>,
        }
        let wire: Wire<'_> = serde_json::from_str(result.get())?;
        let is_error = wire.is_error.is_some_and(|raw| raw.get() == "true");
        Ok(Self {
            structured: wire.structured.filter(|raw| raw.get() != "null").map(ToOwned::to_owned),
            is_error,
            // The text is looked at only where it is shown; a poll's is not.
            snippet: if is_error { Snippet::of(wire.content) } else { Snippet::default() },
        })
    }
}

impl Snippet {
    fn of(content: Option<&RawValue>) -> Self {
        #[derive(Deserialize)]
        struct Block<'a> {
            #[serde(rename = "type", default)]
            kind: std::borrow::Cow<'a, str>,
            #[serde(default)]
            text: std::borrow::Cow<'a, str>,
        }
        let blocks: Vec<&RawValue> = content.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        blocks
            .into_iter()
            .filter_map(|raw| serde_json::from_str::<Block<'_>>(raw.get()).ok())
            .filter(|block| block.kind == "text")
            .map(|block| clip(block.text.trim(), SNIPPET_MAX_CHARS))
            .find(|text| !text.is_empty())
            .map_or_else(Self::default, Self)
    }
}

#[cfg(test)]
pub(super) fn answer(text: &str) -> ToolAnswer {
    ToolAnswer::read(&RawValue::from_string(text.to_owned()).unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snippet_is_the_first_text_that_is_not_blank_5() {
        let read = answer(
            r#"{"isError":true,"content":[{"type":"image","data":"…"},{"type":"text","text":"  \n"},{"type":"hologram"},
                {"type":"text","text":"  out of paper "},{"type":"text","text":"second"}]}"#,
        );
        assert_eq!(read.snippet.0, "out of paper");
        let long = format!(r#"{{"isError":true,"content":[{{"type":"text","text":"{}"}}]}}"#, "é".repeat(900));
        assert_eq!(answer(&long).snippet.0.chars().count(), 500);
        assert_eq!(answer(r#"{"isError":true,"content":7}"#).snippet.to_string(), "no text");
    }

    #[test]
    fn odd_members_do_not_make_an_answer_unreadable() {
        let read = answer(r#"{"content":[{"type":"x"}],"isError":"yes","structuredContent":{"a":1},"more":[]}"#);
        assert!(!read.is_error, "only the boolean true is an error");
        assert_eq!(read.structured.unwrap().get(), r#"{"a":1}"#);
        assert!(answer(r#"{"structuredContent":null}"#).structured.is_none());
    }
}
