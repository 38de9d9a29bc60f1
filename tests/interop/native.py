"""Tasks of MCP's own, on servers made with the SDKs of this interpreter; the last line counts the checks.

    native.py BINARY FOLDER
"""

import socket
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import native_client
from harness import HERE, Checks, Daemon, equal, free_port, spawn, until
from native_server import RESULT

TOOLSET = {"name": "report", "submit_tool": "render", "driver": "native"}


class Native:
    """Servers with native tasks, over HTTP and as children, and the daemon in front of them."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.folder, self.running = folder, []
        # The SDK's 2.x has no tasks of its own.
        self.sdks = (["mcp"] if version("mcp").startswith("1.") else []) + ["fastmcp"]
        self.ports = {sdk: free_port() for sdk in self.sdks}
        more = {"task_toolsets": [TOOLSET], "session_init_timeout": 60}
        servers: dict[str, Any] = {}
        for sdk in self.sdks:
            servers[f"{sdk}_http"] = {"type": "http", "url": f"http://127.0.0.1:{self.ports[sdk]}/mcp", **more}
            command = [str(HERE / "native_server.py"), sdk, "stdio"]
            servers[f"{sdk}_stdio"] = {"type": "stdio", "command": sys.executable, "args": command, **more}
        self.names = list(servers)
        self.daemon = Daemon(binary, folder, servers)

    def __enter__(self) -> "Native":
        try:
            for sdk, port in self.ports.items():
                command = [sys.executable, str(HERE / "native_server.py"), sdk, "http", str(port)]
                self.running.append(spawn(command, self.folder / f"{sdk}.log"))
            for sdk, port in self.ports.items():
                until(f"{sdk} is served", lambda port=port: listens(port), 60)
            self.daemon.start()
            until("every tool is listed", lambda: len(self.tools()) == len(self.names), 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def tools(self) -> list[Any]:
        return [tool for tool in self.daemon.get("/api/mcp/tools")["tools"] if tool["name"].endswith("render")]

    def __exit__(self, *_: Any) -> None:
        self.daemon.stop()
        for process in self.running:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    binary, folder = sys.argv[1], Path(sys.argv[2])
    checks = Checks(f"[native, mcp {version('mcp')}, fastmcp {version('fastmcp')}]")
    started = time.monotonic()
    with Native(binary, folder) as native:
        for name in native.names:
            checks.run(f"{name}: a task completes with its result", lambda name=name: completes(native, name))
            checks.run(f"{name}: a tool's error is told", lambda name=name: fails(native, name))
            checks.run(f"{name}: a task is cancelled", lambda name=name: cancelled(native, name))
        native_client.run(native.daemon.url, [f"{name}_render" for name in native.names if name.endswith("_http")], checks)
        if find_spec("fastmcp_tasks"):
            checks.run("fastmcp_http: a question is asked and answered", lambda: asks(native, "fastmcp_http"))
        checks.run("fastmcp_http: a task is found again after kill -9", lambda: killed(native, "fastmcp_http"))
        if "mcp" in native.sdks:
            checks.run("mcp_http: a task of a session that is gone has failed", lambda: forgotten(native, "mcp_http"))
    print(f"{checks.prefix} took {time.monotonic() - started:.0f} s")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def completes(native: Native, name: str) -> None:
    task = native.daemon.submit(name, seconds=1.5)
    done = native.daemon.wait(name, task, {"completed", "failed"})
    equal((done["status"], done["result"], done["error"]), ("completed", RESULT, None), "the task")


def fails(native: Native, name: str) -> None:
    task = native.daemon.submit(name, kind="fails")
    done = native.daemon.wait(name, task, {"completed", "failed"})
    # What the generations make of a tool's own error differs; its text is told by all.
    assert "out of film" in (done["error"] or ""), done


def cancelled(native: Native, name: str) -> None:
    task = native.daemon.submit(name, kind="runs")
    native.daemon.wait(name, task, {"working"})
    native.daemon.post(name, task, "cancel")
    native.daemon.wait(name, task, {"cancelled"})


def asks(native: Native, name: str) -> None:
    task = native.daemon.submit(name, kind="asks")
    asked = native.daemon.wait(name, task, {"input_required"})["input_required"]
    (key, question), = asked.items()
    equal((question["method"], question["params"]["message"]), ("elicitation/create", "How large?"), "the question")
    answer = {key: {"action": "accept", "content": {"size": "A3"}}}
    native.daemon.post(name, task, "input", {"input": answer})
    done = native.daemon.wait(name, task, {"completed", "failed"})
    equal((done["status"], done["result"]), ("completed", {"size": "A3"}), "the task")


def killed(native: Native, name: str) -> None:
    task = native.daemon.submit(name, seconds=3)
    assert native.daemon.process is not None
    native.daemon.process.kill()
    native.daemon.process.wait()
    native.daemon.start()
    done = native.daemon.wait(name, task, {"completed", "failed"})
    equal((done["status"], done["result"]), ("completed", RESULT), "the task")


def forgotten(native: Native, name: str) -> None:
    task = native.daemon.submit(name, seconds=60)
    native.daemon.wait(name, task, {"working"})
    native.daemon.stop()
    native.daemon.start()
    done = native.daemon.wait(name, task, {"completed", "failed"})
    equal((done["status"], done["error_code"]), ("failed", "task_not_found"), "the task")


if __name__ == "__main__":
    sys.exit(main())
