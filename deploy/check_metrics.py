"""Checks alerts, recording rules and dashboards against a live /metrics: every series they ask for exists, by name and label.

Usage: check_metrics.py METRICS RULES... DASHBOARDS..., where METRICS is a page as Prometheus scrapes it. Writes every
expression of a dashboard as a rule, for promtool to parse, on standard output.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

# Not there unless something is configured or has happened: name and labels.
ABSENT = {
    "mcp_taskd_tasks_quarantined": {"column"},
    "mcp_taskd_oauth_refreshes_total": {"server", "outcome"},
    "mcp_taskd_oauth_token_expiry_timestamp_seconds": {"server"},
    "mcp_taskd_auth_failures_total": {"scheme", "reason"},
    "mcp_taskd_rate_limited_total": {"route"},
    "mcp_taskd_event_deliveries_total": {"sink", "outcome"},
    "mcp_taskd_events_dead_lettered_total": {"sink", "outcome"},
    "mcp_taskd_events_pending": {"sink"},
    "mcp_taskd_events_oldest_pending_timestamp_seconds": {"sink"},
}
# Labels that a scrape adds.
SCRAPED = {"job", "instance"}


def live(page: str) -> dict[str, set[str]]:
    """The series of a page and their labels, as they are named in expressions."""
    series = {name: set(labels) for name, labels in ABSENT.items()}
    for line in page.splitlines():
        if match := re.match(r"(mcp_taskd_\w+)(?:{(.*)})? ", line):
            series.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return series


def targets(panels: list[dict]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", []))
        yield from targets(panel.get("panels", []))


def expressions(path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        board = json.loads(path.read_text())
        yield from targets(board["panels"])
        yield from (note["expr"] for note in board["annotations"]["list"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query" and (match := re.match(r"label_values\((.*), \w+\)$", variable["query"]["query"])):
                yield match[1]
        return
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def plain(expression: str) -> str:
    """An expression without the variables of a dashboard."""
    return expression.replace("$__rate_interval", "1m").replace("$job", "mcp-taskd").replace("$server", ".*")


def check(path: Path, expression: str, series: dict[str, set[str]]) -> None:
    for name, matchers in re.findall(r"(mcp_taskd_\w+)(?:{([^}]*)})?", expression):
        assert name in series, f"{path}: nothing is named {name}"
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        unknown = labels - series[name] - SCRAPED
        assert not unknown, f"{path}: {name} has no label {', '.join(unknown)}"
    known = SCRAPED | {"le"} | {label for name in re.findall(r"mcp_taskd_\w+", expression) for label in series[name]}
    for labels in re.findall(r"\b(?:by|ignoring|on)\s*\(([^)]*)\)", expression):
        unknown = {label.strip() for label in labels.split(",")} - known
        assert not unknown, f"{path}: no label {', '.join(unknown)} in {expression}"


def main() -> None:
    page, *paths = map(Path, sys.argv[1:])
    series = live(page.read_text())
    rules = []
    for path in paths:
        found = [plain(expression) for expression in expressions(path)]
        assert found, f"{path} asks for nothing"
        for expression in found:
            check(path, expression, series)
            rules.append({"record": f"parsed:{len(rules)}", "expr": expression})
    print(yaml.safe_dump({"groups": [{"name": "parsed", "rules": rules}]}))


if __name__ == "__main__":
    main()
