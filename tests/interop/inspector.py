"""The MCP Inspector's command line as a client of the gateway, over Streamable HTTP and over stdio."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from harness import Checks, Daemon, equal

# How it ends where a tool answers with an error.
TOOL_IS_ERROR = 5


def run(daemon: Daemon, packages: Path, server: str, checks: Checks) -> None:
    program = str(packages / "node_modules/.bin/mcp-inspector")
    config, extensions = daemon.files[1], daemon.files[3]
    ways = {
        "Streamable HTTP": [f"{daemon.url}/mcp", "--transport", "http"],
        # Its own flags would take the gateway's.
        "stdio": [
            "-e", f"MCP_TASKD_CONFIG={config}",
            "-e", f"MCP_TASKD_EXTENSIONS_CONFIG_PATH={extensions}",
            daemon.binary, "mcp",
        ],
    }  # fmt: skip
    for way, target in ways.items():
        checks.run(f"MCP Inspector, {way}", lambda target=target: agent(program, target, server))


def agent(program: str, target: list[str], server: str) -> None:
    tools = {tool["name"] for tool in ask(program, target, "tools/list")["tools"]}
    assert {f"{server}_echo", "get_background_task"} <= tools, tools
    arguments = ["--tool-name", f"{server}_get-sum", "--tool-arg", "a=2", "--tool-arg", "b=40"]
    answer = ask(program, target, "tools/call", *arguments)
    assert "42" in answer["content"][0]["text"], answer
    unknown = ["--tool-name", "get_background_task", "--tool-arg", "task_id=mcp-task-x"]
    unknown = ask(program, target, "tools/call", *unknown, code=TOOL_IS_ERROR)
    equal(unknown.get("isError"), True, f"a task that is not there, in {unknown}")


def ask(program: str, target: list[str], method: str, *arguments: str, code: int = 0) -> Any:
    command = [program, "--cli", *target, "--method", method, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == code, f"exit {done.returncode} of {command}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)
