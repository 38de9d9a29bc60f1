//! The process's environment as a value, so that tests never touch the real one.

use std::collections::BTreeMap;

/// Environment variables, as they were when read.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The process's own; what is no Unicode is left out.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
        )
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A variable's value, where it is not empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// The value of `MCP_TASKD_<name>`, or else of the reference's `DEER_FLOW_<name>`, where it is not empty (142), with the
    /// name it has.
    pub fn twin(&self, name: &str) -> Option<(String, &str)> {
        ["MCP_TASKD_", "DEER_FLOW_"].into_iter().find_map(|prefix| {
            let name = format!("{prefix}{name}");
            self.non_empty(&name).map(|value| (name.clone(), value))
        })
    }

    /// Variables whose name starts with `prefix`, in order, the prefix taken off.
    pub(super) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The variable that `text` names, where it is wholly `$NAME` (77).
pub(super) fn reference(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let mut bytes = name.bytes();
    let first = bytes.next()?;
    ((first.is_ascii_alphabetic() || first == b'_') && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_name_wins_over_the_references_142() {
        let twin = |variables: &[(&str, &str)]| {
            let environment: Environment = variables.iter().copied().collect();
            environment.twin("KEY").map(|(name, value)| (name, value.to_owned()))
        };
        let (ours, theirs) = (("MCP_TASKD_KEY", "a"), ("DEER_FLOW_KEY", "b"));
        assert_eq!(twin(&[ours, theirs]), Some(("MCP_TASKD_KEY".into(), "a".into())));
        assert_eq!(twin(&[theirs]), Some(("DEER_FLOW_KEY".into(), "b".into())));
        assert_eq!(twin(&[("MCP_TASKD_KEY", ""), theirs]), Some(("DEER_FLOW_KEY".into(), "b".into())));
        assert_eq!(twin(&[]), None);
    }

    #[test]
    fn only_a_whole_value_is_a_reference_77() {
        assert_eq!(reference("$API_KEY"), Some("API_KEY"));
        for literal in ["Bearer $X", "$X/path", "$", "$1", "${X}", "X", ""] {
            assert_eq!(reference(literal), None, "{literal}");
        }
    }
}
