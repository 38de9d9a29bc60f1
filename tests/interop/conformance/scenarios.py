"""The conformance package's server scenarios against the gateway, in both kinds of protocol.

What fails must be what `<revision>.yml` expects: a scenario that fails anew is seen, and so is one that has begun to pass.
docs/CONFORMANCE.md has the reasons.
"""

import os
import re
import subprocess
from pathlib import Path

from conformance.upstream import Upstream
from harness import Checks, Daemon, equal

HERE = Path(__file__).parent
REASONS = HERE.parents[2] / "docs/CONFORMANCE.md"
REVISIONS = ("2025-11-25", "2026-07-28")


def run(binary: str, folder: Path, packages: Path, checks: Checks) -> None:
    folder.mkdir()
    upstream = Upstream()
    servers = {"upstream": {"type": "http", "url": upstream.url, "tool_name_prefix": False}}
    daemon = Daemon(binary, folder, servers)
    try:
        daemon.start()
        for revision in REVISIONS:
            name = f"conformance package: the server scenarios of {revision}"
            checks.run(name, lambda revision=revision: scenarios(daemon, packages, revision))
            checks.run(f"conformance package: the reasons for {revision}", lambda revision=revision: reasons(revision))
    finally:
        daemon.stop()
        upstream.shutdown()


def scenarios(daemon: Daemon, packages: Path, revision: str) -> None:
    command = [str(packages / "node_modules/.bin/conformance"), "server", "--url", f"{daemon.url}/mcp", "--suite", "all"]
    command += ["--spec-version", revision, "--expected-failures", str(HERE / f"{revision}.yml")]
    log = daemon.folder / f"{revision}.log"
    with log.open("w") as output:
        environment = os.environ | {"NO_COLOR": "1"}
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=daemon.folder, env=environment, timeout=300)
    # The verdict comes last.
    assert done.returncode == 0, f"{log.read_text()[-3000:]}"


def expected(revision: str) -> set[str]:
    return set(re.findall(r"^ +- (\S+)", (HERE / f"{revision}.yml").read_text(), re.MULTILINE))


def reasons(revision: str) -> None:
    page = REASONS.read_text()
    section = re.search(rf"^## {revision}$.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/CONFORMANCE.md has no section for {revision}"
    equal(set(re.findall(r"^\| `([^`]+)`", section[0], re.MULTILINE)), expected(revision), "what docs/CONFORMANCE.md explains")
