//! A server that lives in the test: an [`Upstream`] whose answers are scripted, and which keeps its own record of the truth.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::upstream::{CallError, CallErrorKind, ToolCall, Upstream};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What the server does about one of its tools.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// This structured content; `"$id"` in it is the task's id.
    Structured(Value),
    /// `isError` with this text.
    Error(String),
    /// The connection breaks; whether the call was executed is as given.
    Broken(bool),
    /// No answer until the deadline.
    Hang,
    /// Handling the call panics.
    Panic,
}

/// A running task, as the contract says it.
pub fn running() -> Answer {
    Answer::Structured(json!({"task_id": "$id", "status": "running"}))
}

/// An ended task.
pub fn ended(status: &str) -> Answer {
    Answer::Structured(json!({"task_id": "$id", "status": status, "result": {"by": "$id"}}))
}

/// A scripted server with the tools `submit`, `status`, `cancel`, `input`.
#[derive(Debug, Default)]
pub struct Scripted {
    /// Answers to calls of a tool: those for one task, else those for all; the last one is repeated.
    script: Mutex<HashMap<(String, String), Vec<Answer>>>,
    calls: Mutex<Vec<(String, String)>>,
    keys: Mutex<Vec<String>>,
    submits: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
    held: AtomicBool,
    open: Notify,
    latency: Mutex<Duration>,
}

impl Scripted {
    /// A server that submits `task-1`, `task-2`, … and says that everything runs, and that cancels succeed.
    pub fn new() -> Self {
        let server = Self::default();
        server.on("submit", "", [running()]);
        server.on("status", "", [running()]);
        server.on("cancel", "", [ended("cancelled")]);
        server.on("input", "", [running()]);
        server
    }

    /// Scripts a tool: for one task, or for all (`""`); the last answer is repeated.
    pub fn on(&self, tool: &str, task: &str, answers: impl IntoIterator<Item = Answer>) {
        let answers = answers.into_iter().collect();
        self.script.lock().unwrap().insert((tool.to_owned(), task.to_owned()), answers);
    }

    /// Every call takes this long.
    pub fn slow(&self, latency: Duration) {
        *self.latency.lock().unwrap() = latency;
    }

    /// Holds calls back until [`Scripted::release`].
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    /// Lets held calls go on.
    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.open.notify_waiters();
    }

    /// How often a tool was called for a task, or for all (`""`).
    pub fn calls(&self, tool: &str, task: &str) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(name, id)| name == tool && (task.is_empty() || id == task)).count()
    }

    /// The idempotency keys of the submits, in order.
    pub fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    /// How many calls ran at once, at most.
    pub fn most_in_flight(&self) -> u64 {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    fn next(&self, tool: &str, task: &str) -> Answer {
        let mut script = self.script.lock().unwrap();
        let key = [(tool.to_owned(), task.to_owned()), (tool.to_owned(), String::new())];
        let key = key.into_iter().find(|key| script.contains_key(key)).expect("a scripted tool");
        let answers = script.get_mut(&key).expect("just found");
        if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() }
    }
}

struct InFlight<'a>(&'a AtomicU64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Upstream for Scripted {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        let _in_flight = InFlight(&self.in_flight);
        self.most_in_flight.fetch_max(now, Ordering::SeqCst);
        let arguments: Value = serde_json::from_str(call.arguments.get()).expect("arguments are JSON");
        let task = match arguments["task_id"].as_str() {
            Some(id) => id.to_owned(),
            None => format!("task-{}", self.submits.fetch_add(1, Ordering::SeqCst) + 1),
        };
        if call.tool == "submit" {
            let key = call.meta.iter().find(|(name, _)| *name == "mcp-taskd/idempotency-key");
            self.keys.lock().unwrap().push(key.expect("a submit carries its key").1.to_owned());
        }
        self.calls.lock().unwrap().push((call.tool.to_owned(), task.clone()));
        let latency = *self.latency.lock().unwrap();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        while self.held.load(Ordering::SeqCst) {
            let opened = self.open.notified();
            if self.held.load(Ordering::SeqCst) {
                opened.await;
            }
        }
        let failed = |kind, maybe_executed| CallError {
            kind,
            message: "the scripted connection failed".to_owned(),
            rpc_code: None,
            retry_after: None,
            maybe_executed,
        };
        let result = match self.next(call.tool, &task) {
            Answer::Structured(value) => {
                let text = value.to_string().replace("$id", &task);
                let structured: Value = serde_json::from_str(&text).expect("JSON");
                json!({"content": [], "structuredContent": structured})
            }
            Answer::Error(text) => json!({"isError": true, "content": [{"type": "text", "text": text}]}),
            Answer::Broken(true) => return Err(failed(CallErrorKind::Transport, true)),
            Answer::Broken(false) => return Err(failed(CallErrorKind::Connect, false)),
            Answer::Hang => {
                tokio::time::sleep(call.deadline.unwrap_or(Duration::from_secs(3_600))).await;
                return Err(failed(CallErrorKind::Timeout, true));
            }
            Answer::Panic => panic!("scripted"),
        };
        Ok(to_raw_value(&result).expect("JSON"))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}
