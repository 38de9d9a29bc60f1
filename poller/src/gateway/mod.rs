//! The MCP server that agents see: the catalogue's tools, and three of the daemon's own (INTERFACE, MCP).
//!
//! Framing, handshakes and both protocol eras are rmcp's. Tool lists and tool results travel as raw text ([`exact`]),
//! since rmcp's types would drop members they do not know and round numbers.

mod builtin;
mod caller;
mod changes;
mod exact;
mod http;
mod instructions;
mod native;
mod outcome;
mod promotion;
mod search;
mod sse;
mod stdio;
mod stream;

pub use self::http::routes;
pub use caller::Caller;
pub use stdio::serve as serve_stdio;

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::catalog::{TOOL_SEARCH, Tool};
use mcp_taskd_core::service::Submit;
use mcp_taskd_core::upstream::Scope;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CustomRequest, CustomResult, DiscoverResult, ErrorCode,
    GetTaskParams, GetTaskResult, Implementation, InitializeRequestParams, InitializeResult, ListToolsResult,
    MetaObject, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, SubscriptionFilter,
    UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext, SubscriptionSendError};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::DEFAULT_ID;
use crate::daemon::Daemon;
use changes::Changes;
use native::Generation;
use outcome::Outcome;
use promotion::Place;
use search::Search;

/// Listeners for changes at a time.
const MAX_LISTENERS: usize = 1_024;
/// How long a greeting waits for the first discovery: routing hints name tools.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);
/// What the one session over stdio is called.
const STDIO_SESSION: &str = "stdio";

/// The protocol versions that agents may speak, oldest first.
pub fn protocol_versions() -> Vec<&'static str> {
    rmcp::model::ProtocolVersion::KNOWN_VERSIONS.iter().map(rmcp::model::ProtocolVersion::as_str).collect()
}

/// The MCP server, one value for all connections.
#[derive(Debug, Clone)]
pub struct Gateway {
    daemon: Daemon,
    /// Who calls where no HTTP request says so.
    local: Option<Caller>,
    /// Where tools are deferred.
    search: Option<Arc<Search>>,
    listeners: Arc<Semaphore>,
}

impl Gateway {
    /// A gateway whose callers come with their HTTP requests.
    pub fn new(daemon: Daemon) -> Self {
        let allowed = daemon.guardrail.allows(TOOL_SEARCH);
        if daemon.tool_search.is_some() && !allowed {
            tracing::warn!("guardrails withhold {TOOL_SEARCH}, so no tool is deferred");
        }
        let search = daemon.tool_search.filter(|_| allowed).map(|top_k| Arc::new(Search::new(top_k)));
        Self { daemon, local: None, search, listeners: Arc::new(Semaphore::new(MAX_LISTENERS)) }
    }

    /// A gateway with one caller, as over stdio.
    pub fn local(daemon: Daemon, caller: Caller) -> Self {
        Self { local: Some(caller.in_session(STDIO_SESSION)), ..Self::new(daemon) }
    }

    fn caller(&self, context: &RequestContext<RoleServer>, meta: &MetaObject) -> Result<Caller, ErrorData> {
        Caller::of(&context.extensions, meta, self.local.as_ref())
            .map_err(|denied| ErrorData::invalid_params(denied.to_string(), None))
    }

    /// Whether one of the daemon's own three tools is there.
    fn has_own(&self, name: &str) -> bool {
        self.daemon.builtin_tools && builtin::is_builtin(name) && self.daemon.guardrail.allows(name)
    }

    /// Leave to wait for changes; `None` where too many do.
    fn waiter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.listeners).try_acquire_owned().ok()
    }

    /// Hears what changes in a caller's list of tools; `None` where too many do.
    fn changes(&self, place: Place) -> Option<Changes> {
        let permit = self.waiter()?;
        let promotions = self.search.as_ref().map(|search| search.promotions.changes());
        let stop = self.daemon.shutdown.soft().clone();
        Some(Changes::new(Arc::clone(&self.daemon.tools), promotions, place, stop, permit))
    }

    /// The catalogue's tools, with what the caller's message asks for promoted; the flag says that this was news.
    async fn tools(&self, place: &Place, meta: &MetaObject) -> (Vec<Arc<Tool>>, bool) {
        let tools = self.daemon.tools.tools(&place.user_id).await;
        let message = caller::user_message(meta);
        let news = self.search.as_ref().is_some_and(|search| search.promote_for(place, &tools, message));
        (tools, news)
    }

    async fn list(&self, place: &Place, meta: &MetaObject, generation: Option<Generation>) -> Box<RawValue> {
        // Whoever lists sees what was promoted: it needs no telling.
        let (tools, _) = self.tools(place, meta).await;
        let (shown, search) = match self.search.as_ref().filter(|_| !tools.is_empty()) {
            Some(search) => (search.promoted(place, &tools), Some(search::definition(&tools))),
            None => (tools.iter().collect(), None),
        };
        let own = builtin::definitions().filter(|(name, _)| self.has_own(name)).map(|(_, definition)| definition);
        let theirs: Vec<_> = shown.iter().map(|tool| native::definition(tool, generation)).collect();
        exact::tools(theirs.iter().map(|definition| &**definition).chain(own).chain(search.as_deref()))
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Outcome, ErrorData> {
        let meta = request.meta.as_ref().unwrap_or(&context.meta);
        let caller = self.caller(context, meta)?;
        let wanted = Generation::wanted(context, meta)?;
        let arguments = request.arguments.unwrap_or_default();
        if self.has_own(&request.name) {
            native::runs_at_once(&request.name, wanted)?;
            return Ok(builtin::call(&self.daemon, &caller, &request.name, arguments).await);
        }
        if let Some(search) = &self.search {
            let place = caller.place();
            let (tools, news) = self.tools(&place, meta).await;
            if news {
                search.promotions.announce(&place);
            }
            if request.name == TOOL_SEARCH {
                native::runs_at_once(&request.name, wanted)?;
                return Ok(search.call(&place, &tools, arguments));
            }
        }
        let Some(tool) = self.daemon.tools.find(&caller.user_id, &request.name).await else {
            return Err(unknown_tool(&request.name));
        };
        if let Some(refusal) = self.search.as_ref().and_then(|search| search.refuse(&caller.place(), &tool)) {
            return native::refused(refusal, wanted);
        }
        let arguments = serde_json::value::to_raw_value(&arguments)
            .map_err(|_| ErrorData::invalid_params("the arguments cannot be read", None))?;
        let secrets = caller::secrets(meta).map_err(|what| ErrorData::invalid_params(what, None))?;
        let Some(toolset) = &tool.toolset else {
            native::runs_at_once(&request.name, wanted)?;
            let scope = Scope { user_id: caller.user_id.into(), thread_id: caller.thread_id.into() };
            return Ok(match self.daemon.tools.call(&tool, &arguments, &scope, &secrets).await {
                Ok(result) => Outcome::Raw(result),
                Err(error) => outcome::unreachable(&tool.server, &error),
            });
        };
        let submit = Submit {
            user_id: caller.user_id,
            thread_id: caller.thread_id,
            server: tool.server.clone(),
            task: toolset.name.clone(),
            arguments,
            run_id: None,
            tool_call_id: None,
            idempotency_key: caller::idempotency_key(meta),
            secrets,
        };
        let lookup = [builtin::GET, builtin::CANCEL].iter().all(|name| self.has_own(name));
        match self.daemon.submit(submit).await {
            Ok(submitted) => Ok(match wanted {
                Some(generation) => native::created(&self.daemon, &submitted.task, generation, lookup),
                None => outcome::submitted(&submitted.task, lookup),
            }),
            Err(error) => native::refused(outcome::refused(&error), wanted),
        }
    }

    /// What a client is told first. A discovery that takes long is not waited for.
    async fn instructions(&self, context: &RequestContext<RoleServer>) -> String {
        let caller = self.caller(context, &context.meta).unwrap_or_else(|_| Caller::new(DEFAULT_ID.to_owned()));
        let tools = self.daemon.tools.tools(&caller.user_id);
        let tools = tokio::time::timeout(GREETING_PATIENCE, tools).await.unwrap_or_default();
        instructions::instructions(&tools, self.search.is_some() && !tools.is_empty())
    }
}

fn unknown_tool(name: &str) -> ErrorData {
    let name: String = name.chars().take(128).collect();
    ErrorData::invalid_params(format!("unknown tool: {name}"), None)
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().enable_tasks().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("mcp-taskd", env!("CARGO_PKG_VERSION")))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let mut answer = self.negotiate_initialize(&request)?.with_instructions(self.instructions(&context).await);
        // The extension is for later protocols.
        answer.capabilities.extensions = None;
        Ok(if answer.protocol_version == ProtocolVersion::V_2025_11_25 { native::greeting(answer) } else { answer })
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let info = self.get_info().with_instructions(self.instructions(&context).await);
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), info))
    }

    /// Only a connection that stays is greeted like this: over stdio, in a protocol with sessions.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let Some(mut changes) = self.local.as_ref().and_then(|caller| self.changes(caller.place())) else { return };
        tokio::spawn(async move {
            while changes.next().await.is_some() && context.peer.notify_tool_list_changed().await.is_ok() {}
        });
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let request = context.request_context();
        let caller = self.caller(request, &request.meta)?;
        let mut changes = self
            .changes(caller.place())
            .ok_or_else(|| ErrorData::internal_error("too many subscriptions are open", None))?;
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = changes.next() => match changed {
                    None => return Ok(()),
                    // One that did not ask for it is not sent it.
                    Some(()) => if let Err(SubscriptionSendError::SubscriptionClosed | SubscriptionSendError::Service(_)) =
                        context.sink().notify_tool_list_changed().await
                    {
                        return Ok(());
                    },
                },
            }
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context, &context.meta)?;
        let generation = Generation::of(&context);
        Ok(exact::list_result(&self.list(&caller.place(), &context.meta, generation).await))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let outcome = self.call(request, &context).await?;
        Ok(exact::call_result(&outcome.into_raw()))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        native::get(self, &request.task_id, &context).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        native::update(self, &request.task_id, &request.input_responses, &context).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        native::cancel(self, &request.task_id, &context).await
    }

    /// What the `Mcp-Param-*` headers of a call are checked against; only tools that ask for such headers are looked at.
    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        let tool = self.daemon.tools.last_find(name)?;
        let definition = tool.definition.get();
        definition.contains("x-mcp-header").then(|| serde_json::from_str(definition).ok()).flatten()
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if let Some(answer) = native::custom(self, &request, &context).await {
            return answer;
        }
        let parts = context.extensions.get::<::http::request::Parts>();
        let is_modern = parts.is_some_and(|parts| stream::is_modern(&parts.headers));
        // rmcp takes what it cannot decode for a request it does not know.
        let known = match request.method.as_str() {
            // There is no such greeting any more.
            "initialize" if is_modern => {
                return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "method not found: initialize", None));
            }
            "tools/call" => "tools/call needs a name and arguments; the arguments of a call must be an object",
            "initialize" => "initialize needs protocolVersion, capabilities and clientInfo with name and version",
            "tools/list" => "the params of tools/list must be an object, its cursor a string",
            method => {
                let method: String = method.chars().take(128).collect();
                return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("method not found: {method}"), None));
            }
        };
        Err(ErrorData::invalid_params(known, None))
    }
}

#[cfg(test)]
mod changes_tests;
#[cfg(test)]
mod deferred_tests;
#[cfg(test)]
mod native_tests;
#[cfg(test)]
mod tests;
