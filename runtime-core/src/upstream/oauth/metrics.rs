//! What is counted of tokens (METRICS).

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry};

use super::failure::Reason;
use crate::clock::{Clock as _, SystemClock};
use crate::config::Extensions;
use crate::task::server_label;

/// What came of a refresh.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// The endpoint granted a token.
    Granted,
    /// A peer's token was there.
    Adopted,
    /// Nothing.
    Failed(Reason),
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "ok",
            Self::Adopted => "adopted",
            Self::Failed(reason) => reason.as_str(),
        }
    }
}

/// The metrics of all servers; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct Metrics {
    refreshes: IntCounterVec,
    expiry: GaugeVec,
}

impl Metrics {
    /// Registers them, with the series of every enabled server that has OAuth at 0.
    pub(in crate::upstream) fn register(
        registry: &Registry,
        extensions: &Extensions,
    ) -> Result<Self, prometheus::Error> {
        let refreshes = IntCounterVec::new(
            Opts::new("mcp_taskd_oauth_refreshes_total", "Refreshes of OAuth tokens, by what came of them."),
            &["server", "outcome"],
        )?;
        let expiry = GaugeVec::new(
            Opts::new("mcp_taskd_oauth_token_expiry_timestamp_seconds", "When the OAuth access token in use ends."),
            &["server"],
        )?;
        registry.register(Box::new(refreshes.clone()))?;
        registry.register(Box::new(expiry.clone()))?;
        let metrics = Self { refreshes, expiry };
        for server in extensions.servers.values().filter(|server| server.enabled && server.oauth.is_some()) {
            metrics.of(&server.name);
        }
        Ok(metrics)
    }

    pub(super) fn of(&self, server: &str) -> ServerMetrics {
        let server = server_label(server);
        let outcomes = [Outcome::Granted, Outcome::Adopted].into_iter().chain(Reason::ALL.map(Outcome::Failed));
        for outcome in outcomes {
            self.refreshes.with_label_values(&[server, outcome.as_str()]);
        }
        let expiry = self.expiry.with_label_values(&[server]);
        ServerMetrics(Some(Counted { server: server.to_owned(), refreshes: self.refreshes.clone(), expiry }))
    }
}

/// One server's part of them; counts nothing where nobody registered any.
#[derive(Debug, Default)]
pub(super) struct ServerMetrics(Option<Counted>);

#[derive(Debug)]
struct Counted {
    server: String,
    refreshes: IntCounterVec,
    expiry: Gauge,
}

impl ServerMetrics {
    pub(super) fn refreshed(&self, outcome: Outcome) {
        if let Some(counted) = &self.0 {
            counted.refreshes.with_label_values(&[counted.server.as_str(), outcome.as_str()]).inc();
        }
    }

    /// Shows when the token in use ends.
    pub(super) fn expires_in(&self, left: Duration) {
        if let Some(counted) = &self.0 {
            counted.expiry.set(SystemClock.now_ms() as f64 / 1_000.0 + left.as_secs_f64());
        }
    }
}
