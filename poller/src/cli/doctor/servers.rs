//! Each server: whether it lists its tools, and has those that the configuration names.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use mcp_taskd_core::config::{Grant, ServerConfig};
use mcp_taskd_core::task::Toolset;
use mcp_taskd_core::upstream::Upstreams;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::Check;
use crate::exit::Exit;
use crate::wiring::{self, Configuration};

/// How long a server may take to list its tools, whatever its own configuration allows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks every enabled server, all at once.
pub(super) async fn look(configuration: &Configuration) -> Vec<Check> {
    let upstreams = match wiring::upstreams(configuration) {
        Ok(upstreams) => upstreams,
        Err(error) => return vec![Check::failed("servers", error.summary()).exits(Exit::Config)],
    };
    let enabled = configuration.extensions.servers.values().filter(|server| server.enabled);
    let checks = join_all(enabled.map(|server| ask(server, &upstreams))).await;
    upstreams.close().await;
    if checks.is_empty() { vec![Check::warning("servers", "none is configured and enabled")] } else { checks }
}

async fn ask(server: &ServerConfig, upstreams: &Upstreams) -> Check {
    let name = format!("server {}", server.name);
    let Some(upstream) = upstreams.find(&server.name) else { return Check::failed(name, "it was not opened") };
    // A refresh from outside the fleet would use up the token that the fleet's next one needs.
    if server.oauth.as_ref().is_some_and(|oauth| matches!(oauth.grant, Grant::RefreshToken(_))) {
        return Check::warning(
            name,
            "not asked: that would use up its OAuth refresh token; `check-config --connect` asks it",
        );
    }
    let started = Instant::now();
    match timeout(PATIENCE, upstream.list_tools()).await {
        Err(_) => Check::failed(name, format!("its tools were not listed within {PATIENCE:?}")),
        Ok(Err(error)) => Check::failed(name, error.message),
        Ok(Ok(tools)) => listed(name, server, &tools, started.elapsed()),
    }
}

fn listed(name: String, server: &ServerConfig, tools: &[Box<RawValue>], took: Duration) -> Check {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let names: HashSet<String> =
        tools.iter().filter_map(|tool| serde_json::from_str::<Named>(tool.get()).ok()).map(|tool| tool.name).collect();
    let configured = server.toolsets.iter().flat_map(Toolset::tools);
    let missing: Vec<_> = configured.filter(|tool| !names.contains(*tool)).collect();
    if missing.is_empty() {
        Check::ok(name, format!("{} tools, listed in {} ms", tools.len(), took.as_millis()))
    } else {
        Check::failed(name, format!("it does not have the configured tools {}", missing.join(", ")))
    }
}
