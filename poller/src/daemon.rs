//! What the API and the gateway are given: the running parts, behind seams that tests can fill.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::catalog::{Guardrail, Live, Personal, Tool, Withheld};
use mcp_taskd_core::clock::{Clock, Millis};
use mcp_taskd_core::config::Secrets;
use mcp_taskd_core::service::{Access, AgentCancel, Service, ServiceError, Submit, Submitted};
use mcp_taskd_core::store::{Page, Queries, Registry, TaskFilter};
use mcp_taskd_core::task::{Policy, TaskRecord};
use mcp_taskd_core::upstream::{CallError, Scope};
use serde_json::value::RawValue;
use tokio::sync::{broadcast, watch};

use crate::auth::Authenticator;
use crate::delivery::Subscribers;
use crate::health::Health;
use crate::lifecycle::Shutdown;
use crate::metrics::Metrics;
use crate::view::Notification;

/// The façade's calls; [`Service`] is the one that counts.
#[async_trait]
pub trait Tasks: Send + Sync {
    /// See [`Service::submit`].
    async fn submit(&self, submit: Submit) -> Result<Submitted, ServiceError>;
    /// See [`Service::cancel`].
    async fn cancel(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError>;
    /// See [`Service::cancel_for_agent`].
    async fn cancel_for_agent(
        &self,
        access: &Access,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<AgentCancel, ServiceError>;
    /// See [`Service::get`].
    async fn get(&self, access: &Access, id: &str, wait: Duration) -> Result<TaskRecord, ServiceError>;
    /// See [`Service::list`].
    async fn list(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>, ServiceError>;
    /// See [`Service::poll_now`].
    async fn poll_now(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError>;
    /// See [`Service::input`].
    async fn input(&self, access: &Access, id: &str, input: &RawValue) -> Result<TaskRecord, ServiceError>;
    /// Threads in which something has just happened, as far as this process is told.
    fn threads(&self) -> broadcast::Receiver<Arc<str>>;
}

#[async_trait]
impl Tasks for Service {
    async fn submit(&self, submit: Submit) -> Result<Submitted, ServiceError> {
        self.submit(submit).await
    }

    async fn cancel(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        self.cancel(access, id).await
    }

    async fn cancel_for_agent(
        &self,
        access: &Access,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<AgentCancel, ServiceError> {
        self.cancel_for_agent(access, id, name).await
    }

    async fn get(&self, access: &Access, id: &str, wait: Duration) -> Result<TaskRecord, ServiceError> {
        self.get(access, id, wait).await
    }

    async fn list(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>, ServiceError> {
        self.list(filter, page).await
    }

    async fn poll_now(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        self.poll_now(access, id).await
    }

    async fn input(&self, access: &Access, id: &str, input: &RawValue) -> Result<TaskRecord, ServiceError> {
        self.input(access, id, input).await
    }

    fn threads(&self) -> broadcast::Receiver<Arc<str>> {
        self.worker().threads()
    }
}

/// The tools that agents see, and the way to the ordinary ones.
#[async_trait]
pub trait Tools: Send + Sync {
    /// The tools that a user sees, those of their own connections at the end; discovers first where it must.
    async fn tools(&self, user_id: &str) -> Vec<Arc<Tool>>;

    /// The tool with this visible name, for a user.
    async fn find(&self, user_id: &str, name: &str) -> Option<Arc<Tool>>;

    /// The tool with this visible name when the catalogue was last looked at; asks no server.
    fn last_find(&self, name: &str) -> Option<Arc<Tool>>;

    /// What is wrong with the catalogue; discovers first where it must.
    async fn problems(&self) -> Vec<String>;

    /// What was wrong with it when it was last looked at; asks no server.
    fn last_problems(&self) -> Vec<String>;

    /// What agents did not see when it was last looked at, and why; asks no server.
    fn last_withheld(&self) -> Vec<Withheld>;

    /// Changes whenever agents should list the tools again.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether the guardrail lets a user submit to a toolset; asks no server (130).
    fn allows_submit(&self, server: &str, user_id: &str, task: &str) -> bool;

    /// Calls an ordinary tool; the answer is the server's own `CallToolResult`.
    async fn call(
        &self,
        tool: &Tool,
        arguments: &RawValue,
        scope: &Scope,
        secrets: &Secrets,
    ) -> Result<Box<RawValue>, CallError>;
}

/// The running daemon.
#[derive(Clone)]
pub struct Daemon {
    /// Submit, cancel, query.
    pub tasks: Arc<dyn Tasks>,
    /// Reads that the façade does not offer: events, statistics, probes.
    pub queries: Arc<dyn Queries>,
    /// The workers' register.
    pub registry: Arc<dyn Registry>,
    /// The catalogue.
    pub tools: Arc<dyn Tools>,
    /// The configuration that it follows.
    pub live: Arc<Live>,
    /// What users connect to themselves.
    pub personal: Arc<Personal>,
    /// Who hears of events, where somebody does.
    pub subscribers: Option<Subscribers>,
    /// How tasks are polled.
    pub policy: Policy,
    /// How long an ended task is kept, in milliseconds; for ever without it.
    pub retention_ms: Option<i64>,
    /// Whether the daemon's own three tools are shown.
    pub builtin_tools: bool,
    /// Which visible names may be used, the daemon's own among them (130).
    pub guardrail: Arc<Guardrail>,
    /// Where tools are deferred: how many a user's message promotes at most.
    pub tool_search: Option<u32>,
    /// Who calls.
    pub authenticator: Arc<Authenticator>,
    /// How the process feels.
    pub health: Arc<Health>,
    /// Soft and hard stop.
    pub shutdown: Shutdown,
    /// What is measured here.
    pub metrics: Metrics,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
}

impl Daemon {
    /// Submits, unless the guardrail withholds the tool: by its task's name it is no more to be had than by its own (130).
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, ServiceError> {
        if !self.tools.allows_submit(&submit.server, &submit.user_id, &submit.task) {
            return Err(ServiceError::NotFound(format!(
                "the task toolset {:?} of server {:?} is withheld by guardrails",
                submit.task, submit.server
            )));
        }
        self.tasks.submit(submit).await
    }

    /// How the deliveries of a task's events stand; where there are no subscribers, the store is not asked.
    pub async fn notification(&self, task_id: &str) -> Notification {
        match &self.subscribers {
            Some(subscribers) => subscribers.notification(task_id).await,
            None => Notification::default(),
        }
    }

    /// Now, by the store's clock.
    pub fn now_ms(&self) -> Millis {
        self.clock.now_ms()
    }
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("policy", &self.policy).finish_non_exhaustive()
    }
}
