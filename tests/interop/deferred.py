"""Agents made with the Python SDKs at a daemon that defers tools: they are told that their list has grown."""

import asyncio
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, AsyncIterator, Callable

from harness import Checks, Daemon, World, equal

TOLD_WITHIN = 20.0


def run(world: World, checks: Checks) -> None:
    folder: Path = world.daemon.folder / "deferred"
    folder.mkdir()
    server, variant = world.of("mcp_stateful")
    servers = {"reports": {"type": "http", "url": server.url(variant)}}
    daemon = Daemon(world.daemon.binary, folder, servers, "tool_search: { enabled: true }\n")
    daemon.start()
    try:
        for way, connect in ways(daemon).items():
            checks.run(f"{way}: a search", lambda: asyncio.run(asyncio.wait_for(search(connect), 60)))
    finally:
        daemon.stop()


def ways(daemon: Daemon) -> dict[str, Callable[[asyncio.Event], Any]]:
    from mcp import StdioServerParameters, stdio_client

    url, log = f"{daemon.url}/mcp", (daemon.folder / "stdio.log").open("a")
    stdio = StdioServerParameters(command=daemon.binary, args=[*daemon.files, "mcp"])
    ways = {"ClientSession, stdio": lambda told: session(stdio_client(stdio, errlog=log), told)}
    if version("mcp").startswith("1."):
        from mcp.client.streamable_http import streamablehttp_client

        ways["ClientSession, HTTP"] = lambda told: session(streamablehttp_client(url), told)
    else:
        from mcp.client.streamable_http import streamable_http_client

        ways["ClientSession, HTTP"] = lambda told: session(streamable_http_client(url), told)
        ways["Client.listen, HTTP"] = lambda told: subscribed(url, told)
        ways["Client.listen, stdio"] = lambda told: subscribed(stdio_client(stdio, errlog=log), told)
    return ways


@asynccontextmanager
async def session(streams: Any, told: asyncio.Event) -> AsyncIterator[Any]:
    """Up to 2025-11-25: the SDK hears notifications by itself, over HTTP on a stream that it opens."""
    from mcp import ClientSession

    async def hear(message: Any) -> None:
        if getattr(getattr(message, "root", message), "method", None) == "notifications/tools/list_changed":
            told.set()

    async with streams as (read, write, *_), ClientSession(read, write, message_handler=hear) as client:
        await client.initialize()
        yield client


@asynccontextmanager
async def subscribed(target: Any, told: asyncio.Event) -> AsyncIterator[Any]:
    """2026-07-28: the client subscribes."""
    from mcp import Client

    async with Client(target, mode="auto") as client, client.listen(tools_list_changed=True) as events:

        async def hear() -> None:
            async for _ in events:
                told.set()

        hearing = asyncio.create_task(hear())
        try:
            yield client
        finally:
            hearing.cancel()


async def search(connect: Callable[[asyncio.Event], Any]) -> None:
    told = asyncio.Event()
    async with connect(told) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "tool_search" in names and "reports_add" not in names, names
        refused = (await client.call_tool("reports_add", {"a": 1, "b": 2})).model_dump(by_alias=True)
        assert refused["isError"] and "tool_search" in refused["content"][0]["text"], refused
        # The stream on which it is told may not be open yet; what is found twice is news once.
        for query in ["select:reports_add", "select:reports_outline", "select:reports_shout", "select:reports_break_down"]:
            found = (await client.call_tool("tool_search", {"query": query})).model_dump(by_alias=True)
            equal([tool["name"] for tool in found["structuredContent"]["tools"]], [query.split(":")[1]], "what is found")
            try:
                await asyncio.wait_for(told.wait(), TOLD_WITHIN / 4)
                break
            except TimeoutError:
                continue
        assert told.is_set(), "the client was not told"
        assert "reports_add" in [tool.name for tool in (await client.list_tools()).tools]
        added = (await client.call_tool("reports_add", {"a": 40, "b": 2})).model_dump(by_alias=True)
        equal(added["structuredContent"]["result"], 42, "a sum")
