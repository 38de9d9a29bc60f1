"""How docs/AGENTS.md says agents connect: its programs are run, its files are read, and what they start lists its tools."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from harness import HERE, Checks, Daemon
from node import Stdio

SHOWN = HERE.parents[1] / "docs/AGENTS.md"


def run(daemon: Daemon, server: str, folder: Path, python: str, checks: Checks) -> None:
    """`server` is the daemon's server that stands for the documentation's `reports`."""
    folder.mkdir()
    configured = json.loads((daemon.folder / "extensions.json").read_text())["mcpServers"]
    (folder / "extensions_config.json").write_text(json.dumps({"mcpServers": {"reports": configured[server]}}))
    (folder / "bin").mkdir()
    (folder / "bin/mcp-taskd").symlink_to(Path(daemon.binary).resolve())
    text = SHOWN.read_text()
    programs = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "asyncio.run(" in block]
    files = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    started = [file["mcpServers"]["tasks"] for file in files if "command" in file["mcpServers"]["tasks"]]
    checks.run("AGENTS.md: there is something to try", lambda: tried(len(programs), len(started)))
    for number, program in enumerate(programs):
        program = program.replace("http://127.0.0.1:8787", daemon.url)
        checks.run(f"AGENTS.md: program {number}", lambda number=number, program=program: prints(program, number, folder, server, python))
    for number, entry in enumerate(started):
        checks.run(f"AGENTS.md: {entry['command']}", lambda number=number, entry=entry: lists(entry, number, folder))


def tried(programs: int, started: int) -> None:
    assert programs >= 3 and started >= 2, f"{programs} programs, {started} commands"


def prints(program: str, number: int, folder: Path, server: str, python: str) -> None:
    """The program ends well, having shown its tools or a finished task."""
    program = program.replace("reports_submit_report", f"{server}_submit_report")
    (folder / f"{number}.py").write_text(program)
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "MCP_TASKD_API_KEY": "mtk_none",
    }
    command = [python, f"{number}.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-1500:]}"
    assert "get_background_task" in done.stdout or done.stdout.startswith("completed"), f"it printed {done.stdout!r}"


def lists(entry: dict[str, Any], number: int, folder: Path) -> None:
    """What a file of the documentation starts lists its tools, with the reader's paths made this test's."""
    arguments = []
    for argument in entry["args"]:
        if argument.endswith(".json"):
            argument = str(folder / "extensions_config.json")
        elif argument.startswith("server.state_dir="):
            argument = f"server.state_dir={folder / f'state-{number}'}"
        arguments.append(argument)
    client = Stdio({"command": str(folder / "bin/mcp-taskd"), "args": arguments}, folder / "stdio.log")
    try:
        tools = {tool["name"] for tool in client.ask("tools/list", {})["tools"]}
    finally:
        client.close()
    assert {"reports_submit_report", "get_background_task"} <= tools, tools
