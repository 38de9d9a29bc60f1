"""Puts real tasks, threads, servers and toolsets into about half of the requests, so that they get past "no such task"."""

import os
import random

import schemathesis

TASKS = os.environ["FUZZ_TASKS"].split()
KNOWN = {"thread_id": ["t"], "task_id": TASKS, "server_name": ["reports"]}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    for name, known in KNOWN.items():
        if path_parameters and name in path_parameters and random.random() < 0.5:
            path_parameters[name] = random.choice(known)
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("server"), str) and random.random() < 0.5:
        body["server"] = "reports"
        if isinstance(body.get("task"), str):
            body["task"] = "report"
    return body


@schemathesis.hook
def map_query(context, query):
    # The daemon waits as long as it is asked to, which is longer than a request here may take.
    try:
        if query and float(query["wait"]) > 1:
            query["wait"] = 1
    except (KeyError, TypeError, ValueError):
        pass
    return query
