//! `subscriptions/listen` with `taskIds`: the client is told of its tasks as they change.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::service::{Access, ServiceError};
use mcp_taskd_core::task::{Status, TaskRecord};
use rmcp::model::{CustomNotification, RequestId, ServerNotification};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::input::Answers;
use super::shape::{self, Terms};
use super::{Gateway, access, declares, modern, refusal, undeclared};
use crate::daemon::Daemon;
use crate::gateway::exact;
use crate::view::raw;

/// Tasks of one subscription.
const MAX_TASKS: usize = 64;
/// How long one wait for a change is.
const WAIT: Duration = Duration::from_mins(1);
/// How long to wait after the store did not answer.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

const SUBSCRIPTION_META: &str = "io.modelcontextprotocol/subscriptionId";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

#[derive(Deserialize)]
struct Params {
    notifications: Filter,
}

/// What of a filter there is here; of anything else nobody is told.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Filter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools_list_changed: Option<bool>,
    task_ids: Vec<String>,
}

/// Serves one subscription until the client ends it or the daemon drains.
pub async fn listen(
    gateway: &Gateway,
    params: Option<&Value>,
    context: &RequestContext<RoleServer>,
) -> Result<Box<RawValue>, ErrorData> {
    if !declares(context) {
        return Err(undeclared());
    }
    let caller = gateway.caller(context, &context.meta)?;
    let mut filter = read(params)?;
    let too_many = || ErrorData::internal_error("too many subscriptions are open", None);
    let mut changes = gateway.changes(caller.place()).ok_or_else(too_many)?;
    let listener = Listener { daemon: &gateway.daemon, answers: modern::answers(context), context };
    let (access, mut tasks) = (access(caller), Vec::new());
    for id in std::mem::take(&mut filter.task_ids).into_iter().collect::<BTreeSet<_>>() {
        match gateway.daemon.tasks.get(&access, &id, Duration::ZERO).await {
            Ok(task) => tasks.push(task),
            // Another's task and none are left out of what is agreed to, alike.
            Err(ServiceError::NotFound(_)) => {}
            Err(error) => return Err(refusal(&error)),
        }
    }
    filter.task_ids = tasks.iter().map(|task| task.id.to_string()).collect();
    filter.tools_list_changed = filter.tools_list_changed.filter(|wanted| *wanted);
    listener.acknowledge(&filter).await?;

    let mut waiting = FuturesUnordered::new();
    for task in &tasks {
        // What changed between the client's last look and its subscription is told with this.
        listener.tell(task).await?;
        waiting.extend(next_change(&gateway.daemon, &access, task));
    }
    loop {
        tokio::select! {
            biased;
            () = context.ct.cancelled() => break,
            change = changes.next() => match change {
                None => break,
                Some(()) if filter.tools_list_changed.is_some() => listener.send(TOOLS_CHANGED, json!({})).await?,
                Some(()) => {}
            },
            Some(task) = waiting.next(), if !waiting.is_empty() => if let Some(task) = task {
                listener.tell(&task).await?;
                waiting.extend(next_change(&gateway.daemon, &access, &task));
            },
        }
    }
    Ok(raw(&json!({ "resultType": "complete", "_meta": { SUBSCRIPTION_META: context.id } })))
}

fn read(params: Option<&Value>) -> Result<Filter, ErrorData> {
    let wrong = || ErrorData::invalid_params(format!("taskIds must be at most {MAX_TASKS} ids of tasks"), None);
    let params = params.and_then(|params| Params::deserialize(params).ok()).ok_or_else(wrong)?;
    Some(params.notifications).filter(|filter| filter.task_ids.len() <= MAX_TASKS).ok_or_else(wrong)
}

/// What a client has been told of a task.
fn news(task: &TaskRecord) -> (Status, Millis) {
    (task.status, task.updated_at)
}

/// The task once it is another than this; `None` once there is no such task any more. No future at all for one that has ended.
fn next_change<'a>(
    daemon: &'a Daemon,
    access: &'a Access,
    task: &TaskRecord,
) -> Option<BoxFuture<'a, Option<TaskRecord>>> {
    if task.status.is_terminal() {
        return None;
    }
    let (id, told) = (task.id.clone(), news(task));
    Some(Box::pin(async move {
        // It may have changed since the client was told.
        let mut wait = Duration::ZERO;
        loop {
            let looked = daemon.tasks.get(access, &id, std::mem::replace(&mut wait, WAIT)).await;
            match looked {
                Ok(task) if news(&task) == told => {}
                Ok(task) => return Some(task),
                Err(ServiceError::NotFound(_)) => return None,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }))
}

struct Listener<'a> {
    daemon: &'a Daemon,
    answers: Answers,
    context: &'a RequestContext<RoleServer>,
}

#[derive(Serialize)]
struct Notified<'a, T> {
    #[serde(rename = "_meta")]
    meta: Subscription<'a>,
    #[serde(flatten)]
    params: T,
}

#[derive(Serialize)]
struct Subscription<'a> {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    id: &'a RequestId,
}

#[derive(Serialize)]
struct Acknowledged<'a> {
    notifications: &'a Filter,
}

impl Listener<'_> {
    async fn acknowledge(&self, filter: &Filter) -> Result<(), ErrorData> {
        self.send("notifications/subscriptions/acknowledged", Acknowledged { notifications: filter }).await
    }

    async fn tell(&self, task: &TaskRecord) -> Result<(), ErrorData> {
        self.send("notifications/tasks", shape::detailed(task, &Terms::of(self.daemon), self.answers)).await
    }

    async fn send(&self, method: &str, params: impl Serialize) -> Result<(), ErrorData> {
        let meta = Subscription { id: &self.context.id };
        let params = exact::carried(&raw(&Notified { meta, params }));
        let notification = ServerNotification::CustomNotification(CustomNotification::new(method, Some(params)));
        let sent = self.context.peer.send_notification(notification).await;
        sent.map_err(|_| ErrorData::internal_error("the subscription has ended", None))
    }
}
