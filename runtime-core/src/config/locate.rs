//! Where in a JSON text the thing stands that a message names (`mcpServers.s.task_toolsets[0].name must be …`).

use super::place::Place;
use super::yaml::{self, Node, Yaml};

/// The place of the deepest member that `message` begins with; none where it names none.
///
/// The text is read once more for it, as YAML, which JSON is: messages are rare, and the JSON reader forgets places.
pub(super) fn locate(text: &str, message: &str) -> Option<Place> {
    let root = yaml::parse(text, "").ok()?;
    let (mut node, mut place, mut rest) = (&root, None, message);
    while let Some((next, at, after)) = step(node, rest) {
        (node, place) = (next, Some(at));
        rest = match after.strip_prefix('.').or_else(|| after.strip_prefix(" has the unknown key ")) {
            Some(member) => member,
            None if after.starts_with('[') => after,
            None => break,
        };
    }
    place
}

/// The member or item that `path` begins with: itself, its place, and what follows its name.
fn step<'a, 'p>(node: &'a Node, path: &'p str) -> Option<(&'a Node, Place, &'p str)> {
    match &node.value {
        Yaml::Mapping(members) => {
            let named = members.iter().filter_map(|(key, value)| {
                let after = path.strip_prefix(key.value.as_str())?;
                let ends = after.chars().next().is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '-'));
                ends.then(|| (value, Place::from(key.referenced), after))
            });
            // A name may itself have a dot in it.
            named.min_by_key(|(_, _, after)| after.len())
        }
        Yaml::List(items) => {
            let (index, after) = path.strip_prefix('[')?.split_once(']')?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some((item, Place::from(item.referenced), after))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_leads_to_the_member_that_it_names() {
        let text =
            "{\n  \"mcpServers\": {\n    \"a.b\": {\"task_toolsets\": [{}, {\n      \"nme\": 1}]},\n    \"a\": {}}\n}";
        let at = |message: &str| locate(text, message).map(|place| (place.line, place.column));
        assert_eq!(at("mcpServers.a must be"), Some((5, 5)));
        assert_eq!(at("mcpServers.a.b.task_toolsets must be a list"), Some((3, 13)));
        assert_eq!(at("mcpServers.a.b.task_toolsets[1].name must be a text"), Some((3, 35)));
        assert_eq!(at("mcpServers.a.b.task_toolsets[1] has the unknown key nme; did you"), Some((4, 7)));
        assert_eq!(at("mcpServers.a.b.task_toolsets[7].name must be a text"), Some((3, 13)));
        assert_eq!(at("something else"), None);
        assert_eq!(locate("{", "mcpServers.a"), None);
    }
}
