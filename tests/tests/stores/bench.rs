//! A fresh store, and tasks to put into it.

use std::sync::Arc;

use mcp_taskd_core::clock::SystemClock;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{
    ClaimOrder, Deliveries, EventRecord, Inserted, NewHandle, NewIntent, Recorded, SharedStore, TaskFilter, TaskWrite,
    WorkerId,
};
use mcp_taskd_core::task::{Binding, Change, Snapshot, Status, TaskRecord, Toolset, Tracked, transition};
use mcp_taskd_tests::postgres::{self, TestDatabase};
pub(crate) use mcp_taskd_tests::rows::worker as info;
use mcp_taskd_tests::{pooler, rows};

/// When everything happens, unless a test says otherwise.
pub(crate) const T0: i64 = 1_000_000;
/// Later than anything is due.
pub(crate) const FAR: i64 = T0 * 1_000;

/// A fresh store of one kind.
pub(crate) struct Bench {
    pub(crate) store: SharedStore,
    pub(crate) deliveries: Arc<dyn Deliveries>,
    /// The same store, where it is a SQL one.
    pub(crate) sql: Option<SqlStore>,
    pub(crate) database: Option<TestDatabase>,
    pub(crate) directory: Option<tempfile::TempDir>,
}

impl Bench {
    pub(crate) async fn memory() -> Self {
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
        std::future::ready(Self { deliveries: store.clone(), store, sql: None, database: None, directory: None }).await
    }

    pub(crate) async fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let sql = SqlStore::connect_sqlite(directory.path().join("tasks.db")).await.expect("connects");
        sql.migrate().await.expect("migrates");
        Self {
            store: Arc::new(sql.clone()),
            deliveries: Arc::new(sql.clone()),
            sql: Some(sql),
            database: None,
            directory: Some(directory),
        }
    }

    pub(crate) async fn postgres() -> Self {
        let database = postgres::database().await;
        let sql = SqlStore::connect_postgres(database.url(), 16).await.expect("connects");
        sql.migrate().await.expect("migrates");
        Self {
            store: Arc::new(sql.clone()),
            deliveries: Arc::new(sql.clone()),
            sql: Some(sql),
            database: Some(database),
            directory: None,
        }
    }

    /// PostgreSQL behind a pooler; `None` where there is no pooler.
    pub(crate) async fn pooled() -> Option<Self> {
        let pooler = pooler::pooler()?;
        let database = postgres::database().await;
        let sql = SqlStore::connect_postgres(&pooler.url(database.name()), 16).await.expect("connects");
        sql.migrate().await.expect("migrates");
        Some(Self {
            store: Arc::new(sql.clone()),
            deliveries: Arc::new(sql.clone()),
            sql: Some(sql),
            database: Some(database),
            directory: None,
        })
    }

    /// A live worker.
    pub(crate) async fn worker(&self, id: &str) -> WorkerId {
        self.store.register(&info(id)).await.expect("registers");
        id.into()
    }

    /// A task in `submitting`, owned by `worker` at epoch 1.
    pub(crate) async fn intent(&self, worker: &WorkerId, id: &str) {
        let inserted = self.store.insert_intent(&intent(worker, id)).await.expect("inserts");
        assert_eq!(inserted, Inserted::New { epoch: 1 });
    }

    /// A submitted task that nobody owns.
    pub(crate) async fn free(&self, worker: &WorkerId, id: &str, next_due_at: i64) -> Tracked {
        self.intent(worker, id).await;
        self.record(&NewHandle { next_due_at, ..handle(worker, id, false) }).await
    }

    /// A submitted task that `worker` holds.
    pub(crate) async fn held(&self, worker: &WorkerId, id: &str) -> Tracked {
        self.intent(worker, id).await;
        self.record(&handle(worker, id, true)).await
    }

    pub(crate) async fn record(&self, handle: &NewHandle) -> Tracked {
        match self.store.record_submitted(handle).await.expect("records") {
            Recorded::Done { task, kept } => {
                assert_eq!(kept, handle.keep);
                *task
            }
            other => panic!("{other:?}"),
        }
    }

    /// The ids that a claim of `worker` takes, in order.
    pub(crate) async fn claim(&self, order: &ClaimOrder) -> Vec<String> {
        let tasks = self.store.claim(order).await.expect("claims");
        tasks.iter().map(|task| task.id.to_string()).collect()
    }

    pub(crate) async fn get(&self, id: &str) -> TaskRecord {
        self.store.find_task(id, None, None).await.expect("finds").expect("is there")
    }

    /// The kinds of a task's events.
    pub(crate) async fn kinds(&self, id: &str) -> Vec<String> {
        let filter = TaskFilter { named: Some(id.to_owned()), ..TaskFilter::default() };
        self.events(&filter).await.into_iter().map(|event| event.kind).collect()
    }

    pub(crate) async fn events(&self, filter: &TaskFilter) -> Vec<EventRecord> {
        self.store.list_events(0, filter, 1_000).await.expect("lists")
    }

    pub(crate) fn sql(&self) -> &SqlStore {
        self.sql.as_ref().expect("a SQL store")
    }

    /// The names of the statements whose text has this in it.
    pub(crate) fn statements_with(&self, text: &str) -> Vec<&'static str> {
        let statements = self.sql().statements();
        let with = statements.iter().filter(|statement| statement.text.to_uppercase().contains(text));
        with.map(|statement| statement.name).collect()
    }

    /// A statement's text by its name.
    pub(crate) fn statement(&self, name: &str) -> String {
        let statements = self.sql().statements();
        let found = statements.iter().find(|statement| statement.name == name);
        found.expect("a statement of this name").text.to_string()
    }
}

pub(crate) fn binding(server: &str) -> Arc<Binding> {
    let toolset = Toolset {
        name: "Report".into(),
        input_tool: Some("answer".into()),
        idempotent_submit: true,
        ..rows::toolset()
    };
    Arc::new(Binding { toolset, ..(*rows::binding(server)).clone() })
}

pub(crate) fn intent(worker: &WorkerId, id: &str) -> NewIntent {
    NewIntent {
        run_id: Some("run".into()),
        tool_call_id: Some("call".into()),
        binding: binding("server"),
        arguments: Some(r#"{"a":1}"#.into()),
        next_due_at: T0 + 45_000,
        ..rows::intent(worker, id, "server", T0)
    }
}

/// The remote id of an intent at epoch 1.
pub(crate) fn handle(worker: &WorkerId, id: &str, keep: bool) -> NewHandle {
    NewHandle {
        worker: worker.clone(),
        id: id.into(),
        epoch: 1,
        remote_task_id: format!("remote-{id}"),
        next_due_at: T0 + 5_000,
        keep,
        at: T0 + 1,
    }
}

/// Everything that is due at [`T0`] + 10 000 on `server`.
pub(crate) fn order(worker: &WorkerId) -> ClaimOrder {
    ClaimOrder {
        worker: worker.clone(),
        cancels: false,
        servers: vec!["server".into()],
        known: Vec::new(),
        drivers: vec!["tools".into()],
        due_before: T0 + 10_000,
        any_server_due_before: Some(0),
        limit: 100,
    }
}

/// A write of `task` as it is held.
pub(crate) fn write(task: &Tracked, change: Change) -> TaskWrite {
    TaskWrite { id: task.id.clone(), epoch: task.lease_epoch, change }
}

/// What an answer of `status` does to a held task.
pub(crate) fn answered(task: &Tracked, status: Status) -> TaskWrite {
    with_snapshot(task, Snapshot::bare(status))
}

pub(crate) fn with_snapshot(task: &Tracked, snapshot: Snapshot) -> TaskWrite {
    let policy = mcp_taskd_core::task::Policy::default();
    let chance = mcp_taskd_core::task::schedule::Chance::NONE;
    match task.on_answer(snapshot, T0 + 2, &policy, chance) {
        transition::Decision::Write(change) => write(task, *change),
        transition::Decision::Unchanged { .. } => panic!("an answer that changes nothing"),
    }
}

/// Makes a test of each behaviour on each store.
macro_rules! behaviours {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&crate::bench::Bench::memory().await).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&crate::bench::Bench::sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&crate::bench::Bench::postgres().await).await;
            })+
        }
        /// Whatever works on PostgreSQL works behind a pooler that lends connections by the transaction (FAILURES 20).
        mod pooled {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(bench) = crate::bench::Bench::pooled().await {
                    super::$name(&bench).await;
                }
            })+
        }
    };
}
pub(crate) use behaviours;
