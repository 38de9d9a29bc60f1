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
    let (filter, problem) = match wanted.as_deref().unwrap_or(default).parse::<EnvFilter>() {
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
