//! Finding deferred tools: pure (the reference's `tool_search`).

use std::sync::Arc;

use super::definition::Members;
use super::routing::folded;
use super::{MAX_FOUND, Tool};

/// The tools that a query means, at most [`MAX_FOUND`], best first:
///
/// - `select:a,b` – these very tools;
/// - `+word more words` – tools with `word` in their names, those with most of the other words first;
/// - `some words` – tools with any of the words in name, title or description; a name counts twice.
pub fn search<'a>(tools: &'a [Arc<Tool>], query: &str) -> Vec<&'a Arc<Tool>> {
    let query = query.trim();
    if let Some(names) = query.strip_prefix("select:") {
        let wanted: Vec<&str> = names.split(',').map(str::trim).collect();
        return tools.iter().filter(|tool| wanted.contains(&tool.name.as_str())).take(MAX_FOUND).collect();
    }
    let (required, words) = match query.strip_prefix('+') {
        None => (None, words(query)),
        Some(rest) => {
            let mut words = words(rest);
            if words.is_empty() {
                return Vec::new();
            }
            (Some(words.remove(0)), words)
        }
    };
    let score = |tool: &Arc<Tool>| {
        let name = folded(tool.name.chars());
        match &required {
            Some(required) if !name.contains(required.as_str()) => return None,
            None if words.is_empty() => return None,
            _ => {}
        }
        let text = described(tool);
        let hits =
            |word: &String| 2 * usize::from(name.contains(word.as_str())) + usize::from(text.contains(word.as_str()));
        let score: usize = words.iter().map(hits).sum();
        (required.is_some() || score > 0).then_some(score)
    };
    let mut found: Vec<_> = tools.iter().filter_map(|tool| Some((score(tool)?, tool))).collect();
    // Stable: among equals the catalogue's order stands.
    found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    found.into_iter().take(MAX_FOUND).map(|(_, tool)| tool).collect()
}

/// The words of a query. Models write alternatives as patterns (`a|b`) as well.
fn words(query: &str) -> Vec<String> {
    let separates = |c: char| c.is_whitespace() || matches!(c, '|' | ',' | ';');
    query.split(separates).filter(|word| !word.is_empty()).map(|word| folded(word.chars())).collect()
}

/// What a tool says of itself, folded.
fn described(tool: &Tool) -> String {
    let Some(members) = Members::read(&tool.definition) else { return String::new() };
    let text = |key: &str| members.text(key).unwrap_or_default();
    folded(text("title").chars().chain([' ']).chain(text("description").chars()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn tools() -> Vec<Arc<Tool>> {
        [
            ("slack_send", "Sends a message"),
            ("slack_search", "Finds messages"),
            ("mail_send", "Sends an e-mail, not to Slack"),
            ("notebook_run", "Runs a Jupyter notebook"),
        ]
        .map(|(name, description)| {
            Arc::new(Tool {
                name: name.into(),
                server: "s".into(),
                raw_name: name.into(),
                definition: to_raw_value(&json!({"name": name, "description": description})).unwrap(),
                toolset: None,
                routing: super::super::Routing::default(),
            })
        })
        .into()
    }

    fn found(query: &str) -> Vec<String> {
        search(&tools(), query).into_iter().map(|tool| tool.name.clone()).collect()
    }

    #[test]
    fn tools_are_selected_by_name_required_by_a_word_or_ranked_by_words() {
        assert_eq!(found("select:notebook_run, mail_send,unknown"), ["mail_send", "notebook_run"]);
        assert!(found("select:NOTEBOOK_RUN").is_empty(), "names are exact");
        assert_eq!(found("+slack find"), ["slack_search", "slack_send"]);
        assert_eq!(found("+SLACK"), ["slack_send", "slack_search"]);
        assert_eq!(found("slack"), ["slack_send", "slack_search", "mail_send"], "a name counts more");
        assert_eq!(found("jupyter notebook"), ["notebook_run"]);
        assert_eq!(found("jupyter|e-mail"), ["mail_send", "notebook_run"]);
        for nothing in ["", "  ", "+", "select:", "weather", "|"] {
            assert!(found(nothing).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn a_search_finds_a_few_tools_only() {
        let many: Vec<_> =
            (0..100).map(|at| Arc::new(Tool { name: format!("slack_{at}"), ..(*tools()[0]).clone() })).collect();
        assert_eq!(search(&many, "slack").len(), MAX_FOUND);
        let all: Vec<_> = many.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(search(&many, &format!("select:{}", all.join(","))).len(), MAX_FOUND);
    }
}
