"""Report servers made with the Python SDKs, as the daemon sees them: every transport, every end, and restarts."""

import json
import subprocess
import time
from importlib.metadata import version
from typing import Any

from harness import MODERN, Checks, World, end, equal, until

RESULT = {"pages": 12, "ratio": 0.5, "note": "grün ✓"}


def run(world: World, checks: Checks) -> None:
    daemon = world.daemon
    checks.run("check-config --connect reaches every server", lambda: check_config(world))
    checks.run("impatient: submit", lambda: daemon.submit("impatient"))
    submitted: dict[str, dict[str, str]] = {name: {} for name in world.names}

    def submit(name: str) -> None:
        for kind in ("completes", "fails", "asks", "runs", "stumbles"):
            submitted[name][kind] = daemon.submit(name, title=f"{kind} ü", seconds=0.5, kind=kind)

    for name in world.names:
        checks.run(f"{name}: five submits", lambda name=name: submit(name))
    for name in world.names:
        checks.run(f"{name}: completes, fails, asks, is cancelled, stumbles", lambda name=name: ends(world, name, submitted[name]))
    for name in world.names:
        if not name.endswith("stdio"):
            checks.run(f"{name}: protocol, headers and what a poll costs", lambda name=name: wire(world, name))
    restart_between_polls(world, checks)
    restart_with_downtime(world, checks)
    checks.run("impatient: no connection is used that the server may be about to close", lambda: keep_alive(world))


def check_config(world: World) -> None:
    command = [world.daemon.binary, *world.daemon.files, "check-config", "--connect"]
    # It opens the daemon's own store, and registers beside it for a moment.
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"


def ends(world: World, name: str, ids: dict[str, str]) -> None:
    daemon = world.daemon
    assert len(ids) == 5, "not everything was submitted"
    daemon.post(name, ids["runs"], "cancel")

    asked = daemon.wait(name, ids["asks"], {"input_required"})
    equal(asked["input_required"], {"question": "In which currency?", "choices": ["EUR", "USD"]}, "the question")
    daemon.post(name, ids["asks"], "input", {"input": {"currency": "EUR"}})

    completed = daemon.wait(name, ids["completes"], {"completed", "failed"})
    equal(completed["result"], {"title": "completes ü", **RESULT, "answer": None}, "the result")
    equal(completed["result_artifact"]["mime_type"], "application/pdf", "the artifact")
    equal(completed["error"], None, "no error")

    failed = daemon.wait(name, ids["fails"], {"completed", "failed"})
    equal((failed["status"], failed["error"], failed["error_code"]), ("failed", "the ledger is not balanced", "unbalanced"), "the failure")
    equal(daemon.wait(name, ids["runs"], {"cancelled", "failed"})["status"], "cancelled", "the cancelled one")
    answered = daemon.wait(name, ids["asks"], {"completed", "failed"})
    equal(answered["result"], {"title": "asks ü", **RESULT, "answer": {"currency": "EUR"}}, "the answered one's result")
    stumbled = daemon.wait(name, ids["stumbles"], {"completed", "failed"})
    equal(stumbled["status"], "completed", "the one that stumbled")
    polls = daemon.polls(name)
    equal(polls.get("tool_error"), 1.0, f"one poll met the tool's error, of {polls}")
    equal(set(polls) - {"unchanged", "changed", "terminal", "tool_error", "stale"}, set(), f"no other trouble, in {polls}")


def wire(world: World, name: str) -> None:
    server, variant = world.of(name)
    journal = server.journal(variant)
    calls = [line for line in journal if line["method"] == "tools/call"]
    submits = [line for line in calls if line["tool"] == "submit_report"]
    equal(len(submits), 5, "one call a submit")
    keys = {(line["meta"] or {}).get("mcp-taskd/idempotency-key") for line in submits}
    assert len(keys) == 5 and None not in keys, f"every submit has a key of its own: {keys}"
    starts = [line["method"] for line in journal if line["method"] in ("initialize", "server/discover")]
    sse = variant == "sse"
    # The legacy transport knows only protocols with a handshake.
    modern = not version("mcp").startswith("1.") and not sse
    protocols = {line["protocol"] for line in calls}
    # `check-config --connect` was a client of its own.
    if modern:
        equal(protocols, {MODERN}, "the protocol of the calls")
        equal(starts, ["server/discover"] * 2, "how sessions began")
    else:
        equal(protocols, {"2025-11-25"}, "the protocol of the calls")
        equal(starts.count("initialize"), 2, "one handshake a client")
    sessions = {line["session"] for line in calls}
    equal(len(sessions), 1, f"one session for all calls: {sessions}")
    equal(sessions == {None}, modern or sse or variant.startswith("stateless"), "whether the session has a name")
    # A cancel hangs up on the poll under way, which then has no answer.
    codes = {line["code"] for line in calls if line["code"] or line["tool"] != "get_report_status"}
    equal(codes, {202 if sse else 200}, "the answers' codes")
    connections = {tuple(line["peer"]) for line in calls}
    assert len(connections) <= 10, f"{len(connections)} connections for {len(calls)} calls: they are not used again"


def restart_between_polls(world: World, checks: Checks) -> None:
    """Servers die and come back while nothing is due: sessions are gone, and not one poll may fail for that."""
    daemon, hint = world.daemon, 4
    before = {name: daemon.polls(name) for name in world.names}
    ids: dict[str, str] = {}
    lines = {}

    def submit(name: str) -> None:
        ids[name] = daemon.submit(name, title="patient", seconds=7, hint=hint)

    for name in world.names:
        checks.run(f"{name}: submit before a restart", lambda name=name: submit(name))
    checks.run("all are polled before the restart", lambda: until("every task was polled", polled(world, ids)))
    for name in ids:
        server, variant = world.of(name)
        lines[name] = len(server.journal(variant))
    for server in world.servers.values():
        server.kill()
        server.start()
        for line in server.journal("stdio"):
            try:
                end(line["pid"])
            except ProcessLookupError:
                pass  # Children of earlier checks are gone.

    def recovers(name: str) -> None:
        ended = daemon.wait(name, ids[name], {"completed", "failed"}, 100)
        equal(ended["status"], "completed", f"the end, of {ended}")
        after = daemon.polls(name)
        errors = {outcome: count - before[name].get(outcome, 0) for outcome, count in after.items()}
        errors = {outcome: count for outcome, count in errors.items() if count and outcome not in ("unchanged", "changed", "terminal")}
        equal(errors, {}, "polls that failed")
        equal(ended["last_poll_error"], None, "the last error")
        if name.endswith("stdio"):
            return
        server, variant = world.of(name)
        since = server.journal(variant)[lines[name]:]
        lost = [line["code"] for line in since if line["method"] == "tools/call" and line["code"] not in (200, 202)]
        handshakes = [line for line in since if line["method"] == "initialize"]
        if variant == "sse":
            # The end of the stream was seen before the next poll.
            expected: Any = ([], 1)
        elif variant.startswith("stateful") and version("mcp").startswith("1."):
            expected = ([404], 1)
        else:
            expected = ([], 0)
        equal((lost, len(handshakes)), expected, "lost sessions, and handshakes after them")

    for name in ids:
        checks.run(f"{name}: a restart between polls costs no poll", lambda name=name: recovers(name))


def polled(world: World, ids: dict[str, str]) -> Any:
    """Whether each task was polled, by the servers' own records."""

    def check() -> bool:
        for name, task_id in ids.items():
            server, variant = world.of(name)
            folder = server.folder / variant
            remote = world.daemon.get(f"/api/tasks/{task_id}")["remote_task_id"]
            if json.loads((folder / f"{remote}.json").read_text())["polls"] == 0:
                return False
        return True

    return check


def restart_with_downtime(world: World, checks: Checks) -> None:
    """Servers are away for longer than a poll interval."""
    daemon = world.daemon
    ids: dict[str, str] = {}

    def submit(name: str) -> None:
        ids[name] = daemon.submit(name, title="tough", seconds=4)

    names = [name for name in world.names if not name.endswith("stdio")]
    for name in names:
        checks.run(f"{name}: submit before an outage", lambda name=name: submit(name))
    for server in world.servers.values():
        server.kill()
        server.close()
    away = time.monotonic()

    def noticed() -> bool:
        return all(daemon.task(name, task_id)["consecutive_poll_error_count"] >= 1 for name, task_id in ids.items())

    checks.run("the outage shows at every task", lambda: until("every task tells of an error", noticed, 20))
    time.sleep(max(0.0, 2 - (time.monotonic() - away)))
    for server in world.servers.values():
        server.reopen()
        server.start()

    def recovers(name: str) -> None:
        ended = daemon.wait(name, ids[name], {"completed", "failed"}, 100)
        equal(ended["status"], "completed", f"the end, of {ended}")
        equal(ended["consecutive_poll_error_count"], 0, "errors in a row")

    for name in names:
        checks.run(f"{name}: an outage ends no task", lambda name=name: recovers(name))


def keep_alive(world: World) -> None:
    until("five polls", lambda: world.impatient.calls.count("get_report_status") >= 5, 30)
    equal(world.impatient.hung_up, [], "requests on connections that were idle for too long")
    equal(set(world.daemon.polls("impatient")) - {"changed", "unchanged"}, set(), "outcomes")
