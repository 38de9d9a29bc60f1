//! The process's environment as a value, so that tests never touch the real one.

use std::collections::BTreeMap;
use std::path::Path;

/// Environment variables, as they were when read.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The process's own, and the credentials that systemd hands it; what is no Unicode is left out.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os();
        let variables: Self =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
        variables.with_credentials()
    }

    /// Adds a variable for each file of `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`) that is named like one, less
    /// the line break at its end; a variable that is set stays. So a secret is named in the configuration as it always is,
    /// and is no part of the environment that stdio servers inherit.
    fn with_credentials(mut self) -> Self {
        let Some(folder) = self.non_empty("CREDENTIALS_DIRECTORY").map(ToOwned::to_owned) else { return self };
        let files = std::fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten();
        for file in files {
            let Ok(name) = file.file_name().into_string() else { continue };
            if !is_variable(&name) || self.0.contains_key(&name) {
                continue;
            }
            if let Ok(text) = std::fs::read_to_string(file.path()) {
                self.0.insert(name, text.trim_end_matches(['\r', '\n']).to_owned());
            }
        }
        self
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
    text.strip_prefix('$').filter(|name| is_variable(name))
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
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
    fn credentials_are_variables_and_those_that_are_set_win() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("TOKEN", "from a file\n"), ("SET", "from a file"), ("not-a-name", "x"), ("EMPTY", "")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        std::fs::create_dir(folder.path().join("FOLDER")).unwrap();
        let folder = folder.path().to_str().unwrap();
        let environment: Environment = [("CREDENTIALS_DIRECTORY", folder), ("SET", "before")].into_iter().collect();
        let environment = environment.with_credentials();
        assert_eq!(environment.get("TOKEN"), Some("from a file"));
        assert_eq!(environment.get("SET"), Some("before"));
        assert_eq!(environment.get("EMPTY"), Some(""));
        assert_eq!(environment.get("not-a-name").or(environment.get("FOLDER")), None);
        let gone: Environment = [("CREDENTIALS_DIRECTORY", "/nowhere")].into_iter().collect();
        assert_eq!(gone.with_credentials().get("TOKEN"), None);
    }

    #[test]
    fn only_a_whole_value_is_a_reference_77() {
        assert_eq!(reference("$API_KEY"), Some("API_KEY"));
        for literal in ["Bearer $X", "$X/path", "$", "$1", "${X}", "X", ""] {
            assert_eq!(reference(literal), None, "{literal}");
        }
    }
}
