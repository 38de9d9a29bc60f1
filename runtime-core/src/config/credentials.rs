//! The keys that credentials are encrypted with before they are stored (BEHAVIOURS 116, 141, 142).

use secrecy::SecretString;

use super::{ConfigError, Environment};

const KEY: &str = "CREDENTIALS_KEY";
/// Fewer characters than a random key can have.
const SHORT: usize = 16;

/// The keys of the environment, the one that encrypts first; none where no variable names any. What is odd about them is added
/// to `warnings`.
pub(super) fn keys(environment: &Environment, warnings: &mut Vec<String>) -> Result<Vec<SecretString>, ConfigError> {
    for prefix in ["MCP_TASKD_", "DEER_FLOW_"] {
        let (name, file) = (format!("{prefix}{KEY}"), format!("{prefix}{KEY}_FILE"));
        let (name, text) = match (environment.non_empty(&name), environment.non_empty(&file)) {
            (None, None) => continue,
            (Some(_), Some(_)) => return Err(ConfigError(format!("give either {name} or {file}, not both"))),
            (Some(text), None) => (name, text.to_owned()),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| ConfigError(format!("{file}: the file it names cannot be read: {error}")))?;
                (file, text)
            }
        };
        let keys: Vec<&str> = text.split([',', '\n', '\r']).map(str::trim).filter(|key| !key.is_empty()).collect();
        if keys.is_empty() {
            return Err(ConfigError(format!("{name} holds no key")));
        }
        if keys.iter().any(|key| key.chars().count() < SHORT) {
            warnings.push(format!(
                "{name} has a key of less than {SHORT} characters, which can be guessed; `openssl rand -base64 32` makes a good one"
            ));
        }
        return Ok(keys.into_iter().map(Into::into).collect());
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Result<Vec<String>, String>, Vec<String>) {
        let mut warnings = Vec::new();
        let keys = keys(&variables.iter().copied().collect(), &mut warnings);
        let shown = |keys: Vec<SecretString>| keys.iter().map(|key| key.expose_secret().to_owned()).collect();
        (keys.map(shown).map_err(|error| error.0), warnings)
    }

    #[test]
    fn keys_come_from_either_name_or_a_file_and_there_may_be_several_116_142() {
        assert_eq!(read(&[]).0, Ok(Vec::new()));
        let long = "0123456789abcdef";
        let list = format!(" {long} ,second-0123456789\n");
        let expected = Ok(vec![long.to_owned(), "second-0123456789".to_owned()]);
        assert_eq!(read(&[("DEER_FLOW_CREDENTIALS_KEY", &list)]), (expected.clone(), Vec::new()));
        let both = [("DEER_FLOW_CREDENTIALS_KEY", "theirs-0123456789"), ("MCP_TASKD_CREDENTIALS_KEY", long)];
        assert_eq!(read(&both).0, Ok(vec![long.to_owned()]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, &list).unwrap();
        assert_eq!(read(&[("MCP_TASKD_CREDENTIALS_KEY_FILE", path.to_str().unwrap())]).0, expected);
    }

    #[test]
    fn a_key_that_cannot_be_used_names_its_variable_and_not_itself() {
        let (keys, warnings) = read(&[("MCP_TASKD_CREDENTIALS_KEY", "hunter2")]);
        assert!(keys.is_ok() && warnings[0].contains("MCP_TASKD_CREDENTIALS_KEY"));
        assert!(!warnings[0].contains("hunter2"));
        for wrong in [
            &[("MCP_TASKD_CREDENTIALS_KEY", " , ")][..],
            &[("MCP_TASKD_CREDENTIALS_KEY_FILE", "/nowhere/hunter2")],
            &[("MCP_TASKD_CREDENTIALS_KEY", "hunter2"), ("MCP_TASKD_CREDENTIALS_KEY_FILE", "/nowhere/hunter2")],
        ] {
            let error = read(wrong).0.unwrap_err();
            assert!(error.contains("MCP_TASKD_CREDENTIALS_KEY") && !error.contains("hunter2"), "{error}");
        }
    }
}
