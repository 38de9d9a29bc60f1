//! What only both files together can get wrong, and what does not exist (BEHAVIOURS 31, 140; invariant 10).

use super::locate::locate;
use super::place::{Mistake, refusal};
use super::{Backend, ConfigError, Extensions, Grant, Settings, own};

/// Refuses a configuration that would not do what it says. Call it once, at start. An error tells everything that is wrong, and
/// where in the extensions file that is about.
pub fn check(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    let mut wrong = Vec::new();
    super::auth::check(settings, &mut wrong);
    toolsets(settings, extensions, &mut wrong);
    shared_key(settings, extensions, &mut wrong);
    own::check(settings, extensions, &mut wrong);
    guardrail(settings, &mut wrong);
    if wrong.is_empty() {
        return Ok(());
    }
    let text = extensions.text.expose();
    let file = extensions.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let placed = |what: String| match locate(text, &what) {
        Some(place) => Mistake::new(&file, Some(place), what),
        None => ConfigError(what).into(),
    };
    Err(refusal(&wrong.into_iter().map(placed).collect::<Vec<_>>(), text))
}

/// Toolsets need the runtime and a store that survives (31).
fn toolsets(settings: &Settings, extensions: &Extensions, wrong: &mut Vec<String>) {
    for server in extensions.servers.values().filter(|server| server.has_toolsets()) {
        let name = &server.name;
        if !settings.mcp_tasks.enabled {
            wrong.push(format!("mcpServers.{name}.task_toolsets need mcp_tasks.enabled=true"));
        }
        if settings.database.backend == Backend::Memory {
            wrong.push(format!(
                "mcpServers.{name}.task_toolsets need database.backend sqlite or postgres; memory keeps no task"
            ));
        }
    }
}

/// Instances that cannot read each other's tokens would each use up the same refresh token (116).
fn shared_key(settings: &Settings, extensions: &Extensions, wrong: &mut Vec<String>) {
    if !settings.deployment.multi_instance || !settings.credentials_keys.is_empty() {
        return;
    }
    for server in extensions.servers.values().filter(|server| server.enabled) {
        if server.oauth.as_ref().is_some_and(|oauth| matches!(oauth.grant, Grant::RefreshToken(_))) {
            wrong.push(format!(
                "mcpServers.{}.oauth.grant_type refresh_token with deployment.multi_instance needs MCP_TASKD_CREDENTIALS_KEY \
                 (or DEER_FLOW_CREDENTIALS_KEY), the same on every instance: each continues the tokens that another has stored",
                server.name
            ));
        }
    }
}

/// Only the allow list exists, under its own name and the reference's (140).
fn guardrail(settings: &Settings, wrong: &mut Vec<String>) {
    let kind = &settings.guardrails.provider.kind;
    if kind != "allowlist" && !kind.ends_with(":AllowlistProvider") {
        wrong.push(format!(
            "guardrails.provider.use: {kind} does not exist here; use allowlist (or …:AllowlistProvider)"
        ));
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
