//! MCP's own tasks on the fake server, in both generations: a request that names the stateless protocol gets SEP-2663's shapes,
//! any other one SEP-1686's. The scripts are those of the ordinary tools.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::script::End;
use super::task::{FakeTask, Stand};
use super::tools::{Core, Refusal, script_of, tools};

/// The tool whose work is a native task.
pub const NATIVE_TOOL: &str = "render_report";

/// What its question is called.
const QUESTION: &str = "quarter";

/// The usual tools and one whose work is a native task. A server that lists it says so in its capabilities.
pub fn native_tools() -> Value {
    let mut all = tools();
    if let Some(all) = all.as_array_mut() {
        all.push(json!({
            "name": NATIVE_TOOL,
            "description": "Renders a report.",
            "inputSchema": {"type": "object", "properties": {"script": {"type": "object"}}},
            "execution": {"taskSupport": "required"},
        }));
    }
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Generation {
    /// SEP-1686, of 2025-11-25.
    Old,
    /// SEP-2663, of 2026-07-28.
    New,
}

struct Asked {
    generation: Generation,
    params: Value,
}

impl Asked {
    fn read(params: Option<&RawValue>) -> Result<Self, Refusal> {
        const META: &str = "io.modelcontextprotocol";
        let params: Value = params.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let meta = &params["_meta"];
        if meta[format!("{META}/protocolVersion")] != "2026-07-28" {
            return Ok(Self { generation: Generation::Old, params });
        }
        let extensions = &meta[format!("{META}/clientCapabilities")]["extensions"];
        if extensions.get(format!("{META}/tasks")).is_none() {
            return Err(Refusal(-32_021, "Missing required client capability".to_owned()));
        }
        Ok(Self { generation: Generation::New, params })
    }

    fn acknowledged(&self) -> String {
        self.result(json!({}))
    }

    /// A result, marked as the generation wants it.
    fn result(&self, mut members: Value) -> String {
        if self.generation == Generation::New && members.get("resultType").is_none() {
            members["resultType"] = "complete".into();
        }
        members.to_string()
    }

    /// The task's members in this generation.
    fn task(&self, task: &FakeTask, status: &str) -> Map<String, Value> {
        let old = self.generation == Generation::Old;
        let mut members = Map::new();
        members.insert("taskId".to_owned(), task.id.clone().into());
        members.insert("status".to_owned(), status.into());
        members.insert("createdAt".to_owned(), "2026-11-25T10:30:00Z".into());
        members.insert("lastUpdatedAt".to_owned(), "2026-11-25T10:40:00Z".into());
        members.insert(if old { "ttl" } else { "ttlMs" }.to_owned(), task.script.ttl_ms.into());
        if let Some(seconds) = task.script.poll_after_seconds {
            let interval = if old { "pollInterval" } else { "pollIntervalMs" };
            members.insert(interval.to_owned(), json!(seconds * 1_000.0));
        }
        members
    }
}

impl Core {
    /// Whether calls of tools may be tasks here.
    pub fn has_native_tasks(&self) -> bool {
        self.tools
            .as_ref()
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(|tool| tool["name"] == NATIVE_TOOL))
    }

    /// A call of the native tool.
    pub(super) fn render(&self, params: Option<&RawValue>, key: Option<String>) -> Result<String, Refusal> {
        let asked = Asked::read(params)?;
        if asked.generation == Generation::Old && !asked.params["task"]["ttl"].is_u64() {
            return Ok(super::tools::tool_error("this tool has to be called as a task"));
        }
        let arguments = asked.params["arguments"].to_string();
        let script = script_of(&arguments)?.unwrap_or_else(|| self.script.clone());
        if script.at_once {
            return Ok(asked.result(json!({"content": [], "structuredContent": {"rendered": true}})));
        }
        let status = script.submit_status.clone().unwrap_or_else(|| "working".to_owned());
        let task = self.tasks.submit(key, arguments, script);
        let members = asked.task(&task, &status);
        Ok(match asked.generation {
            Generation::New => asked.result(json!({"resultType": "task"}).with(members)),
            Generation::Old => json!({ "task": members }).to_string(),
        })
    }

    /// A method about a task.
    pub(super) fn about_task(&self, method: &str, params: Option<&RawValue>) -> Result<String, Refusal> {
        let asked = Asked::read(params)?;
        let task = asked.params["taskId"].as_str().and_then(|id| self.tasks.find(id));
        let unknown = || Refusal(-32_602, "Failed to retrieve task: Task not found".to_owned());
        let task: Arc<FakeTask> = task.filter(|task| task.end() != Some(End::NotFound)).ok_or_else(unknown)?;
        match (method, asked.generation) {
            ("tasks/get", _) => match task.look() {
                Stand::Unavailable => Err(Refusal(-32_603, "the status is not available right now".to_owned())),
                Stand::Ended(End::NotFound) => Err(unknown()),
                stand => Ok(asked.result(stood(&asked, &task, stand))),
            },
            ("tasks/result", Generation::Old) => match task.end() {
                Some(End::Completed) => Ok(rendered(&task).to_string()),
                Some(End::Failed) => Err(Refusal(-32_000, "the report could not be made".to_owned())),
                _ => Err(Refusal(-32_600, "the task has no result".to_owned())),
            },
            ("tasks/cancel", generation) => {
                if !task.heard_cancel() {
                    return Err(Refusal(-32_603, "the cancel did not come through".to_owned()));
                }
                match (generation, task.end()) {
                    (Generation::New, _) => Ok(asked.acknowledged()),
                    (Generation::Old, Some(_)) if task.ended_before_cancel() => {
                        Err(Refusal(-32_602, "Cannot cancel task: already in a terminal status".to_owned()))
                    }
                    (Generation::Old, end) => {
                        let stand = end.map_or(Stand::Runs, Stand::Ended);
                        Ok(asked.result(stood(&asked, &task, stand)))
                    }
                }
            }
            ("tasks/update", Generation::New) => {
                if asked.params["inputResponses"].get(QUESTION).is_some() {
                    task.answered();
                }
                Ok(asked.acknowledged())
            }
            _ => Err(Refusal(-32_601, format!("method not found: {method}"))),
        }
    }
}

/// The task as `tasks/get` shows it.
fn stood(asked: &Asked, task: &FakeTask, stand: Stand) -> Value {
    let new = asked.generation == Generation::New;
    let (status, more) = match stand {
        Stand::Asks => {
            let question = json!({"method": "elicitation/create",
                "params": {"mode": "form", "message": "Which quarter?", "requestedSchema": {"type": "object"}}});
            ("input_required", if new { json!({"inputRequests": {QUESTION: question}}) } else { json!({}) })
        }
        Stand::Ended(End::Completed) => ("completed", if new { json!({"result": rendered(task)}) } else { json!({}) }),
        Stand::Ended(End::Failed) => {
            let error = json!({"error": {"code": -32_000, "message": "the report could not be made"}});
            ("failed", if new { error } else { json!({}) })
        }
        Stand::Ended(End::Cancelled) => ("cancelled", json!({})),
        Stand::Unavailable | Stand::Runs | Stand::Ended(End::NotFound | End::Never) => {
            ("working", json!({"statusMessage": format!("poll {}", task.truth().polls)}))
        }
    };
    more.with(asked.task(task, status))
}

/// What the tool's call would have answered.
fn rendered(task: &FakeTask) -> Value {
    let text = "r".repeat(task.script.result_bytes.max(2) - 2);
    if task.script.reports_error {
        return json!({"isError": true, "content": [{"type": "text", "text": "out of paper"}]});
    }
    json!({"content": [{"type": "text", "text": "done"}], "structuredContent": {"report": text}})
}

trait With {
    fn with(self, members: Map<String, Value>) -> Value;
}

impl With for Value {
    /// An object with more members.
    fn with(mut self, members: Map<String, Value>) -> Value {
        if let Some(object) = self.as_object_mut() {
            object.extend(members);
        }
        self
    }
}
