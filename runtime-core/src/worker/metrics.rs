//! What the worker counts (METRICS).

use prometheus::Registry;

use super::lanes::STRANGERS;
use crate::task::{Change, ChangeKind, EventKind, FailureKind, PERSONAL, Status, Tracked};

const LATENESS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const CALLS: &[f64] = &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
const WAITS: &[f64] = &[1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 86_400.0];
const SIZES: &[f64] = &[256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 10_485_760.0];
const TASKS: &[f64] = &[1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0];

/// The outcomes of a poll beside those of [`FailureKind`].
const OUTCOMES: [&str; 5] = ["unchanged", "changed", "terminal", "not_found", "stale"];

crate::families! {
    /// The worker's metrics; cheap to clone.
    pub struct Metrics {
        /// From due to started.
        pub(super) poll_lateness: Histogram = "poll_lateness_seconds" in LATENESS;
        /// One upstream call.
        pub(super) poll_duration: HistogramVec = "poll_duration_seconds" ["server"] in CALLS;
        /// Status calls, by what came of them.
        pub(super) polls: IntCounterVec = "polls_total" ["server", "outcome"];
        /// Calls that run now.
        pub(super) polls_in_flight: IntGaugeVec = "polls_in_flight" ["server"];
        /// Poll slots, in all and in use.
        pub(super) poll_slots: IntGaugeVec = "poll_slots" ["state"];
        /// Calls that are tried again, by the kind of error.
        pub(super) poll_retries: IntCounterVec = "poll_retries_total" ["server", "reason"];
        /// How long a task waits after an error.
        pub(super) poll_backoff: HistogramVec = "poll_backoff_seconds" ["server", "reason"] in WAITS;
        /// 1 while a server's calls are held back.
        pub(super) breaker_open: IntGaugeVec = "breaker_open" ["server"];
        /// Claim statements.
        pub(super) claims: IntCounterVec = "claims_total" ["outcome"];
        /// Tasks claimed.
        pub(super) claimed_tasks: IntCounter = "claimed_tasks_total";
        /// Tasks this process holds.
        pub(super) leases_held: IntGauge = "leases_held";
        /// Workers found dead by this process.
        pub(super) leases_expired: IntCounter = "leases_expired_total";
        /// Tasks this process held and lost, by how it noticed.
        pub(super) leases_lost: IntCounterVec = "leases_lost_total" ["reason"];
        /// Task rows written, by statement.
        pub(crate) rows_written: IntCounterVec = "rows_written_total" ["statement"];
        /// Events of tasks, by what they say.
        events_emitted: IntCounterVec = "events_emitted_total" ["type"];
        /// Tasks ended.
        pub(super) tasks_finished: IntCounterVec = "tasks_finished_total" ["server", "status"];
        /// Submitted to terminal.
        pub(super) task_duration: HistogramVec = "task_duration_seconds" ["status"] in TASKS;
        /// From the request of a cancel to the task's end, by its status.
        pub(super) cancel_duration: HistogramVec = "cancel_duration_seconds" ["outcome"] in TASKS;
        /// Results too large to keep, of which a preview is kept.
        pub(super) results_truncated: IntCounterVec = "results_truncated_total" ["server"];
        /// Results that are kept.
        pub(super) result_size: HistogramVec = "result_size_bytes" ["server"] in SIZES;
        /// Submits, by outcome.
        pub(crate) tasks_submitted: IntCounterVec = "tasks_submitted_total" ["server", "status"];
        /// Cancel requests.
        pub(crate) cancel_requests: IntCounterVec = "cancel_requests_total" ["outcome"];
    }
}

impl Metrics {
    /// Registers everything, with every label value that is known beforehand at 0, so that alerts on absent series
    /// cannot stay silent.
    pub fn register<'a>(
        registry: &Registry,
        servers: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Self::build()?;
        metrics.add_to(registry)?;
        metrics.initialise(servers);
        Ok(metrics)
    }

    /// Counts the events that a write emitted.
    pub(crate) fn emitted(&self, events: &[EventKind]) {
        for event in events {
            self.events_emitted.with_label_values(&[event.as_str()]).inc();
        }
    }

    /// Counts a task of `server`'s that a write has ended.
    pub(crate) fn finished(&self, server: &str, task: &Tracked, change: &Change) {
        let status = change.status.as_str();
        self.tasks_finished.with_label_values(&[server, status]).inc();
        let age = change.at.saturating_sub(task.created_at).max(0);
        self.task_duration.with_label_values(&[status]).observe(age as f64 / 1_000.0);
        if let Some(asked) = task.cancel_requested_at {
            let took = change.at.saturating_sub(asked).max(0);
            self.cancel_duration.with_label_values(&[status]).observe(took as f64 / 1_000.0);
        }
        if let Some((outcome, _)) = &change.outcome {
            self.results_truncated.with_label_values(&[server]).inc_by(u64::from(outcome.result_truncated));
            if let Some(result) = &outcome.result {
                self.result_size.with_label_values(&[server]).observe(result.as_str().len() as f64);
            }
        }
    }

    /// Counts a submit whose remote id is on record: a row and an event.
    pub(crate) fn recorded(&self) {
        self.rows_written.with_label_values(&["submit"]).inc();
        self.emitted(&[EventKind::Status(Status::Submitted)]);
    }

    fn initialise<'a>(&self, servers: impl IntoIterator<Item = &'a str>) {
        for server in servers.into_iter().chain([STRANGERS, PERSONAL]) {
            for outcome in OUTCOMES.into_iter().chain(FailureKind::ALL.map(FailureKind::as_str)) {
                self.polls.with_label_values(&[server, outcome]);
            }
            for reason in FailureKind::ALL {
                self.poll_retries.with_label_values(&[server, reason.as_str()]);
                self.poll_backoff.with_label_values(&[server, reason.as_str()]);
            }
            for status in [Status::Completed, Status::Failed, Status::Cancelled] {
                self.tasks_finished.with_label_values(&[server, status.as_str()]);
            }
            for status in ["submitted", "refused", "unknown"] {
                self.tasks_submitted.with_label_values(&[server, status]);
            }
            self.poll_duration.with_label_values(&[server]);
            self.results_truncated.with_label_values(&[server]);
            self.result_size.with_label_values(&[server]);
            self.polls_in_flight.with_label_values(&[server]);
            self.breaker_open.with_label_values(&[server]);
        }
        for state in ["total", "used"] {
            self.poll_slots.with_label_values(&[state]);
        }
        for kind in ChangeKind::ALL.map(ChangeKind::as_str).into_iter().chain(["claim", "submit", "prune"]) {
            self.rows_written.with_label_values(&[kind]);
        }
        for event in EventKind::ALL {
            self.events_emitted.with_label_values(&[event.as_str()]);
        }
        for outcome in ["ok", "error"] {
            self.claims.with_label_values(&[outcome]);
        }
        for reason in ["stale", "reconcile", "refused"] {
            self.leases_lost.with_label_values(&[reason]);
        }
        for outcome in ["recorded", "repeated", "not_found"] {
            self.cancel_requests.with_label_values(&[outcome]);
        }
        for status in [Status::Completed, Status::Failed, Status::Cancelled] {
            self.task_duration.with_label_values(&[status.as_str()]);
            self.cancel_duration.with_label_values(&[status.as_str()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_series_is_there_before_anything_has_happened() {
        let registry = Registry::new();
        Metrics::register(&registry, ["reports"]).unwrap();
        let families = registry.gather();
        let series = |name: &str| {
            let family = families.iter().find(|family| family.name() == format!("mcp_taskd_{name}"));
            let of_server = |labels: &[prometheus::proto::LabelPair]| {
                labels.iter().all(|label| label.name() != "server" || label.value() == "reports")
            };
            family.map_or(0, |family| family.get_metric().iter().filter(|one| of_server(one.get_label())).count())
        };
        let reasons =
            FailureKind::ALL.map(FailureKind::as_str).into_iter().collect::<std::collections::HashSet<_>>().len();
        let expected = [
            ("polls_total", OUTCOMES.len() + reasons),
            ("poll_retries_total", reasons),
            ("poll_backoff_seconds", reasons),
            ("poll_duration_seconds", 1),
            ("poll_slots", 2),
            ("breaker_open", 1),
            ("polls_in_flight", 1),
            ("tasks_finished_total", 3),
            ("tasks_submitted_total", 3),
            ("task_duration_seconds", 3),
            ("cancel_duration_seconds", 3),
            ("results_truncated_total", 1),
            ("result_size_bytes", 1),
            ("claims_total", 2),
            ("leases_lost_total", 3),
            ("cancel_requests_total", 3),
            ("rows_written_total", ChangeKind::ALL.len() + 3),
            ("events_emitted_total", EventKind::ALL.len()),
        ];
        for (name, count) in expected {
            assert_eq!(series(name), count, "{name}");
        }
    }
}
