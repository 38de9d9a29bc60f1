"""Agents made with the Python SDKs at the daemon's gateway, over Streamable HTTP and over stdio."""

import asyncio
import json
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, AsyncIterator, Awaitable, Callable

from harness import MODERN, Checks, World, equal

BUILT_IN = ["list_background_tasks", "get_background_task", "cancel_background_task"]
HIDDEN = ["get_report_status", "cancel_report", "answer_report"]
ORDINARY = ["add", "outline", "shout", "break_down"]
OUTLINE = {"title": "größer", "sections": [{"heading": "one", "pages": [1, 2], "parts": [{"heading": "deep"}]}]}


@dataclass
class Agent:
    """What the clients have in common."""

    list_raw: Callable[[], Awaitable[Any]]
    call_raw: Callable[..., Awaitable[Any]]

    async def tools(self) -> dict[str, Any]:
        tools = (await self.list_raw()).tools
        return {tool.name: tool.model_dump(mode="json", by_alias=True, exclude_unset=True) for tool in tools}

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        result = await self.call_raw(name, arguments or {}, **more)
        return result.model_dump(mode="json", by_alias=True, exclude_unset=True)

    async def structured(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        result = await self.call(name, arguments, **more)
        assert not result.get("isError"), f"{name}: {result}"
        return result["structuredContent"]


@asynccontextmanager
async def sdk_session(streams: Any) -> AsyncIterator[Agent]:
    """`ClientSession` on a transport, with a handshake: the way of every client up to 2025-11-25."""
    from mcp import ClientSession

    async with streams as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield Agent(session.list_tools, session.call_tool)


@asynccontextmanager
async def sdk_client(target: Any, mode: str) -> AsyncIterator[Agent]:
    """`Client`, which is new in the SDK's 2.x."""
    from mcp import Client

    async with Client(target, mode=mode) as client:
        yield Agent(client.list_tools, client.call_tool)


@asynccontextmanager
async def fastmcp_client(target: Any) -> AsyncIterator[Agent]:
    from fastmcp import Client

    async with Client(target) as client:
        yield Agent(client.list_tools_mcp, client.call_tool_mcp)


def clients(world: World) -> dict[str, Callable[[], Any]]:
    """Ways to reach the gateway, by name."""
    from fastmcp.client.transports import StdioTransport
    from mcp import StdioServerParameters, stdio_client

    url, log = f"{world.daemon.url}/mcp", (world.daemon.folder / "stdio.log").open("a")
    binary, arguments = world.daemon.binary, [*world.daemon.files, "mcp"]
    stdio = StdioServerParameters(command=binary, args=arguments)
    ways: dict[str, Callable[[], Any]] = {
        "ClientSession, stdio": lambda: sdk_session(stdio_client(stdio, errlog=log)),
        "fastmcp.Client, HTTP": lambda: fastmcp_client(url),
        "fastmcp.Client, stdio": lambda: fastmcp_client(StdioTransport(binary, arguments, keep_alive=False, log_file=log)),
    }
    if version("mcp").startswith("1."):
        from mcp.client.streamable_http import streamablehttp_client

        ways["ClientSession, HTTP"] = lambda: sdk_session(streamablehttp_client(url))
    else:
        from mcp.client.streamable_http import streamable_http_client

        ways["ClientSession, HTTP"] = lambda: sdk_session(streamable_http_client(url))
        ways["Client (auto), HTTP"] = lambda: sdk_client(url, "auto")
        ways["Client (legacy), HTTP"] = lambda: sdk_client(url, "legacy")
        ways["Client (auto), stdio"] = lambda: sdk_client(stdio_client(stdio, errlog=log), "auto")
    return dict(sorted(ways.items()))


def direct(world: World, name: str) -> Any:
    """A client of the report server itself."""
    server, variant = world.of(name)
    return fastmcp_client(server.url(variant))


def run(world: World, checks: Checks) -> None:
    checks.run("definitions are the servers' own, key by key, in order", lambda: raw_definitions(world))
    for way, connect in clients(world).items():
        for sdk in World.SDKS:
            name = f"{sdk}_stateful"
            checks.run(f"{way}: {name}", lambda: asyncio.run(asyncio.wait_for(agent(world, connect, name), 90)))


async def agent(world: World, connect: Callable[[], Any], server: str) -> None:
    async with connect() as agent, direct(world, server) as upstream:
        await lists(agent, upstream, world, server)
        await passes_through(agent, upstream, server)
        await submits(agent, world, server)
        await refuses(agent, server)


async def lists(agent: Agent, upstream: Agent, world: World, server: str) -> None:
    tools, own = await agent.tools(), await upstream.tools()
    names = [tool for tool in tools if tool.startswith(f"{server}_")]
    equal(set(names), {f"{server}_{tool}" for tool in set(own) - set(HIDDEN)}, "the server's tools")
    equal([name for name in tools if name in BUILT_IN], BUILT_IN, "the daemon's own tools")
    for tool in set(own) - set(HIDDEN):
        mine, theirs = dict(tools[f"{server}_{tool}"]), dict(own[tool])
        equal((mine.pop("name"), theirs.pop("name")), (f"{server}_{tool}", tool), "the name")
        if tool == "submit_report":
            schema = mine.pop("outputSchema")
            theirs.pop("outputSchema")
            assert "task_id" in schema["properties"], schema
            # What tells a model not to poll comes after the server's own words.
            description = mine.pop("description")
            assert description.startswith(theirs.pop("description")) and "do not poll" in description, description
            # To a client of 2025-11-25 it may be a task of MCP's own.
            execution = mine.pop("execution", None)
            assert execution is None or execution["taskSupport"] == "optional", execution
            theirs.pop("execution", None)
        equal(mine, theirs, f"the definition of {tool}")


async def passes_through(agent: Agent, upstream: Agent, server: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add", {"a": 2, "b": 40}),
        ("add", {"a": "no number"}),
        ("outline", {"outline": OUTLINE, "language": "de"}),
        ("shout", {"text": "größer\u2028☂"}),
        ("break_down", {}),
    ]
    for tool, arguments in calls:
        mine, theirs = await agent.call(f"{server}_{tool}", arguments), await upstream.call(tool, arguments)
        # Only the protocol of 2026-07-28 has it, and the two clients may speak different ones.
        for answer in (mine, theirs):
            equal(answer.pop("resultType", "complete"), "complete", "the kind of answer")
        equal(mine, theirs, f"the answer of {tool}")
    equal((await agent.structured(f"{server}_add", {"a": 1}))["result"], 2, "a sum with a default")


async def submits(agent: Agent, world: World, server: str) -> None:
    # Each client listed the tools before, so the SDKs check what follows against the output schema.
    finished = await agent.call(f"{server}_submit_report", {"title": "for an agent", "seconds": 0.5})
    handle = finished["structuredContent"]
    equal((handle["status"], handle["task_name"]), ("submitted", "report"), "the handle")
    text = finished["content"][0]["text"]
    assert handle["task_id"] in text and "poll" in text, f"the text tells a model what to do: {text}"
    running = await agent.structured(f"{server}_submit_report", {"title": "endless", "kind": "runs"})

    listed = await agent.structured("list_background_tasks", {"limit": 5})
    ids = [task["task_id"] for task in listed["tasks"]]
    equal(ids[:2], [running["task_id"], handle["task_id"]], "the newest tasks")

    detail = {"status": "submitted"}
    for _ in range(4):
        if detail["status"] == "completed":
            break
        detail = await agent.structured("get_background_task", {"task_id": handle["task_id"], "wait_seconds": 10})
    equal(detail["status"], "completed", "the end")
    equal(detail["result"]["title"], "for an agent", "the result")
    assert "remote_task_id" not in detail, "the remote id is no agent's business"

    cancel = await agent.structured("cancel_background_task", {"task_id": running["task_id"]})
    equal(cancel["task_id"], running["task_id"], "the task that is cancelled")
    for _ in range(4):
        detail = await agent.structured("get_background_task", {"task_id": running["task_id"], "wait_seconds": 10})
        if detail["status"] == "cancelled":
            break
    equal(detail["status"], "cancelled", "the cancelled one")
    active = await agent.structured("list_background_tasks", {"active_only": True, "limit": 50})
    assert not {handle["task_id"], running["task_id"]} & {task["task_id"] for task in active["tasks"]}, "both have ended"

    # A thread of its own sees only what belongs there.
    meta = {"meta": {"mcp-taskd/thread-id": f"thread-{handle['task_id']}"}}
    empty = await agent.structured("list_background_tasks", {}, **meta)
    equal(empty["tasks"], [], "another thread's tasks")
    # The gateway over stdio is another process on the same store.
    equal(world.daemon.task("default", handle["task_id"])["status"], "completed", "what the daemon says")


async def refuses(agent: Agent, server: str) -> None:
    for tool in ["no_such_tool", *(f"{server}_{tool}" for tool in HIDDEN)]:
        code, message = await error_of(agent.call(tool, {"task_id": "x"}))
        equal(code, -32602, f"the code for {tool}")
        assert f"unknown tool: {tool}" in message, message
    unknown = await agent.call("get_background_task", {"task_id": "mcp-task-nowhere"})
    assert unknown.get("isError"), unknown
    refused = await agent.call(f"{server}_submit_report", {"title": "x", "kind": "no such kind"})
    assert refused.get("isError") and "no such kind" in refused["content"][0]["text"], refused


async def error_of(call: Awaitable[Any]) -> tuple[int, str]:
    """The JSON-RPC error that a call ends with."""
    try:
        answer = await call
    except Exception as error:
        link: Any = error
        while link is not None:
            if hasattr(link, "error"):
                return link.error.code, link.error.message
            link = link.__cause__
        raise
    raise AssertionError(f"no error, but {answer}")


def raw_definitions(world: World) -> None:
    tools = {}
    for name in world.names:
        if name.endswith("stateless-json"):
            server, variant = world.of(name)
            tools[name] = {tool["name"]: tool for tool in post(server.url(variant), "tools/list")["tools"]}
    for tool in post(f"{world.daemon.url}/mcp", "tools/list")["tools"]:
        server = next((name for name in tools if tool["name"].startswith(f"{name}_")), None)
        bare = tool["name"].removeprefix(f"{server}_")
        if server is not None and bare in ORDINARY:
            theirs = tools[server].pop(bare) | {"name": tool["name"]}
            equal(json.dumps(tool), json.dumps(theirs), f"the definition of {tool['name']}")
    for name, left in tools.items():
        assert not set(left) & set(ORDINARY), f"{name}: not listed by the daemon: {set(left)}"


def post(url: str, method: str) -> Any:
    """A request without a session, in the newest protocol that the SDK knows: servers may list differently in each."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    params: dict[str, Any] = {}
    if not version("mcp").startswith("1."):
        prefix = "io.modelcontextprotocol"
        client = {"name": "interop", "version": "0"}
        meta = {"protocolVersion": MODERN, "clientInfo": client, "clientCapabilities": {}}
        params = {"_meta": {f"{prefix}/{key}": value for key, value in meta.items()}}
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body, headers), timeout=20) as answer:
        return json.loads(answer.read())["result"]
