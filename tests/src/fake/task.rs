//! Tasks of the fake server and the truth about them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::script::{End, Script};

const SHARDS: usize = 64;

/// A task as the server knows it.
#[derive(Debug)]
pub struct FakeTask {
    /// The remote id.
    pub id: String,
    /// The idempotency key of its submit.
    pub idempotency_key: Option<String>,
    /// The submit's arguments.
    pub arguments: String,
    /// What becomes of it.
    pub script: Script,
    created: Instant,
    submits: AtomicU64,
    polls: AtomicU64,
    cancels: AtomicU64,
    inputs: AtomicU64,
    ended: AtomicU8,
    /// Polls that there had been when a cancel was heard, and one more; 0 before.
    cancelled_after: AtomicU64,
    /// Whether it had ended when its cancel came.
    too_late: AtomicBool,
}

/// How a task stands when it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    /// It cannot be told.
    Unavailable,
    /// It waits for input.
    Asks,
    /// It runs.
    Runs,
    /// It has ended.
    Ended(End),
}

/// The truth about a task, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    /// The remote id.
    pub id: String,
    /// The idempotency key of its submit.
    pub idempotency_key: Option<String>,
    /// Submits with that key.
    pub submits: u64,
    /// Status calls answered.
    pub polls: u64,
    /// Cancel calls.
    pub cancels: u64,
    /// Inputs received.
    pub inputs: u64,
    /// How it ended, if it has.
    pub end: Option<End>,
}

impl FakeTask {
    pub(super) fn end(&self) -> Option<End> {
        match self.ended.load(Ordering::Acquire) {
            1 => Some(End::Completed),
            2 => Some(End::Failed),
            3 => Some(End::Cancelled),
            4 => Some(End::NotFound),
            _ => None,
        }
    }

    /// Ends it where it has not ended; the first end stands.
    pub(super) fn finish(&self, end: End) {
        let code = match end {
            End::Completed => 1,
            End::Failed => 2,
            End::Cancelled => 3,
            End::NotFound => 4,
            End::Never => return,
        };
        let _ = self.ended.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Counts a poll and answers it, as the text of a `CallToolResult`.
    pub(super) fn poll(&self) -> String {
        match self.look() {
            Stand::Unavailable => super::tools::tool_error("the status is not available right now"),
            Stand::Asks => self.structured("input_required", r#","input_required":{"question":"Which quarter?"}"#),
            Stand::Runs | Stand::Ended(_) => self.answer(),
        }
    }

    /// Counts a poll; how the task stands then.
    pub(super) fn look(&self) -> Stand {
        let polls = self.polls.fetch_add(1, Ordering::AcqRel) + 1;
        if polls <= self.script.bad_polls {
            return Stand::Unavailable;
        }
        let cancelled = self.cancelled_after.load(Ordering::Acquire);
        if cancelled > 0 {
            if polls >= cancelled + self.script.cancel_polls {
                self.finish(self.script.on_cancel.unwrap_or(End::Cancelled));
            }
            return self.end().map_or(Stand::Runs, Stand::Ended);
        }
        let good = polls - self.script.bad_polls;
        let ripe = good > self.script.polls && self.created.elapsed() >= Duration::from_millis(self.script.run_ms);
        if ripe && self.end().is_none() {
            if self.script.ask_input && self.inputs.load(Ordering::Acquire) == 0 {
                return Stand::Asks;
            }
            self.finish(self.script.end);
        }
        self.end().map_or(Stand::Runs, Stand::Ended)
    }

    /// Counts a native cancel; whether it was heard. What comes of it shows when the task is looked at.
    pub(super) fn heard_cancel(&self) -> bool {
        let cancels = self.cancels.fetch_add(1, Ordering::AcqRel) + 1;
        if cancels <= self.script.deaf_cancels {
            return false;
        }
        self.too_late.store(self.end().is_some(), Ordering::Release);
        let now = self.polls.load(Ordering::Acquire) + 1;
        let _ = self.cancelled_after.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        if self.script.cancel_polls == 0 {
            self.finish(self.script.on_cancel.unwrap_or(End::Cancelled));
        }
        true
    }

    /// Whether it had ended when the last cancel came.
    pub(super) fn ended_before_cancel(&self) -> bool {
        self.too_late.load(Ordering::Acquire)
    }

    /// Takes an answer to its question.
    pub(super) fn answered(&self) {
        self.inputs.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn cancel(&self) -> String {
        let cancels = self.cancels.fetch_add(1, Ordering::AcqRel) + 1;
        if cancels <= self.script.deaf_cancels {
            return super::tools::tool_error("the cancel did not come through");
        }
        self.finish(self.script.on_cancel.unwrap_or(End::Cancelled));
        self.answer()
    }

    pub(super) fn input(&self) -> String {
        self.answered();
        self.answer()
    }

    pub(super) fn submitted(&self) -> String {
        self.structured(self.script.submit_status.as_deref().unwrap_or("running"), "")
    }

    fn answer(&self) -> String {
        match self.end() {
            None => match self.script.poll_after_seconds {
                Some(seconds) => self.structured("running", &format!(",\"poll_after_seconds\":{seconds}")),
                None => self.structured("running", ""),
            },
            Some(End::Completed) => {
                let result = format!(",\"result\":\"{}\"", "r".repeat(self.script.result_bytes.max(2) - 2));
                self.structured("completed", &result)
            }
            Some(End::Failed) => self.structured("failed", ",\"error\":\"the report could not be made\""),
            Some(End::Cancelled) => self.structured("cancelled", ""),
            Some(End::NotFound | End::Never) => self.structured("failed", ",\"error_code\":\"task_not_found\""),
        }
    }

    fn structured(&self, status: &str, more: &str) -> String {
        let mut text = String::with_capacity(128 + more.len());
        let _ = write!(
            text,
            r#"{{"content":[],"structuredContent":{{"task_id":"{}","status":"{status}"{more}}}}}"#,
            self.id
        );
        text
    }

    pub(super) fn truth(&self) -> Truth {
        Truth {
            id: self.id.clone(),
            idempotency_key: self.idempotency_key.clone(),
            submits: self.submits.load(Ordering::Acquire),
            polls: self.polls.load(Ordering::Acquire),
            cancels: self.cancels.load(Ordering::Acquire),
            inputs: self.inputs.load(Ordering::Acquire),
            end: self.end(),
        }
    }
}

/// All tasks, in shards so that polls do not wait for each other.
#[derive(Debug)]
pub(super) struct Tasks {
    shards: Vec<RwLock<HashMap<String, Arc<FakeTask>>>>,
    keys: RwLock<HashMap<String, Arc<FakeTask>>>,
    hasher: RandomState,
    next: AtomicU64,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            keys: RwLock::default(),
            hasher: RandomState::new(),
            next: AtomicU64::new(1),
        }
    }
}

impl Tasks {
    fn shard(&self, id: &str) -> &RwLock<HashMap<String, Arc<FakeTask>>> {
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<FakeTask>> {
        self.shard(id).read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// A new task, or the one that the key made before.
    pub(super) fn submit(&self, key: Option<String>, arguments: String, script: Script) -> Arc<FakeTask> {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = key.as_ref().and_then(|key| keys.get(key)) {
            task.submits.fetch_add(1, Ordering::AcqRel);
            return Arc::clone(task);
        }
        let id = format!("remote-{}-{:x}", self.next.fetch_add(1, Ordering::Relaxed), std::process::id());
        let task = Arc::new(FakeTask {
            id: id.clone(),
            idempotency_key: key.clone(),
            arguments,
            script,
            created: Instant::now(),
            submits: AtomicU64::new(1),
            polls: AtomicU64::new(0),
            cancels: AtomicU64::new(0),
            inputs: AtomicU64::new(0),
            ended: AtomicU8::new(0),
            cancelled_after: AtomicU64::new(0),
            too_late: AtomicBool::new(false),
        });
        if let Some(key) = key {
            keys.insert(key, Arc::clone(&task));
        }
        drop(keys);
        self.shard(&id).write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&task));
        task
    }

    pub(super) fn forget(&self, id: &str) {
        self.shard(id).write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(super) fn truths(&self) -> Vec<Truth> {
        let all = self.shards.iter().flat_map(|shard| {
            shard.read().unwrap_or_else(PoisonError::into_inner).values().map(|task| task.truth()).collect::<Vec<_>>()
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }
}
