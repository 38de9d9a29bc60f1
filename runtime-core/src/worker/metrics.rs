//! What the worker counts (METRICS).

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::lanes::STRANGERS;
use crate::task::{ChangeKind, EventKind, FailureKind, Status};

const LATENESS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const CALLS: &[f64] = &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
const WAITS: &[f64] = &[1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 86_400.0];
const SIZES: &[f64] = &[256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 10_485_760.0];
const TASKS: &[f64] = &[1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0];

/// The outcomes of a poll beside those of [`FailureKind`].
const OUTCOMES: [&str; 5] = ["unchanged", "changed", "terminal", "not_found", "stale"];

/// The worker's metrics; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) poll_lateness: Histogram,
    pub(super) poll_duration: HistogramVec,
    pub(super) polls: IntCounterVec,
    pub(super) polls_in_flight: IntGaugeVec,
    pub(super) poll_slots: IntGaugeVec,
    pub(super) poll_retries: IntCounterVec,
    pub(super) poll_backoff: HistogramVec,
    pub(super) breaker_open: IntGaugeVec,
    pub(super) claims: IntCounterVec,
    pub(super) claimed_tasks: IntCounter,
    pub(super) leases_held: IntGauge,
    pub(super) leases_expired: IntCounter,
    pub(super) leases_lost: IntCounterVec,
    pub(crate) rows_written: IntCounterVec,
    events_emitted: IntCounterVec,
    pub(super) tasks_finished: IntCounterVec,
    pub(super) task_duration: HistogramVec,
    pub(super) cancel_duration: HistogramVec,
    pub(super) results_truncated: IntCounterVec,
    pub(super) result_size: HistogramVec,
    pub(crate) tasks_submitted: IntCounterVec,
    pub(crate) cancel_requests: IntCounterVec,
}

impl Metrics {
    /// Registers everything, with every label value that is known beforehand at 0, so that alerts on absent series
    /// cannot stay silent.
    pub fn register<'a>(
        registry: &Registry,
        servers: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            poll_lateness: histogram(registry, "poll_lateness_seconds", "From due to started.", LATENESS)?,
            poll_duration: histograms(registry, "poll_duration_seconds", "One upstream call.", &["server"], CALLS)?,
            polls: counters(registry, "polls_total", "Status calls, by what came of them.", &["server", "outcome"])?,
            polls_in_flight: gauges(registry, "polls_in_flight", "Calls that run now.", &["server"])?,
            poll_slots: gauges(registry, "poll_slots", "Poll slots, in all and in use.", &["state"])?,
            poll_retries: counters(
                registry,
                "poll_retries_total",
                "Calls that are tried again, by the kind of error.",
                &["server", "reason"],
            )?,
            poll_backoff: histograms(
                registry,
                "poll_backoff_seconds",
                "How long a task waits after an error.",
                &["server", "reason"],
                WAITS,
            )?,
            breaker_open: gauges(registry, "breaker_open", "1 while a server's calls are held back.", &["server"])?,
            claims: counters(registry, "claims_total", "Claim statements.", &["outcome"])?,
            claimed_tasks: counter(registry, "claimed_tasks_total", "Tasks claimed.")?,
            leases_held: gauge(registry, "leases_held", "Tasks this process holds.")?,
            leases_expired: counter(registry, "leases_expired_total", "Workers found dead by this process.")?,
            leases_lost: counters(
                registry,
                "leases_lost_total",
                "Tasks this process held and lost, by how it noticed.",
                &["reason"],
            )?,
            rows_written: counters(registry, "rows_written_total", "Task rows written, by statement.", &["statement"])?,
            events_emitted: counters(
                registry,
                "events_emitted_total",
                "Events of tasks, by what they say.",
                &["type"],
            )?,
            tasks_finished: counters(registry, "tasks_finished_total", "Tasks ended.", &["server", "status"])?,
            task_duration: histograms(registry, "task_duration_seconds", "Submitted to terminal.", &["status"], TASKS)?,
            cancel_duration: histograms(
                registry,
                "cancel_duration_seconds",
                "From the request of a cancel to the task's end, by its status.",
                &["outcome"],
                TASKS,
            )?,
            results_truncated: counters(
                registry,
                "results_truncated_total",
                "Results too large to keep, of which a preview is kept.",
                &["server"],
            )?,
            result_size: histograms(registry, "result_size_bytes", "Results that are kept.", &["server"], SIZES)?,
            tasks_submitted: counters(
                registry,
                "tasks_submitted_total",
                "Submits, by outcome.",
                &["server", "status"],
            )?,
            cancel_requests: counters(registry, "cancel_requests_total", "Cancel requests.", &["outcome"])?,
        };
        metrics.initialise(servers);
        Ok(metrics)
    }

    /// Counts the events that a write emitted.
    pub(crate) fn emitted(&self, events: &[EventKind]) {
        for event in events {
            self.events_emitted.with_label_values(&[event.as_str()]).inc();
        }
    }

    /// Counts a submit whose remote id is on record: a row and an event.
    pub(crate) fn recorded(&self) {
        self.rows_written.with_label_values(&["submit"]).inc();
        self.emitted(&[EventKind::Status(Status::Submitted)]);
    }

    fn initialise<'a>(&self, servers: impl IntoIterator<Item = &'a str>) {
        for server in servers.into_iter().chain([STRANGERS]) {
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

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("mcp_taskd_{name}"), help)
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> prometheus::Result<C> {
    let collector = collector?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    registered(registry, IntCounter::with_opts(opts(name, help)))
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(opts(name, help), labels))
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    registered(registry, IntGauge::with_opts(opts(name, help)))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    registered(registry, IntGaugeVec::new(opts(name, help), labels))
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
    let opts = HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() };
    registered(registry, Histogram::with_opts(opts))
}

fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> prometheus::Result<HistogramVec> {
    let opts = HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() };
    registered(registry, HistogramVec::new(opts, labels))
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
        let reasons = FailureKind::ALL.len();
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
