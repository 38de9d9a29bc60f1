"""A server whose tool `render` is a task of MCP's own.

    native_server.py SDK http PORT | native_server.py SDK stdio

SDK is `mcp` (the SDK's 1.x, whose experimental tasks are those of 2025-11-25) or `fastmcp` (of 2025-11-25 too in 3.x; of
2026-07-28 from 4.x on, with fastmcp-tasks).
"""

import asyncio
import contextlib
import sys
from importlib.metadata import version
from typing import Any

KINDS = {"type": "string", "enum": ["completes", "fails", "runs", "asks"]}
RESULT = {"pages": 12, "note": "grün ✓"}


async def work(seconds: float, kind: str) -> dict[str, Any]:
    await asyncio.sleep(3_600 if kind == "runs" else seconds)
    if kind == "fails":
        raise ValueError("out of film")
    return RESULT


def with_fastmcp() -> Any:
    from fastmcp import Context, FastMCP

    app = FastMCP("renderer")
    if version("fastmcp").startswith("3."):

        @app.tool(task=True)
        async def render(seconds: float = 0.2, kind: str = "completes") -> dict[str, Any]:
            return await work(seconds, kind)

        return app

    from fastmcp_tasks import TasksExtension
    from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

    app.add_extension(TasksExtension())

    @app.tool(task=True)
    async def render(ctx: Context, seconds: float = 0.2, kind: str = "completes") -> Any:
        if kind == "asks":
            answer = (ctx.input_responses or {}).get("size")
            if answer is None:
                form = {"type": "object", "properties": {"size": {"type": "string"}}}
                asked = ElicitRequestFormParams(message="How large?", requested_schema=form)
                return InputRequiredResult(input_requests={"size": ElicitRequest(params=asked)})
            return {"size": answer.content["size"]}
        return await work(seconds, kind)

    return app


def with_mcp() -> Any:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, TextContent, Tool, ToolExecution

    app: Any = Server("renderer")
    app.experimental.enable_tasks()

    @app.list_tools()
    async def listed() -> list[Any]:
        schema = {"type": "object", "properties": {"seconds": {"type": "number"}, "kind": KINDS}}
        return [Tool(name="render", inputSchema=schema, execution=ToolExecution(taskSupport="required"))]

    @app.call_tool()
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        context = app.request_context.experimental
        context.validate_task_mode("required")

        async def run(task: Any) -> Any:
            try:
                done = await work(arguments.get("seconds", 0.2), arguments.get("kind", "completes"))
            except ValueError as error:
                return CallToolResult(content=[TextContent(type="text", text=str(error))], isError=True)
            return CallToolResult(content=[], structuredContent=done)

        return await context.run_task(run)

    return app


def serve_mcp(app: Any, transport: str, port: int) -> None:
    if transport == "stdio":
        from mcp.server.stdio import stdio_server

        async def serve() -> None:
            async with stdio_server() as (reader, writer):
                await app.run(reader, writer, app.create_initialization_options())

        return asyncio.run(serve())
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Mount

    sessions = StreamableHTTPSessionManager(app)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> Any:
        async with sessions.run():
            yield

    web = Starlette(routes=[Mount("/", app=sessions.handle_request)], lifespan=lifespan)
    uvicorn.run(web, host="127.0.0.1", port=port, log_level="warning")


def main() -> None:
    sdk, transport = sys.argv[1:3]
    port = int(sys.argv[3]) if transport == "http" else 0
    if sdk == "mcp":
        serve_mcp(with_mcp(), transport, port)
    elif transport == "stdio":
        with_fastmcp().run(show_banner=False)
    else:
        with_fastmcp().run(transport="http", host="127.0.0.1", port=port, show_banner=False)


if __name__ == "__main__":
    main()
