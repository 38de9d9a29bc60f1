"""A task server in Python: pip install "mcp<2", then python report_server.py (http://127.0.0.1:9000/mcp)."""

import time
import uuid
from typing import Any

from mcp.server.fastmcp import FastMCP

mcp = FastMCP("reports", port=9000, stateless_http=True, json_response=True)
ready_at: dict[str, float | None] = {}  # a real server keeps its tasks where a restart finds them


def state(task_id: str, status: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "status": status, **more}


@mcp.tool()
def submit_report(title: str) -> dict[str, Any]:
    """Starts a report."""
    task_id = f"report-{uuid.uuid4().hex}"
    ready_at[task_id] = time.time() + 10
    return state(task_id, "running")


@mcp.tool()
def get_report_status(task_id: str) -> dict[str, Any]:
    """Tells how a report stands."""
    if task_id not in ready_at:
        return state(task_id, "failed", error_code="task_not_found")
    at = ready_at[task_id]
    if at is None:
        return state(task_id, "cancelled")
    if time.time() < at:
        return state(task_id, "running", poll_after_seconds=2)
    return state(task_id, "completed", result={"pages": 12})


@mcp.tool()
def cancel_report(task_id: str) -> dict[str, Any]:
    """Cancels a report; one that is ready stays ready."""
    if (at := ready_at.get(task_id)) is not None and time.time() < at:
        ready_at[task_id] = None
    return get_report_status(task_id)


if __name__ == "__main__":
    mcp.run("streamable-http")
