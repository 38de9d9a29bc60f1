"""Servers made with the TypeScript SDK and started as people start them, with npx; the last line counts the checks.

    node.py BINARY FOLDER PACKAGES

PACKAGES is a folder in which package.json's dependencies are installed. Clients of the gateway come from there too: the
MCP Inspector and the conformance package.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import files
import inspector
import research
from conformance import scenarios, tasks
from harness import Checks, Daemon, equal, free_port, spawn, until

PROTOCOL = "2025-11-25"
CLIENT = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "interop", "version": "0"}}
EVERYTHING = ("everything_stdio", "everything_sse", "everything_http")


class Node:
    """The servers that listen, and the daemon in front of all."""

    def __init__(self, binary: str, folder: Path, packages: Path) -> None:
        self.folder, self.packages = folder, packages
        self.ports = {"sse": free_port(), "streamableHttp": free_port()}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"http://127.0.0.1:{self.ports['streamableHttp']}/mcp"
        self.everything = {
            "everything_stdio": self.npx("mcp-server-everything", "stdio"),
            "everything_sse": {"type": "sse", "url": f"http://127.0.0.1:{self.ports['sse']}/sse"},
            "everything_http": {"type": "http", "url": self.url},
        }
        servers = self.everything | {"playwright": self.npx("playwright-mcp", "--headless")}
        self.daemon = Daemon(binary, folder, servers)

    def npx(self, program: str, *arguments: str) -> dict[str, Any]:
        return {"command": "npx", "args": ["--prefix", str(self.packages), "--no-install", program, *arguments]}

    def start(self, transport: str) -> None:
        command = [str(self.packages / "node_modules/.bin/mcp-server-everything"), transport]
        log = self.folder / f"{transport}.log"
        port = self.ports[transport]
        self.running[transport] = spawn(command, log, env=os.environ | {"PORT": str(port)})
        until(f"{transport} is served", lambda: answers(port), 60)

    def kill(self, transport: str) -> None:
        self.running[transport].kill()
        self.running[transport].wait()

    def __enter__(self) -> "Node":
        try:
            for transport in self.ports:
                self.start(transport)
            self.daemon.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.daemon.stop()
        for transport in self.running:
            self.kill(transport)


def answers(port: int) -> bool:
    try:
        open_url(urllib.request.Request(f"http://127.0.0.1:{port}/nothing")).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def open_url(request: urllib.request.Request) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)


class Http:
    """A client of Streamable HTTP that shows answers as they are."""

    def __init__(self, url: str) -> None:
        self.url, self.last_id = url, 0
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self.ask("initialize", CLIENT)
        self.headers["MCP-Protocol-Version"] = PROTOCOL
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def post(self, message: dict[str, Any]) -> str:
        with open_url(urllib.request.Request(self.url, json.dumps(message).encode(), self.headers)) as answer:
            if session := answer.headers.get("Mcp-Session-Id"):
                self.headers["Mcp-Session-Id"] = session
            return answer.read().decode()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.last_id += 1
        text = self.post({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        # Not `splitlines`, which also splits at characters that JSON leaves as they are.
        lines = [line.removeprefix("data:") for line in text.split("\n") if line.startswith("data:")] or [text]
        messages = [json.loads(line) for line in lines if line.strip()]
        answer = next(message for message in messages if message.get("id") == self.last_id and "method" not in message)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]


class Stdio:
    """The same over the standard streams of a child."""

    def __init__(self, server: dict[str, Any], log: Path) -> None:
        with log.open("ab") as errors:
            self.child = subprocess.Popen(
                [server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.last_id = 0
        self.ask("initialize", CLIENT)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.last_id += 1
        self.send({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        assert self.child.stdout is not None
        for line in self.child.stdout:
            message = json.loads(line)
            if message.get("id") == self.last_id and "method" not in message:
                return message["result"]
        raise AssertionError(f"it ended before it answered {method}")

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(20)


def main() -> int:
    use_newer_node(Path(sys.argv[3]))
    checks = Checks(f"[node {subprocess.run(['node', '--version'], capture_output=True, text=True).stdout.strip()}]")
    started = time.monotonic()
    with Node(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])) as node:
        run(node, checks)
        research.run(sys.argv[1], node.folder / "research", node.everything, checks)
        files.run(sys.argv[1], node.folder / "files", node.npx("mcp-server-everything", "stdio"), node.url, checks)
        inspector.run(node.daemon, node.packages, "everything_http", checks)
        children = descendants(node.daemon.process.pid)
        node.daemon.stop()
        checks.run("no process that npx started outlives the daemon", lambda: gone(children))
        scenarios.run(sys.argv[1], node.folder / "conformance", node.packages, checks)
        tasks.run(sys.argv[1], node.folder / "tasks", node.packages, checks)
    print(f"{checks.prefix} took {time.monotonic() - started:.0f} s")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def use_newer_node(packages: Path) -> None:
    """Has everything run by the Node.js among the packages, where there is one for this machine."""
    for folder in (packages / "node_modules").glob("node-linux-*/bin"):
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def run(node: Node, checks: Checks) -> None:
    gateway, direct = Http(f"{node.daemon.url}/mcp"), Http(node.url)
    tools = gateway.ask("tools/list", {})["tools"]
    own = direct.ask("tools/list", {})["tools"]
    for server in EVERYTHING:
        checks.run(f"{server}: tools as the server defines them", lambda: same_tools(tools, server, own))
        checks.run(f"{server}: plain calls", lambda: same_answers(gateway, direct, server))
    checks.run("playwright: tools as the server defines them", lambda: playwright(node, tools))
    checks.run("everything_sse: a restart costs no call", lambda: restart(node, gateway, "sse", "everything_sse"))
    checks.run("everything_http: a restart costs no call", lambda: restart(node, gateway, "streamableHttp", "everything_http"))


def same_tools(tools: list[Any], server: str, own: list[Any]) -> None:
    """Key by key, in order: the texts are compared."""
    assert len(own) >= 8, f"only {len(own)} tools"
    mine = [json.dumps(tool) for tool in tools if tool["name"].startswith(f"{server}_")]
    # Tasks of the server's own would be nobody's: no tool of it may be called as one here.
    for tool in own:
        if "execution" in tool:
            tool["execution"] = {"taskSupport": "forbidden"}
    equal(mine, [json.dumps(tool | {"name": f"{server}_{tool['name']}"}) for tool in own], f"the tools of {server}")


def same_answers(gateway: Http, direct: Http, server: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("echo", {"message": "größer\u2028☂"}),
        ("get-sum", {"a": 2, "b": 40}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "New York"}),
        ("get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("get-sum", {"a": "no number"}),
    ]
    for tool, arguments in calls:
        mine = gateway.ask("tools/call", {"name": f"{server}_{tool}", "arguments": arguments})
        theirs = direct.ask("tools/call", {"name": tool, "arguments": arguments})
        equal(json.dumps(mine), json.dumps(theirs), f"the answer of {tool}")


def playwright(node: Node, tools: list[Any]) -> None:
    client = Stdio(node.npx("playwright-mcp", "--headless"), node.folder / "playwright.log")
    try:
        own = client.ask("tools/list", {})["tools"]
    finally:
        client.close()
    assert any(tool["name"] == "browser_navigate" for tool in own), [tool["name"] for tool in own]
    same_tools(tools, "playwright", own)


def restart(node: Node, gateway: Http, transport: str, server: str) -> None:
    node.kill(transport)
    node.start(transport)
    answer = gateway.ask("tools/call", {"name": f"{server}_echo", "arguments": {"message": "again"}})
    equal(answer.get("isError", False), False, f"an error, in {answer}")


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(") ", 1)[1].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(children: set[int]) -> None:
    # npx, a shell and the server, of one session at least.
    assert len(children) >= 2, f"there were only {children}"
    # The process that would end them if the daemon were killed sees its end a moment later.
    until("nothing is left of them", lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()], 10)


if __name__ == "__main__":
    sys.exit(main())
