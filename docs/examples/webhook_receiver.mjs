// A receiver of mcp-taskd's webhooks: it takes signed messages, each once, and nothing else. Node.js's own library will do.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const PORT = 9300;
const TOLERANCE_SECONDS = 300;

const key = (secret) => (secret.startsWith("whsec_") ? Buffer.from(secret.slice(6), "base64") : Buffer.from(secret));

// Whether mcp-taskd sent just this body, and sent it now. `body` is the bytes as they came, not JSON written again.
export function isGenuine(secret, headers, body) {
  const id = headers["webhook-id"] ?? "";
  const at = headers["webhook-timestamp"] ?? "";
  if (!/^\d+$/.test(at) || Math.abs(Date.now() / 1000 - Number(at)) > TOLERANCE_SECONDS) return false;
  const expected = Buffer.from(`v1,${createHmac("sha256", key(secret)).update(`${id}.${at}.`).update(body).digest("base64")}`);
  // Several signatures while a secret is changed: one that fits is enough.
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const given = Buffer.from(signature);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

// A table with a unique column, in a real receiver: a message may come again after a crash on either side.
const seen = new Set();

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  if (!isGenuine(process.env.WEBHOOK_SECRET, request.headers, body)) {
    response.writeHead(401).end();
    return;
  }
  if (!seen.has(request.headers["webhook-id"])) {
    seen.add(request.headers["webhook-id"]);
    const { type, data } = JSON.parse(body);
    console.log(type, data.task_id, data.status);
  }
  response.writeHead(204).end();
});

server.listen(PORT, "127.0.0.1");
