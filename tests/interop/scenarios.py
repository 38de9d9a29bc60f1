"""Runs the scenarios with the SDKs of this interpreter; the last line says how many checks passed and failed."""

import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import agent
import deferred
import langchain_client
import upstream
from harness import Checks, World


def main() -> int:
    binary = sys.argv[1]
    keep = len(sys.argv) > 2
    checks = Checks(f"[mcp {version('mcp')}, fastmcp {version('fastmcp')}]")
    started = time.monotonic()
    folder = Path(sys.argv[2]) if keep else Path(tempfile.mkdtemp(prefix="mcp-taskd-interop-"))
    with World(binary, folder) as world:
        upstream.run(world, checks)
        agent.run(world, checks)
        deferred.run(world, checks)
        # It wants the first generation of the SDK.
        if find_spec("langchain_mcp_adapters"):
            langchain_client.run(world, checks)
    print(f"{checks.prefix} took {time.monotonic() - started:.0f} s")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
