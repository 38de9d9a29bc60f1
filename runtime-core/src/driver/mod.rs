//! How a server is spoken to about tasks: from a call's raw answer to what it means for the task.

mod line;
mod native;
mod tools;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;

use crate::config::ServerConfig;
use crate::contract::{CancelReading, Created, Refusal, StatusReading};
use crate::task::{Binding, Limits, Toolset, Tracked, is_personal};
use crate::upstream::{Connected, Connections, NotConnected, Scope, SharedUpstream};

use native::NativeDriver;
use tools::ToolsDriver;

/// The drivers of this program, by the names in rows.
pub(crate) const DRIVERS: &[&str] = &[Toolset::TOOLS, Toolset::NATIVE];

/// A submit call's deadline where `tool_call_timeout` is not set (DESIGN, Cancel).
const SUBMIT_DEADLINE: Duration = Duration::from_secs(45);
/// A status or cancel call's deadline where `tool_call_timeout` is not set.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// A submit, ready to be sent.
#[derive(Debug, Clone, Copy)]
pub struct SubmitCall<'a> {
    /// Server and tools.
    pub binding: &'a Binding,
    /// On whose behalf.
    pub scope: &'a Scope,
    /// The text of a JSON object.
    pub arguments: &'a RawValue,
    /// The task's id; it travels in `_meta`, the same again when a submit is resolved after a crash.
    pub task_id: &'a str,
    /// Whether it is such a second call.
    pub again: bool,
    /// Headers from the request's secrets (120): they are here and nowhere else.
    pub headers: &'a [(HeaderName, HeaderValue)],
}

/// Why a submit brought no handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitFailure {
    /// The server refused, or answered wrongly: there is no task, or one to cancel.
    Refused(Refusal),
    /// The call was certainly not executed.
    NotSent(String),
    /// Nobody can know (145).
    Unknown(String),
}

/// Why an answer to `input_required` did not get through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputFailure {
    /// The task has no way to take one.
    NotTaken(String),
    /// It is not what the task's driver takes.
    Invalid(String),
    /// The call failed, or was answered wrongly.
    Failed(String),
}

/// Speaks to servers about tasks.
#[async_trait]
pub trait Driver: Send + Sync {
    /// Starts the work.
    async fn submit(&self, call: SubmitCall<'_>) -> Result<Created, SubmitFailure>;

    /// Asks how a task stands.
    async fn status(&self, task: &Tracked) -> StatusReading;

    /// Cancels the remote task `remote_id` of `scope`, on behalf of the task `task_id`.
    async fn cancel(&self, task_id: &str, binding: &Binding, scope: &Scope, remote_id: &str) -> CancelReading;

    /// Answers `input_required`. What the server made of it the next poll shows.
    async fn input(&self, task: &Tracked, input: &RawValue) -> Result<(), InputFailure>;
}

/// All drivers: each task is spoken about by the one that its row names.
#[derive(Debug)]
struct Drivers {
    tools: ToolsDriver,
    native: NativeDriver,
}

impl Drivers {
    /// A row of a driver that is not known here finds no route, whichever speaks.
    fn of(&self, binding: &Binding) -> &dyn Driver {
        if binding.driver == Toolset::NATIVE { &self.native } else { &self.tools }
    }
}

#[async_trait]
impl Driver for Drivers {
    async fn submit(&self, call: SubmitCall<'_>) -> Result<Created, SubmitFailure> {
        self.of(call.binding).submit(call).await
    }

    async fn status(&self, task: &Tracked) -> StatusReading {
        self.of(&task.binding).status(task).await
    }

    async fn cancel(&self, task_id: &str, binding: &Binding, scope: &Scope, remote_id: &str) -> CancelReading {
        self.of(binding).cancel(task_id, binding, scope, remote_id).await
    }

    async fn input(&self, task: &Tracked, input: &RawValue) -> Result<(), InputFailure> {
        self.of(&task.binding).input(task, input).await
    }
}

/// On whose behalf a task is asked about: its owner's.
pub(crate) fn scope_of(task: &Tracked) -> Scope {
    Scope { user_id: task.user_id.clone(), thread_id: task.thread_id.clone() }
}

/// How long a submit may take before its intent counts as abandoned: the call, bring-up, and time to record.
pub(crate) fn intent_deadline(route: &Route) -> Duration {
    route.submit_deadline + Duration::from_secs(90)
}

/// Calls of a personal connection that run at a time: users make as many connections as they like.
pub(crate) const PERSONAL_CALLS: usize = 2;

/// A server that tasks can be on.
#[derive(Clone)]
pub struct Route {
    /// The way to it.
    pub upstream: SharedUpstream,
    /// Its task toolsets.
    pub toolsets: Arc<[Toolset]>,
    /// How many of its calls run at a time.
    pub max_concurrent_calls: usize,
    /// A submit call's deadline.
    pub submit_deadline: Duration,
    /// A status or cancel call's deadline.
    pub call_deadline: Duration,
}

impl Route {
    fn new(config: &ServerConfig, upstream: SharedUpstream, max_concurrent_calls: usize) -> Self {
        Self {
            upstream,
            toolsets: config.toolsets.clone().into(),
            max_concurrent_calls,
            submit_deadline: config.tool_call_timeout.unwrap_or(SUBMIT_DEADLINE),
            call_deadline: config.tool_call_timeout.unwrap_or(CALL_DEADLINE),
        }
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("toolsets", &self.toolsets).finish_non_exhaustive()
    }
}

/// Why a call cannot be made from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoute {
    /// Another worker may be able to (48).
    Elsewhere(String),
    /// Nobody ever will (50).
    Gone(String),
}

/// The servers with toolsets, and the drivers, of this process.
#[derive(Default)]
pub struct Routes {
    servers: BTreeMap<String, Route>,
    /// What users connect to themselves.
    connections: Option<Arc<dyn Connections>>,
    /// Bounds a personal connection, too.
    max_concurrent_polls: usize,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("servers", &self.servers.keys()).finish_non_exhaustive()
    }
}

impl Routes {
    /// Routes to the enabled servers that have toolsets.
    ///
    /// A server's bound is what its configuration says, else half of `max_concurrent_polls` where several servers have
    /// toolsets, and all of it where one has (INTERFACE).
    pub fn new(servers: impl IntoIterator<Item = (ServerConfig, SharedUpstream)>, max_concurrent_polls: usize) -> Self {
        let servers: Vec<_> = servers.into_iter().filter(|(config, _)| config.has_toolsets()).collect();
        let default_bound = if servers.len() > 1 { (max_concurrent_polls / 2).max(1) } else { max_concurrent_polls };
        let route = |(config, upstream): (ServerConfig, SharedUpstream)| {
            let bound = config.max_concurrent_calls.map_or(default_bound, |calls| calls as usize);
            let bound = bound.clamp(1, max_concurrent_polls.max(1));
            let route = Route::new(&config, upstream, bound);
            (config.name, route)
        };
        Self { servers: servers.into_iter().map(route).collect(), connections: None, max_concurrent_polls }
    }

    /// The same, and to users' own connections.
    #[must_use]
    pub fn with_connections(self, connections: Option<Arc<dyn Connections>>) -> Self {
        Self { connections, ..self }
    }

    /// The way to a server for `user`.
    pub fn route(&self, server: &str, user: &str) -> Result<Cow<'_, Route>, NoRoute> {
        if let Some(route) = self.servers.get(server) {
            return Ok(Cow::Borrowed(route));
        }
        match self.connections.as_ref().filter(|_| is_personal(server)).map(|all| all.find(server, user)) {
            Some(Ok(Connected { config, upstream, .. })) => {
                Ok(Cow::Owned(Route::new(&config, upstream, PERSONAL_CALLS.min(self.max_concurrent_polls.max(1)))))
            }
            Some(Err(NotConnected::Gone(why))) => Err(NoRoute::Gone(why)),
            Some(Err(NotConnected::Elsewhere(why))) => Err(NoRoute::Elsewhere(why)),
            None => Err(NoRoute::Elsewhere(format!("server {server:?} is not configured or not enabled here"))),
        }
    }

    /// The names of users' own connections that have toolsets.
    pub fn connections(&self) -> Arc<[String]> {
        self.connections.as_ref().map_or_else(|| Arc::new([]) as Arc<[String]>, |all| all.names())
    }

    /// The way to a server.
    pub fn find(&self, server: &str) -> Option<&Route> {
        self.servers.get(server)
    }

    /// The names of the servers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// How many servers there are.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The way to speak about a task of `user`'s with this binding.
    pub fn drive(&self, binding: &Binding, user: &str) -> Result<Cow<'_, Route>, NoRoute> {
        let route = self.route(&binding.server_name, user)?;
        if DRIVERS.contains(&binding.driver.as_str()) {
            return Ok(route);
        }
        Err(NoRoute::Elsewhere(format!("driver {:?} is not known here", binding.driver)))
    }

    /// The drivers over these routes.
    pub fn driver(self: &Arc<Self>, limits: Limits) -> Arc<dyn Driver> {
        Arc::new(Drivers {
            tools: ToolsDriver::new(Arc::clone(self), limits),
            native: NativeDriver::new(Arc::clone(self), limits),
        })
    }
}
