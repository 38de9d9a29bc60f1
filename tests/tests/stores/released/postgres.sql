-- The statements of a program whose newest migration is 4

-- register ttittii
INSERT INTO workers (id, host, pid, role, version, polls, lease_ms, live, heartbeat_count, lease_expires_at, started_at, held) VALUES ($1, $2, $3, $4, $5, $6, $7, 1, 0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $7, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0) RETURNING started_at AS now_ms

-- heartbeat ti
UPDATE workers SET lease_expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + lease_ms, heartbeat_count = heartbeat_count + 1, held = $2 WHERE id = $1 AND live = 1 RETURNING lease_expires_at - lease_ms AS now_ms

-- workers
SELECT n.now_ms, w.id, w.host, w.pid, w.role, w.version, w.polls, w.lease_ms, w.live, w.heartbeat_count, w.lease_expires_at, w.started_at, w.held FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) AS n LEFT JOIN workers AS w ON TRUE ORDER BY w.started_at, w.id

-- mark_dead tti
WITH marker AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE), target AS MATERIALIZED ( SELECT id FROM workers WHERE id = $2 AND live = 1 AND ($3 IS NULL OR heartbeat_count = $3) AND EXISTS (SELECT 1 FROM marker) FOR UPDATE) UPDATE workers AS w SET live = 0 FROM target WHERE w.id = target.id AND w.live = 1 AND ($3 IS NULL OR w.heartbeat_count = $3) RETURNING w.id

-- free_dead iii
WITH picked AS MATERIALIZED ( SELECT id FROM mcp_tasks WHERE lease_owner IN (SELECT id FROM workers WHERE live = 0) LIMIT $2 FOR UPDATE SKIP LOCKED) UPDATE mcp_tasks AS t SET lease_owner = NULL, lease_epoch = t.lease_epoch + 1, next_due_at = GREATEST(t.next_due_at, $1 + floor(random() * $3)::bigint) WHERE t.id = ANY (ARRAY(SELECT id FROM picked)) RETURNING t.id

-- correct_tasks iii
WITH polls AS MATERIALIZED (SELECT id FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') AND next_due_at > (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1) AND cancel_requested_at IS NULL ORDER BY next_due_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED), cancels AS MATERIALIZED (SELECT id FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') AND next_due_at > (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1) AND cancel_requested_at IS NOT NULL ORDER BY next_due_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED) UPDATE mcp_tasks AS t SET lease_epoch = t.lease_epoch + 1, next_due_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + floor(random() * $3)::bigint WHERE t.id = ANY (ARRAY(SELECT id FROM polls UNION ALL SELECT id FROM cancels)) RETURNING t.id

-- correct_leases i
UPDATE workers SET lease_expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + CASE WHEN lease_ms < $1 THEN lease_ms ELSE $1 END WHERE live = 1 AND lease_expires_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1 RETURNING id

-- delete_dead
DELETE FROM workers WHERE live = 0 AND NOT EXISTS (SELECT 1 FROM mcp_tasks WHERE mcp_tasks.lease_owner = workers.id) RETURNING id

-- ended ii
SELECT id FROM mcp_tasks WHERE completed_at IS NOT NULL AND completed_at < $1 ORDER BY completed_at, id LIMIT $2

-- prune_events t
DELETE FROM task_events WHERE task_id IN (SELECT value FROM json_array_elements_text($1::json)) RETURNING sequence

-- prune_tasks t
DELETE FROM mcp_tasks WHERE id IN (SELECT value FROM json_array_elements_text($1::json)) AND completed_at IS NOT NULL RETURNING id

-- claim_polls ttiiitt
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE), picked AS MATERIALIZED ( SELECT id FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') AND next_due_at <= $3 AND ((server_name IN (SELECT value FROM json_array_elements_text($2::json)) AND driver IN (SELECT value FROM json_array_elements_text($7::json))) OR (next_due_at < $4 AND NOT (server_name IN (SELECT value FROM json_array_elements_text($6::json)) AND driver IN (SELECT value FROM json_array_elements_text($7::json))))) AND cancel_requested_at IS NULL AND EXISTS (SELECT 1 FROM me) ORDER BY next_due_at, id LIMIT $5 FOR UPDATE SKIP LOCKED), taken AS (UPDATE mcp_tasks AS t SET lease_owner = $1, lease_epoch = t.lease_epoch + 1 WHERE t.id = ANY (ARRAY(SELECT id FROM picked)) RETURNING t.*) SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at FROM taken

-- claim_cancels ttiiitt
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE), picked AS MATERIALIZED ( SELECT id FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') AND next_due_at <= $3 AND ((server_name IN (SELECT value FROM json_array_elements_text($2::json)) AND driver IN (SELECT value FROM json_array_elements_text($7::json))) OR (next_due_at < $4 AND NOT (server_name IN (SELECT value FROM json_array_elements_text($6::json)) AND driver IN (SELECT value FROM json_array_elements_text($7::json))))) AND cancel_requested_at IS NOT NULL AND EXISTS (SELECT 1 FROM me) ORDER BY next_due_at, id LIMIT $5 FOR UPDATE SKIP LOCKED), taken AS (UPDATE mcp_tasks AS t SET lease_owner = $1, lease_epoch = t.lease_epoch + 1 WHERE t.id = ANY (ARRAY(SELECT id FROM picked)) RETURNING t.*) SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at FROM taken

-- quarantine ttti
UPDATE mcp_tasks SET lease_owner = NULL, lease_epoch = lease_epoch + 1, next_due_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4, last_poll_error = $3 WHERE id = $2 AND lease_owner = $1 RETURNING id

-- owned t
SELECT id, lease_epoch, status FROM mcp_tasks WHERE lease_owner = $1 ORDER BY id

-- load_owned tt
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at FROM mcp_tasks WHERE lease_owner = $1 AND id IN (SELECT value FROM json_array_elements_text($2::json)) ORDER BY id

-- apply tti
WITH input AS MATERIALIZED (SELECT * FROM json_to_recordset($2::json) AS fields (id text, epoch bigint, status text, terminal bigint, has_outcome bigint, result text, result_preview text, result_truncated bigint, result_artifact text, error text, error_code text, input_required text, snapshot_digest text, next_due_at bigint, poll_attempt_count bigint, consecutive_poll_error_count bigint, last_polled_at bigint, has_poll_error bigint, last_poll_error text, cancel_attempt_count bigint, has_cancel_error bigint, last_cancel_error text, event_fingerprint text, completed_at bigint, release bigint, at bigint, events json)), locked AS MATERIALIZED ( SELECT id FROM mcp_tasks WHERE id IN (SELECT id FROM input) ORDER BY id FOR UPDATE), changed AS (UPDATE mcp_tasks AS t SET status = i.status, result = CASE WHEN i.has_outcome = 1 THEN i.result ELSE t.result END, result_preview = CASE WHEN i.has_outcome = 1 THEN i.result_preview ELSE t.result_preview END, result_truncated = CASE WHEN i.has_outcome = 1 THEN i.result_truncated ELSE t.result_truncated END, result_artifact = CASE WHEN i.has_outcome = 1 THEN i.result_artifact ELSE t.result_artifact END, error = CASE WHEN i.has_outcome = 1 THEN i.error ELSE t.error END, error_code = CASE WHEN i.has_outcome = 1 THEN i.error_code ELSE t.error_code END, input_required = CASE WHEN i.has_outcome = 1 THEN i.input_required ELSE t.input_required END, snapshot_digest = CASE WHEN i.has_outcome = 1 THEN i.snapshot_digest ELSE t.snapshot_digest END, event_fingerprint = i.event_fingerprint, next_due_at = i.next_due_at, poll_attempt_count = i.poll_attempt_count, consecutive_poll_error_count = i.consecutive_poll_error_count, last_polled_at = i.last_polled_at, last_poll_error = CASE WHEN i.has_poll_error = 1 THEN i.last_poll_error ELSE t.last_poll_error END, cancel_attempt_count = i.cancel_attempt_count, last_cancel_error = CASE WHEN i.has_cancel_error = 1 THEN i.last_cancel_error ELSE t.last_cancel_error END, arguments = CASE WHEN i.terminal = 1 THEN NULL ELSE t.arguments END, completed_at = i.completed_at, lease_owner = CASE WHEN i.release = 1 THEN NULL ELSE t.lease_owner END, lease_epoch = t.lease_epoch + 1, updated_at = CASE WHEN i.has_outcome = 1 OR i.has_poll_error = 1 OR i.has_cancel_error = 1 OR i.status <> t.status THEN i.at ELSE t.updated_at END FROM input AS i JOIN locked ON locked.id = i.id WHERE t.id = i.id AND t.lease_epoch = i.epoch AND t.lease_owner IS NOT DISTINCT FROM $1 AND t.completed_at IS NULL AND t.status IN ('submitting', 'submitted', 'working', 'input_required') AND ($3 = 0 OR (t.status = 'submitting' AND t.remote_task_id IS NULL)) RETURNING t.id, t.user_id, t.thread_id, t.lease_epoch), emitted AS (INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at) SELECT c.id, c.user_id, c.thread_id, e.kind, i.status, i.at FROM changed AS c JOIN input AS i ON i.id = c.id AND i.epoch = c.lease_epoch - 1 CROSS JOIN LATERAL json_array_elements_text(i.events) WITH ORDINALITY AS e (kind, place) ORDER BY c.id, e.place) SELECT id, lease_epoch FROM changed

-- insert_events t
INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at) SELECT t.id, t.user_id, t.thread_id, e.kind, t.status, e.at FROM json_to_recordset($1::json) AS e (id text, kind text, at bigint) JOIN mcp_tasks AS t ON t.id = e.id

-- inspect t
SELECT id, lease_owner, lease_epoch, status, remote_task_id FROM mcp_tasks WHERE id IN (SELECT value FROM json_array_elements_text($1::json)) ORDER BY id

-- insert_intent ttttttttttttittttii
INSERT INTO mcp_tasks (id, lease_owner, user_id, thread_id, run_id, tool_call_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, idempotent_submit, input_tool, idempotency_key, body_hash, arguments, next_due_at, created_at, updated_at, status, lease_epoch) SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, 'submitting', 1 FROM workers WHERE workers.id = $2 AND workers.live = 1 FOR KEY SHARE ON CONFLICT (user_id, thread_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING lease_epoch

-- find_by_key ttt
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE user_id = $1 AND thread_id = $2 AND idempotency_key = $3

-- record_submitted ttitiii
WITH changed AS (UPDATE mcp_tasks SET remote_task_id = $4, status = 'submitted', arguments = NULL, lease_epoch = lease_epoch + 1, updated_at = $6, lease_owner = CASE WHEN $7 = 1 AND cancel_requested_at IS NULL THEN lease_owner ELSE NULL END, next_due_at = CASE WHEN cancel_requested_at IS NULL THEN $5 ELSE $6 END WHERE id = $2 AND lease_owner = $1 AND lease_epoch = $3 AND status = 'submitting' AND remote_task_id IS NULL RETURNING *), emitted AS (INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at) SELECT id, user_id, thread_id, status, status, $6 FROM changed) SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, lease_owner FROM changed

-- discard_intent tti
DELETE FROM mcp_tasks WHERE id = $2 AND lease_owner = $1 AND lease_epoch = $3 AND status = 'submitting' AND remote_task_id IS NULL RETURNING id

-- is_tracked tt
SELECT id FROM mcp_tasks WHERE server_name = $1 AND remote_task_id = $2 LIMIT 1

-- request_cancel ttti
UPDATE mcp_tasks SET cancel_requested_at = $4, updated_at = $4, lease_epoch = CASE WHEN status = 'submitting' THEN lease_epoch ELSE lease_epoch + 1 END, lease_owner = CASE WHEN status = 'submitting' THEN lease_owner ELSE NULL END, next_due_at = CASE WHEN status = 'submitting' THEN next_due_at ELSE $4 END WHERE id = $1 AND ($2 IS NULL OR user_id = $2) AND ($3 IS NULL OR thread_id = $3) AND cancel_requested_at IS NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') RETURNING id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at

-- make_due ti
UPDATE mcp_tasks SET lease_owner = NULL, lease_epoch = lease_epoch + 1, next_due_at = $2 WHERE id = $1 AND remote_task_id IS NOT NULL AND completed_at IS NULL AND status IN ('submitting', 'submitted', 'working', 'input_required') RETURNING id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at

-- count_bytes
SELECT pg_total_relation_size('mcp_tasks') + pg_total_relation_size('task_events') AS total, CAST(0 AS BIGINT) AS free

-- find_task ttt
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE id = $1 AND ($2 IS NULL OR user_id = $2) AND ($3 IS NULL OR thread_id = $3)

-- tasks_of_thread tttittiti
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE thread_id = $2 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6) AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9

-- tasks_of_user tttittiti
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE user_id = $1 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6) AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9

-- tasks_in_status tttittiti
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE status = $3 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6) AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9

-- tasks_active tttittiti
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE status IN ('submitting', 'submitted', 'working', 'input_required') AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6) AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9

-- tasks tttittiti
SELECT id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, lease_epoch, created_at, run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, updated_at, completed_at FROM mcp_tasks WHERE ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6) AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9

-- events_of_task tttitii
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, sequence, task_id, user_id, thread_id, kind, status, created_at FROM task_events WHERE task_id = $5 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR task_id = $5) AND sequence > $6 ORDER BY sequence LIMIT $7

-- events_of_thread tttitii
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, sequence, task_id, user_id, thread_id, kind, status, created_at FROM task_events WHERE thread_id = $2 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR task_id = $5) AND sequence > $6 ORDER BY sequence LIMIT $7

-- events_of_user tttitii
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, sequence, task_id, user_id, thread_id, kind, status, created_at FROM task_events WHERE user_id = $1 AND ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR task_id = $5) AND sequence > $6 ORDER BY sequence LIMIT $7

-- events tttitii
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, sequence, task_id, user_id, thread_id, kind, status, created_at FROM task_events WHERE ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2) AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ('submitting', 'submitted', 'working', 'input_required')) AND ($5 IS NULL OR task_id = $5) AND sequence > $6 ORDER BY sequence LIMIT $7

-- news ii
SELECT sequence, task_id, thread_id FROM task_events WHERE sequence > $1 ORDER BY sequence DESC LIMIT $2

-- count_tasks ti
SELECT s.value AS label, (SELECT count(*) FROM (SELECT 1 FROM mcp_tasks AS t WHERE t.status >= s.value AND t.status <= s.value ORDER BY t.status, t.created_at LIMIT $2) AS bounded) AS total FROM (SELECT value FROM json_array_elements_text($1::json)) AS s

-- count_degraded ii
SELECT server_name AS label, count(*) AS total FROM (SELECT server_name FROM mcp_tasks WHERE completed_at IS NULL AND consecutive_poll_error_count > 0 AND consecutive_poll_error_count >= $1 ORDER BY consecutive_poll_error_count LIMIT $2) AS bounded GROUP BY server_name ORDER BY server_name

-- count_due ii
SELECT count(*) AS total, min(next_due_at) AS oldest FROM ( SELECT next_due_at FROM (SELECT next_due_at FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NULL AND next_due_at <= $1 ORDER BY next_due_at LIMIT $2) AS polls UNION ALL SELECT next_due_at FROM (SELECT next_due_at FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NOT NULL AND next_due_at <= $1 ORDER BY next_due_at LIMIT $2) AS cancels) AS due

-- find_quarantined ii
SELECT id, last_poll_error FROM ( SELECT id, last_poll_error FROM (SELECT id, last_poll_error FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NULL AND next_due_at > $1 ORDER BY next_due_at DESC LIMIT $2) AS polls UNION ALL SELECT id, last_poll_error FROM (SELECT id, last_poll_error FROM mcp_tasks WHERE lease_owner IS NULL AND completed_at IS NULL AND cancel_requested_at IS NOT NULL AND next_due_at > $1 ORDER BY next_due_at DESC LIMIT $2) AS cancels) AS later WHERE last_poll_error LIKE 'quarantined: %' ORDER BY id LIMIT 100

-- count_workers
SELECT count(*) AS total, CAST(coalesce(sum(polls), 0) AS BIGINT) AS polling FROM workers WHERE live = 1 AND lease_expires_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- ping
SELECT CAST(CASE WHEN current_setting('transaction_read_only') = 'on' THEN 1 ELSE 0 END AS BIGINT) AS read_only

-- schema_version
SELECT max(version) AS version FROM schema_migrations

-- generation t
SELECT name, value FROM shared_state WHERE name = $1

-- next_generation t
INSERT INTO shared_state (name, value) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET value = shared_state.value + 1 RETURNING name, value

-- find_chain tt
SELECT server_name, version, sealed, expires_at - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS remaining_ms, interrupted FROM oauth_tokens WHERE server_name = $1 AND fingerprint = $2

-- claim_refresh ttti
INSERT INTO oauth_tokens AS t (server_name, fingerprint, version, expires_at, lease_owner, lease_expires_at, interrupted, updated_at) VALUES ($1, $2, 0, 0, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4, 0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) ON CONFLICT (server_name, fingerprint) DO UPDATE SET lease_owner = $3, lease_expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4, interrupted = CASE WHEN t.lease_owner <> $3 THEN 1 ELSE t.interrupted END WHERE t.lease_owner IS NULL OR t.lease_owner = $3 OR t.lease_expires_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint RETURNING server_name, version, sealed, expires_at - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS remaining_ms, interrupted

-- renew_refresh ttti
UPDATE oauth_tokens SET lease_expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4 WHERE server_name = $1 AND fingerprint = $2 AND lease_owner = $3 RETURNING version

-- release_refresh ttti
UPDATE oauth_tokens SET lease_owner = NULL, interrupted = CASE WHEN $4 = 1 THEN 1 ELSE interrupted END WHERE server_name = $1 AND fingerprint = $2 AND lease_owner = $3 RETURNING version

-- save_chain tttiti
INSERT INTO oauth_tokens AS t (server_name, fingerprint, saved_by, version, sealed, expires_at, lease_expires_at, interrupted, updated_at) VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6, 0, 0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) ON CONFLICT (server_name, fingerprint) DO UPDATE SET saved_by = $3, version = $4, sealed = $5, expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6, interrupted = 0, updated_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, lease_owner = CASE WHEN t.lease_owner = $3 THEN NULL ELSE t.lease_owner END WHERE t.version < $4 OR (t.version = $4 AND t.saved_by = $3) RETURNING version

-- retain_chains t
DELETE FROM oauth_tokens WHERE server_name NOT IN (SELECT value FROM json_array_elements_text($1::json)) AND NOT (server_name LIKE 'personal!_%' ESCAPE '!' AND length(server_name) = 41) RETURNING server_name

-- insert_key ttttii
INSERT INTO api_keys (id, user_id, scopes, secret_hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING RETURNING id

-- find_key t
SELECT id, user_id, scopes, secret_hash, created_at, expires_at, last_used_at, revoked_at FROM api_keys WHERE id = $1

-- list_keys iti
SELECT id, user_id, scopes, secret_hash, created_at, expires_at, last_used_at, revoked_at FROM api_keys WHERE (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3

-- revoke_key ti
UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING id, user_id, scopes, secret_hash, created_at, expires_at, last_used_at, revoked_at

-- touch_key tii
UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= $3) RETURNING id
