//! Logging: on standard error, pretty for people, JSON for machines; or to systemd's journal.

use std::io::IsTerminal as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Coloured lines, for a terminal.
    Pretty,
    /// One JSON object a line.
    Json,
    /// Entries of systemd's journal, with fields such as TASK_ID.
    Journald,
}

impl LogFormat {
    /// What suits where standard error leads to: a terminal, the journal, or anything else.
    fn of_destination(terminal: bool, journal: bool) -> Self {
        match (terminal, journal) {
            (true, _) => Self::Pretty,
            (false, true) => Self::Journald,
            (false, false) => Self::Json,
        }
    }
}

/// Starts logging. The filter is `$MCP_TASKD_LOG`, else `$RUST_LOG`, else `default`.
///
/// Without a format, a terminal gets `pretty`, the journal its own, and anything else `json`.
pub fn init(format: Option<LogFormat>, default: &str) {
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or_else(|| LogFormat::of_destination(terminal, leads_to_journal()));
    let wanted = ["MCP_TASKD_LOG", "RUST_LOG"].iter().find_map(|name| std::env::var(name).ok());
    let (filter, problem) = match filter(wanted.as_deref().unwrap_or(default)) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(default), Some(error)),
    };
    let lines = || tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let json = || lines().json().flatten_event(true).boxed();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (layer, no_journal) = match format {
        LogFormat::Pretty => (lines().with_ansi(colour).with_target(false).boxed(), None),
        LogFormat::Json => (json(), None),
        LogFormat::Journald => match tracing_journald::layer() {
            Ok(journal) => (journal.with_field_prefix(None).with_syslog_identifier("mcp-taskd".into()).boxed(), None),
            Err(error) => (json(), Some(error)),
        },
    };
    // A second start (an embedder's own subscriber, a test) keeps the first.
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_err() {
        return;
    }
    if let Some(error) = problem {
        tracing::warn!(%error, "the log filter cannot be used; using {default:?}");
    }
    if let Some(error) = no_journal {
        tracing::warn!(%error, "the journal cannot be reached; logging JSON to standard error");
    }
}

/// Whether standard error is the journal's: systemd says which device and inode that has.
fn leads_to_journal() -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stderr_is(&stream))
}

#[cfg(target_os = "linux")]
fn stderr_is(stream: &str) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|at| format!("{}:{}", at.dev(), at.ino()) == stream)
}

#[cfg(not(target_os = "linux"))]
fn stderr_is(_: &str) -> bool {
    false
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
    fn lines_look_as_their_destination_wants_them() {
        assert_eq!(LogFormat::of_destination(true, true), LogFormat::Pretty);
        assert_eq!(LogFormat::of_destination(false, true), LogFormat::Journald);
        assert_eq!(LogFormat::of_destination(false, false), LogFormat::Json);
        assert!(!stderr_is("0:0"));
    }

    #[test]
    fn messages_are_logged_only_where_they_are_asked_for() {
        assert!(filter("debug").unwrap().to_string().contains("rmcp=info"));
        assert!(filter("info,rmcp=debug").unwrap().to_string().contains("rmcp=debug"));
        assert!(filter("mcp_taskd=nonsense").is_err());
    }
}
