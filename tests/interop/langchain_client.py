"""An agent made with LangChain's MCP adapters at the daemon's gateway."""

import asyncio
import os
from importlib.metadata import version
from typing import Any

from harness import Checks, World, equal

SERVER = "mcp_stateful"


def run(world: World, checks: Checks) -> None:
    adapters = version("langchain-mcp-adapters")
    ways: dict[str, dict[str, Any]] = {
        "Streamable HTTP": {"transport": "streamable_http", "url": f"{world.daemon.url}/mcp"},
        "stdio": {
            "transport": "stdio",
            "command": world.daemon.binary,
            "args": [*world.daemon.files, "mcp"],
            # Its child's log would come among ours.
            "env": os.environ | {"MCP_TASKD_LOG": "error"},
        },
    }
    for way, connection in ways.items():
        name = f"langchain-mcp-adapters {adapters}, {way}"
        checks.run(name, lambda connection=connection: asyncio.run(asyncio.wait_for(agent(connection), 90)))


async def agent(connection: dict[str, Any]) -> None:
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    client = MultiServerMCPClient({"taskd": connection})
    async with client.session("taskd") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        for name in (f"{SERVER}_add", f"{SERVER}_submit_report", "get_background_task"):
            assert name in tools, f"{name} is not among {sorted(tools)}"
        assert f"{SERVER}_get_report_status" not in tools, "status tools are the daemon's own affair"

        async def call(name: str, **arguments: Any) -> Any:
            return await tools[name].ainvoke({"type": "tool_call", "id": "1", "name": name, "args": arguments})

        added = await call(f"{SERVER}_add", a=2, b=40)
        equal((added.status, added.content[0]["text"]), ("success", "42"), "an ordinary call")
        refused = await call(f"{SERVER}_break_down")
        equal(refused.status, "error", "a tool that fails")
        submitted = (await call(f"{SERVER}_submit_report", title="for LangChain", seconds=0.5)).artifact["structured_content"]
        equal(submitted["status"], "submitted", "the handle")
        detail: dict[str, Any] = {}
        for _ in range(4):
            answer = await call("get_background_task", task_id=submitted["task_id"], wait_seconds=10)
            detail = answer.artifact["structured_content"]
            if detail["status"] == "completed":
                break
        equal(detail["result"]["title"], "for LangChain", f"the result, of {detail}")
    # The way of most agents: a session for each call.
    equal({tool.name for tool in await client.get_tools()}, set(tools), "the tools of a second session")
