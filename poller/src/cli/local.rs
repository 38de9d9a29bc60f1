//! The configured store, opened by the command itself.

use std::time::Duration;

use mcp_taskd_core::clock::{Clock as _, SystemClock};
use mcp_taskd_core::config::{Backend, Secrets, Settings};
use mcp_taskd_core::service::{Access, Submit};
use mcp_taskd_core::store::{ApiKeys, Page, SharedStore, TaskFilter};
use mcp_taskd_core::task::{Policy, TaskRecord};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::output::Row;
use super::source::{NewTask, Target, Use};
use crate::app::{self, Process};
use crate::auth::{DEFAULT_ID, KeyView, NewKey, issue};
use crate::daemon::Daemon;
use crate::delivery::{Order, ReplayError, Replayed, Subscribers};
use crate::exit::{Exit, Failure, Result};
use crate::lifecycle::Shutdown;
use crate::view::{self, Notification};
use crate::wiring::{Backing, Origins};

const PAGE: u32 = 100;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A store, and for writes a short-lived registered process on it (158).
pub struct Local {
    store: SharedStore,
    policy: Policy,
    subscribers: Option<Subscribers>,
    place: String,
    kind: Kind,
}

enum Kind {
    Reads(Backing),
    Writes(Box<Process>),
}

impl Local {
    /// Opens the store, for more than reading as a registered process.
    pub async fn open(origins: &Origins, purpose: Use) -> Result<Self> {
        let configuration = app::load(origins)?;
        let policy = configuration.settings.mcp_tasks.policy();
        let place = place(&configuration.settings);
        if configuration.settings.database.backend == Backend::Memory {
            let message = "database.backend memory is seen by the daemon alone; use --url to ask it";
            return Err(Failure::new(Exit::Config, message));
        }
        if purpose != Use::Read {
            let shutdown = Shutdown::new();
            let grace = Duration::from_secs(configuration.settings.server.shutdown_grace_seconds);
            shutdown.watch_signals(grace).map_err(anyhow::Error::from)?;
            let process = Process::start(&configuration, "cli", purpose == Use::Poll, &shutdown).await?;
            let store = process.store().clone();
            let subscribers = process.daemon.subscribers.clone();
            return Ok(Self { store, policy, subscribers, place, kind: Kind::Writes(Box::new(process)) });
        }
        let backing = app::open(&configuration.settings).await?;
        let subscribers = backing.subscribers(&configuration.settings)?;
        Ok(Self { store: backing.store.clone(), policy, subscribers, place, kind: Kind::Reads(backing) })
    }

    /// Which store this is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn daemon(&self) -> Result<&Daemon> {
        match &self.kind {
            Kind::Writes(process) => Ok(&process.daemon),
            Kind::Reads(_) => Err(Failure::failed("the store was opened for reading only")),
        }
    }

    async fn row(&self, task: &TaskRecord) -> Row {
        let notification = match &self.subscribers {
            Some(subscribers) => subscribers.notification(&task.id).await,
            None => Notification::default(),
        };
        view::raw(&view::operator_detail(task, &self.policy, &notification))
    }

    pub async fn tasks(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut after = None;
        while (rows.len() as u32) < limit {
            let page = Page { limit: PAGE.min(limit - rows.len() as u32), after: after.take() };
            let tasks = self.store.list_tasks(filter, &page).await?;
            rows.extend(tasks.iter().map(|task| view::raw(&view::operator_item(task, &self.policy))));
            match tasks.last() {
                Some(last) if tasks.len() as u32 == page.limit => after = Some((last.created_at, last.id.to_string())),
                _ => break,
            }
        }
        Ok(rows)
    }

    /// Another process may hold the task, so a change is seen by looking.
    pub async fn task(&self, target: &Target, wait: Duration) -> Result<Row> {
        let until = Instant::now() + wait;
        let first = self.find(target).await?;
        let mut task = first.clone();
        while Instant::now() < until && !task.status.is_terminal() && !changed(&first, &task, &self.policy) {
            tokio::time::sleep(LOOK_EVERY).await;
            task = self.find(target).await?;
        }
        Ok(self.row(&task).await)
    }

    async fn find(&self, target: &Target) -> Result<TaskRecord> {
        let found = self.store.find_task(&target.id, target.user_id.as_deref(), target.thread_id.as_deref()).await?;
        found.ok_or_else(|| Failure::failed(format!("there is no task {} in {}", target.id, self.place)))
    }

    pub async fn submit(&self, task: &NewTask) -> Result<Row> {
        let submit = Submit {
            user_id: task.user_id.clone().unwrap_or_else(|| DEFAULT_ID.into()),
            thread_id: task.thread_id.clone(),
            server: task.server.clone(),
            task: task.task.clone(),
            arguments: task.arguments.clone(),
            run_id: None,
            tool_call_id: None,
            idempotency_key: task.idempotency_key.clone(),
            secrets: Secrets::default(),
        };
        Ok(self.row(&self.daemon()?.submit(submit).await?.task).await)
    }

    pub async fn cancel(&self, target: &Target) -> Result<Row> {
        Ok(self.row(&self.daemon()?.tasks.cancel(&access(target), &target.id).await?).await)
    }

    pub async fn input(&self, target: &Target, input: &RawValue) -> Result<Row> {
        Ok(self.row(&self.daemon()?.tasks.input(&access(target), &target.id, input).await?).await)
    }

    pub async fn poll_now(&self, target: &Target) -> Result<Row> {
        Ok(self.row(&self.daemon()?.tasks.poll_now(&access(target), &target.id).await?).await)
    }

    pub async fn workers(&self) -> Result<Vec<Row>> {
        let workers = self.store.workers().await?;
        Ok(workers.rows.iter().map(|worker| view::raw(&view::worker(worker))).collect())
    }

    pub async fn events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut after = after;
        while (rows.len() as u32) < limit {
            let wanted = PAGE.min(limit - rows.len() as u32);
            let events = self.store.list_events(after, filter, wanted).await?;
            rows.extend(events.iter().map(|event| view::raw(&view::event(event))));
            match events.last() {
                Some(last) if events.len() as u32 == wanted => after = last.sequence,
                _ => break,
            }
        }
        Ok(rows)
    }

    /// The daemons of the fleet deliver it: this only says that it is due.
    pub async fn replay(&self, order: &Order) -> Result<Replayed> {
        let none = || Failure::new(Exit::Config, "no webhooks are configured");
        let subscribers = self.subscribers.as_ref().ok_or_else(none)?;
        let now = self.store.workers().await?.now_ms;
        subscribers.replay(order, now).await.map_err(|error| match error {
            ReplayError::Store(error) => error.into(),
            error @ ReplayError::UnknownSink { .. } => Failure::usage(format!("--sink: {error}")),
        })
    }

    /// The register of keys is opened for reading tasks only, since no worker has a part in it.
    fn register(&self) -> Result<std::sync::Arc<dyn ApiKeys>> {
        match &self.kind {
            Kind::Reads(backing) => Ok(backing.keys()),
            Kind::Writes(_) => Err(Failure::failed("keys need no registered process")),
        }
    }

    pub async fn create_key(&self, order: &NewKey) -> Result<Row> {
        let now = SystemClock.now_ms();
        let (key, record) = issue(&*self.register()?, order, now).await?;
        Ok(view::raw(&KeyView::new(&record, now).with_key(&key)))
    }

    pub async fn keys(&self) -> Result<Vec<Row>> {
        let (register, now) = (self.register()?, SystemClock.now_ms());
        let mut rows = Vec::new();
        let mut after = None;
        loop {
            let keys = register.list_keys(&Page { limit: PAGE, after: after.take() }).await?;
            rows.extend(keys.iter().map(|key| view::raw(&KeyView::new(key, now))));
            match keys.last() {
                Some(last) if keys.len() as u32 == PAGE => after = Some((last.created_at, last.id.clone())),
                _ => return Ok(rows),
            }
        }
    }

    pub async fn revoke_key(&self, id: &str) -> Result<Row> {
        let now = SystemClock.now_ms();
        let record = self.register()?.revoke_key(id, now).await?;
        let record = record.ok_or_else(|| Failure::failed(format!("there is no key {id}")))?;
        Ok(view::raw(&KeyView::new(&record, now)))
    }

    pub async fn interrupted(&self) {
        match &self.kind {
            Kind::Writes(process) => process.daemon.shutdown.soft().cancelled().await,
            Kind::Reads(_) => std::future::pending().await,
        }
    }

    pub async fn nobody_polls(&self) -> bool {
        let workers = self.store.workers().await;
        workers.is_ok_and(|workers| !workers.rows.iter().any(|worker| worker.live && worker.info.polls))
    }

    pub async fn close(self) -> Result<()> {
        match self.kind {
            Kind::Reads(backing) => {
                backing.close().await;
                Ok(())
            }
            Kind::Writes(process) => process.stop().await,
        }
    }
}

/// SQLite is where the file is, which depends on the folder that a command is run in; PostgreSQL is one place for all.
fn place(settings: &Settings) -> String {
    let database = &settings.database;
    if database.backend == Backend::Postgres {
        return "the PostgreSQL database of database.postgres_url".into();
    }
    let folder = database.sqlite_dir.as_ref().unwrap_or(&settings.server.state_dir);
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    format!("the SQLite store in {}", folder.display())
}

fn access(target: &Target) -> Access {
    Access { user_id: target.user_id.clone(), thread_id: target.thread_id.clone() }
}

/// Whether a watcher would want to know (INTERFACE: status, input, result or degradation).
fn changed(before: &TaskRecord, after: &TaskRecord, policy: &Policy) -> bool {
    before.status != after.status
        || before.outcome != after.outcome
        || before.degraded(policy) != after.degraded(policy)
        || before.cancel_requested_at != after.cancel_requested_at
}
