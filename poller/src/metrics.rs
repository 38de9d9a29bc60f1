//! The daemon's own metrics and the figures read from the store (METRICS).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::store::{Queries, StoreStats};
use mcp_taskd_core::task::{Policy, Status, server_label};
use prometheus::core::Collector as _;
use prometheus::{Encoder as _, IntGaugeVec, Registry, TextEncoder};

use crate::lifecycle::Shutdown;

/// How often the store is asked for figures.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(8);
/// The most that any count says.
pub const COUNT_CAP: i64 = 100_000;
/// The least that counts go up to while the store is slow.
const LEAST_CAP: i64 = 1_000;

const HTTP_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of the API, the gateway and the process; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// The servers with task toolsets, whose series are there from the start.
    servers: Arc<[String]>,
    shown: Shown,
}

mcp_taskd_core::families! {
    /// What is shown of the process and of the store.
    struct Shown {
        /// What runs here; always 1.
        build_info: IntGaugeVec = "build_info" ["version", "revision", "store"];
        /// When the process started.
        started_at: Gauge = "start_time_seconds";
        /// 1 while the process drains.
        draining: IntGauge = "draining";
        /// Requests by method, route and code.
        http_requests: IntCounterVec = "http_requests_total" ["method", "route", "code"];
        /// Time until the head of a response, by method, route and code.
        http_seconds: HistogramVec = "http_request_duration_seconds" ["method", "route", "code"] in HTTP_SECONDS;
        /// Tasks by status, each up to 100,000.
        tasks: IntGaugeVec = "tasks" ["status"];
        /// Tasks whose tracking is degraded, by server.
        tasks_degraded: IntGaugeVec = "tasks_degraded" ["server"];
        /// Tasks whose row cannot be decoded, by column, up to a bound.
        tasks_quarantined: IntGaugeVec = "tasks_quarantined" ["column"];
        /// Tasks that are due and that no worker holds.
        tasks_due: IntGauge = "tasks_due";
        /// When the task that waits longest was due; 0: none waits.
        oldest_due: Gauge = "tasks_oldest_due_timestamp_seconds";
        /// When the figures from the store were read.
        stats_at: Gauge = "store_stats_timestamp_seconds";
        /// Live workers of the fleet.
        workers_live: IntGauge = "workers_live";
        /// Those of them that poll tasks; 0: nobody polls.
        workers_polling: IntGauge = "workers_polling";
        /// What the store takes on disk: SQLite's file, or PostgreSQL's tables of tasks and events.
        store_bytes: IntGauge = "store_size_bytes";
        /// How much of SQLite's file is free for new rows, after deletes.
        free_bytes: IntGauge = "store_free_bytes";
        /// SQLite's write-ahead log; a reader that stays open lets it grow.
        log_bytes: IntGauge = "store_log_bytes";
    }
}

/// What the store last said of the whole fleet, each count up to [`COUNT_CAP`] a status.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Tasks that have not ended.
    pub active: i64,
    /// Those that are due and that no worker holds.
    pub due: i64,
    /// Live workers.
    pub workers: i64,
    /// How long ago this was read; `None`: never yet.
    pub age: Option<Duration>,
}

impl Metrics {
    /// Registers everything; `store` is the backend's name, `servers` are those with task toolsets.
    pub fn register<'a>(
        registry: &Registry,
        store: &str,
        servers: impl IntoIterator<Item = &'a str>,
        now_ms: i64,
    ) -> Result<Self, prometheus::Error> {
        let shown = Shown::build()?;
        shown.add_to(registry)?;
        let revision = option_env!("MCP_TASKD_REVISION").unwrap_or("unknown");
        shown.build_info.with_label_values(&[env!("CARGO_PKG_VERSION"), revision, store]).set(1);
        shown.started_at.set(seconds(now_ms));
        for status in Status::ALL {
            shown.tasks.with_label_values(&[status.as_str()]).set(0);
        }
        let servers = servers.into_iter().map(str::to_owned).collect();
        let metrics = Self { registry: registry.clone(), servers, shown };
        metrics.show_degraded(&[]);
        Ok(metrics)
    }

    /// The figures as last read.
    pub fn figures(&self, now_ms: i64) -> Figures {
        let read_at = self.shown.stats_at.get();
        let age = (seconds(now_ms) - read_at).max(0.0);
        let active = Status::ALL.into_iter().filter(|status| !status.is_terminal());
        Figures {
            active: active.map(|status| self.shown.tasks.with_label_values(&[status.as_str()]).get()).sum(),
            due: self.shown.tasks_due.get(),
            workers: self.shown.workers_live.get(),
            age: (read_at > 0.0).then(|| Duration::from_secs_f64(age)),
        }
    }

    /// Counts a request.
    pub fn record_http(&self, method: &str, route: &str, code: u16, took: Duration) {
        let code = code.to_string();
        let labels = [method, route, code.as_str()];
        self.shown.http_requests.with_label_values(&labels).inc();
        self.shown.http_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Everything in the registry, in Prometheus's text format.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    /// How many tasks cannot be read, and in which columns, as of the last figures.
    pub fn quarantined(&self) -> Vec<(String, i64)> {
        let families = self.shown.tasks_quarantined.collect();
        let series = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        let counted = series.map(|series| {
            let column = series.get_label().first().map(|label| label.value().to_owned()).unwrap_or_default();
            (column, series.get_gauge().get_value() as i64)
        });
        counted.collect()
    }

    /// Reads the store's figures every 10 s until the hard stop, and keeps showing the last ones while it does not answer.
    pub async fn refresh(&self, queries: Arc<dyn Queries>, clock: Arc<dyn Clock>, policy: Policy, stop: Shutdown) {
        let mut ticks = tokio::time::interval(REFRESH_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut cap = COUNT_CAP;
        loop {
            tokio::select! {
                () = stop.hard().cancelled() => return,
                () = stop.soft().cancelled(), if self.shown.draining.get() == 0 => self.shown.draining.set(1),
                _ = ticks.tick() => cap = next_cap(cap, self.refresh_once(&*queries, &*clock, &policy, cap).await),
            }
        }
    }

    /// How long it took, unless it failed.
    async fn refresh_once(
        &self,
        queries: &dyn Queries,
        clock: &dyn Clock,
        policy: &Policy,
        cap: i64,
    ) -> Option<Duration> {
        let (now, started) = (clock.now_ms(), Instant::now());
        match tokio::time::timeout(REFRESH_TIMEOUT, queries.stats(now, policy.degraded_after, cap)).await {
            Ok(Ok(stats)) => {
                self.show(&stats, now);
                return Some(started.elapsed());
            }
            Ok(Err(error)) => tracing::warn!(%error, cap, "the store's figures cannot be read"),
            Err(_) => tracing::warn!(cap, "the store's figures take too long"),
        }
        None
    }

    fn show(&self, stats: &StoreStats, now_ms: i64) {
        for status in Status::ALL {
            let count = stats.tasks.iter().find(|(name, _)| name == status.as_str()).map_or(0, |(_, count)| *count);
            self.shown.tasks.with_label_values(&[status.as_str()]).set(count);
        }
        self.show_degraded(&stats.degraded);
        let mut columns = BTreeMap::new();
        for row in &stats.quarantined {
            *columns.entry(row.column.as_str()).or_default() += 1;
        }
        replace(&self.shown.tasks_quarantined, &columns);
        self.shown.tasks_due.set(stats.due);
        self.shown.oldest_due.set(stats.oldest_due_at.map_or(0.0, seconds));
        self.shown.workers_live.set(stats.workers_live);
        self.shown.workers_polling.set(stats.workers_polling);
        self.shown.store_bytes.set(stats.size_bytes);
        self.shown.free_bytes.set(stats.free_bytes);
        self.shown.log_bytes.set(stats.log_bytes);
        self.shown.stats_at.set(seconds(now_ms));
    }

    /// Sets the gauge for every configured server, and for others as long as they have such tasks.
    fn show_degraded(&self, degraded: &[(String, i64)]) {
        let mut servers: BTreeMap<&str, i64> = self.servers.iter().map(|server| (server.as_str(), 0)).collect();
        for (server, count) in degraded {
            // Of all personal connections together, however many there are.
            *servers.entry(server_label(server)).or_default() += count;
        }
        replace(&self.shown.tasks_degraded, &servers);
    }
}

/// How far the next counts go: less far after they failed, so that a slow store still has figures, and further again once ten
/// times as many can be expected to take half of the time that there is.
fn next_cap(cap: i64, took: Option<Duration>) -> i64 {
    match took {
        None => (cap / 10).max(LEAST_CAP),
        Some(took) if took < REFRESH_TIMEOUT / 20 => (cap * 10).min(COUNT_CAP),
        Some(_) => cap,
    }
}

/// Shows these values of the one label and no others, and no moment in which a scrape would find none.
fn replace(gauges: &IntGaugeVec, values: &BTreeMap<&str, i64>) {
    for family in gauges.collect() {
        for label in family.get_metric().iter().filter_map(|series| series.get_label().first()) {
            if !values.contains_key(label.value()) {
                // It is there: it was just listed, and nobody else removes any.
                let _ = gauges.remove_label_values(&[label.value()]);
            }
        }
    }
    for (label, value) in values {
        gauges.with_label_values(&[*label]).set(*value);
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use mcp_taskd_core::store::Quarantined;

    use super::*;

    #[test]
    fn counts_go_less_far_while_the_store_is_slow_35() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(next_cap(COUNT_CAP, Some(seconds(0.1))), COUNT_CAP);
        assert_eq!(next_cap(COUNT_CAP, Some(seconds(7.0))), COUNT_CAP);
        assert_eq!(next_cap(COUNT_CAP, None), 10_000);
        assert_eq!(next_cap(10_000, None), 1_000);
        assert_eq!(next_cap(1_000, None), 1_000);
        assert_eq!(next_cap(10_000, Some(seconds(0.5))), 10_000, "ten times as many would take too long");
        assert_eq!(next_cap(10_000, Some(seconds(0.3))), COUNT_CAP);
    }

    #[test]
    fn figures_from_the_store_are_shown_and_known_series_start_at_zero() {
        let metrics = Metrics::register(&Registry::new(), "memory", ["calm", "reports"], 1_000).unwrap();
        for line in ["mcp_taskd_tasks{status=\"working\"} 0", "mcp_taskd_tasks_degraded{server=\"reports\"} 0"] {
            assert!(metrics.render().unwrap().contains(line), "{line}");
        }
        let stats = StoreStats {
            tasks: vec![("working".into(), 3), ("from_the_future".into(), 1)],
            degraded: vec![("reports".into(), 2)],
            due: 1,
            oldest_due_at: Some(1_500),
            workers_live: 2,
            workers_polling: 1,
            active: 3,
            quarantined: vec![Quarantined {
                task_id: "mcp-task-1".into(),
                column: "remote_task_id".into(),
                reason: "absent although working".into(),
            }],
            size_bytes: 65_536,
            free_bytes: 8_192,
            log_bytes: 4_096,
        };
        metrics.show(&stats, 2_000);
        metrics.record_http("GET", "/livez", 200, Duration::from_millis(3));
        let figures = metrics.figures(5_000);
        assert_eq!(figures, Figures { active: 3, due: 1, workers: 2, age: Some(Duration::from_secs(3)) });
        let text = metrics.render().unwrap();
        for line in [
            "mcp_taskd_tasks{status=\"working\"} 3",
            "mcp_taskd_tasks_degraded{server=\"reports\"} 2",
            "mcp_taskd_tasks_degraded{server=\"calm\"} 0",
            "mcp_taskd_tasks_quarantined{column=\"remote_task_id\"} 1",
            "mcp_taskd_tasks_due 1",
            "mcp_taskd_tasks_oldest_due_timestamp_seconds 1.5",
            "mcp_taskd_store_stats_timestamp_seconds 2",
            "mcp_taskd_workers_live 2",
            "mcp_taskd_workers_polling 1",
            "mcp_taskd_store_log_bytes 4096",
            "mcp_taskd_store_size_bytes 65536",
            "mcp_taskd_store_free_bytes 8192",
            "mcp_taskd_draining 0",
            "mcp_taskd_http_requests_total{code=\"200\",method=\"GET\",route=\"/livez\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("from_the_future"), "labels are bounded");
        assert_eq!(metrics.quarantined(), [("remote_task_id".to_owned(), 1)]);
        metrics.show(&StoreStats::default(), 3_000);
        assert!(metrics.quarantined().is_empty(), "repaired");
    }
}
