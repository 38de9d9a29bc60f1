"""Checks rendered manifests, a file each: every object keeps its schema, and the rules of our own below."""

import copy
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

VERSION = "1.37"
PROBES = {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
# How long a pod without its store stays in the Service, in seconds.
PATIENCE = range(20, 46)

Object = dict[str, Any]

ADAPTER = Path(__file__).parent / "kubernetes/components/autoscaling/prometheus-adapter.yaml"
# External metrics that an autoscaler may ask for.
SERVED = {rule["name"]["as"] for rule in yaml.safe_load(ADAPTER.read_text())["rules"]["external"]}


def check_container(name: str, pod: Object, container: Object) -> None:
    """What the restricted pod security standard asks for, and a read-only root besides."""
    context = pod.get("securityContext", {}) | container.get("securityContext", {})
    wanted = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    for key, value in wanted.items():
        assert context.get(key) == value, f"{name}: {key} is not {value}"
    assert context["capabilities"] == {"drop": ["ALL"]}, f"{name}: capabilities"
    assert context["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: seccomp"
    assert "memory" in container["resources"]["limits"], f"{name}: memory without a limit"
    if name.endswith("mcp-taskd") or name.endswith("migrate"):
        assert pod["enableServiceLinks"] is False, f"{name}: variables of other services"
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, f"{name}: a volume is missing"


def check_service(name: str, pod: Object, container: Object, settings: list[Object]) -> None:
    """What a container that serves needs besides."""
    grace = max(each["server"]["shutdown_grace_seconds"] for each in settings)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in PROBES:
        port = container[probe]["httpGet"]["port"]
        address = f"0.0.0.0:{ports.get(port, port)}"
        assert all(each["server"]["admin_listen"] == address for each in settings), f"{name}: {probe} asks another port"
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["terminationGracePeriodSeconds"] > grace + pause, f"{name}: killed before the drain is over"
    for probe, path in PROBES.items():
        assert container[probe]["httpGet"]["path"] == path, f"{name}: {probe}"
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready.get("failureThreshold", 3) in PATIENCE, f"{name}: patience without a store"


def pods(items: list[Object]) -> list[tuple[str, Object]]:
    found = [(item, item.get("spec", {}).get("template")) for item in items]
    return [(f"{item['kind']}/{item['metadata']['name']}", template) for item, template in found if template]


def check_pods(items: list[Object]) -> None:
    config = {item["metadata"]["name"]: item["data"] for item in items if item["kind"] == "ConfigMap"}
    claims = {item["metadata"]["name"] for item in items if item["kind"] == "PersistentVolumeClaim"}
    for name, template in pods(items):
        pod = template["spec"]
        for volume in pod.get("volumes", []):
            assert volume.get("configMap", {"name": None})["name"] in {None, *config}, f"{name}: no such ConfigMap"
            claim = volume.get("persistentVolumeClaim", {"claimName": None})["claimName"]
            assert claim in {None, *claims}, f"{name}: no such claim"
        for container in pod.get("initContainers", []) + pod["containers"]:
            if "mcp-taskd" not in container["image"]:
                continue
            check_container(name, pod, container)
            if "serve" in container["args"]:
                settings = [yaml.safe_load(data["config.yaml"]) for data in config.values()]
                check_service(name, pod, container, settings)


def containers(items: list[Object]) -> list[Object]:
    specs = [template["spec"] for _, template in pods(items)]
    return [each for pod in specs for each in pod.get("initContainers", []) + pod["containers"]]


def check_egress(rules: list[Object]) -> None:
    """Other pods by a selector, since blocks need not cover them; names from a link-local cache; nothing else there."""
    everywhere = [peer for rule in rules if "ports" not in rule for peer in rule["to"]]
    assert {"namespaceSelector": {}} in everywhere, "other pods cannot be reached everywhere"
    blocks = {peer["ipBlock"]["cidr"]: peer["ipBlock"] for peer in everywhere if "ipBlock" in peer}
    assert "169.254.0.0/16" in blocks["0.0.0.0/0"]["except"], "the cloud's metadata service can be reached"
    names = [peer for rule in rules if {port["port"] for port in rule.get("ports", [])} == {53} for peer in rule["to"]]
    assert {"ipBlock": {"cidr": "169.254.0.0/16"}} in names, "a node's cache of names cannot be reached"


def check_selectors(items: list[Object]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pods(items)]
    for item in items:
        spec = item.get("spec", {})
        selector = spec.get("podSelector" if item["kind"] == "NetworkPolicy" else "selector")
        if item["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            selector = selector.get("matchLabels", selector)
            assert any(selector.items() <= given.items() for given in labels), f"{item['kind']} selects no pod"
        if item["kind"] == "NetworkPolicy":
            check_egress(spec["egress"])
        if item["kind"] == "Service":
            ports = {port["name"] for pod in containers(items) for port in pod.get("ports", [])}
            assert all(port["targetPort"] in ports for port in spec["ports"]), "a service's port is no container's"
        if item["kind"] == "HorizontalPodAutoscaler":
            metrics = {metric["external"]["metric"]["name"] for metric in spec["metrics"]}
            assert metrics <= SERVED, f"nothing serves {metrics - SERVED}"
            names = {other["metadata"]["name"] for other in items if other["kind"] == spec["scaleTargetRef"]["kind"]}
            assert spec["scaleTargetRef"]["name"] in names, "the autoscaler scales nothing"


def main() -> None:
    count = 0
    for file in map(Path, sys.argv[1:]):
        items = [item for item in yaml.safe_load_all(file.read_text()) if item]
        assert items, f"{file} is empty"
        for item in items:
            kubernetes_validate.validate(copy.deepcopy(item), VERSION, strict=True)
        check_pods(items)
        check_selectors(items)
        count += len(items)
    assert count, "no manifest was given"
    print(f"{count} objects keep the schemas of Kubernetes {VERSION}")


if __name__ == "__main__":
    main()
