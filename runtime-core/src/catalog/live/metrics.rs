//! How reloads of the configuration go (METRICS).

use prometheus::Registry;

use crate::clock::{Clock as _, SystemClock};

crate::families! {
    /// How it stands with what the files say.
    pub(super) struct Metrics {
        /// 1 while what the configuration files said when they were last looked at is in effect, else 0.
        successful: IntGauge = "config_last_reload_successful";
        /// When the configuration files were last found in effect, or put into effect.
        succeeded_at: Gauge = "config_last_reload_success_timestamp_seconds";
    }
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::build()?;
        metrics.add_to(registry)?;
        Ok(metrics)
    }

    pub(super) fn succeeded(&self) {
        self.successful.set(1);
        self.succeeded_at.set(SystemClock.now_ms() as f64 / 1_000.0);
    }

    pub(super) fn failed(&self) {
        self.successful.set(0);
    }
}
