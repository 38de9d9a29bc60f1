//! What only both files together can get wrong, and what this version cannot do (BEHAVIOURS 31, 140; invariant 10).

use super::{Backend, ConfigError, Extensions, Grant, Settings};

/// Refuses a configuration that would not do what it says. Call it once, at start.
pub fn check(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    super::auth::check(settings)?;
    toolsets(settings, extensions)?;
    shared_key(settings, extensions)?;
    unsupported(settings)
}

/// Toolsets need the runtime and a store that survives (31).
fn toolsets(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    let Some(server) = extensions.servers.values().find(|server| server.has_toolsets()) else { return Ok(()) };
    let name = &server.name;
    if !settings.mcp_tasks.enabled {
        return Err(ConfigError(format!("mcpServers.{name}.task_toolsets need mcp_tasks.enabled=true")));
    }
    if settings.database.backend == Backend::Memory {
        return Err(ConfigError(format!(
            "mcpServers.{name}.task_toolsets need database.backend sqlite or postgres; memory keeps no task"
        )));
    }
    Ok(())
}

/// Instances that cannot read each other's tokens would each use up the same refresh token (116).
fn shared_key(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    if !settings.deployment.multi_instance || !settings.credentials_keys.is_empty() {
        return Ok(());
    }
    let rotates = |grant: &Grant| matches!(grant, Grant::RefreshToken(_));
    let mut enabled = extensions.servers.values().filter(|server| server.enabled);
    match enabled.find(|server| server.oauth.as_ref().is_some_and(|oauth| rotates(&oauth.grant))) {
        None => Ok(()),
        Some(server) => Err(ConfigError(format!(
            "deployment.multi_instance and mcpServers.{}.oauth.grant_type refresh_token need MCP_TASKD_CREDENTIALS_KEY (or \
             DEER_FLOW_CREDENTIALS_KEY), the same on every instance: each continues the tokens that another has stored",
            server.name
        ))),
    }
}

/// Refuses what can be configured and is not implemented: it must not be ignored silently.
pub fn unsupported(settings: &Settings) -> Result<(), ConfigError> {
    guardrail(settings)
}

/// Only the allow list exists, under its own name and the reference's (140).
fn guardrail(settings: &Settings) -> Result<(), ConfigError> {
    let kind = &settings.guardrails.provider.kind;
    if kind == "allowlist" || kind.ends_with(":AllowlistProvider") {
        return Ok(());
    }
    Err(ConfigError(format!(
        "guardrails.provider.use: {kind} does not exist here; use allowlist (or …:AllowlistProvider)"
    )))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
