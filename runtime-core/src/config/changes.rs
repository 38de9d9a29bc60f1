//! What an edited `config.yaml` would change, were it read again.

use secrecy::ExposeSecret as _;
use serde_json::Value;

use super::{Settings, Webhook};

impl Settings {
    /// The keys whose values differ between the two, dotted and in the file's order; never the values.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let tree = |settings: &Self| serde_json::to_value(settings).unwrap_or_default();
        let mut keys = Vec::new();
        differing(&tree(self), &tree(other), "", &mut keys);
        // Serialised, secrets are all alike.
        let url = |settings: &Self| settings.database.postgres_url.as_ref().map(|url| url.expose_secret().to_owned());
        let key = "database.postgres_url".to_owned();
        if url(self) != url(other) && !keys.contains(&key) {
            keys.push(key);
        }
        let signed = |settings: &Self| settings.webhooks.iter().map(Webhook::keys).collect::<Vec<_>>();
        let key = "webhooks".to_owned();
        if signed(self) != signed(other) && !keys.contains(&key) {
            keys.push(key);
        }
        keys
    }
}

fn differing(one: &Value, other: &Value, path: &str, keys: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            for (name, value) in one {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                differing(value, other.get(name).unwrap_or(&Value::Null), &path, keys);
            }
        }
        (one, other) if one != other => keys.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_named_and_a_changed_secret_is_one_of_them() {
        let running = Settings::default();
        let mut edited = running.clone();
        assert!(running.differences(&edited).is_empty());
        edited.mcp_tasks.lease_seconds = 30;
        edited.guardrails.provider.config.denied_tools.push("reports_submit".to_owned());
        edited.database.postgres_url = Some("postgres://a:hunter2@db/x".into());
        let keys = ["database.postgres_url", "mcp_tasks.lease_seconds", "guardrails.provider.config.denied_tools"];
        assert_eq!(running.differences(&edited), keys);
        let mut rotated = edited.clone();
        rotated.database.postgres_url = Some("postgres://a:hunter3@db/x".into());
        assert_eq!(edited.differences(&rotated), ["database.postgres_url"]);
    }
}
