//! The MCP server that agents see: the catalogue's tools, and three of the daemon's own (INTERFACE, MCP).
//!
//! Framing, handshakes and both protocol eras are rmcp's. Tool lists and tool results travel as raw text ([`exact`]),
//! since rmcp's types would drop members they do not know and round numbers.

mod builtin;
mod caller;
mod exact;
mod http;
mod outcome;
mod stdio;

pub use self::http::routes;
pub use caller::Caller;
pub use stdio::serve as serve_stdio;

use mcp_taskd_core::service::Submit;
use mcp_taskd_core::upstream::Scope;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::value::RawValue;

use crate::daemon::Daemon;
use outcome::Outcome;

const INSTRUCTIONS: &str = "Some tools start background tasks: they answer at once with a task_id while the work goes on \
    for minutes or days. The daemon follows each task by itself, so do not wait for one or ask about it again and \
    again; go on with other work, and look it up when its result is needed.";

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
}

impl Gateway {
    /// A gateway whose callers come with their HTTP requests.
    pub fn new(daemon: Daemon) -> Self {
        Self { daemon, local: None }
    }

    /// A gateway with one caller, as over stdio.
    pub fn local(daemon: Daemon, caller: Caller) -> Self {
        Self { daemon, local: Some(caller) }
    }

    async fn list(&self) -> Box<RawValue> {
        let tools = self.daemon.tools.tools().await;
        let own = if self.daemon.builtin_tools { builtin::definitions() } else { &[] };
        let theirs = tools.iter().map(|tool| &*tool.definition);
        exact::tools(theirs.chain(own.iter().map(|definition| &**definition)))
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Outcome, ErrorData> {
        let meta = request.meta.as_ref().unwrap_or(&context.meta);
        let caller = Caller::of(&context.extensions, meta, self.local.as_ref())
            .map_err(|denied| ErrorData::invalid_params(denied.to_string(), None))?;
        let arguments = request.arguments.unwrap_or_default();
        if self.daemon.builtin_tools && builtin::is_builtin(&request.name) {
            return Ok(builtin::call(&self.daemon, &caller, &request.name, arguments).await);
        }
        let Some(tool) = self.daemon.tools.find(&request.name).await else { return Err(unknown_tool(&request.name)) };
        let arguments = serde_json::value::to_raw_value(&arguments)
            .map_err(|_| ErrorData::invalid_params("the arguments cannot be read", None))?;
        let Some(toolset) = &tool.toolset else {
            let scope = Scope { user_id: caller.user_id.into(), thread_id: caller.thread_id.into() };
            return Ok(match self.daemon.tools.call(&tool, &arguments, &scope).await {
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
        };
        Ok(match self.daemon.tasks.submit(submit).await {
            Ok(submitted) => outcome::submitted(&submitted.task, self.daemon.builtin_tools),
            Err(error) => outcome::refused(&error),
        })
    }
}

fn unknown_tool(name: &str) -> ErrorData {
    let name: String = name.chars().take(128).collect();
    ErrorData::invalid_params(format!("unknown tool: {name}"), None)
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        // Over HTTP every request stands alone: there is no connection to send a notification on.
        let capabilities = match &self.local {
            Some(_) => ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build(),
            None => ServerCapabilities::builder().enable_tools().build(),
        };
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("mcp-taskd", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(exact::list_result(&self.list().await))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let outcome = self.call(request, &context).await?;
        Ok(exact::call_result(&outcome.into_raw()))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // rmcp takes what it cannot decode for a request it does not know.
        let known = match request.method.as_str() {
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
mod tests;
