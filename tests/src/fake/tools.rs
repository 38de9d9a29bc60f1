//! The fake server's tools and methods, whatever they travel on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::native::NATIVE_TOOL;
use super::script::{End, Script};
use super::task::{Tasks, Truth};

/// Totals since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// TCP connections accepted.
    pub connections: AtomicU64,
    /// HTTP requests, or messages on stdio.
    pub requests: AtomicU64,
    /// `initialize` calls answered.
    pub initializes: AtomicU64,
    /// `server/discover` calls seen.
    pub discovers: AtomicU64,
    /// `tools/list` calls answered.
    pub lists: AtomicU64,
    /// `tools/call` calls answered.
    pub calls: AtomicU64,
    /// `notifications/cancelled` received.
    pub cancellations: AtomicU64,
    /// Answers to pings of the server's.
    pub pongs: AtomicU64,
    /// Sessions ended by DELETE.
    pub deletes: AtomicU64,
    /// Streams opened to listen for notices.
    pub listens: AtomicU64,
    /// Calls refused because an `Mcp-Param-*` header was not as the body has it.
    pub mismatches: AtomicU64,
}

/// Tasks, counters and tools.
#[derive(Debug, Default)]
pub struct Core {
    pub(super) tasks: Tasks,
    /// Totals.
    pub counters: Counters,
    /// The script of tasks whose submit brings none.
    pub script: Script,
    /// The tools to list instead of the usual ones.
    pub tools: Option<Value>,
}

/// A message to the server.
#[derive(Debug, Deserialize)]
pub(super) struct Incoming<'a> {
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) name: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    cursor: Option<String>,
    #[serde(borrow, rename = "_meta", default)]
    meta: Option<Meta<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "mcp-taskd/idempotency-key", default)]
    key: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    headers: Option<Value>,
}

impl Call<'_> {
    /// The idempotency key.
    fn key(&self) -> Option<String> {
        self.meta.as_ref().and_then(|meta| meta.key.as_deref()).map(ToOwned::to_owned)
    }
}

/// What a request's `Mcp-Name` has to be: the tool that it calls, or the task that it is about (2026-07-28).
pub(super) fn names(method: &str, params: Option<&RawValue>) -> Option<String> {
    let key = match method {
        "tools/call" => "name",
        about if about.starts_with("tasks/") => "taskId",
        _ => return None,
    };
    let params: Value = params.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    params[key].as_str().map(str::to_owned)
}

/// The script in a submit's arguments.
pub(super) fn script_of(arguments: &str) -> Result<Option<Script>, Refusal> {
    #[derive(Default, Deserialize)]
    struct Submit {
        script: Option<Script>,
    }
    let submit: Option<Submit> =
        serde_json::from_str(arguments).map_err(|error| Refusal(-32_602, format!("unusable arguments: {error}")))?;
    Ok(submit.unwrap_or_default().script)
}

/// A JSON-RPC error.
pub(super) struct Refusal(pub(super) i64, pub(super) String);

impl Core {
    /// The truth about every task.
    pub fn truths(&self) -> Vec<Truth> {
        self.tasks.truths()
    }

    /// The truth about one task.
    pub fn find(&self, remote_id: &str) -> Option<Truth> {
        self.tasks.find(remote_id).map(|task| task.truth())
    }

    /// Ends a task where it has not ended.
    pub fn end(&self, remote_id: &str, end: End) {
        if let Some(task) = self.tasks.find(remote_id) {
            task.finish(end);
        }
    }

    /// Forgets a task, as a server that lost its memory.
    pub fn forget(&self, remote_id: &str) {
        self.tasks.forget(remote_id);
    }

    /// The result of a method, as JSON text.
    pub(super) fn dispatch(&self, method: &str, params: Option<&RawValue>) -> Result<String, Refusal> {
        match method {
            "initialize" => {
                self.counters.initializes.fetch_add(1, Ordering::Relaxed);
                let mut capabilities = json!({"tools": {"listChanged": true}});
                if self.has_native_tasks() {
                    capabilities["tasks"] = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
                }
                Ok(json!({
                    "protocolVersion": "2025-11-25",
                    "capabilities": capabilities,
                    "serverInfo": {"name": "fake-mcp", "version": "1"},
                })
                .to_string())
            }
            "server/discover" => Ok(json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "fake-mcp", "version": "1"},
            })
            .to_string()),
            "ping" => Ok("{}".to_owned()),
            "tools/list" => {
                self.counters.lists.fetch_add(1, Ordering::Relaxed);
                Ok(self.list(&read(params)?))
            }
            "tools/call" => {
                let call = read(params)?;
                self.counters.calls.fetch_add(1, Ordering::Relaxed);
                if call.name == NATIVE_TOOL { self.render(params, call.key()) } else { self.call(&call) }
            }
            about if about.starts_with("tasks/") && self.has_native_tasks() => {
                self.counters.calls.fetch_add(1, Ordering::Relaxed);
                self.about_task(about, params)
            }
            other => Err(Refusal(-32_601, format!("method not found: {other}"))),
        }
    }

    /// Whether the call's top-level arguments are in the headers where the tool's schema asks for that (2026-07-28).
    pub(super) fn mirrored(&self, params: Option<&RawValue>, header: impl Fn(&str) -> Option<String>) -> bool {
        let (Ok(call), Some(tools)) = (read(params), &self.tools) else { return true };
        let arguments: Value = call.arguments.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let tool = tools.as_array().into_iter().flatten().find(|tool| tool["name"] == call.name.as_ref());
        let properties = tool.and_then(|tool| tool["inputSchema"]["properties"].as_object());
        properties.into_iter().flatten().all(|(key, property)| match property["x-mcp-header"].as_str() {
            Some(name) => {
                header(&format!("mcp-param-{}", name.to_ascii_lowercase())).as_deref() == arguments[key].as_str()
            }
            None => true,
        })
    }

    /// Three tools a page, so that clients have to follow cursors.
    fn list(&self, call: &Call<'_>) -> String {
        let tools = self.tools.clone().unwrap_or_else(tools);
        let tools = tools.as_array().cloned().unwrap_or_default();
        let from = call.cursor.as_deref().and_then(|cursor| cursor.parse::<usize>().ok()).unwrap_or(0);
        let page: Vec<_> = tools.iter().skip(from).take(3).cloned().collect();
        let mut result = json!({"tools": page});
        if from + 3 < tools.len() {
            result["nextCursor"] = (from + 3).to_string().into();
        }
        result.to_string()
    }

    fn call(&self, call: &Call<'_>) -> Result<String, Refusal> {
        let arguments = call.arguments.map_or("{}", RawValue::get);
        match call.name.as_ref() {
            "submit_report" => {
                let script = script_of(arguments)?.unwrap_or_else(|| self.script.clone());
                Ok(self.tasks.submit(call.key(), arguments.to_owned(), script).submitted())
            }
            "get_report_status" => Ok(self.with_task(arguments, super::task::FakeTask::poll)),
            "cancel_report" => Ok(self.with_task(arguments, super::task::FakeTask::cancel)),
            "send_report_input" => Ok(self.with_task(arguments, super::task::FakeTask::input)),
            "echo" => {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                let text = arguments.to_string();
                Ok(json!({"content": [{"type": "text", "text": text}], "structuredContent": arguments}).to_string())
            }
            "where" => {
                let directory = std::env::current_dir().unwrap_or_default();
                let place = json!({
                    "pid": std::process::id(),
                    "cwd": directory.display().to_string(),
                    "tmpdir": std::env::var("TMPDIR").ok(),
                    "marker": std::env::var("FAKE_MARKER").ok(),
                    "headers": call.meta.as_ref().and_then(|meta| meta.headers.as_ref()),
                });
                Ok(json!({"content": [], "structuredContent": place}).to_string())
            }
            other => Err(Refusal(-32_602, format!("unknown tool: {other}"))),
        }
    }

    fn with_task(&self, arguments: &str, act: impl Fn(&super::task::FakeTask) -> String) -> String {
        #[derive(Deserialize)]
        struct Id<'a> {
            #[serde(borrow)]
            task_id: std::borrow::Cow<'a, str>,
        }
        let Ok(id) = serde_json::from_str::<Id<'_>>(arguments) else { return tool_error("task_id is missing") };
        match self.tasks.find(&id.task_id) {
            Some(task) => act(&task),
            None => json!({"content": [], "structuredContent":
                {"task_id": id.task_id, "status": "failed", "error_code": "task_not_found"}})
            .to_string(),
        }
    }
}

fn read(params: Option<&RawValue>) -> Result<Call<'_>, Refusal> {
    params.map_or_else(
        || Ok(Call::default()),
        |raw| serde_json::from_str(raw.get()).map_err(|error| Refusal(-32_602, format!("unusable params: {error}"))),
    )
}

/// The text of a `CallToolResult` that reports an error.
pub(super) fn tool_error(text: &str) -> String {
    json!({"isError": true, "content": [{"type": "text", "text": text}]}).to_string()
}

/// The text of a JSON-RPC answer.
pub(super) fn message(id: &str, result: Result<String, Refusal>) -> String {
    match result {
        Ok(result) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"),
        Err(Refusal(code, text)) => {
            json!({"jsonrpc": "2.0", "id": serde_json::from_str::<Value>(id).unwrap_or_default(),
                "error": {"code": code, "message": text}})
            .to_string()
        }
    }
}

/// The usual tools.
pub fn tools() -> Value {
    let task = json!({"type": "object", "properties": {"task_id": {"type": "string"}}, "required": ["task_id"]});
    json!([
        {
            "name": "submit_report",
            "title": "Submit a report",
            "description": "Starts a report.",
            "inputSchema": {"type": "object", "properties": {"script": {"type": "object"}, "topic": {"type": "string"}}},
            "outputSchema": {"type": "object", "properties": {"task_id": {"type": "string"}}},
            "execution": {"taskSupport": "optional"},
        },
        {"name": "get_report_status", "description": "Tells how a report stands.", "inputSchema": task},
        {"name": "cancel_report", "description": "Ends a report.", "inputSchema": task},
        {"name": "send_report_input", "description": "Answers a report's question.", "inputSchema": task},
        {
            "zeta": 1,
            "name": "echo",
            "description": "Says what was said.",
            "inputSchema": {"type": "object", "properties": {"b": {}, "a": {}}},
            "annotations": {"readOnlyHint": true},
            "x-vendor": {"z": 1.50, "a": [1e3]},
        },
    ])
}

/// What transports share: the core behind a pointer.
pub type SharedCore = Arc<Core>;
