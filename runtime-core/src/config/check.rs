//! What only both files together can get wrong, and what this version cannot do (BEHAVIOURS 31, 140; invariant 10).

use super::{Backend, ConfigError, Extensions, Settings, Transport};

/// Refuses a configuration that would not do what it says. Call it once, at start.
pub fn check(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    super::auth::check(settings)?;
    toolsets(settings, extensions)?;
    unsupported(settings, extensions)
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

/// Refuses what can be configured and is not implemented: it must not be ignored silently.
pub fn unsupported(settings: &Settings, extensions: &Extensions) -> Result<(), ConfigError> {
    let not_yet = |what: &str| Err(ConfigError(format!("{what} is not supported by this version")));
    if !settings.webhooks.is_empty() {
        return not_yet("webhooks");
    }
    guardrail(settings)?;
    for server in extensions.servers.values().filter(|server| server.enabled) {
        let at = format!("mcpServers.{}", server.name);
        let stdio = matches!(server.transport, Transport::Stdio { .. });
        // On stdio these have no effect anywhere; that is a warning, not a promise broken (118, 120).
        if let Some(source) = server.credentials.iter().find(|_| !stdio) {
            return not_yet(&format!("{at}.{}", source.key()));
        }
    }
    Ok(())
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
