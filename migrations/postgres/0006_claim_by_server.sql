-- Claims of listed servers: without these they would look at all that waits of the others. As the claims' other indexes, they hold
-- unowned, active rows only; a row is in one of the two. The last condition is always true, and only those claims say it: no other
-- statement can be planned to read these indexes for want of a server.
CREATE INDEX mcp_tasks_server_poll ON mcp_tasks (server_name, next_due_at, id)
    WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NULL AND server_name <> '';
CREATE INDEX mcp_tasks_server_cancel ON mcp_tasks (server_name, next_due_at, id)
    WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NOT NULL AND server_name <> '';
