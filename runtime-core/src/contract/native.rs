//! What MCP's own task objects mean, of both generations: the extension `io.modelcontextprotocol/tasks` of 2026-07-28
//! (SEP-2663) and the experimental tasks of 2025-11-25 (SEP-1686). An answer's shape tells which one it is of.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::status::{Flaw, StatusReading, advice, check_id, json, positive, slot, terminal, text, wait};
use super::submit::check_handle;
use super::{Refusal, ToolAnswer};
use crate::task::limits::{ERROR_MAX_CHARS, clip};
use crate::task::transition::code;
use crate::task::{Json, Limits, Outcome, Snapshot, Status};

/// What a call that may start a task has brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// A task of the server's.
    Task(Handle),
    /// The work's end, at once: there is no task of the server's.
    Ended(Box<Snapshot>),
}

/// Why a call that may start a task has brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotCreated {
    /// The server refused, or answered wrongly: there is no task, or one to cancel.
    Refused(Refusal),
    /// The answer cannot be judged (146): the work may have been done, or go on.
    Unreadable(String),
}

/// A task of the server's, as it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The server's id, 1–255 characters.
    pub remote_id: String,
    /// When the server wants to be asked first.
    pub hint: Option<Duration>,
    /// How long the server keeps the task, from its creation on.
    pub ttl: Option<Duration>,
}

impl Handle {
    /// A task of which no more than the id is known.
    pub fn new(remote_id: String) -> Self {
        Self { remote_id, hint: None, ttl: None }
    }
}

/// What `tasks/get` has told.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskReading {
    /// All there is to know.
    Read(StatusReading),
    /// The task has ended so, and `tasks/result` has what came of it (2025-11-25).
    Fetch(Box<Snapshot>),
}

/// The members of a task object, each as it came. Where the generations differ in a name, the newer one's is first.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Wire<'a> {
    #[serde(borrow)]
    result_type: Option<&'a RawValue>,
    #[serde(borrow)]
    task_id: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    status_message: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl: Option<&'a RawValue>,
    #[serde(borrow)]
    poll_interval_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    poll_interval: Option<&'a RawValue>,
    #[serde(borrow)]
    input_requests: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Wire<'_> {
    /// Whether only the newer generation says it like this; then `tasks/get` has told everything.
    fn is_whole(&self) -> bool {
        [self.result_type, self.ttl_ms, self.poll_interval_ms].iter().any(Option::is_some)
    }

    fn status(&self) -> Result<Status, Flaw> {
        let Some(named) = self.status.map(text).transpose()?.flatten() else {
            return Flaw::violation("status is missing or no string");
        };
        match named.as_str() {
            "working" => Ok(Status::Working),
            "input_required" => Ok(Status::InputRequired),
            other => {
                terminal(other).map_or_else(|| Flaw::violation(format!("unexpected status {:?}", clip(&named, 64))), Ok)
            }
        }
    }

    fn hint(&self, warnings: &mut Vec<String>) -> Option<Duration> {
        let interval = self.poll_interval_ms.or(self.poll_interval);
        positive(interval, "the poll interval", warnings).map(|ms| wait(ms / 1_000.0))
    }

    fn ttl(&self, warnings: &mut Vec<String>) -> Option<Duration> {
        let ttl = positive(self.ttl_ms.or(self.ttl), "the ttl", warnings)?;
        // One that no clock holds is none.
        Duration::try_from_secs_f64(ttl / 1_000.0).ok()
    }
}

/// Reads the answer to a call of `tool` that may be answered by a task, or by the tool's result.
pub fn read_created(result: &RawValue, tool: &str, limits: &Limits) -> Result<Created, NotCreated> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Nested<'a> {
        #[serde(borrow)]
        task: Option<&'a RawValue>,
    }
    let wire = object::<Wire<'_>>(result).map_err(|flaw| flaw.of_submit(tool, None))?;
    let nested = object::<Nested<'_>>(result).map_err(|flaw| flaw.of_submit(tool, None))?;
    let wire = match (wire.task_id, nested.task.map(object::<Wire<'_>>)) {
        (None, Some(Ok(nested))) if nested.task_id.is_some() => nested,
        _ => wire,
    };
    if wire.task_id.is_none() {
        return match wire.result_type.map(text) {
            Some(Ok(Some(kind))) if kind == "task" => {
                Err(Flaw::Violation("taskId is missing".to_owned()).of_submit(tool, None))
            }
            Some(Ok(Some(kind))) if kind == "input_required" => {
                Err(refused(format!("{tool} asks for input before it starts, which is not supported here")))
            }
            _ => at_once(result, tool, limits).map(|snapshot| Created::Ended(Box::new(snapshot))),
        };
    }
    let remote_id = check_handle(wire.task_id, "taskId", tool).map_err(NotCreated::Refused)?;
    let status = wire.status().map_err(|flaw| flaw.of_submit(tool, Some(&remote_id)))?;
    let mut ignored = Vec::new();
    // One that has ended already is asked for its result at once.
    let hint = if status.is_terminal() { Some(Duration::ZERO) } else { wire.hint(&mut ignored) };
    Ok(Created::Task(Handle { remote_id, hint, ttl: wire.ttl(&mut ignored) }))
}

/// The end of work whose call was answered by the tool's result. An error of the tool's is one of the call (5).
fn at_once(result: &RawValue, tool: &str, limits: &Limits) -> Result<Snapshot, NotCreated> {
    match ToolAnswer::read(result) {
        Ok(answer) if answer.is_error => return Err(refused(format!("{tool} returned an error: {}", answer.snippet))),
        _ => {}
    }
    let mut snapshot = Snapshot::bare(Status::Completed);
    take_result(&mut snapshot.outcome, result, limits).map_err(|flaw| flaw.of_submit(tool, None))?;
    Ok(snapshot)
}

fn refused(message: String) -> NotCreated {
    NotCreated::Refused(Refusal { message, orphan: None })
}

impl Flaw {
    /// What it makes of the answer of `tool` to a submit that has handed over the task `orphan`, if any.
    fn of_submit(self, tool: &str, orphan: Option<&str>) -> NotCreated {
        match (self, orphan) {
            (Self::Violation(why), _) => NotCreated::Refused(Refusal {
                message: format!("{tool} broke the task contract: {why}"),
                orphan: orphan.map(str::to_owned),
            }),
            // What can be named can be cancelled.
            (Self::Unreadable(why), Some(_)) => Self::Violation(why).of_submit(tool, orphan),
            (Self::Unreadable(why), None) => {
                NotCreated::Unreadable(format!("the answer of {tool} cannot be judged: {why}"))
            }
        }
    }
}

/// Reads the answer to `tasks/get` about the task `remote_id`.
pub fn read_task(result: &RawValue, remote_id: &str, limits: &Limits) -> TaskReading {
    let wire = match object::<Wire<'_>>(result) {
        Ok(wire) => wire,
        Err(flaw) => return TaskReading::Read(flaw.reading(GET)),
    };
    match snapshot(&wire, remote_id, limits) {
        Ok((snapshot, true)) => TaskReading::Fetch(Box::new(snapshot)),
        Ok((snapshot, false)) => TaskReading::Read(StatusReading::Snapshot(Box::new(snapshot))),
        Err(flaw) => TaskReading::Read(flaw.reading(GET)),
    }
}

/// Puts the answer to `tasks/result` into the end that `tasks/get` told of.
pub fn read_result(mut ended: Snapshot, result: &RawValue, limits: &Limits) -> StatusReading {
    match take_result(&mut ended.outcome, result, limits) {
        Ok(()) => StatusReading::Snapshot(Box::new(ended)),
        Err(flaw) => flaw.reading(RESULT),
    }
}

/// The end of a task that the server does not know any more, in the server's words (11).
pub fn not_found(message: &str) -> Snapshot {
    let message = message.trim();
    Snapshot::failure(code::TASK_NOT_FOUND, if message.is_empty() { "Remote MCP task was not found" } else { message })
}

/// The end of a failed task whose `tasks/result` answers with the JSON-RPC error that it failed with (2025-11-25).
pub fn failed_with(mut ended: Snapshot, error_code: Option<i64>, message: &str) -> Snapshot {
    ended.outcome.error = Some(clip(message, ERROR_MAX_CHARS));
    ended.outcome.error_code = error_code.map(|code| code.to_string());
    ended
}

const GET: &str = "tasks/get";
const RESULT: &str = "tasks/result";

/// The snapshot, and whether the rest of it is to be fetched.
fn snapshot(wire: &Wire<'_>, remote_id: &str, limits: &Limits) -> Result<(Snapshot, bool), Flaw> {
    let mut warnings = Vec::new();
    match wire.task_id.map(text).transpose()?.flatten() {
        Some(id) => check_id(&id, remote_id)?,
        None => return Flaw::violation("taskId is missing or no string"),
    }
    let mut snapshot = Snapshot::bare(wire.status()?);
    let mut fetch = false;
    let outcome = &mut snapshot.outcome;
    let message = advice(wire.status_message, "statusMessage", ERROR_MAX_CHARS, &mut warnings);
    match snapshot.status {
        Status::InputRequired => match input(wire, message.as_deref())? {
            Some(input) => outcome.input_required = Some(input),
            // What was asked has been answered: there is nothing to wait for.
            None => snapshot.status = Status::Working,
        },
        Status::Completed => match wire.result {
            Some(result) => take_result(outcome, result, limits)?,
            None if wire.is_whole() => return Flaw::violation("it is completed without a result"),
            None => fetch = true,
        },
        Status::Failed => {
            if let Some(error) = wire.error {
                take_error(outcome, error)?;
            } else {
                outcome.error = message;
                fetch = !wire.is_whole();
            }
        }
        // Of progress in words nothing is kept: each of them would be a write.
        Status::Cancelled => outcome.error = message,
        Status::Submitting | Status::Submitted | Status::Working => {}
    }
    snapshot.hint = wire.hint(&mut warnings);
    snapshot.ttl = wire.ttl(&mut warnings);
    snapshot.warning = (!warnings.is_empty()).then(|| format!("ignored: {}", warnings.join("; ")));
    Ok((snapshot, fetch))
}

/// What the task asks, by keys for the answers; `None` where all of it is answered.
///
/// A server of 2025-11-25 asks elsewhere: all that is known here is its message.
fn input(wire: &Wire<'_>, message: Option<&str>) -> Result<Option<Json>, Flaw> {
    match slot(wire.input_requests, "inputRequests")? {
        Some(requests) if requests.as_str() == "{}" => Ok(None),
        Some(requests) if requests.as_str().starts_with('{') => Ok(Some(requests)),
        Some(_) => Flaw::violation("inputRequests is no object"),
        None if wire.is_whole() => Flaw::violation("input_required carries no inputRequests"),
        None => Ok(Some(Json::from_stored(serde_json::json!({ "statusMessage": message }).to_string()))),
    }
}

/// What a tool's result is as a task's: its structured content, or else its content blocks. A tool that reports an error has
/// run to its end all the same, as the protocol has it; the error stands beside its result.
fn take_result(outcome: &mut Outcome, result: &RawValue, limits: &Limits) -> Result<(), Flaw> {
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    let (Ok(answer), Ok(Content { content })) = (ToolAnswer::read(result), serde_json::from_str(result.get())) else {
        return Flaw::violation("the result is no tool result");
    };
    let Some(payload) = answer.structured.as_deref().or(content) else {
        return Flaw::violation("the result has neither structuredContent nor content");
    };
    outcome.set_result(json(payload)?, limits);
    if answer.is_error {
        outcome.error = Some(format!("The tool returned an error: {}", answer.snippet));
        outcome.error_code = Some(code::TOOL_ERROR.to_owned());
    }
    Ok(())
}

/// The JSON-RPC error that a task failed with.
fn take_error(outcome: &mut Outcome, error: &RawValue) -> Result<(), Flaw> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Error<'a> {
        #[serde(borrow)]
        code: Option<&'a RawValue>,
        #[serde(borrow)]
        message: Option<&'a RawValue>,
    }
    let error: Error<'_> = serde_json::from_str(error.get()).unwrap_or_default();
    let message = error.message.map(text).transpose()?.flatten();
    outcome.error = Some(clip(message.as_deref().unwrap_or("The task failed without a message"), ERROR_MAX_CHARS));
    outcome.error_code = error.code.and_then(|code| code.get().parse::<i64>().ok()).map(|code| code.to_string());
    Ok(())
}

fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, Flaw> {
    if !raw.get().starts_with('{') {
        return Err(Flaw::Unreadable("it is no object".to_owned()));
    }
    serde_json::from_str(raw.get()).map_err(|_| Flaw::Violation("it names a member twice".to_owned()))
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;
