// A task server in JavaScript: npm install @modelcontextprotocol/sdk@1 zod, then node report_server.mjs (http://127.0.0.1:9000/mcp).

import { randomUUID } from "node:crypto";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const PORT = 9000;
const reports = new Map(); // a real server keeps its tasks where a restart finds them

function status(task_id) {
  const report = reports.get(task_id);
  if (!report) return { task_id, status: "failed", error_code: "task_not_found" };
  if (report.cancelled) return { task_id, status: "cancelled" };
  if (Date.now() < report.readyAt) return { task_id, status: "running", poll_after_seconds: 2 };
  if (report.approval && report.answer === undefined) {
    return { task_id, status: "input_required", input_required: { question: "Publish it?", choices: ["yes", "no"] } };
  }
  return { task_id, status: "completed", result: { pages: 12, answer: report.answer ?? null } };
}

// The daemon reads structuredContent; the text is for whoever calls the tool without it.
const answer = (state) => ({ structuredContent: state, content: [{ type: "text", text: JSON.stringify(state) }] });

function server() {
  const mcp = new McpServer({ name: "reports", version: "1.0.0" });
  mcp.registerTool(
    "submit_report",
    {
      description: "Starts a report, which waits for an approval at its end if you like.",
      inputSchema: { title: z.string(), approval: z.boolean().default(false) },
    },
    ({ approval }, { _meta }) => {
      // A submit that is repeated finds its report.
      const task_id = `report-${_meta?.["mcp-taskd/idempotency-key"] ?? randomUUID()}`;
      if (!reports.has(task_id)) reports.set(task_id, { readyAt: Date.now() + 10_000, approval, cancelled: false });
      return answer({ task_id, status: "running" });
    },
  );
  mcp.registerTool(
    "get_report_status",
    { description: "Tells how a report stands.", inputSchema: { task_id: z.string() } },
    ({ task_id }) => answer(status(task_id)),
  );
  mcp.registerTool(
    "answer_report",
    { description: "Answers what a report asks.", inputSchema: { task_id: z.string(), input: z.any() } },
    ({ task_id, input }) => {
      if (status(task_id).status === "input_required") reports.get(task_id).answer = input;
      return answer(status(task_id));
    },
  );
  mcp.registerTool(
    "cancel_report",
    { description: "Cancels a report; one that is ready stays ready.", inputSchema: { task_id: z.string() } },
    ({ task_id }) => {
      if (["running", "input_required"].includes(status(task_id).status)) reports.get(task_id).cancelled = true;
      return answer(status(task_id));
    },
  );
  return mcp;
}

// Without sessions: a server and a transport for each request, the reports for all of them.
const app = createMcpExpressApp();
app.post("/mcp", async (request, response) => {
  const mcp = server();
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on("close", () => mcp.close());
  await mcp.connect(transport);
  await transport.handleRequest(request, response, request.body);
});
app.all("/mcp", (_, response) => response.status(405).set("Allow", "POST").end());
app.listen(PORT, "127.0.0.1");
