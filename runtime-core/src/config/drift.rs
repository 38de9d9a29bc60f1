//! What must not change under running tasks (BEHAVIOURS 33, 34).

use std::collections::{BTreeMap, BTreeSet};

use super::Extensions;

/// What the tasks of this process depend on, as it was at start.
///
/// Workers poll with it until they are restarted, so that a configuration that says otherwise is refused: tools must not
/// be discovered at one address and their tasks polled at another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frozen {
    servers: BTreeMap<String, String>,
    interceptors: String,
}

/// A configuration that needs a restart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("running tasks depend on what was changed, so that it takes a restart: {}", .0.join(", "))]
pub struct Drift(pub Vec<String>);

impl Frozen {
    /// What the enabled servers with toolsets are, and the interceptors before them.
    pub fn of(extensions: &Extensions) -> Self {
        let servers = extensions.servers.values().filter(|server| server.has_toolsets());
        Self {
            servers: servers.map(|server| (server.name.clone(), server.task_digest())).collect(),
            interceptors: extensions.interceptors_digest(),
        }
    }

    /// Whether the server with this name is part of it.
    pub fn has(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    /// Refuses a configuration under which this process's tasks would be polled in another way than they were started.
    pub fn check(&self, extensions: &Extensions) -> Result<(), Drift> {
        let now = Self::of(extensions);
        let names: BTreeSet<&String> = self.servers.keys().chain(now.servers.keys()).collect();
        let changed = names.into_iter().filter(|name| self.servers.get(*name) != now.servers.get(*name));
        let mut changed: Vec<String> = changed.map(|name| format!("mcpServers.{name}")).collect();
        // Interceptors count only where there are tasks whose calls they change.
        if !self.servers.is_empty() && self.interceptors != now.interceptors {
            changed.push("mcpInterceptors".to_owned());
        }
        if changed.is_empty() { Ok(()) } else { Err(Drift(changed)) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::Environment;
    use super::*;

    fn extensions(document: &Value) -> Extensions {
        let environment: Environment = [("TOKEN", "t")].into_iter().collect();
        Extensions::parse(&document.to_string(), Path::new("e.json"), &environment).unwrap()
    }

    fn with(change: &Value) -> Extensions {
        let mut server = json!({"type": "http", "url": "http://h/mcp", "headers": {"A": "$TOKEN"}, "task_toolsets": [
            {"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]});
        server.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        extensions(&json!({"mcpServers": {"s": server, "plain": {"command": "x"}}}))
    }

    #[test]
    fn what_a_task_depends_on_must_not_change_33() {
        let frozen = Frozen::of(&with(&json!({})));
        for change in [
            json!({"url": "http://other/mcp"}),
            json!({"headers": {"A": "other"}}),
            json!({"oauth": {"enabled": false}}),
            json!({"tool_call_timeout": 5}),
            json!({"session_init_timeout": null}),
            json!({"max_concurrent_calls": 2}),
            json!({"task_toolsets": [{"name": "r", "submit_tool": "x", "status_tool": "b", "cancel_tool": "c"}]}),
            json!({"task_toolsets": []}),
            json!({"enabled": false}),
            json!({"type": "sse"}),
        ] {
            let drift = frozen.check(&with(&change)).unwrap_err();
            assert_eq!(drift.0, ["mcpServers.s"], "{change}");
            assert!(drift.to_string().contains("restart"), "{drift}");
        }
        let removed = extensions(&json!({"mcpServers": {}}));
        assert!(frozen.check(&removed).is_err());
        assert!(Frozen::of(&removed).check(&with(&json!({}))).is_err(), "a first server with tasks needs one too");
    }

    #[test]
    fn what_only_agents_see_and_servers_without_tasks_may_change_33_34() {
        let frozen = Frozen::of(&with(&json!({})));
        for change in [
            json!({}),
            json!({"description": "d", "routing": {"mode": "prefer"}, "tools": {"a": {}}, "tool_name_prefix": false}),
            json!({"headers": {"A": "t"}}),
            json!({"enabled": true, "session_init_timeout": 60}),
        ] {
            assert_eq!(frozen.check(&with(&change)), Ok(()), "{change}");
        }
        let mut document = with(&json!({})).document.expose().clone();
        document["mcpServers"]["plain"] = json!({"type": "http", "url": "http://new"});
        document["mcpServers"]["off"] = json!({"command": "x", "enabled": false, "task_toolsets": [
            {"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]});
        document["skills"] = json!({"a": {"enabled": true}});
        assert_eq!(frozen.check(&extensions(&document)), Ok(()));
    }

    #[test]
    fn interceptors_count_only_while_a_server_has_tasks_33() {
        let with_interceptors = |document: &Value, entries: Value| {
            let mut document = document.clone();
            document["mcpInterceptors"] = entries;
            extensions(&document)
        };
        let tasks = with(&json!({})).document.expose().clone();
        let frozen = Frozen::of(&with_interceptors(&tasks, json!("a:b")));
        assert_eq!(frozen.check(&with_interceptors(&tasks, json!(["a:b"]))), Ok(()), "one is a list of one");
        let drift = frozen.check(&with_interceptors(&tasks, json!(["a:b", "c:d"]))).unwrap_err();
        assert_eq!(drift.0, ["mcpInterceptors"]);
        let plain = json!({"mcpServers": {"plain": {"command": "x"}}});
        let frozen = Frozen::of(&with_interceptors(&plain, json!("a:b")));
        assert_eq!(frozen.check(&with_interceptors(&plain, json!("c:d"))), Ok(()));
    }
}
