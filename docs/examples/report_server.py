"""A task server in Python: pip install "mcp<2", then python report_server.py (http://127.0.0.1:9000/mcp)."""

import time
import uuid
from typing import Any

from mcp.server.fastmcp import Context, FastMCP

mcp = FastMCP("reports", port=9000, stateless_http=True, json_response=True)
reports: dict[str, dict[str, Any]] = {}  # a real server keeps its tasks where a restart finds them


def state(task_id: str, status: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "status": status, **more}


@mcp.tool()
def submit_report(title: str, ctx: Context, approval: bool = False) -> dict[str, Any]:
    """Starts a report, which waits for an approval at its end if you like."""
    meta = ctx.request_context.meta
    key = (meta.model_extra or {}).get("mcp-taskd/idempotency-key") if meta else None
    task_id = f"report-{key or uuid.uuid4().hex}"  # a submit that is repeated finds its report
    reports.setdefault(task_id, {"ready_at": time.time() + 10, "approval": approval, "cancelled": False, "answer": None})
    return state(task_id, "running")


@mcp.tool()
def get_report_status(task_id: str) -> dict[str, Any]:
    """Tells how a report stands."""
    report = reports.get(task_id)
    if report is None:
        return state(task_id, "failed", error_code="task_not_found")
    if report["cancelled"]:
        return state(task_id, "cancelled")
    if time.time() < report["ready_at"]:
        return state(task_id, "running", poll_after_seconds=2)
    if report["approval"] and report["answer"] is None:
        return state(task_id, "input_required", input_required={"question": "Publish it?", "choices": ["yes", "no"]})
    return state(task_id, "completed", result={"pages": 12, "answer": report["answer"]})


@mcp.tool()
def answer_report(task_id: str, input: Any) -> dict[str, Any]:
    """Answers what a report asks."""
    if get_report_status(task_id)["status"] == "input_required":
        reports[task_id]["answer"] = input
    return get_report_status(task_id)


@mcp.tool()
def cancel_report(task_id: str) -> dict[str, Any]:
    """Cancels a report; one that is ready stays ready."""
    if get_report_status(task_id)["status"] in ("running", "input_required"):
        reports[task_id]["cancelled"] = True
    return get_report_status(task_id)


if __name__ == "__main__":
    mcp.run("streamable-http")
