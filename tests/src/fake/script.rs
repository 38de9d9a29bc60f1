//! What becomes of a task on the fake server.

use serde::Deserialize;

/// How a task ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With a result.
    #[default]
    Completed,
    /// With an error.
    Failed,
    /// Cancelled by the server itself.
    Cancelled,
    /// Forgotten: `error_code: "task_not_found"`.
    NotFound,
    /// Not at all.
    Never,
}

/// A task's script, also accepted in the submit tool's arguments as `{"script": {…}}`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Script {
    /// Polls answered `running` before the end.
    pub polls: u64,
    /// Time that has to pass before the end, in milliseconds.
    pub run_ms: u64,
    /// How it ends.
    pub end: End,
    /// Asks for input first, and waits for it.
    pub ask_input: bool,
    /// Size of the result's text, in bytes.
    pub result_bytes: usize,
    /// The hint in `running` answers.
    pub poll_after_seconds: Option<f64>,
    /// What a cancel of a running task leads to; cancelled where absent.
    pub on_cancel: Option<End>,
    /// Cancels that fail with `isError` before one is heard.
    pub deaf_cancels: u64,
    /// Polls that fail with `isError` before the first good one.
    pub bad_polls: u64,
    /// The submit's answer has this status instead of `running`.
    pub submit_status: Option<String>,
    /// A native task is none: its call is answered by the result.
    pub at_once: bool,
    /// The tool of a native task reports an error as its result.
    pub reports_error: bool,
    /// How long a native task says that it is kept.
    pub ttl_ms: Option<u64>,
    /// Polls answered `working` after a native task's cancel was acknowledged.
    pub cancel_polls: u64,
}
