//! What is counted of deliveries (METRICS).

use std::time::Duration;

use mcp_taskd_core::store::{Backlog, DeliveryState};

use super::verdict::Outcome;

const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];

mcp_taskd_core::families! {
    /// The metrics of all sinks; clones share them.
    pub(super) struct Metrics {
        /// Attempts to deliver an event, by what came of them.
        deliveries: IntCounterVec = "event_deliveries_total" ["sink", "outcome"];
        /// How long an attempt to deliver an event took.
        seconds: HistogramVec = "event_delivery_duration_seconds" ["sink", "outcome"] in SECONDS;
        /// Deliveries that were given up: their budget is used up, or the sink says that it is gone.
        dead: IntCounterVec = "events_dead_lettered_total" ["sink", "outcome"];
        /// Deliveries that have not ended, up to 100,000.
        pending: IntGaugeVec = "events_pending" ["sink"];
        /// When the event of the delivery that waits longest happened; 0: none waits.
        oldest: IntGaugeVec = "events_oldest_pending_timestamp_seconds" ["sink"];
    }
}

impl Metrics {
    /// Registers them, with every sink's series at 0.
    pub(super) fn register(registry: &prometheus::Registry, sinks: &[String]) -> prometheus::Result<Self> {
        let metrics = Self::build()?;
        metrics.add_to(registry)?;
        for sink in sinks {
            for outcome in Outcome::ALL {
                metrics.deliveries.with_label_values(&[sink.as_str(), outcome.as_str()]);
                metrics.seconds.with_label_values(&[sink.as_str(), outcome.as_str()]);
            }
            for outcome in [Outcome::Failed, Outcome::Gone] {
                metrics.dead.with_label_values(&[sink.as_str(), outcome.as_str()]);
            }
            metrics.pending.with_label_values(&[sink]).set(0);
            metrics.oldest.with_label_values(&[sink]).set(0);
        }
        Ok(metrics)
    }

    /// Counts an attempt and what it left.
    pub(super) fn note(&self, sink: &str, outcome: Outcome, left: Option<DeliveryState>, took: Duration) {
        let labels = [sink, outcome.as_str()];
        self.deliveries.with_label_values(&labels).inc();
        self.seconds.with_label_values(&labels).observe(took.as_secs_f64());
        if left == Some(DeliveryState::DeadLetter) {
            self.dead.with_label_values(&labels).inc();
        }
    }

    /// Shows what waits.
    pub(super) fn show(&self, backlog: &[Backlog]) {
        for Backlog { sink, pending, oldest_at } in backlog {
            self.pending.with_label_values(&[sink]).set(*pending);
            self.oldest.with_label_values(&[sink]).set(oldest_at.map_or(0, |at| at / 1_000));
        }
    }
}
