//! A daemon without a core, for tests of what stands in front of it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::catalog::{Live, LiveOptions, Personal, Tool, Withheld};
use mcp_taskd_core::clock::{ManualClock, Millis};
use mcp_taskd_core::config::{Environment, Secrets, Settings, Source};
use mcp_taskd_core::service::{Access, AgentCancel, ServiceError, Submit, Submitted};
use mcp_taskd_core::store::{
    Corrected, EventRecord, Heartbeat, Page, Queries, Registry, Result as StoreResult, StoreError, StoreErrorKind,
    StoreStats, TaskFilter, WorkerId, WorkerInfo, Workers,
};
use mcp_taskd_core::task::{Policy, Status, TaskRecord};
use mcp_taskd_core::upstream::{CallError, CallErrorKind, Factory, Options, Scope};
use serde_json::value::RawValue;
use tokio::sync::{broadcast, watch};

use crate::auth::Authenticator;
use crate::daemon::{Daemon, Tasks, Tools};
use crate::health::Health;
use crate::lifecycle::Shutdown;
use crate::metrics::Metrics;
use crate::view::tests::task;

/// What the stub answers, and what it was asked.
#[derive(Default)]
pub struct Stub {
    /// The tasks there are; each one's fields say who sees it.
    pub tasks: Vec<TaskRecord>,
    /// The events there are.
    pub events: Vec<EventRecord>,
    /// The catalogue.
    pub tools: Vec<Arc<Tool>>,
    /// What is wrong with it.
    pub problems: Vec<String>,
    /// Told when the catalogue changes.
    pub changed: watch::Sender<u64>,
    /// Toolsets that the guardrail withholds.
    pub withheld: Vec<String>,
    /// Whether the store answers.
    pub unreachable: bool,
    /// How many waits for a change end because the store is away.
    pub outages: AtomicUsize,
    /// Whether it takes for ever over its figures.
    pub counts_for_ever: bool,
    /// How a submit fails.
    pub submit_error: Option<ServiceError>,
    /// Submits so far.
    pub submits: Mutex<Vec<Submit>>,
    /// Filters of lists so far.
    pub filters: Mutex<Vec<(TaskFilter, Page)>>,
}

/// The text of a JSON document.
pub fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

/// A daemon in front of a stub.
pub fn daemon(stub: Stub) -> (Daemon, Arc<Stub>) {
    let stub = Arc::new(stub);
    let health = Health::new(true, Box::new(|| Duration::ZERO), Box::new(|| true));
    health.set_started();
    let daemon = Daemon {
        tasks: stub.clone(),
        queries: stub.clone(),
        registry: stub.clone(),
        tools: stub.clone(),
        live: live(Source { directory: "nowhere".into(), ..Source::default() }),
        personal: personal(Path::new("nowhere")),
        subscribers: None,
        policy: Policy::default(),
        retention_ms: Some(30 * 86_400_000),
        builtin_tools: true,
        guardrail: Arc::default(),
        tool_search: None,
        authenticator: Arc::new(Authenticator::open()),
        health: Arc::new(health),
        shutdown: Shutdown::new(),
        metrics: Metrics::register(&prometheus::Registry::new(), "memory", [], 0).unwrap(),
        clock: Arc::new(ManualClock::at(1_800_000_000_000)),
    };
    (daemon, stub)
}

/// Users' connections below a folder.
pub fn personal(state_dir: &Path) -> Arc<Personal> {
    let factory = Factory::new(&Options::new(state_dir)).unwrap();
    Arc::new(Personal::new(state_dir, &Settings::default(), &Environment::default(), None, &factory))
}

/// A catalogue of what `source` says.
pub fn live(source: Source) -> Arc<Live> {
    let extensions = source.load().unwrap();
    let factory = Factory::new(&Options::new("unused")).unwrap();
    let options = LiveOptions { source, settings: Settings::default(), shared: None };
    Arc::new(Live::new(&extensions, factory, options, &prometheus::Registry::new()).unwrap())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sees(access: &Access, task: &TaskRecord) -> bool {
    access.user_id.as_deref().is_none_or(|user| user == &*task.user_id)
        && access.thread_id.as_deref().is_none_or(|thread| thread == &*task.thread_id)
}

impl Stub {
    fn find(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        let found = self.tasks.iter().find(|task| &*task.id == id && sees(access, task));
        found.cloned().ok_or_else(|| ServiceError::NotFound("no such task".into()))
    }

    fn reach(&self) -> StoreResult<()> {
        if self.unreachable {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "ping", "secret-host refused"));
        }
        Ok(())
    }
}

#[async_trait]
impl Tasks for Stub {
    async fn submit(&self, submit: Submit) -> Result<Submitted, ServiceError> {
        lock(&self.submits).push(submit.clone());
        if let Some(error) = &self.submit_error {
            return Err(error.clone());
        }
        let mut task = task("mcp-task-new");
        task.tracked.user_id = submit.user_id.into();
        task.tracked.thread_id = submit.thread_id.into();
        task.tracked.status = Status::Submitted;
        Ok(Submitted { task, replayed: submit.idempotency_key.as_deref() == Some("used") })
    }

    async fn cancel(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        let mut task = self.find(access, id)?;
        task.tracked.cancel_requested_at = Some(1);
        Ok(task)
    }

    async fn cancel_for_agent(
        &self,
        access: &Access,
        id: Option<&str>,
        _: Option<&str>,
    ) -> Result<AgentCancel, ServiceError> {
        let task = id.and_then(|id| self.find(access, id).ok());
        Ok(AgentCancel { task, message: "requested".into() })
    }

    async fn get(&self, access: &Access, id: &str, wait: Duration) -> Result<TaskRecord, ServiceError> {
        tokio::time::sleep(wait).await;
        let one_less = |left: usize| left.checked_sub(1);
        if !wait.is_zero() && self.outages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(ServiceError::Unavailable);
        }
        self.find(access, id)
    }

    async fn list(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>, ServiceError> {
        lock(&self.filters).push((filter.clone(), page.clone()));
        let access = Access { user_id: filter.user_id.clone(), thread_id: filter.thread_id.clone() };
        Ok(self.tasks.iter().filter(|task| sees(&access, task)).take(page.limit as usize).cloned().collect())
    }

    async fn poll_now(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        self.find(access, id)
    }

    async fn input(&self, access: &Access, id: &str, _: &RawValue) -> Result<TaskRecord, ServiceError> {
        self.find(access, id)?;
        Err(ServiceError::Conflict("the task does not wait for input".into()))
    }

    fn threads(&self) -> broadcast::Receiver<Arc<str>> {
        broadcast::channel(1).1
    }
}

#[async_trait]
impl Tools for Stub {
    async fn tools(&self, _: &str) -> Vec<Arc<Tool>> {
        self.tools.clone()
    }

    async fn find(&self, _: &str, name: &str) -> Option<Arc<Tool>> {
        self.last_find(name)
    }

    fn last_find(&self, name: &str) -> Option<Arc<Tool>> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    fn last_problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    fn last_withheld(&self) -> Vec<Withheld> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn allows_submit(&self, _: &str, _: &str, task: &str) -> bool {
        !self.withheld.iter().any(|withheld| withheld == task)
    }

    async fn call(
        &self,
        tool: &Tool,
        arguments: &RawValue,
        scope: &Scope,
        _: &Secrets,
    ) -> Result<Box<RawValue>, CallError> {
        if tool.raw_name == "broken" {
            return Err(CallError {
                kind: CallErrorKind::Connect,
                message: "connection refused".into(),
                rpc_code: None,
                retry_after: None,
                maybe_executed: false,
            });
        }
        let user = &scope.user_id;
        Ok(json(&format!(
            r#"{{"z":1e400,"content":[{{"type":"odd","of":"{user}"}}],"structuredContent":{},"isError":false}}"#,
            arguments.get()
        )))
    }
}

#[async_trait]
impl Queries for Stub {
    async fn find_task(&self, id: &str, user: Option<&str>, thread: Option<&str>) -> StoreResult<Option<TaskRecord>> {
        let access = Access { user_id: user.map(str::to_owned), thread_id: thread.map(str::to_owned) };
        Ok(self.find(&access, id).ok())
    }

    async fn list_tasks(&self, _: &TaskFilter, _: &Page) -> StoreResult<Vec<TaskRecord>> {
        Ok(self.tasks.clone())
    }

    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> StoreResult<Vec<EventRecord>> {
        self.reach()?;
        let fits = |event: &&EventRecord| {
            event.sequence > after && filter.user_id.as_ref().is_none_or(|user| *user == event.user_id)
        };
        Ok(self.events.iter().filter(fits).take(limit as usize).cloned().collect())
    }

    async fn stats(&self, _: Millis, _: i64, _: i64) -> StoreResult<StoreStats> {
        self.reach()?;
        if self.counts_for_ever {
            std::future::pending::<()>().await;
        }
        Ok(StoreStats::default())
    }

    async fn ping(&self) -> StoreResult<()> {
        self.reach()
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    async fn schema_version(&self) -> StoreResult<(i64, Option<i64>)> {
        Ok((1, Some(1)))
    }
}

#[async_trait]
impl Registry for Stub {
    async fn register(&self, _: &WorkerInfo) -> StoreResult<Millis> {
        Ok(0)
    }

    async fn heartbeat(&self, _: &WorkerId, _: i64) -> StoreResult<Heartbeat> {
        Ok(Heartbeat::Refused)
    }

    async fn workers(&self) -> StoreResult<Workers> {
        self.reach()?;
        Ok(Workers { now_ms: 0, rows: Vec::new() })
    }

    async fn mark_dead(&self, _: &WorkerId, _: &WorkerId, _: Option<i64>) -> StoreResult<bool> {
        Ok(false)
    }

    async fn free_dead(&self, _: Millis, _: u32, _: i64) -> StoreResult<u64> {
        Ok(0)
    }

    async fn correct_far(&self, _: u32, _: i64) -> StoreResult<Corrected> {
        Ok(Corrected::default())
    }

    async fn delete_dead(&self) -> StoreResult<u64> {
        Ok(0)
    }

    async fn prune(&self, _: Millis, _: u32) -> StoreResult<u64> {
        Ok(0)
    }
}
