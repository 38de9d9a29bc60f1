"""A server behind the gateway with the tools that the conformance package's scenarios call.

It speaks the protocol of 2025-11-25 without sessions. `test_trigger_tool_change` adds a tool and says so beside its answer.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}

TEXT = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}
RESOURCE = {
    "type": "resource",
    "resource": {"uri": "test://mixed-content-resource", "mimeType": "application/json", "text": '{"test":"data","value":123}'},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "test_simple_text": {"content": [TEXT]},
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [AUDIO]},
    "test_embedded_resource": {"content": [RESOURCE]},
    "test_multiple_content_types": {"content": [TEXT, IMAGE, RESOURCE]},
    "test_error_handling": {"content": [{"type": "text", "text": "This tool always fails."}], "isError": True},
    # What these would say to the client or ask of it meanwhile has no way through the gateway.
    "test_tool_with_logging": {"content": [TEXT]},
    "test_tool_with_progress": {"content": [TEXT]},
    "test_logging_tool": {"content": [TEXT]},
    "test_streaming_elicitation": {"content": [TEXT]},
    "test_trigger_tool_change": {"content": [TEXT]},
    "json_schema_2020_12_tool": {"content": [TEXT]},
    "test_header_parameter": {"content": [TEXT]},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_header_parameter": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
}


class Upstream(ThreadingHTTPServer):
    """The server, on a thread of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.added = 0
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def tools(self) -> list[dict[str, Any]]:
        added = {f"added_{n}" for n in range(self.added)}
        return [
            {"name": name, "description": f"Answers for {name}.", "inputSchema": SCHEMAS.get(name, {"type": "object"})}
            for name in [*ANSWERS, *sorted(added)]
        ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in asked:
            return self.reply(202, "application/json", b"")
        before, answer = self.answer(asked["method"], asked.get("params") or {})
        answer = {"jsonrpc": "2.0", "id": asked["id"], **answer}
        if not before:
            return self.reply(200, "application/json", json.dumps(answer).encode())
        events = "".join(f"data: {json.dumps(message)}\n\n" for message in [*before, answer])
        self.reply(200, "text/event-stream", events.encode())

    def answer(self, method: str, params: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What is said first, and the answer."""
        match method:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "conformance-upstream", "version": "1"}
                return [], {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
            case "tools/list":
                return [], {"result": {"tools": self.server.tools()}}
            case "tools/call" if params.get("name") in ANSWERS:
                changes = params["name"] == "test_trigger_tool_change"
                self.server.added += changes
                return [CHANGED] * changes, {"result": ANSWERS[params["name"]]}
        return [], {"error": {"code": -32601, "message": f"{method} is unknown here"}}

    def do_GET(self) -> None:
        self.reply(405, "text/plain", b"")

    def reply(self, code: int, media_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
