"""Reports that outlive their server's process: one JSON file a report, and a journal of what was asked for."""

import json
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable


class Reports:
    """The reports of one server, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Some SDKs run plain functions on threads, beside the others on the event loop.
        self.lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def submit(self, title: str, seconds: float, kind: str, hint: float | None) -> dict[str, Any]:
        task_id = f"report-{uuid.uuid4().hex}"
        report = {"title": title, "kind": kind, "ready_at": time.time() + seconds, "hint": hint, "polls": 0}
        self._write(task_id, report)
        return {"task_id": task_id, "status": "running"}

    def status(self, task_id: str) -> dict[str, Any]:
        return self._change(task_id, lambda report: {"polls": report["polls"] + 1})

    def cancel(self, task_id: str) -> dict[str, Any]:
        return self._change(task_id, lambda _: {"cancelled": True})

    def answer(self, task_id: str, given: Any) -> dict[str, Any]:
        return self._change(task_id, lambda _: {"answer": given})

    def _change(self, task_id: str, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        with self.lock:
            report = self._read(task_id)
            if report is None:
                return {"task_id": task_id, "status": "failed", "error_code": "task_not_found"}
            report |= changes(report)
            self._write(task_id, report)
        return self._state(task_id, report)

    def _state(self, task_id: str, report: dict[str, Any]) -> dict[str, Any]:
        kind = report["kind"]
        if report.get("cancelled"):
            return {"task_id": task_id, "status": "cancelled"}
        if kind == "stumbles" and report["polls"] <= 1:
            raise RuntimeError("the disk is full for a moment")
        if kind == "runs" or time.time() < report["ready_at"]:
            running: dict[str, Any] = {"task_id": task_id, "status": "running"}
            if report["hint"]:
                running["poll_after_seconds"] = report["hint"]
            return running
        if kind == "fails":
            error = {"error": "the ledger is not balanced", "error_code": "unbalanced"}
            return {"task_id": task_id, "status": "failed", **error}
        if kind == "asks" and "answer" not in report:
            question = {"question": "In which currency?", "choices": ["EUR", "USD"]}
            return {"task_id": task_id, "status": "input_required", "input_required": question}
        return {
            "task_id": task_id,
            "status": "completed",
            "result": {"title": report["title"], "pages": 12, "ratio": 0.5, "note": "grün ✓", "answer": report.get("answer")},
            "result_artifact": {"uri": f"reports://{task_id}.pdf", "mime_type": "application/pdf"},
        }

    def _read(self, task_id: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / f"{task_id}.json").read_text())
        except FileNotFoundError:
            return None

    def _write(self, task_id: str, report: dict[str, Any]) -> None:
        path = self.folder / f"{task_id}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(report))
        os.replace(part, path)


def note(journal: Path, **entry: Any) -> None:
    """Appends a line to a journal; one write, so that lines of several processes do not mix."""
    with journal.open("a") as file:
        file.write(json.dumps(entry) + "\n")
