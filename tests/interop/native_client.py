"""Clients that speak MCP Tasks, at the daemon's gateway: those of the SDKs of this interpreter."""

import asyncio
from importlib.metadata import version
from typing import Any

from harness import Checks, equal
from native_server import RESULT


def run(url: str, tools: list[str], checks: Checks) -> None:
    """`tools`: submit tools of the gateway behind which the native servers' `render` is."""
    first = version("mcp").startswith("1.")
    for tool in tools:
        if first:
            checks.run(f"ClientSession's tasks: {tool}", lambda tool=tool: asyncio.run(session(url, tool)))
            checks.run(f"fastmcp.Client's tasks: {tool}", lambda tool=tool: asyncio.run(asked_for(url, tool)))
        else:
            checks.run(f"fastmcp.Client's tasks: {tool}", lambda tool=tool: asyncio.run(by_itself(url, tool)))


async def session(url: str, tool: str) -> None:
    """The Python SDK's experimental client, 2025-11-25."""
    from mcp import ClientSession, McpError
    from mcp.client.streamable_http import streamablehttp_client
    from mcp.types import CallToolResult

    async with streamablehttp_client(f"{url}/mcp") as (read, write, _), ClientSession(read, write) as client:
        hello = await client.initialize()
        assert hello.capabilities.tasks and hello.capabilities.tasks.requests.tools.call is not None, hello
        listed = {listed.name: listed for listed in (await client.list_tools()).tools}
        equal(listed[tool].execution.taskSupport, "optional", "what the list says")
        made = await client.experimental.call_tool_as_task(tool, {"seconds": 0.2})
        equal(made.task.status, "working", "a new task")
        async for status in client.experimental.poll_task(made.task.taskId):
            assert status.taskId == made.task.taskId
        result = await client.experimental.get_task_result(made.task.taskId, CallToolResult)
        equal((result.isError, result.structuredContent["result"]), (False, RESULT), "the result")
        tasks = (await client.experimental.list_tasks()).tasks
        assert made.task.taskId in [task.taskId for task in tasks], tasks
        waited = await client.experimental.call_tool_as_task(tool, {"seconds": 1})
        result = await client.experimental.get_task_result(waited.task.taskId, CallToolResult)
        equal(result.structuredContent["result"], RESULT, "a result that was waited for")
        try:
            await client.experimental.get_task("mcp-task-none")
        except McpError as error:
            equal(error.error.code, -32602, "an unknown task")
        else:
            raise AssertionError("an unknown task is shown")


async def asked_for(url: str, tool: str) -> None:
    """fastmcp 3, which asks for a task, 2025-11-25."""
    from fastmcp import Client

    async with Client(f"{url}/mcp") as client:
        task = await client.call_tool(tool, {"seconds": 0.2}, task=True)
        assert not task.returned_immediately
        result = await task.result()
        equal(result.structured_content["result"], RESULT, "the result")
        running = await client.call_tool(tool, {"seconds": 60, "kind": "runs"}, task=True)
        await running.cancel()
        equal((await running.status()).status, "cancelled", "a cancelled task")


async def by_itself(url: str, tool: str) -> None:
    """fastmcp 4 with fastmcp-tasks, which waits for a task by itself and answers its questions, 2026-07-28."""
    # Its import is what makes clients of it.
    import fastmcp_tasks  # noqa: F401
    from fastmcp import Client

    questions: list[str] = []

    async def answer(message: str, *_: Any) -> dict[str, str]:
        questions.append(message)
        return {"size": "A3"}

    async with Client(f"{url}/mcp", elicitation_handler=answer) as client:
        result = await client.call_tool(tool, {"seconds": 0.2})
        equal(result.structured_content["status"], "completed", "the task is waited for")
        equal(result.structured_content["result"], RESULT, "the result")
        asked = await client.call_tool(tool, {"kind": "asks"})
        equal((asked.structured_content["result"], questions), ({"size": "A3"}, ["How large?"]), "the answer")
        failed = await client.call_tool(tool, {"kind": "fails"}, raise_on_error=False)
        assert failed.is_error and "out of film" in failed.content[0].text, failed
