//! Logging: on standard error, pretty for people, JSON for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Coloured lines, for a terminal.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Starts logging. The filter is `$MCP_TASKD_LOG`, else `$RUST_LOG`, else `default`.
///
/// Without a format, a terminal gets `pretty` and anything else `json`.
pub fn init(format: Option<LogFormat>, default: &str) {
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Pretty } else { LogFormat::Json });
    let wanted = ["MCP_TASKD_LOG", "RUST_LOG"].iter().find_map(|name| std::env::var(name).ok());
    let (filter, problem) = match filter(wanted.as_deref().unwrap_or(default)) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(default), Some(error)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // A second start (an embedder's own subscriber, a test) keeps the first.
    let started = match format {
        LogFormat::Pretty => builder.with_ansi(colour).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let (Ok(()), Some(error)) = (started, problem) {
        tracing::warn!(%error, "the log filter cannot be used; using {default:?}");
    }
}

/// The filter that `wanted` says. The MCP library's own debug lines hold whole messages, and with them whatever tools
/// are told and answer: they are logged only where somebody asks for that library by name.
fn filter(wanted: &str) -> anyhow::Result<EnvFilter> {
    let filter: EnvFilter = wanted.parse()?;
    Ok(if wanted.contains("rmcp") { filter } else { filter.add_directive("rmcp=info".parse()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_logged_only_where_they_are_asked_for() {
        assert!(filter("debug").unwrap().to_string().contains("rmcp=info"));
        assert!(filter("info,rmcp=debug").unwrap().to_string().contains("rmcp=debug"));
        assert!(filter("mcp_taskd=nonsense").is_err());
    }
}
