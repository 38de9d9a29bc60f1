-- Deliveries of events to subscribers: one row for each task and sink, which tells the newest event the sink is to hear of.
-- They are made from `task_events`, which is written in the transition's transaction and knows nothing of sinks: a binary one
-- version older loses nothing for them. `event_sinks.position` is how far in the order of events a sink's were taken note of.
CREATE TABLE event_sinks (
    name TEXT PRIMARY KEY CHECK (length(name) <= 64),
    position BIGINT NOT NULL
);

CREATE TABLE event_deliveries (
    -- A task that is pruned or discarded takes them with it, whichever binary deletes it.
    task_id TEXT COLLATE "C" NOT NULL REFERENCES mcp_tasks (id) ON DELETE CASCADE,
    sink TEXT NOT NULL CHECK (length(sink) <= 64),
    -- The newest event, and with it the delivery's version.
    sequence BIGINT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    event_at BIGINT NOT NULL,
    -- `pending`, `retry`, `delivered` or `dead_letter`; one that is claimed names its owner besides.
    state TEXT NOT NULL CHECK (length(state) <= 64),
    -- Of this version.
    attempt_count BIGINT NOT NULL,
    failure_count BIGINT NOT NULL,
    last_error TEXT CHECK (length(last_error) <= 4000),
    next_due_at BIGINT NOT NULL,
    -- The row of a worker goes last in a takeover, and frees what it still had.
    lease_owner TEXT REFERENCES workers (id) ON DELETE SET NULL,
    lease_epoch BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- When it was delivered or given up.
    ended_at BIGINT,
    PRIMARY KEY (task_id, sink)
);

-- What is delivered costs a claim nothing.
CREATE INDEX event_deliveries_due ON event_deliveries (sink, next_due_at, task_id)
    WHERE lease_owner IS NULL AND ended_at IS NULL;
CREATE INDEX event_deliveries_open ON event_deliveries (sink, event_at) WHERE ended_at IS NULL;
CREATE INDEX event_deliveries_owner ON event_deliveries (lease_owner) WHERE lease_owner IS NOT NULL;

ALTER TABLE event_deliveries SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
