//! What is counted of sessions with servers (METRICS).

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::{CallError, CallErrorKind, oauth};
use crate::config::{Extensions, Transport};
use crate::task::server_label;

/// The metrics of all servers; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    sessions: IntGaugeVec,
    opened: IntCounterVec,
    pub(super) oauth: oauth::Metrics,
}

impl Metrics {
    /// Registers them, with every enabled server's series at 0, so that alerts on absent series cannot stay silent.
    ///
    /// # Errors
    ///
    /// Where metrics of these names are registered already.
    pub fn register(registry: &Registry, extensions: &Extensions) -> Result<Self, prometheus::Error> {
        let sessions = IntGaugeVec::new(
            Opts::new("mcp_taskd_upstream_sessions", "Sessions with servers that are up."),
            &["server", "transport"],
        )?;
        let opened = IntCounterVec::new(
            Opts::new(
                "mcp_taskd_upstream_sessions_opened_total",
                "Attempts to bring a session up, by what came of them.",
            ),
            &["server", "transport", "outcome"],
        )?;
        registry.register(Box::new(sessions.clone()))?;
        registry.register(Box::new(opened.clone()))?;
        for server in extensions.servers.values().filter(|server| server.enabled) {
            let transport = label(&server.transport);
            sessions.with_label_values(&[server.name.as_str(), transport]);
            for outcome in OUTCOMES {
                opened.with_label_values(&[server.name.as_str(), transport, outcome]);
            }
        }
        Ok(Self { sessions, opened, oauth: oauth::Metrics::register(registry, extensions)? })
    }

    pub(super) fn of(&self, server: &str, transport: &Transport) -> ServerMetrics {
        let (server, transport) = (server_label(server).to_owned(), label(transport));
        let sessions = self.sessions.with_label_values(&[server.as_str(), transport]);
        ServerMetrics(Some(Counted { server, transport, sessions, opened: self.opened.clone() }))
    }
}

const OUTCOMES: [&str; 7] = ["ok", "connect", "timeout", "transport", "auth", "protocol", "rpc"];

fn outcome<T>(result: &Result<T, CallError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(error) => match error.kind {
            CallErrorKind::Connect => "connect",
            CallErrorKind::Timeout => "timeout",
            // Interceptors are asked before a call; no session begins with one.
            CallErrorKind::Transport | CallErrorKind::Intercepted => "transport",
            CallErrorKind::Auth | CallErrorKind::Denied => "auth",
            CallErrorKind::Protocol => "protocol",
            CallErrorKind::Rpc => "rpc",
        },
    }
}

fn label(transport: &Transport) -> &'static str {
    match transport {
        Transport::Stdio { .. } => "stdio",
        Transport::Http { .. } => "http",
        Transport::Sse { .. } => "sse",
    }
}

/// One server's part of them; counts nothing where nobody registered any.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerMetrics(Option<Counted>);

#[derive(Debug, Clone)]
struct Counted {
    server: String,
    transport: &'static str,
    sessions: IntGauge,
    opened: IntCounterVec,
}

impl ServerMetrics {
    /// Counts an attempt to bring a session up.
    pub(super) fn attempted<T>(&self, result: &Result<T, CallError>) {
        if let Some(counted) = &self.0 {
            let labels = [counted.server.as_str(), counted.transport, outcome(result)];
            counted.opened.with_label_values(&labels).inc();
        }
    }

    /// Counts a session for as long as what it gives lives.
    pub(super) fn session(&self) -> SessionCount {
        let gauge = self.0.as_ref().map(|counted| counted.sessions.clone());
        if let Some(gauge) = &gauge {
            gauge.inc();
        }
        SessionCount(gauge)
    }
}

/// A session that is up.
#[derive(Debug)]
pub(super) struct SessionCount(Option<IntGauge>);

impl Drop for SessionCount {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.dec();
        }
    }
}
