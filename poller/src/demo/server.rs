//! The demo's report server: an ordinary MCP server with one task toolset, built on the SDK, holding its work in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::time::Instant;

/// What a report will come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Complete,
    AskThenComplete,
    Fail,
}

#[derive(Debug)]
struct Report {
    title: String,
    plan: Plan,
    ready_at: Instant,
    answer: Option<Value>,
    cancelled: bool,
}

/// The server's reports by id, and how often each tool was called: its own record of the truth.
#[derive(Debug, Default)]
pub(super) struct Reports {
    reports: Mutex<HashMap<String, Report>>,
    calls: Mutex<HashMap<String, u64>>,
}

impl Reports {
    /// How often `tool` was called.
    pub(super) fn calls(&self, tool: &str) -> u64 {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).get(tool).copied().unwrap_or_default()
    }

    fn submit(&self, arguments: &JsonObject) -> Value {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let plan = match text("kind") {
            "asks" => Plan::AskThenComplete,
            "fails" => Plan::Fail,
            _ => Plan::Complete,
        };
        let seconds = arguments.get("seconds").and_then(Value::as_u64).unwrap_or(5).min(3_600);
        let report = Report {
            title: text("title").to_owned(),
            plan,
            ready_at: Instant::now() + Duration::from_secs(seconds),
            answer: None,
            cancelled: false,
        };
        let id = format!("report-{}", uuid::Uuid::new_v4().simple());
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), report);
        json!({"task_id": id, "status": "running"})
    }

    fn with(&self, arguments: &JsonObject, change: impl FnOnce(&mut Report)) -> Value {
        let id = arguments.get("task_id").and_then(Value::as_str).unwrap_or_default();
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        match reports.get_mut(id) {
            Some(report) => {
                change(report);
                report.state(id)
            }
            None => json!({"task_id": id, "status": "failed", "error_code": "task_not_found"}),
        }
    }
}

impl Report {
    fn state(&self, id: &str) -> Value {
        if self.cancelled {
            return json!({"task_id": id, "status": "cancelled"});
        }
        if Instant::now() < self.ready_at {
            return json!({"task_id": id, "status": "running"});
        }
        match (self.plan, &self.answer) {
            (Plan::Fail, _) => {
                json!({"task_id": id, "status": "failed", "error": "the ledger is not balanced"})
            }
            (Plan::AskThenComplete, None) => json!({
                "task_id": id,
                "status": "input_required",
                "input_required": {"question": "In which currency?", "choices": ["EUR", "USD"]},
            }),
            (_, answer) => json!({
                "task_id": id,
                "status": "completed",
                "result": {"title": self.title, "pages": 12, "input": answer},
                "result_artifact": {"uri": format!("reports://{id}.pdf"), "mime_type": "application/pdf"},
            }),
        }
    }
}

/// One session's view of the reports.
#[derive(Debug, Clone)]
struct ReportServer(Arc<Reports>);

impl ServerHandler for ReportServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("report-demo", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let by_id = json!({"type": "object", "properties": {"task_id": {"type": "string"}}, "required": ["task_id"]});
        let submit = json!({
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "seconds": {"type": "integer", "description": "How long the work takes"},
                "kind": {"type": "string", "enum": ["completes", "asks", "fails"]},
            },
            "required": ["title"],
        });
        let input = json!({
            "type": "object",
            "properties": {"task_id": {"type": "string"}, "input": {}},
            "required": ["task_id", "input"],
        });
        Ok(ListToolsResult::with_all_items(vec![
            tool("submit_report", "Starts a report.", submit),
            tool("get_report_status", "Tells how a report stands.", by_id.clone()),
            tool("cancel_report", "Cancels a report.", by_id),
            tool("answer_report", "Answers a report's question.", input),
            tool("list_templates", "Lists the report templates.", json!({"type": "object"})),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        *self.0.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(request.name.to_string()).or_default() += 1;
        let arguments = request.arguments.unwrap_or_default();
        let answer = match request.name.as_ref() {
            "submit_report" => self.0.submit(&arguments),
            "get_report_status" => self.0.with(&arguments, |_| {}),
            "cancel_report" => self.0.with(&arguments, |report| report.cancelled = true),
            "answer_report" => self.0.with(&arguments, |report| {
                report.answer = arguments.get("input").cloned();
                report.ready_at = Instant::now() + Duration::from_secs(2);
            }),
            "list_templates" => return Ok(CallToolResult::success(vec![ContentBlock::text("plain, formal")]).into()),
            _ => return Err(ErrorData::invalid_params("unknown tool", None)),
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(answer.to_string())]);
        result.structured_content = Some(answer);
        Ok(result.into())
    }
}

fn tool(name: &'static str, description: &'static str, schema: Value) -> Tool {
    let schema = if let Value::Object(schema) = schema { schema } else { JsonObject::new() };
    Tool::new(name, description, schema)
}

/// Serves reports on a free loopback port until the process ends; the endpoint's URL.
pub(super) async fn start(reports: Arc<Reports>) -> std::io::Result<String> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let service = StreamableHttpService::new(
        move || Ok(ReportServer(Arc::clone(&reports))),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default().with_json_response(true),
    );
    let app = axum::Router::new().nest_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
