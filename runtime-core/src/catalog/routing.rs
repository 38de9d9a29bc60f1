//! Which tools are preferred for what: resolved per tool, rendered as hints, matched against a message; pure
//! (BEHAVIOURS 128, 129).

use std::fmt::Write as _;
use std::sync::Arc;

use super::Tool;
use crate::config::{RoutingConfig, RoutingFields, RoutingMode};

/// Most text of hints, in bytes; what is left out is counted.
const HINTS_MAX_BYTES: usize = 16 << 10;
/// How much of a message is looked at, in characters.
const MESSAGE_MAX_CHARS: usize = 100_000;

/// One tool's routing, the server's with what the tool says instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// Whether the tool is preferred for what its keywords describe.
    pub mode: RoutingMode,
    /// 0 to 100; higher ones come first.
    pub priority: u8,
    /// The operator's words for when to prefer it.
    pub keywords: Vec<String>,
}

impl Routing {
    /// A tool's routing: what its own block leaves out is the server's, the mode included.
    pub(super) fn resolve(config: &RoutingConfig, raw_name: &str) -> Self {
        let unset = RoutingFields::default();
        let (server, tool) = (&config.server, config.tools.get(raw_name).unwrap_or(&unset));
        Self {
            mode: tool.mode.or(server.mode).unwrap_or_default(),
            priority: tool.priority.or(server.priority).unwrap_or_default(),
            keywords: tool.keywords.as_ref().or(server.keywords.as_ref()).cloned().unwrap_or_default(),
        }
    }

    /// Whether there is anything to say about the tool.
    pub fn prefers(&self) -> bool {
        self.mode == RoutingMode::Prefer && !self.keywords.is_empty()
    }
}

/// The tools that are preferred for something, highest priority first, then by name.
fn preferred(tools: &[Arc<Tool>]) -> Vec<&Tool> {
    let mut preferred: Vec<&Tool> = tools.iter().map(|tool| &**tool).filter(|tool| tool.routing.prefers()).collect();
    preferred.sort_by(|a, b| b.routing.priority.cmp(&a.routing.priority).then_with(|| a.name.cmp(&b.name)));
    preferred
}

/// Soft guidance for a model, or nothing where no tool is preferred. It forbids nothing.
///
/// Names and keywords are escaped, so that none can end the section. Where the tools are `deferred`, a hint says how to
/// get at one.
pub fn hints(tools: &[Arc<Tool>], deferred: bool) -> String {
    let preferred = preferred(tools);
    if preferred.is_empty() {
        return String::new();
    }
    let mut text = String::from("<mcp_routing_hints>\n");
    for (at, tool) in preferred.iter().enumerate() {
        let keywords: Vec<String> = tool.routing.keywords.iter().map(|keyword| escaped(keyword)).collect();
        let name = escaped(&tool.name);
        let advice = if deferred {
            format!("load {name} with tool_search (query \"select:{name}\"), then prefer it")
        } else {
            format!("prefer {name}")
        };
        let line = format!("For requests about {}: {advice}.\n", keywords.join(", "));
        if text.len() + line.len() > HINTS_MAX_BYTES {
            let _ = writeln!(text, "({} more hints are left out.)", preferred.len() - at);
            break;
        }
        text.push_str(&line);
    }
    text.push_str("</mcp_routing_hints>");
    text
}

/// The names of the tools that a user's message asks for, `top_k` at most: a keyword of theirs is in it, in any case (129).
pub fn matching<'a>(tools: &'a [Arc<Tool>], message: &str, top_k: usize) -> Vec<&'a str> {
    let message = folded(message.chars().take(MESSAGE_MAX_CHARS));
    let asked = |tool: &&Tool| tool.routing.keywords.iter().any(|keyword| message.contains(&folded(keyword.chars())));
    preferred(tools).into_iter().filter(asked).take(top_k).map(|tool| tool.name.as_str()).collect()
}

/// Texts that differ in case only come out the same: upper case first, so that `ß` is `ss`.
pub(super) fn folded(text: impl Iterator<Item = char>) -> String {
    text.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn tool(name: &str, priority: u8, keywords: &[&str]) -> Arc<Tool> {
        Arc::new(Tool {
            name: name.into(),
            server: "s".into(),
            raw_name: name.into(),
            definition: RawValue::from_string("{}".into()).unwrap(),
            toolset: None,
            routing: Routing {
                mode: RoutingMode::Prefer,
                priority,
                keywords: keywords.iter().map(ToString::to_string).collect(),
            },
        })
    }

    #[test]
    fn a_tools_block_replaces_only_what_it_sets_128() {
        let fields = |mode, priority, keywords: Option<&[&str]>| RoutingFields {
            mode,
            priority,
            keywords: keywords.map(|words| words.iter().map(ToString::to_string).collect()),
        };
        let (off, prefer) = (Some(RoutingMode::Off), Some(RoutingMode::Prefer));
        let resolve = |server: RoutingFields, tool: RoutingFields| {
            let config = RoutingConfig { server, tools: [("query".to_owned(), tool)].into() };
            (Routing::resolve(&config, "query"), Routing::resolve(&config, "other"))
        };
        let (query, other) =
            resolve(fields(prefer, Some(50), Some(&["sql"])), fields(None, Some(90), Some(&["metrics"])));
        assert_eq!((query.mode, query.priority, query.keywords), (RoutingMode::Prefer, 90, vec!["metrics".to_owned()]));
        assert_eq!((other.priority, other.keywords), (50, vec!["sql".to_owned()]));
        let (query, _) = resolve(fields(off, None, Some(&["sql"])), fields(None, Some(90), None));
        assert!(!query.prefers(), "off is inherited");
        let (query, other) = resolve(fields(None, None, Some(&["sql"])), fields(prefer, None, None));
        assert!(query.prefers() && !other.prefers(), "off is the default");
        let (query, _) = resolve(fields(prefer, None, Some(&["sql"])), fields(None, None, Some(&[])));
        assert!(!query.prefers(), "without keywords there is nothing to say");
    }

    #[test]
    fn hints_are_sorted_escaped_and_silent_without_a_preference_128() {
        let off = Arc::new(Tool { routing: Routing::default(), ..(*tool("off", 100, &["x"])).clone() });
        assert_eq!(hints(&[Arc::clone(&off)], false), "");
        let tools = [tool("b", 10, &["orders", "<b>&\""]), off, tool("z", 90, &["sql"]), tool("a", 10, &["users\n"])];
        let text = hints(&tools, false);
        assert_eq!(
            text,
            "<mcp_routing_hints>\nFor requests about sql: prefer z.\nFor requests about users : prefer a.\n\
             For requests about orders, &lt;b&gt;&amp;&quot;: prefer b.\n</mcp_routing_hints>"
        );
        let deferred = hints(&tools, true);
        assert!(deferred.contains(r#"sql: load z with tool_search (query "select:z")"#), "{deferred}");
        let many: Vec<_> = (0..1_000).map(|at| tool(&format!("t{at}"), 1, &["some words of an operator"])).collect();
        let text = hints(&many, false);
        assert!(text.len() <= HINTS_MAX_BYTES + 100 && text.contains("more hints are left out"));
    }

    #[test]
    fn a_message_matches_keywords_in_any_case_and_the_best_few_count_129() {
        let tools = [
            tool("low", 1, &["database"]),
            tool("mid_b", 50, &["Orders"]),
            tool("mid_a", 50, &["ORDERS"]),
            tool("high", 90, &["straße", "sales"]),
            tool("none", 100, &["weather"]),
        ];
        let message = "Which orders in the DATABASE are from HauptSTRASSE?";
        assert_eq!(matching(&tools, message, 3), ["high", "mid_a", "mid_b"]);
        assert_eq!(matching(&tools, message, 5).len(), 4);
        assert_eq!(matching(&tools, "a rapid databases question", 5), ["low"], "substrings, not words");
        assert!(matching(&tools, "", 5).is_empty());
    }
}
