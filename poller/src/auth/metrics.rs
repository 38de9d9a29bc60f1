//! What is refused, counted (METRICS).

use prometheus::{IntCounterVec, Opts, Registry};

use super::reason::Reason;

/// Counters of refusals; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    failures: IntCounterVec,
    limited: IntCounterVec,
}

impl Metrics {
    /// Registers both; `scheme` is the mode whose series start at 0.
    pub fn register(registry: &Registry, scheme: &str) -> Result<Self, prometheus::Error> {
        let metrics = Self::new()?;
        for reason in Reason::ALL {
            metrics.failures.with_label_values(&[scheme, reason.as_str()]).inc_by(0);
        }
        for route in [super::resource::GATEWAY, "unmatched"] {
            metrics.limited.with_label_values(&[route]).inc_by(0);
        }
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.limited.clone()))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(format!("mcp_taskd_{name}"), help), labels)
        };
        Ok(Self {
            failures: counter(
                "auth_failures_total",
                "Requests without usable credentials, or whose credentials do not allow what was asked.",
                &["scheme", "reason"],
            )?,
            limited: counter("rate_limited_total", "Requests refused because there were too many.", &["route"])?,
        })
    }

    /// Counts a refusal.
    pub fn record_failure(&self, scheme: &str, reason: Reason) {
        self.failures.with_label_values(&[scheme, reason.as_str()]).inc();
    }

    /// Counts one request too many; `route` is a template.
    pub fn record_limited(&self, route: &str) {
        self.limited.with_label_values(&[route]).inc();
    }
}
