"""A report server made with one of the Python SDKs.

    server.py SDK FOLDER stdio STYLE
    server.py SDK FOLDER http VARIANT=FD=STYLE …

SDK is `mcp` (the SDK's own FastMCP, MCPServer since 2.0) or `fastmcp` (the package of that name). STYLE is how tools say
what they return: `dict`, `typeddict` or `pydantic`. Over HTTP one process serves several variants, four of Streamable HTTP
and `sse`, the legacy transport, each on a listening socket that it inherits, so that whoever started it may start it again without a connection being refused.
"""

import asyncio
import json
import os
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import NotRequired, TypedDict

from reports import Reports, note

Kind = Literal["completes", "fails", "asks", "runs", "stumbles"]
VARIANTS = {
    "stateful": {"stateless_http": False, "json_response": False},
    "stateful-json": {"stateless_http": False, "json_response": True},
    "stateless": {"stateless_http": True, "json_response": False},
    "stateless-json": {"stateless_http": True, "json_response": True},
}


class Artifact(BaseModel):
    uri: str
    mime_type: str


class StateModel(BaseModel):
    """What a pydantic server answers: members that are not there travel as null."""

    task_id: str
    status: str
    poll_after_seconds: float | None = None
    result: Any = None
    result_artifact: Artifact | None = None
    error: str | None = None
    error_code: str | None = None
    input_required: dict[str, Any] | None = None


class StateDict(TypedDict):
    """The same as a dictionary. The SDK's 1.x fills in null for what is left out, so null has to be allowed."""

    task_id: str
    status: str
    poll_after_seconds: NotRequired[float | None]
    result: NotRequired[Any]
    result_artifact: NotRequired[dict[str, str] | None]
    error: NotRequired[str | None]
    error_code: NotRequired[str | None]
    input_required: NotRequired[dict[str, Any] | None]


class Section(BaseModel):
    heading: str = Field(description="The heading, in the report's language", max_length=80)
    pages: list[int] = Field(default_factory=list)
    parts: list["Section"] = Field(default_factory=list)


class Outline(BaseModel):
    """An outline: nested, recursive, with defaults; a schema with $defs and $ref."""

    title: str
    sections: list[Section] = []


RETURNS: dict[str, Any] = {"dict": dict[str, Any], "typeddict": StateDict, "pydantic": StateModel}


def server_class(sdk: str) -> Any:
    if sdk == "fastmcp":
        from fastmcp import FastMCP

        return FastMCP
    if version("mcp").startswith("1."):
        from mcp.server.fastmcp import FastMCP

        return FastMCP
    from mcp.server.mcpserver import MCPServer

    return MCPServer


def add_tools(server: Any, reports: Reports, style: str) -> None:
    State = RETURNS[style]

    def state(value: dict[str, Any]) -> Any:
        return StateModel(**value) if style == "pydantic" else value

    def submit_report(title: str, seconds: float = 1, kind: Kind = "completes", hint: float | None = None) -> State:
        """Starts a report and answers at once."""
        return state(reports.submit(title, seconds, kind, hint))

    def get_report_status(task_id: str) -> State:
        """Tells how a report stands."""
        return state(reports.status(task_id))

    async def cancel_report(task_id: str) -> State:
        """Cancels a report."""
        return state(reports.cancel(task_id))

    async def answer_report(task_id: str, input: Any) -> State:
        """Answers a report's question."""
        return state(reports.answer(task_id, input))

    def add(a: int, b: int = 1) -> int:
        """Adds two numbers."""
        return a + b

    def outline(outline: Outline, language: Literal["de", "en"] = "en") -> Outline:
        """Gives an outline back."""
        return outline

    def shout(text: str) -> str:
        """Gives a text back, louder: «größer» ☂."""
        return text.upper()

    def break_down() -> str:
        """Always fails."""
        raise ValueError("this tool is out of order")

    for function in (submit_report, get_report_status, cancel_report, answer_report, add, outline, shout, break_down):
        server.tool()(function)


def build(sdk: str, folder: Path, variant: str, style: str) -> tuple[Any, Any]:
    """A server and, for HTTP, its ASGI application."""
    make, options = server_class(sdk), VARIANTS.get(variant)
    old = sdk == "mcp" and version("mcp").startswith("1.")
    server = make(f"reports-{variant}", **(options if old and options else {}))
    add_tools(server, Reports(folder), style)
    if variant == "sse":
        return server, server.http_app(path="/sse", transport="sse") if sdk == "fastmcp" else server.sse_app()
    if options is None:
        return server, None
    if old:
        return server, server.streamable_http_app()
    if sdk == "mcp":
        return server, server.streamable_http_app(**options)
    return server, server.http_app(path="/mcp", **options)


def journalled(app: Any, journal: Path) -> Any:
    """The application, with a line in the journal for each request: what came, in which protocol, and the answer's code."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        body, code = bytearray(), 0

        async def receive_noted() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def send_noted(message: Any) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await app(scope, receive_noted, send_noted)
        finally:
            try:
                asked = json.loads(bytes(body) or b"{}")
            except ValueError:
                asked = {}
            note(
                journal,
                http=scope["method"],
                code=code,
                method=asked.get("method"),
                tool=(asked.get("params") or {}).get("name"),
                meta=(asked.get("params") or {}).get("_meta"),
                protocol=headers.get("mcp-protocol-version"),
                session=headers.get("mcp-session-id"),
                peer=list(scope["client"]),
            )

    return call


async def serve_http(sdk: str, folder: Path, variants: list[str]) -> None:
    import uvicorn

    serving = []
    for given in variants:
        variant, fd, style = given.split("=")
        _, app = build(sdk, folder / variant, variant, style)
        app = journalled(app, folder / f"{variant}.jsonl")
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
        serving.append(uvicorn.Server(config).serve(sockets=[socket.socket(fileno=int(fd))]))
    await asyncio.gather(*serving)


def main() -> None:
    sdk, folder, transport = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if transport == "http":
        asyncio.run(serve_http(sdk, folder, sys.argv[4:]))
        return
    note(folder / "stdio.jsonl", pid=os.getpid())
    server, _ = build(sdk, folder / "stdio", "stdio", sys.argv[4])
    if sdk == "fastmcp":
        server.run(show_banner=False)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
