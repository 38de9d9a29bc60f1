-- Tasks, the workers that hold them, and the events they emit.
-- Times are milliseconds since the Unix epoch, booleans 0 or 1, JSON is text. Lengths count characters.

CREATE TABLE workers (
    id TEXT PRIMARY KEY CHECK (length(id) <= 255),
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    role TEXT NOT NULL,
    version TEXT NOT NULL,
    polls INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL CHECK (lease_ms > 0),
    -- 1 or 0; 0 is absorbing.
    live INTEGER NOT NULL,
    heartbeat_count INTEGER NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    held INTEGER NOT NULL
) STRICT;

CREATE TABLE mcp_tasks (
    -- In byte order, like everywhere else.
    id TEXT COLLATE BINARY PRIMARY KEY CHECK (length(id) <= 64),
    user_id TEXT NOT NULL CHECK (length(user_id) <= 255),
    thread_id TEXT NOT NULL CHECK (length(thread_id) <= 255),
    run_id TEXT CHECK (length(run_id) <= 255),
    tool_call_id TEXT CHECK (length(tool_call_id) <= 255),
    server_name TEXT NOT NULL CHECK (length(server_name) <= 128),
    driver TEXT NOT NULL,
    task_name TEXT NOT NULL CHECK (length(task_name) <= 255),
    submit_tool TEXT NOT NULL,
    status_tool TEXT NOT NULL,
    cancel_tool TEXT NOT NULL,
    input_tool TEXT,
    idempotent_submit INTEGER NOT NULL,
    remote_task_id TEXT CHECK (length(remote_task_id) <= 255),
    -- No list of names here: a newer binary may know more of them, and an older one leaves those rows alone.
    status TEXT NOT NULL CHECK (length(status) <= 64),
    result TEXT,
    result_preview TEXT,
    result_truncated INTEGER NOT NULL DEFAULT 0,
    result_artifact TEXT,
    error TEXT CHECK (length(error) <= 4000),
    error_code TEXT CHECK (length(error_code) <= 64),
    input_required TEXT,
    snapshot_digest TEXT,
    event_fingerprint TEXT,
    next_due_at INTEGER NOT NULL,
    poll_attempt_count INTEGER NOT NULL DEFAULT 0,
    consecutive_poll_error_count INTEGER NOT NULL DEFAULT 0,
    last_polled_at INTEGER,
    last_poll_error TEXT CHECK (length(last_poll_error) <= 4000),
    lease_owner TEXT REFERENCES workers (id),
    lease_epoch INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    cancel_attempt_count INTEGER NOT NULL DEFAULT 0,
    last_cancel_error TEXT CHECK (length(last_cancel_error) <= 4000),
    idempotency_key TEXT CHECK (length(idempotency_key) <= 255),
    body_hash TEXT,
    arguments TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    completed_at INTEGER
) STRICT;

-- Starts with (server, remote id), so that it also answers whether anybody tracks a remote task.
CREATE UNIQUE INDEX mcp_tasks_remote ON mcp_tasks (server_name, remote_task_id, user_id)
    WHERE remote_task_id IS NOT NULL;
CREATE UNIQUE INDEX mcp_tasks_idempotency ON mcp_tasks (user_id, thread_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- The claims' indexes hold unowned, active rows only: neither history nor what is held costs a claim anything.
CREATE INDEX mcp_tasks_claim_poll ON mcp_tasks (next_due_at, id)
    WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NULL;
CREATE INDEX mcp_tasks_claim_cancel ON mcp_tasks (next_due_at, id)
    WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NOT NULL;
CREATE INDEX mcp_tasks_owner ON mcp_tasks (lease_owner) WHERE lease_owner IS NOT NULL;

-- The lists' access paths.
CREATE INDEX mcp_tasks_thread ON mcp_tasks (thread_id, created_at, id);
CREATE INDEX mcp_tasks_user ON mcp_tasks (user_id, created_at, id);
CREATE INDEX mcp_tasks_status ON mcp_tasks (status, created_at, id);
CREATE INDEX mcp_tasks_created ON mcp_tasks (created_at, id);

CREATE INDEX mcp_tasks_failing ON mcp_tasks (consecutive_poll_error_count, server_name)
    WHERE completed_at IS NULL AND consecutive_poll_error_count > 0;
CREATE INDEX mcp_tasks_completed ON mcp_tasks (completed_at, id) WHERE completed_at IS NOT NULL;

-- Written in the transaction of the transition they tell of.
CREATE TABLE task_events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX task_events_task ON task_events (task_id, sequence);
CREATE INDEX task_events_thread ON task_events (thread_id, sequence);
CREATE INDEX task_events_user ON task_events (user_id, sequence);
