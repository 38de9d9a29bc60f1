//! A request of ours as it goes out: written by hand, in the way of either kind of protocol.

use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;

use super::jsonrpc::{Era, MODERN_META, NO_CAPABILITIES};
use super::offers::Offers;
use super::{CallError, CallErrorKind, Method, ToolCall};

/// The capabilities in requests that have to do with MCP Tasks: a task may ask its user for input.
const TASK_CAPABILITIES: &str = concat!(
    "\"io.modelcontextprotocol/clientCapabilities\":{\"elicitation\":{\"form\":{},\"url\":{}},",
    "\"extensions\":{\"io.modelcontextprotocol/tasks\":{}}}"
);

/// How long a server of 2025-11-25 is asked to keep a task, from its creation on: longer than work is expected to take, since
/// a server may drop a task that still runs. What it grants is its own affair.
const TASK_TTL_MS: u64 = 7 * 86_400_000;

/// Why a call that wants a task is not sent.
const NO_TASKS: &str =
    "the server has no MCP tasks for tool calls (it does not say capabilities.tasks.requests.tools.call)";

/// A request but for its id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    /// `params.name`.
    pub(super) name: Option<&'a str>,
    /// `params.arguments`.
    pub(super) arguments: Option<&'a RawValue>,
    /// `params.taskId`.
    pub(super) task_id: Option<&'a str>,
    /// `params.inputResponses`.
    pub(super) responses: Option<&'a RawValue>,
    /// Whether the answer may be a task.
    pub(super) for_task: bool,
    /// `params.cursor`.
    pub(super) cursor: Option<&'a str>,
    /// Members of `params._meta`.
    pub(super) meta: &'a [(&'a str, &'a str)],
    /// Headers of this request alone.
    pub(super) headers: &'a [(HeaderName, HeaderValue)],
    /// Whether they travel as `headers` in `params._meta`: there are no others on the way to a child process (106).
    pub(super) headers_in_meta: bool,
    /// Whether the server is told when nobody waits for the answer any more. It is not for a task's calls, which are short:
    /// with the Python SDK's 1.x such a message ends the whole session, and with it every other call on it, where the tool
    /// does not stop at once.
    pub(super) told: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(method: &'static str) -> Self {
        Self {
            method,
            name: None,
            arguments: None,
            task_id: None,
            responses: None,
            for_task: false,
            cursor: None,
            meta: &[],
            headers: &[],
            headers_in_meta: false,
            told: true,
        }
    }

    pub(super) fn call(call: &ToolCall<'a>) -> Self {
        let request = Self {
            meta: call.meta,
            headers: call.headers,
            told: !call.of_task(),
            task_id: call.method.task_id(),
            ..Self::new(call.method.as_str())
        };
        let (name, arguments) = (Some(call.tool), Some(call.arguments));
        match call.method {
            Method::Call => Self { name, arguments, ..request },
            Method::CallForTask => Self { name, arguments, for_task: true, ..request },
            Method::Update(_) => Self { responses: arguments, ..request },
            Method::Get(_) | Method::Result(_) | Method::Cancel(_) => request,
        }
    }

    /// Whether it has to do with MCP Tasks, so that the server must know that this client speaks them.
    fn of_tasks(&self) -> bool {
        self.for_task || self.task_id.is_some()
    }

    /// Why it must not be sent to a server that has sessions and, as it says, `offers` no tasks for calls of tools: it could
    /// only run the tool to its end while nothing tells of it.
    pub(super) fn unfit(&self, era: Era, offers: Offers) -> Option<CallError> {
        (self.of_tasks() && era == Era::Legacy && !offers.tasks).then(|| CallError {
            maybe_executed: false,
            ..CallError::new(CallErrorKind::Protocol, NO_TASKS.to_owned())
        })
    }

    /// The request's text, on one line.
    pub(super) fn body(&self, id: u64, era: Era) -> Vec<u8> {
        let arguments = self.arguments.map_or("", RawValue::get);
        let mut body = Vec::with_capacity(320 + arguments.len());
        body.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        body.extend_from_slice(id.to_string().as_bytes());
        body.extend_from_slice(b",\"method\":\"");
        body.extend_from_slice(self.method.as_bytes());
        body.extend_from_slice(b"\",\"params\":{");
        let mut comma = false;
        let mut member = |body: &mut Vec<u8>, key: &str| {
            if std::mem::replace(&mut comma, true) {
                body.push(b',');
            }
            string(body, key);
            body.push(b':');
        };
        if let Some(name) = self.name {
            member(&mut body, "name");
            string(&mut body, name);
        }
        if self.arguments.is_some() {
            member(&mut body, "arguments");
            on_one_line(&mut body, arguments);
        }
        if let Some(task_id) = self.task_id {
            member(&mut body, "taskId");
            string(&mut body, task_id);
        }
        if let Some(responses) = self.responses {
            member(&mut body, "inputResponses");
            on_one_line(&mut body, responses.get());
        }
        if self.for_task && era == Era::Legacy {
            member(&mut body, "task");
            body.extend_from_slice(format!("{{\"ttl\":{TASK_TTL_MS}}}").as_bytes());
        }
        if let Some(cursor) = self.cursor {
            member(&mut body, "cursor");
            string(&mut body, cursor);
        }
        let meta_headers = if self.headers_in_meta { self.headers } else { &[] };
        if era == Era::Modern || !self.meta.is_empty() || !meta_headers.is_empty() {
            member(&mut body, "_meta");
            body.push(b'{');
            let mut comma = false;
            if era == Era::Modern {
                body.extend_from_slice(MODERN_META.as_bytes());
                let capabilities = if self.of_tasks() { TASK_CAPABILITIES } else { NO_CAPABILITIES };
                body.extend_from_slice(capabilities.as_bytes());
                comma = true;
            }
            for (key, value) in self.meta {
                if std::mem::replace(&mut comma, true) {
                    body.push(b',');
                }
                string(&mut body, key);
                body.push(b':');
                string(&mut body, value);
            }
            if !meta_headers.is_empty() {
                if comma {
                    body.push(b',');
                }
                headers_member(&mut body, meta_headers);
            }
            body.push(b'}');
        }
        body.extend_from_slice(b"}}");
        body
    }
}

/// JSON text without line breaks: one between tokens would end the message on stdio.
fn on_one_line(body: &mut Vec<u8>, json: &str) {
    body.extend(json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
}

/// `"headers":{…}`; what is no text is left out.
fn headers_member(body: &mut Vec<u8>, headers: &[(HeaderName, HeaderValue)]) {
    body.extend_from_slice(b"\"headers\":{");
    let mut comma = false;
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        if std::mem::replace(&mut comma, true) {
            body.push(b',');
        }
        string(body, name.as_str());
        body.push(b':');
        string(body, value);
    }
    body.push(b'}');
}

fn string(body: &mut Vec<u8>, text: &str) {
    // Writing a string into a vector cannot fail.
    let _ = serde_json::to_writer(body, text);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::jsonrpc::{answer, cancelled, initialize, listen};
    use super::*;
    use crate::upstream::Scope;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_request_is_one_line_of_valid_json_in_both_eras() {
        let arguments = raw("{\n  \"a\\n\": \"q\\\"\"\r\n}");
        let meta = [("mcp-taskd/idempotency-key", "k\"1")];
        let (tool, scope) = ("tool \"x\"", Scope { user_id: "u".into(), thread_id: "t".into() });
        let request = Request::call(&ToolCall {
            method: Method::Call,
            tool,
            arguments: &arguments,
            meta: &meta,
            headers: &[],
            scope: &scope,
            task: None,
            deadline: None,
        });
        for era in [Era::Legacy, Era::Modern] {
            let body = request.body(7, era);
            assert!(!body.contains(&b'\n') && !body.contains(&b'\r'));
            let value: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&value["id"], &value["method"]), (&json!(7), &json!("tools/call")));
            assert_eq!(value["params"]["name"], "tool \"x\"");
            assert_eq!(value["params"]["arguments"], json!({"a\n": "q\""}));
            assert_eq!(value["params"]["_meta"]["mcp-taskd/idempotency-key"], "k\"1");
            let modern = value["params"]["_meta"].get("io.modelcontextprotocol/protocolVersion");
            assert_eq!(modern.is_some(), era == Era::Modern);
        }
        let list: Value = serde_json::from_slice(&Request::new("tools/list").body(1, Era::Legacy)).unwrap();
        assert_eq!(list["params"], json!({}));
        for body in
            [initialize(1), cancelled(3, Era::Modern), listen(2), answer(&raw("\"a\""), "ping"), answer(&raw("4"), "x")]
        {
            serde_json::from_slice::<Value>(&body).unwrap();
        }
    }

    #[test]
    fn a_request_of_tasks_says_in_its_eras_own_way_that_tasks_are_known_here() {
        const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
        let (arguments, scope) = (raw("{\"a\":\n1}"), Scope { user_id: "u".into(), thread_id: "t".into() });
        let body = |method, era| -> Value {
            let call = ToolCall {
                method,
                tool: "render",
                arguments: &arguments,
                meta: &[],
                headers: &[],
                scope: &scope,
                task: None,
                deadline: None,
            };
            let body = Request::call(&call).body(7, era);
            assert!(!body.contains(&b'\n'));
            serde_json::from_slice(&body).unwrap()
        };
        let known = json!({"io.modelcontextprotocol/tasks": {}});
        let call = body(Method::CallForTask, Era::Modern);
        assert_eq!(call["params"]["_meta"][CAPABILITIES]["extensions"], known);
        assert_eq!((&call["params"]["name"], &call["params"]["task"]), (&json!("render"), &Value::Null));
        let call = body(Method::CallForTask, Era::Legacy);
        assert_eq!(
            call["params"],
            json!({"name": "render", "arguments": {"a": 1}, "task": {"ttl": TASK_TTL_MS}}),
            "2025-11-25 has no capabilities in a request"
        );
        assert_eq!(body(Method::Call, Era::Modern)["params"]["_meta"][CAPABILITIES], json!({}));
        for method in [Method::Get("r\"1"), Method::Result("r\"1"), Method::Cancel("r\"1")] {
            let request = body(method, Era::Legacy);
            assert_eq!((&request["method"], &request["params"]), (&json!(method.as_str()), &json!({"taskId": "r\"1"})));
            assert_eq!(body(method, Era::Modern)["params"]["_meta"][CAPABILITIES]["extensions"], known);
        }
        let update = body(Method::Update("r"), Era::Modern);
        assert_eq!(update["params"]["inputResponses"], json!({"a": 1}));
    }

    #[test]
    fn a_server_that_has_no_tasks_is_not_called_for_one() {
        let unfit = |request: Request<'_>, era, tasks| request.unfit(era, Offers { tasks, ..Offers::default() });
        let call = || Request { for_task: true, ..Request::new("tools/call") };
        let error = unfit(call(), Era::Legacy, false).unwrap();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Protocol, false));
        assert!(unfit(Request { task_id: Some("r"), ..Request::new("tasks/get") }, Era::Legacy, false).is_some());
        assert_eq!(unfit(call(), Era::Legacy, true), None);
        assert_eq!(unfit(call(), Era::Modern, false), None, "such a server decides for itself");
        assert_eq!(unfit(Request::new("tools/call"), Era::Legacy, false), None);
    }

    #[test]
    fn headers_of_a_call_travel_as_an_object_in_meta_106() {
        let headers = [(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer \"x\""))];
        let request =
            Request { name: Some("t"), headers: &headers, headers_in_meta: true, ..Request::new("tools/call") };
        for era in [Era::Legacy, Era::Modern] {
            let value: Value = serde_json::from_slice(&request.body(7, era)).unwrap();
            assert_eq!(value["params"]["_meta"]["headers"], json!({"authorization": "Bearer \"x\""}));
        }
    }
}
