//! What statements cost, and how they fail (METRICS).

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};

use super::engine::Engine;
use super::statements::Sql;
use crate::store::StoreErrorKind;

const SECONDS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

crate::families! {
    /// The metrics of one store; clones share them.
    pub(super) struct Metrics {
        /// How long a statement waited for a connection to the store.
        acquires: Histogram = "db_acquire_duration_seconds" in SECONDS;
        /// How long a statement took, without the wait for a connection.
        queries: HistogramVec = "db_query_duration_seconds" ["operation"] in SECONDS;
        /// Statements that failed, by what can be done about it.
        errors: IntCounterVec = "db_errors_total" ["operation", "kind"];
    }
}

impl Metrics {
    /// Metrics that nobody sees until they are registered, with every operation's series at 0.
    ///
    /// # Errors
    ///
    /// Where a name or a label cannot be used, which a test finds.
    pub(super) fn new() -> prometheus::Result<Self> {
        let metrics = Self::build()?;
        for &sql in Sql::ALL {
            metrics.queries.with_label_values(&[operation(sql)]);
            for kind in StoreErrorKind::ALL {
                metrics.errors.with_label_values(&[operation(sql), kind.as_str()]);
            }
        }
        Ok(metrics)
    }

    /// Shows them, and the connections of `engine`, in `registry`.
    pub(super) fn register(&self, registry: &Registry, engine: Arc<Engine>) -> prometheus::Result<()> {
        self.add_to(registry)?;
        registry.register(Box::new(Connections::new(engine)?))
    }

    /// Begins to time an attempt at a statement.
    pub(super) fn attempt(&self, sql: Sql) -> Attempt<'_> {
        Attempt { metrics: self, sql, since: Instant::now(), acquired: false }
    }

    /// Counts an attempt that failed.
    pub(super) fn failed(&self, sql: Sql, kind: StoreErrorKind) {
        self.errors.with_label_values(&[operation(sql), kind.as_str()]).inc();
    }
}

/// An attempt at a statement: first it waits for a connection, then it runs.
pub(super) struct Attempt<'a> {
    metrics: &'a Metrics,
    sql: Sql,
    since: Instant,
    acquired: bool,
}

impl Attempt<'_> {
    /// There is a connection.
    pub(super) fn acquired(&mut self) {
        let now = Instant::now();
        self.metrics.acquires.observe((now - self.since).as_secs_f64());
        (self.since, self.acquired) = (now, true);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed().as_secs_f64();
        if self.acquired {
            self.metrics.queries.with_label_values(&[operation(self.sql)]).observe(took);
        } else {
            self.metrics.acquires.observe(took);
        }
    }
}

/// How many connections there are, counted when somebody looks: the pools know it without asking the database.
struct Connections {
    engine: Arc<Engine>,
    gauge: IntGaugeVec,
}

impl Connections {
    fn new(engine: Arc<Engine>) -> prometheus::Result<Self> {
        let opts = Opts::new("mcp_taskd_db_connections", "Connections to the store, and how many there may be.");
        Ok(Self { engine, gauge: IntGaugeVec::new(opts, &["state"])? })
    }
}

impl Collector for Connections {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counted = self.engine.connections();
        for (state, count) in [("idle", counted.idle), ("used", counted.used), ("max", counted.max)] {
            self.gauge.with_label_values(&[state]).set(i64::from(count));
        }
        self.gauge.collect()
    }
}

/// The connections of a store, of all its pools together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) idle: u32,
    pub(super) used: u32,
    pub(super) max: u32,
}

impl Counted {
    pub(super) fn of<D: sqlx::Database>(pools: [&sqlx::Pool<D>; 2]) -> Self {
        pools.into_iter().fold(Self::default(), |sum, pool| {
            let idle = u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
            Self {
                idle: sum.idle + idle,
                used: sum.used + pool.size().saturating_sub(idle),
                max: sum.max + pool.options().get_max_connections(),
            }
        })
    }
}

/// What a statement is for: a label for each of the statements would be more than anybody reads.
fn operation(sql: Sql) -> &'static str {
    match sql {
        Sql::Heartbeat => "heartbeat",
        Sql::Register | Sql::Workers | Sql::MarkDead | Sql::DeleteDead => "register",
        Sql::FreeDead | Sql::CorrectTasks | Sql::CorrectLeases => "takeover",
        Sql::Ended | Sql::PruneEvents | Sql::PruneTasks => "prune",
        Sql::ClaimPolls | Sql::ClaimCancels | Sql::ClaimPollsOf | Sql::ClaimCancelsOf | Sql::Quarantine => "claim",
        Sql::Apply | Sql::InsertEvents => "apply",
        Sql::Owned | Sql::LoadOwned | Sql::Inspect => "reconcile",
        Sql::InsertIntent | Sql::FindByKey | Sql::RecordSubmitted | Sql::DiscardIntent | Sql::IsTracked => "submit",
        Sql::RequestCancel | Sql::MakeDue => "cancel",
        Sql::FindTask => "find",
        Sql::TasksOfThread | Sql::TasksOfUser | Sql::TasksInStatus | Sql::TasksActive | Sql::Tasks => "list_tasks",
        Sql::EventsOfTask | Sql::EventsOfThread | Sql::EventsOfUser | Sql::Events => "list_events",
        Sql::News => "news",
        Sql::SinkPosition
        | Sql::OpenSink
        | Sql::MoveSink
        | Sql::EventsBetween
        | Sql::Enrol
        | Sql::Revive
        | Sql::ClaimDeliveries
        | Sql::SettleDelivery
        | Sql::MendDeliveries
        | Sql::DeliveriesOf
        | Sql::CountDeliveries => "deliver",
        Sql::CountTasks
        | Sql::CountDegraded
        | Sql::CountDue
        | Sql::FindQuarantined
        | Sql::CountWorkers
        | Sql::CountBytes => "stats",
        Sql::Ping | Sql::SchemaVersion => "ping",
        _ => "other",
    }
}
