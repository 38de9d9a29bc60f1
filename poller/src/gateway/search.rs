//! Deferred tools: their schemas are withheld until a search, or the user's message, asks for them (BEHAVIOURS 129).

use std::fmt::Write as _;
use std::sync::Arc;

use mcp_taskd_core::catalog::{MAX_FOUND, TOOL_SEARCH, Tool, matching, search};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::outcome::Outcome;
use super::promotion::{Place, Promotions};
use crate::view::raw;

/// Most text of names in the tool's description, in bytes; the others are found by words.
const NAMES_MAX_BYTES: usize = 8 << 10;

/// The search, and who has been shown what.
#[derive(Debug)]
pub struct Search {
    /// How many tools one message promotes at most.
    top_k: usize,
    /// Who has been shown what.
    pub promotions: Promotions,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    query: String,
}

#[derive(Serialize)]
struct Found<'a> {
    tools: Vec<&'a RawValue>,
}

impl Search {
    /// `top_k`: tools that one message promotes at most, 1 to 5.
    pub fn new(top_k: u32) -> Self {
        Self { top_k: top_k.clamp(1, 5) as usize, promotions: Promotions::default() }
    }

    /// Promotes what the user's latest message asks for; whether that is anything new. Nothing of the message is logged.
    pub fn promote_for(&self, place: &Place, tools: &[Arc<Tool>], message: Option<&str>) -> bool {
        message.is_some_and(|message| self.promotions.promote(place, matching(tools, message, self.top_k)))
    }

    /// The tools whose definitions are listed.
    pub fn promoted<'a>(&self, place: &Place, tools: &'a [Arc<Tool>]) -> Vec<&'a Arc<Tool>> {
        let promoted = self.promotions.of(place);
        tools.iter().filter(|tool| promoted.contains(&tool.name)).collect()
    }

    /// The answer to a call of a deferred tool, where it was not promoted: its arguments were guessed.
    pub fn refuse(&self, place: &Place, tool: &Tool) -> Option<Outcome> {
        let name = &tool.name;
        (!self.promotions.of(place).contains(name)).then(|| {
            Outcome::Error(format!(
                "The tool {name} is deferred and was not called: its schema has not been loaded. Call {TOOL_SEARCH} with \
                 the query \"select:{name}\" first, then call {name} as its schema says."
            ))
        })
    }

    /// Answers a call of the search, and promotes what it finds.
    pub fn call(&self, place: &Place, tools: &[Arc<Tool>], arguments: Map<String, Value>) -> Outcome {
        let arguments: Arguments = match serde_json::from_value(Value::Object(arguments)) {
            Ok(arguments) => arguments,
            Err(error) => return Outcome::Error(format!("The arguments of {TOOL_SEARCH} cannot be used: {error}.")),
        };
        let found = search(tools, &arguments.query);
        if self.promotions.promote(place, found.iter().map(|tool| tool.name.as_str())) {
            self.promotions.announce(place);
        }
        let content = raw(&Found { tools: found.iter().map(|tool| &*tool.definition).collect() });
        let text = if found.is_empty() {
            "No deferred tool matches. Try other words, or the name of one with \"select:\".".to_owned()
        } else {
            content.get().to_owned()
        };
        Outcome::Structured { text, content }
    }
}

/// The search's definition; it names the tools that it can find.
pub fn definition(tools: &[Arc<Tool>]) -> Box<RawValue> {
    let mut names = String::new();
    for (at, tool) in tools.iter().enumerate() {
        if names.len() + tool.name.len() > NAMES_MAX_BYTES {
            let _ = write!(names, " and {} more", tools.len() - at);
            break;
        }
        names.push_str(if at == 0 { "" } else { ", " });
        names.push_str(&tool.name);
    }
    let description = format!(
        "Loads the definitions of deferred tools. A deferred tool is known by its name only and cannot be called until \
         this tool has returned its definition; then it can. At most {MAX_FOUND} tools are returned a call. Queries: \
         \"select:name_a,name_b\" loads these very tools; \"some words\" finds tools by words of name and description; \
         \"+word more words\" requires the first word in the name. Deferred tools: {names}."
    );
    raw(&json!({
        "name": TOOL_SEARCH,
        "title": "Search tools",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": { "query": { "type": "string", "description": "What to look for." } },
            "required": ["query"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": { "tools": { "type": "array", "items": { "type": "object" } } },
            "required": ["tools"],
        },
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    }))
}
