"""Files of other programs, taken as they are: one as desktop agents have it, one as DeerFlow has it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from harness import Checks


def run(binary: str, folder: Path, npx: dict[str, Any], url: str, checks: Checks) -> None:
    """`npx` starts server-everything, which is served at `url` too."""
    folder.mkdir()
    desktop = {
        "mcpServers": {"everything": {**npx, "env": {"DEBUG": "0"}}},
        "globalShortcut": "Ctrl+Space",
        "preferences": {"sidebarMode": "chat"},
    }
    checks.run("a desktop agent's file, unchanged", lambda: connects(binary, folder, "claude_desktop_config.json", desktop))
    deer_flow = {
        "mcpServers": {
            "everything": {"enabled": True, "type": "stdio", **npx, "env": {"TOKEN": "$A_TOKEN"}, "description": "Everything"},
            "remote": {
                "enabled": True,
                "type": "http",
                "url": url,
                "headers": {"Authorization": "Bearer $A_TOKEN", "X-API-Key": "$A_TOKEN"},
                "session_init_timeout": 60,
                "tool_call_timeout": 60,
                "routing": {"mode": "prefer", "priority": 50, "keywords": ["sums"]},
                "tools": {"get-sum": {"routing": {"mode": "prefer", "priority": 100, "keywords": ["addition"]}}},
            },
            "plain": {**npx, "tool_name_prefix": False, "cwd": None},
            "postgres": {"enabled": False, "type": "stdio", "command": "npx", "args": ["-y", "no-such-server"]},
            "overleaf": {"enabled": False, "type": "http", "url": "", "description": "without an address"},
        },
        "mcpInterceptors": ["my_package.mcp.auth:build_auth_interceptor"],
        "middlewares": ["my_package.middleware:Example"],
        "skills": {"pdf-processing": {"enabled": True}},
    }
    checks.run("DeerFlow's file, unchanged", lambda: connects(binary, folder, "extensions_config.json", deer_flow))


def connects(binary: str, folder: Path, name: str, document: dict[str, Any]) -> None:
    """Every enabled server of the file lists its tools."""
    path, text = folder / name, json.dumps(document, indent=2)
    path.write_text(text)
    command = [binary, "--extensions-config", str(path), "--set", f"server.state_dir={folder / 'state'}"]
    environment = os.environ | {"A_TOKEN": "0123456789"}
    done = subprocess.run(
        [*command, "check-config", "--connect"], capture_output=True, text=True, timeout=90, env=environment, cwd=folder
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert path.read_text() == text, "the file is as it was"
