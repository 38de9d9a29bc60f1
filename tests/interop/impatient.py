"""A server that hangs up on connections that were idle for long, at the worst moment: when the next request is there.

That is what a server with a keep-alive of five seconds (uvicorn, Node.js) does to a client that sends just then. Such a
request may or may not have been looked at, so a client that must not repeat a call has to avoid it.
"""

import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEEP_ALIVE = 4.5
ID = {"type": "object", "properties": {"task_id": {"type": "string"}}}
TOOLS = ["submit_report", "get_report_status", "cancel_report", "answer_report"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Impatient"

    def setup(self) -> None:
        super().setup()
        self.answered_at: float | None = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        idle = 0.0 if self.answered_at is None else time.monotonic() - self.answered_at
        if idle > KEEP_ALIVE:
            self.server.hung_up.append((round(idle, 2), (asked.get("params") or {}).get("name")))
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        answer = self.answer(asked)
        body = b"" if answer is None else json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | answer).encode()
        self.send_response(202 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.answered_at = time.monotonic()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        if "id" not in asked:
            return None
        if asked["method"] == "initialize":
            about = {"serverInfo": {"name": "impatient", "version": "0"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        if asked["method"] == "tools/list":
            return {"result": {"tools": [{"name": name, "inputSchema": ID} for name in TOOLS]}}
        if asked["method"] == "tools/call":
            self.server.calls.append(asked["params"]["name"])
            state = {"task_id": "endless", "status": "running", "poll_after_seconds": KEEP_ALIVE + 0.1}
            return {"result": {"content": [], "structuredContent": state}}
        return {"error": {"code": -32601, "message": "method not found"}}

    def log_message(self, *_: Any) -> None:
        pass


class Impatient(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hung_up: list[Any] = []
        self.calls: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def handle_error(self, *_: Any) -> None:
        pass  # The daemon's end hangs up too.
