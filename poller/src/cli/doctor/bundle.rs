//! What helps others to help: findings, configuration and figures in one document, without secrets.

use mcp_taskd_core::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use super::Findings;
use crate::view::rfc3339;
use crate::wiring::{self, Configuration};

/// Variables of which the names are told; never their values.
const PREFIXES: [&str; 5] = ["MCP_TASKD_", "DEER_FLOW_", "OTEL_", "RUST_", "DATABASE_URL"];

/// The bundle.
pub(super) fn write(configuration: Option<&Configuration>, findings: &Findings) -> Value {
    let mut variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    variables.sort();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "made_at": rfc3339(SystemClock.now_ms()),
        "system": { "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "cpus": cpus() },
        "checks": findings.checks,
        "configuration": configuration.map(wiring::show),
        "variables_set": variables,
        "workers": findings.store.workers,
        "stats": findings.store.stats,
    })
}

fn cpus() -> Option<usize> {
    std::thread::available_parallelism().ok().map(Into::into)
}
