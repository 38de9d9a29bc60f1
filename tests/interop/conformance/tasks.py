"""The conformance package's scenarios of the tasks extension against the gateway.

Behind it stands a server of background tasks with ordinary tools; the gateway makes native tasks of them. What cannot pass is
listed here, and docs/CONFORMANCE.md has the reasons.
"""

import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from conformance import upstream
from harness import Checks, Daemon

PASSES = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
)
CANNOT_PASS = ("tasks-required-task-error", "tasks-mrtr-composition")

TASKS = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task")
ROLES = {"status": "status", "cancel": "cancel", "input": "answer"}
SCHEMA = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}


def asked(message: str) -> dict[str, Any]:
    params = {"mode": "form", "message": message, "requestedSchema": SCHEMA}
    return {"method": "elicitation/create", "params": params}


class Upstream(upstream.Upstream):
    """A server whose tools start, show, cancel and answer tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        super().__init__()
        self.RequestHandlerClass = Handler

    def tools(self) -> list[dict[str, Any]]:
        names = ["greet", *TASKS, *(f"{act}_{name}" for name in TASKS for act in ROLES.values())]
        return [{"name": name, "inputSchema": {"type": "object"}} for name in names]

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "greet":
            return {"content": [{"type": "text", "text": f"Hello, {arguments['name']}!"}]}
        if name in TASKS:
            task = {"task_id": str(uuid.uuid4()), "tool": name, "status": "running", "ends": time.monotonic()}
            task["ends"] += arguments.get("seconds", 0)
            if name == "confirm_delete":
                task["input_required"] = {"message": "Delete it?", "requestedSchema": SCHEMA}
            elif name == "multi_input":
                task["input_required"] = {"one": asked("The first?"), "two": asked("The second?")}
            self.tasks[task["task_id"]] = task
            return self.state(task, "running")
        task, act = self.tasks[arguments["task_id"]], name.split("_")[0]
        if act == "cancel" and task["status"] == "running":
            task["status"] = "cancelled"
        elif act == "answer" and task["tool"] == "multi_input":
            for key in arguments["input"]:
                task["input_required"].pop(key, None)
        elif act == "answer":
            task["input_required"] = None
        return self.polled(task)

    def polled(self, task: dict[str, Any]) -> dict[str, Any]:
        if task["status"] != "running":
            return self.state(task, task["status"])
        if task.get("input_required"):
            return self.state(task, "input_required", input_required=task["input_required"])
        if task["tool"] == "failing_job":
            return self.state(task, "failed", error="it always fails")
        if task["tool"] == "protocol_error_job":
            return self.state(task, "no status of the contract")
        if time.monotonic() < task["ends"]:
            return self.state(task, "running")
        return self.state(task, "completed", result={"tool": task["tool"]})

    def state(self, task: dict[str, Any], status: str, **more: Any) -> dict[str, Any]:
        return {"content": [], "structuredContent": {"task_id": task["task_id"], "status": status, **more}}


class Handler(upstream.Handler):
    server: Upstream

    def answer(self, method: str, params: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if method == "tools/call":
            return [], {"result": self.server.call(params["name"], params.get("arguments") or {})}
        return super().answer(method, params)


def run(binary: str, folder: Path, packages: Path, checks: Checks) -> None:
    folder.mkdir()
    server = Upstream()
    toolsets = [
        {"name": name, "submit_tool": name} | {f"{role}_tool": f"{act}_{name}" for role, act in ROLES.items()} for name in TASKS
    ]
    entry = {"type": "http", "url": server.url, "tool_name_prefix": False, "task_toolsets": toolsets}
    daemon = Daemon(binary, folder, {"upstream": entry})
    try:
        daemon.start()
        for scenario in (*PASSES, *CANNOT_PASS):
            passes = scenario in PASSES
            name = f"conformance package: {scenario} {'passes' if passes else 'cannot pass'}"
            checks.run(name, lambda scenario=scenario, passes=passes: judged(daemon, packages, scenario, passes))
    finally:
        daemon.stop()
        server.shutdown()


def judged(daemon: Daemon, packages: Path, scenario: str, passes: bool) -> None:
    command = [str(packages / "node_modules/.bin/conformance"), "server", "--url", f"{daemon.url}/mcp", "--force"]
    command += ["--spec-version", "2026-07-28", "--scenario", scenario, "--timeout", "120000"]
    log = daemon.folder / f"{scenario}.log"
    with log.open("w") as output:
        environment = os.environ | {"NO_COLOR": "1"}
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=daemon.folder, env=environment, timeout=180)
    assert (done.returncode == 0) == passes, f"{log.read_text()[-3000:]}"
