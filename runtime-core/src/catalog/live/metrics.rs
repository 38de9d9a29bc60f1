//! How reloads of the configuration go (METRICS).

use prometheus::{Gauge, IntGauge, Registry};

use crate::clock::{Clock as _, SystemClock};

#[derive(Debug, Clone)]
pub(super) struct Metrics {
    successful: IntGauge,
    succeeded_at: Gauge,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let successful = IntGauge::new(
            "mcp_taskd_config_last_reload_successful",
            "1 while what the configuration files said when they were last looked at is in effect, else 0.",
        )?;
        let succeeded_at = Gauge::new(
            "mcp_taskd_config_last_reload_success_timestamp_seconds",
            "When the configuration files were last found in effect, or put into effect.",
        )?;
        registry.register(Box::new(successful.clone()))?;
        registry.register(Box::new(succeeded_at.clone()))?;
        Ok(Self { successful, succeeded_at })
    }

    pub(super) fn succeeded(&self) {
        self.successful.set(1);
        self.succeeded_at.set(SystemClock.now_ms() as f64 / 1_000.0);
    }

    pub(super) fn failed(&self) {
        self.successful.set(0);
    }
}
