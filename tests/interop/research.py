"""The task of MCP's own that the TypeScript SDK's "everything" server has, over each transport."""

from pathlib import Path
from typing import Any

from harness import Checks, Daemon, equal

TOOLSET = {"name": "report", "submit_tool": "simulate-research-query", "driver": "native"}


def run(binary: str, folder: Path, servers: dict[str, Any], checks: Checks) -> None:
    folder.mkdir()
    daemon = Daemon(binary, folder, {name: server | {"task_toolsets": [TOOLSET]} for name, server in servers.items()})
    try:
        daemon.start()
        for name in servers:
            checks.run(f"{name}: a research task completes", lambda name=name: completes(daemon, name))
            checks.run(f"{name}: a research task is cancelled", lambda name=name: cancelled(daemon, name))
    finally:
        daemon.stop()


def completes(daemon: Daemon, name: str) -> None:
    # Where nobody says that questions can be answered, an ambiguous topic is none.
    task = daemon.submit(name, topic="tides", ambiguous=True)
    done = daemon.wait(name, task, {"completed", "failed"})
    equal((done["status"], done["error"]), ("completed", None), "the task")
    assert done["result"][0]["text"].startswith("# Research Report: tides"), done["result"]


def cancelled(daemon: Daemon, name: str) -> None:
    task = daemon.submit(name, topic="tides")
    daemon.wait(name, task, {"working"})
    daemon.post(name, task, "cancel")
    daemon.wait(name, task, {"cancelled"})
