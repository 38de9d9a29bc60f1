"""The receivers that docs/WEBHOOKS.md shows: they take what the daemon sends, each message once, and nothing else."""

import base64
import hashlib
import hmac
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from harness import HERE, Checks, Daemon, equal, free_port, spawn, until

SHOWN = HERE.parents[1] / "docs"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RECEIVERS = {"webhook_receiver.py": ["python3"], "webhook_receiver.mjs": ["node"]}


class Receiver:
    """A copy of an example with a port of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.port = name, free_port()
        text, changed = re.subn(r"PORT = \d+", f"PORT = {self.port}", (SHOWN / "examples" / name).read_text())
        equal(changed, 1, f"how often {name} sets its port")
        (folder / name).write_text(text)
        self.log = folder / f"{name}.log"
        self.command = [*RECEIVERS[name], str(folder / name)]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def webhook(self) -> dict:
        url = f"http://127.0.0.1:{self.port}/"
        return {"name": self.name.replace(".", "-"), "url": url, "secret": SECRET, "events": ["input_required", "completed"]}

    def start(self) -> None:
        self.process = spawn(self.command, self.log, env={**os.environ, "WEBHOOK_SECRET": SECRET})
        until(f"{self.name} listens", lambda: self.post({}) == 401)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def post(self, headers: dict[str, str], body: bytes = b"{}") -> int | None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def heard(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("mcp_task.")]


def signed(body: bytes, at: int) -> dict[str, str]:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    mac = hmac.new(key, f"m-1.{at}.".encode() + body, hashlib.sha256)
    signature = f"v1,bm9uZQ== v1,{base64.b64encode(mac.digest()).decode()}"
    return {"webhook-id": "m-1", "webhook-timestamp": str(at), "webhook-signature": signature}


def refuses(receiver: Receiver) -> None:
    now, body = int(time.time()), b'{"type": "mcp_task.test", "data": {"task_id": "t", "status": "completed"}}'
    equal(receiver.post(signed(body, now), body + b" "), 401, "a body that was changed")
    equal(receiver.post(signed(body, now - 3_600), body), 401, "a message of an hour ago")
    equal(receiver.post({**signed(body, now), "webhook-id": "m-2"}, body), 401, "another id")
    for _ in range(2):
        equal(receiver.post(signed(body, now), body), 204, "what is signed")
    equal(receiver.heard().count("mcp_task.test t completed"), 1, "how often it was acted upon")


def hears(daemon: Daemon, server: str, receivers: list[Receiver]) -> None:
    task = daemon.submit(server, title="q3")
    for receiver in receivers:
        until(f"{receiver.name} hears of the end", lambda: f"mcp_task.completed {task} completed" in receiver.heard())


def excerpts() -> None:
    page = (SHOWN / "WEBHOOKS.md").read_text()
    for name, language in (("webhook_receiver.py", "python"), ("webhook_receiver.mjs", "javascript")):
        shown = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
        assert shown and shown[1] in (SHOWN / "examples" / name).read_text(), f"{name} is another text"


def run(daemon: Daemon, server: str, receivers: list[Receiver], checks: Checks) -> None:
    checks.run("WEBHOOKS.md shows parts of the receivers", excerpts)
    for receiver in receivers:
        checks.run(f"{receiver.name}: takes what is signed, once", lambda receiver=receiver: refuses(receiver))
    checks.run("webhooks reach both receivers", lambda: hears(daemon, server, receivers))
