//! What a tool call answers; the one place that turns errors into MCP.

use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::task::limits::{PUBLIC_ERROR_MAX_CHARS, clip};
use mcp_taskd_core::task::{Status, TaskRecord};
use mcp_taskd_core::upstream::CallError;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::view::raw;

/// The answer to a tool call.
#[derive(Debug)]
pub enum Outcome {
    /// A server's own result.
    Raw(Box<RawValue>),
    /// A text, and the same for programs.
    Structured {
        /// For the model.
        text: String,
        /// `structuredContent`.
        content: Box<RawValue>,
    },
    /// A text that says what went wrong and what to do.
    Error(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    content: [Text<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a RawValue>,
    is_error: bool,
}

/// A text block.
#[derive(Serialize)]
pub struct Text<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl<'a> Text<'a> {
    /// A block of this text.
    pub fn new(text: &'a str) -> Self {
        Self { kind: "text", text }
    }
}

impl Outcome {
    /// A JSON document, as text and for programs.
    pub fn json(value: &impl Serialize) -> Self {
        let content = raw(value);
        Self::Structured { text: content.get().to_owned(), content }
    }

    /// The text of the `CallToolResult`.
    pub fn into_raw(self) -> Box<RawValue> {
        let (text, structured_content, is_error) = match &self {
            Self::Raw(_) => ("", None, false),
            Self::Structured { text, content } => (text.as_str(), Some(&**content), false),
            Self::Error(text) => (text.as_str(), None, true),
        };
        let result = ToolResult { content: [Text::new(text)], structured_content, is_error };
        match self {
            Self::Raw(result) => result,
            _ => raw(&result),
        }
    }
}

#[derive(Serialize)]
struct Submitted<'a> {
    task_id: &'a str,
    task_name: &'a str,
    status: Status,
    message: &'a str,
}

/// What a model is told of a submit: the local id, and the request not to poll (6).
pub fn told(task: &TaskRecord, builtin_tools: bool) -> String {
    let name = &task.binding.toolset.name;
    if task.status.is_terminal() {
        // Its server answered at once.
        let lookup = if builtin_tools { " get_background_task has its result." } else { "" };
        let id = &task.id;
        return format!(
            "The background task {name:?} was submitted as {id} and has ended already: {}.{lookup}",
            task.status
        );
    }
    let lookup = if builtin_tools {
        " When the result is needed, look it up with get_background_task; cancel_background_task ends it early."
    } else {
        ""
    };
    format!(
        "The background task {name:?} was submitted as {id}. It is tracked automatically: do not poll it, do not wait \
         for it and do not submit it again. Tell the user that it is running and go on.{lookup}",
        id = task.id,
    )
}

/// The answer to a submit.
pub fn submitted(task: &TaskRecord, builtin_tools: bool) -> Outcome {
    let (name, message) = (&task.binding.toolset.name, told(task, builtin_tools));
    let status = if task.status.is_terminal() { task.status } else { Status::Submitted };
    let content = raw(&Submitted { task_id: &task.id, task_name: name, status, message: &message });
    Outcome::Structured { text: message, content }
}

/// A refused submit, cancel or query, in words that help a model.
pub fn refused(error: &ServiceError) -> Outcome {
    let advice = match error {
        ServiceError::NotFound(_) | ServiceError::Conflict(_) | ServiceError::Invalid(_) => "",
        ServiceError::Refused(_) => " No background task was started.",
        ServiceError::OutcomeUnknown { task_id, .. } => {
            return Outcome::Error(format!(
                "{} Whether the work was started is unknown; it is recorded as {task_id}. Do not submit it again \
                 without asking the user.",
                sentence(error)
            ));
        }
        ServiceError::Draining | ServiceError::Unavailable => " Nothing was started; try again in a minute.",
        ServiceError::Internal => " The operator's log says more.",
    };
    Outcome::Error(format!("{}{advice}", sentence(error)))
}

/// An ordinary tool whose server could not be asked.
pub fn unreachable(server: &str, error: &CallError) -> Outcome {
    let maybe = if error.maybe_executed { " The call may have been executed." } else { "" };
    Outcome::Error(format!("The call to server {server:?} failed: {}{maybe}", sentence(error)))
}

fn sentence(error: &impl std::fmt::Display) -> String {
    let mut text = clip(&error.to_string(), PUBLIC_ERROR_MAX_CHARS);
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submit_answers_with_the_local_id_and_asks_not_to_poll_6() {
        let task = crate::view::tests::task("mcp-task-1");
        let text = submitted(&task, true).into_raw().get().to_owned();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let structured = &value["structuredContent"];
        assert_eq!(structured["task_id"], "mcp-task-1");
        assert_eq!(structured["task_name"], "report");
        assert_eq!(structured["status"], "submitted");
        assert_eq!(value["content"].as_array().unwrap().len(), 1);
        assert_eq!(value["content"][0]["text"], structured["message"]);
        assert!(structured["message"].as_str().unwrap().contains("do not poll"));
        assert!(!text.contains("remote-secret"), "the remote id is never shown");
        assert!(!submitted(&task, false).into_raw().get().contains("get_background_task"));
    }

    #[test]
    fn a_submit_that_was_answered_at_once_says_how_it_ended() {
        let mut task = crate::view::tests::task("mcp-task-1");
        task.tracked.status = Status::Completed;
        let value: serde_json::Value = serde_json::from_str(submitted(&task, true).into_raw().get()).unwrap();
        assert_eq!(value["structuredContent"]["status"], "completed");
        let text = value["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("ended already: completed") && text.contains("get_background_task"), "{text}");
        assert!(!text.contains("running"), "{text}");
    }

    #[test]
    fn an_unknown_outcome_names_the_local_id_145() {
        let error = ServiceError::OutcomeUnknown { task_id: "mcp-task-1".into(), message: "no answer in time".into() };
        let value: serde_json::Value = serde_json::from_str(refused(&error).into_raw().get()).unwrap();
        assert_eq!(value["isError"], true);
        assert!(value["content"][0]["text"].as_str().unwrap().contains("mcp-task-1"));
        assert!(value.get("structuredContent").is_none());
    }

    #[test]
    fn a_servers_result_is_passed_on_untouched() {
        let text = r#"{"isError":true,"content":[{"type":"odd"}],"n":1.10}"#;
        assert_eq!(Outcome::Raw(RawValue::from_string(text.into()).unwrap()).into_raw().get(), text);
    }
}
