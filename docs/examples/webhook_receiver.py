"""A receiver of mcp-taskd's webhooks: it takes signed messages, each once, and nothing else. Python's own library will do."""

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 9200
TOLERANCE_SECONDS = 300


def key(secret: str) -> bytes:
    prefix = "whsec_"
    return base64.b64decode(secret[len(prefix) :]) if secret.startswith(prefix) else secret.encode()


def is_genuine(secret: str, headers, body: bytes) -> bool:
    """Whether mcp-taskd sent just this body, and sent it now. `body` is the bytes as they came, not JSON written again."""
    message_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdigit() or abs(time.time() - int(at)) > TOLERANCE_SECONDS:
        return False
    signed = f"{message_id}.{at}.".encode() + body
    expected = base64.b64encode(hmac.new(key(secret), signed, hashlib.sha256).digest()).decode()
    # Several signatures while a secret is changed: one that fits is enough.
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(f"v1,{expected}", signature) for signature in signatures)


# A table with a unique column, in a real receiver: a message may come again after a crash on either side.
seen: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_genuine(os.environ["WEBHOOK_SECRET"], self.headers, body):
            self.answer(401)
            return
        if self.headers["webhook-id"] not in seen:
            seen.add(self.headers["webhook-id"])
            message = json.loads(body)
            print(message["type"], message["data"]["task_id"], message["data"]["status"], flush=True)
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", PORT), Receiver).serve_forever()
