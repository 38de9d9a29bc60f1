"""What the scenarios stand on: processes that end with this one, the daemon, report servers, and counted checks."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable

from impatient import Impatient

HERE = Path(__file__).parent
# The newest protocol, and the one that the SDKs' 2.x prefers.
MODERN = "2026-07-28"
SIGTERM_WITHIN = 20.0


def spawn(command: list[str], log: Path, **more: Any) -> subprocess.Popen[bytes]:
    """Starts a process that is killed when this one ends, however that happens."""
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: libc.prctl(pr_set_pdeathsig, signal.SIGKILL),
            **more,
        )


def until(what: str, condition: Callable[[], Any], within: float = 30.0) -> Any:
    """What `condition` answers, once that is true."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.05)


def equal(left: Any, right: Any, what: str) -> None:
    if left != right:
        raise AssertionError(f"{what}: {left!r} is not {right!r}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Checks:
    """Runs checks and counts them."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.passed, self.failed = prefix, 0, 0

    def run(self, name: str, check: Callable[[], Any]) -> None:
        started = time.monotonic()
        try:
            check()
        except Exception as error:  # A check that fails must not stop the others.
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.failed += 1
            print(f"FAILED  {self.prefix} {name}: {error}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exception(error)
        else:
            self.passed += 1
            print(f"ok      {self.prefix} {name} ({time.monotonic() - started:.1f} s)", flush=True)


class Daemon:
    """`mcp-taskd serve` on an embedded SQLite file."""

    def __init__(self, binary: str, folder: Path, servers: dict[str, Any], more: str = "") -> None:
        self.binary, self.folder = binary, folder
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self.files = ["--config", str(folder / "config.yaml"), "--extensions-config", str(folder / "extensions.json")]
        (folder / "config.yaml").write_text(
            f"server: {{ listen: {self.address}, state_dir: {json.dumps(str(folder / 'state'))} }}\n"
            "mcp_tasks: { poll_interval_seconds: 1, lease_seconds: 15, max_concurrent_polls: 32,"
            " input_required_poll_interval_seconds: 5, max_poll_backoff_seconds: 5 }\n" + more
        )
        (folder / "extensions.json").write_text(json.dumps({"mcpServers": servers}, indent=1))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = spawn([self.binary, *self.files, "serve"], self.folder / "daemon.log")
        until("the daemon is ready", self._is_ready, 30)

    def _is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the daemon ended; see its log"
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SIGTERM_WITHIN)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=70) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text

    def get(self, path: str) -> Any:
        code, answer = self.request("GET", path)
        assert code == 200, f"GET {path}: {code} {answer}"
        return answer

    def submit(self, server: str, **arguments: Any) -> str:
        body = {"server": server, "task": "report", "arguments": arguments}
        code, answer = self.request("POST", f"/api/threads/{server}/mcp-tasks", body)
        assert code == 201, f"submit to {server}: {code} {answer}"
        return answer["task_id"]

    def task(self, server: str, task_id: str) -> Any:
        return self.get(f"/api/threads/{server}/mcp-tasks/{task_id}")

    def post(self, server: str, task_id: str, what: str, body: Any = None) -> Any:
        code, answer = self.request("POST", f"/api/threads/{server}/mcp-tasks/{task_id}/{what}", body or {})
        assert code in (200, 202), f"{what}: {code} {answer}"
        return answer

    def wait(self, server: str, task_id: str, statuses: set[str], within: float = 30.0) -> Any:
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.task(server, task_id))
            return seen["status"] in statuses

        try:
            until("", reached, within)
        except AssertionError:
            raise AssertionError(f"{task_id} is not {statuses} within {within:g} s: {seen}") from None
        return seen

    def metric(self, name: str, **labels: str) -> dict[str, float]:
        """The series of a metric by label text, where all `labels` match."""
        found = {}
        for line in self.get("/metrics").splitlines():
            match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
            if match and all(f'{key}="{value}"' in match[1] for key, value in labels.items()):
                found[match[1]] = float(match[2])
        return found

    def polls(self, server: str) -> dict[str, float]:
        """Polls of a server by outcome, but for the outcomes that never were."""
        series = self.metric("mcp_taskd_polls_total", server=server)
        return {re.search(r'outcome="(\w+)"', labels)[1]: count for labels, count in series.items() if count}


class ReportServer:
    """A process that serves variants of a report server over HTTP (see server.py)."""

    def __init__(self, sdk: str, folder: Path, variants: dict[str, str]) -> None:
        self.sdk, self.folder, self.styles = sdk, folder, variants
        folder.mkdir(parents=True)
        self.sockets = {variant: self._listen(0) for variant in variants}
        self.ports = {variant: sock.getsockname()[1] for variant, sock in self.sockets.items()}
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _listen(port: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
        return sock

    def url(self, variant: str) -> str:
        return f"http://127.0.0.1:{self.ports[variant]}/{'sse' if variant == 'sse' else 'mcp'}"

    def start(self) -> None:
        sockets = {variant: sock.fileno() for variant, sock in self.sockets.items()}
        variants = [f"{variant}={sockets[variant]}={style}" for variant, style in self.styles.items()]
        command = [sys.executable, str(HERE / "server.py"), self.sdk, str(self.folder), "http", *variants]
        self.process = spawn(command, self.folder / "server.log", pass_fds=list(sockets.values()))

    def wait(self) -> None:
        """Until it answers; connections wait in the meantime."""
        for port in self.ports.values():
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
                try:
                    answered = connection.recv(1)
                except ConnectionError:
                    answered = b""
                assert answered, f"the {self.sdk} server ended: {(self.folder / 'server.log').read_text()[-2000:]}"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """No connection is accepted any more."""
        for sock in self.sockets.values():
            sock.close()

    def reopen(self) -> None:
        self.sockets = {variant: self._listen(port) for variant, port in self.ports.items()}

    def journal(self, variant: str) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.folder / f"{variant}.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []


class World:
    """Everything that a run of the scenarios needs, and its end."""

    SDKS = ("mcp", "fastmcp")
    STYLES = {"stateful": "dict", "stateful-json": "typeddict", "stateless": "pydantic", "stateless-json": "dict", "sse": "typeddict"}

    def __init__(self, binary: str, folder: Path) -> None:
        self.servers = {sdk: ReportServer(sdk, folder / sdk, self.STYLES) for sdk in self.SDKS}
        toolset = {
            "name": "report",
            "submit_tool": "submit_report",
            "status_tool": "get_report_status",
            "cancel_tool": "cancel_report",
            "input_tool": "answer_report",
        }
        more = {"task_toolsets": [toolset], "tool_call_timeout": 60, "session_init_timeout": 60}
        configured: dict[str, Any] = {}
        for sdk, server in self.servers.items():
            for variant in self.STYLES:
                kind = "sse" if variant == "sse" else "http"
                configured[f"{sdk}_{variant}"] = {"type": kind, "url": server.url(variant), **more}
            command = [str(HERE / "server.py"), sdk, str(folder / sdk), "stdio", "pydantic"]
            configured[f"{sdk}_stdio"] = {"type": "stdio", "command": sys.executable, "args": command, **more}
        self.names = list(configured)
        self.impatient = Impatient()
        configured["impatient"] = {"type": "http", "url": self.impatient.url, **more}
        self.daemon = Daemon(binary, folder, configured)

    def of(self, name: str) -> tuple[ReportServer, str]:
        """A configured server's process and variant."""
        sdk, variant = name.split("_", 1)
        return self.servers[sdk], variant

    def __enter__(self) -> "World":
        try:
            for server in self.servers.values():
                server.start()
            for server in self.servers.values():
                server.wait()
            self.daemon.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.daemon.stop()
        for server in self.servers.values():
            server.kill()
        self.impatient.shutdown()


def end(process_id: int) -> None:
    os.kill(process_id, signal.SIGKILL)
