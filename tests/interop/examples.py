"""What the documentation shows, as a reader would start it: a whole life of tasks on each server, and agents that connect.

    examples.py BINARY FOLDER PYTHON PACKAGES

PYTHON is an interpreter with `mcp` 1.x and LangChain's adapters, PACKAGES a folder in which node/package.json's dependencies are
installed. The last line counts the checks.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import connections
import webhooks
from harness import HERE, Checks, Daemon, equal, free_port, spawn, until
from node import Http, answers, use_newer_node

SHOWN = HERE.parents[1] / "docs/examples"
TOOLSET = {
    "name": "report",
    "submit_tool": "submit_report",
    "status_tool": "get_report_status",
    "input_tool": "answer_report",
    "cancel_tool": "cancel_report",
    "idempotent_submit": True,
}


class Example:
    """A copy of an example with a port of its own and reports that are ready sooner; nothing else is changed."""

    def __init__(self, name: str, folder: Path, program: list[str], changes: dict[str, str]) -> None:
        self.port, self.log = free_port(), folder / f"{name}.log"
        text = (SHOWN / name).read_text()
        for shown, used in changes.items():
            equal(text.count(shown), 1, f"how often {name} says {shown!r}")
            text = text.replace(shown, used.format(port=self.port))
        (folder / name).write_text(text)
        self.command = [*program, str(folder / name)]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = spawn(self.command, self.log)
        until(f"{self.command} answers", self._answers, 60)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, f"it ended: {self.log.read_text()[-2000:]}"
        return answers(self.port)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def main() -> int:
    binary, folder, python, packages = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    use_newer_node(packages)
    checks = Checks("[examples]")
    started = time.monotonic()
    # Where Node.js looks for what an example imports.
    (folder / "node_modules").symlink_to(packages / "node_modules")
    examples = {
        "python": Example("report_server.py", folder, [python], {"port=9000": "port={port}", "time.time() + 10": "time.time() + 2"}),
        "javascript": Example("report_server.mjs", folder, ["node"], {"PORT = 9000": "PORT = {port}", "Date.now() + 10_000": "Date.now() + 2_000"}),
    }
    servers = {name: {"type": "http", "url": example.url, "task_toolsets": [TOOLSET]} for name, example in examples.items()}
    receivers = [webhooks.Receiver(name, folder) for name in webhooks.RECEIVERS]
    hooks = json.dumps([receiver.webhook for receiver in receivers])
    daemon = Daemon(binary, folder, servers, f"webhooks: {hooks}\n")
    try:
        for name, example in examples.items():
            checks.run(f"{name}: it starts", example.start)
        for receiver in receivers:
            checks.run(f"{receiver.name}: it starts", receiver.start)
        checks.run("WRITING_A_SERVER.md shows a part of the first", excerpt)
        daemon.start()
        ids: dict[str, dict[str, str]] = {}
        for name in examples:
            checks.run(f"{name}: three submits", lambda name=name: ids.update({name: submits(daemon, name)}))
        for name, example in examples.items():
            checks.run(f"{name}: completes, asks, is cancelled", lambda name=name: ends(daemon, name, ids[name]))
            checks.run(f"{name}: a repeated submit starts nothing", lambda example=example: repeats(example))
            checks.run(f"{name}: what is not there", lambda example=example: unknown(example))
        webhooks.run(daemon, "python", receivers, checks)
        connections.run(daemon, "python", folder / "agents", python, checks)
    finally:
        daemon.stop()
        for process in (*examples.values(), *receivers):
            process.stop()
    print(f"{checks.prefix} took {time.monotonic() - started:.0f} s")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def excerpt() -> None:
    shown = re.search(r"```python\n(.*?)```", (SHOWN.parent / "WRITING_A_SERVER.md").read_text(), re.DOTALL)
    assert shown and shown[1] in (SHOWN / "report_server.py").read_text(), "it is another text"


def submits(daemon: Daemon, server: str) -> dict[str, str]:
    return {
        "completes": daemon.submit(server, title="q3"),
        "asks": daemon.submit(server, title="q3", approval=True),
        "is cancelled": daemon.submit(server, title="q3", approval=True),
    }


def ends(daemon: Daemon, server: str, ids: dict[str, str]) -> None:
    asked = daemon.wait(server, ids["asks"], {"input_required", "completed", "failed"})
    equal(asked["input_required"], {"question": "Publish it?", "choices": ["yes", "no"]}, f"the question, of {asked}")
    daemon.post(server, ids["asks"], "input", {"input": "yes"})
    daemon.post(server, ids["is cancelled"], "cancel")
    over = {"completed", "failed", "cancelled"}
    equal(daemon.wait(server, ids["completes"], over)["result"], {"pages": 12, "answer": None}, "a result")
    equal(daemon.wait(server, ids["asks"], over)["result"], {"pages": 12, "answer": "yes"}, "the answered one's result")
    equal(daemon.wait(server, ids["is cancelled"], over)["status"], "cancelled", "the cancelled one")
    polls = daemon.polls(server)
    equal(set(polls) - {"unchanged", "changed", "terminal", "stale"}, set(), f"no poll met trouble, in {polls}")


def repeats(example: Example) -> None:
    client = Http(example.url)

    def submit(key: str) -> str:
        call = {"name": "submit_report", "arguments": {"title": "q3"}, "_meta": {"mcp-taskd/idempotency-key": key}}
        return client.ask("tools/call", call)["structuredContent"]["task_id"]

    equal(submit("k-1"), submit("k-1"), "one key, one report")
    assert submit("k-1") != submit("k-2"), "another key is another report"


def unknown(example: Example) -> None:
    client = Http(example.url)
    for tool in ("get_report_status", "cancel_report"):
        state: Any = client.ask("tools/call", {"name": tool, "arguments": {"task_id": "report-0"}})["structuredContent"]
        equal((state["status"], state["error_code"]), ("failed", "task_not_found"), f"what {tool} says")


if __name__ == "__main__":
    sys.exit(main())
