//! Rows as tests and benchmarks put them into a store: each says only what matters to it, the rest is from here.

use std::sync::Arc;

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{NewIntent, WorkerId, WorkerInfo};
use mcp_taskd_core::task::{Binding, Toolset};

/// A worker that polls, with a lease of two minutes.
pub fn worker(id: &str) -> WorkerInfo {
    WorkerInfo {
        id: id.into(),
        host: "host".into(),
        pid: 7,
        role: "all".into(),
        version: "1.2.3".into(),
        lease_ms: 120_000,
        polls: true,
    }
}

/// The toolset of tasks that nothing else is known of.
pub fn toolset() -> Toolset {
    Toolset::new("report", "submit", "status", "cancel")
}

/// Tasks of [`toolset`] on `server`.
pub fn binding(server: &str) -> Arc<Binding> {
    Arc::new(Binding { server_name: server.into(), driver: "tools".into(), toolset: toolset() })
}

/// A submit to `server` by `worker` at `now`, when it is due too; without a key, arguments or names of the caller's.
pub fn intent(worker: &WorkerId, id: &str, server: &str, now: Millis) -> NewIntent {
    NewIntent {
        id: id.into(),
        worker: worker.clone(),
        user_id: "user".into(),
        thread_id: "thread".into(),
        run_id: None,
        tool_call_id: None,
        binding: binding(server),
        idempotency_key: None,
        body_hash: None,
        arguments: None,
        next_due_at: now,
        created_at: now,
    }
}
