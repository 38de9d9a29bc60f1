"""Checks a tree of kustomizations: what they name exists, every object keeps its schema, and some rules of our own."""

import copy
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

VERSION = "1.37"
AGENT = """
apiVersion: apps/v1
kind: Deployment
metadata: { name: agent, labels: { mcp-taskd.gateway: sidecar } }
spec:
  selector: { matchLabels: { app: agent } }
  template:
    metadata: { labels: { app: agent } }
    spec: { containers: [{ name: agent, image: agent }] }
"""


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge, as far as the patches here need one: lists are joined."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base[key], value) if key in base else value for key, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list):
        return base + patch
    return patch


def objects(folder: Path) -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for generator in kustomization.get("configMapGenerator", []):
        for name in generator["files"]:
            assert (folder / name).is_file(), f"{folder}: {name} is missing"
    found = [item for name in kustomization.get("resources", []) for item in yaml.safe_load_all((folder / name).read_text())]
    for patch in kustomization.get("patches", []):
        change = yaml.safe_load((folder / patch["path"]).read_text())
        change.pop("metadata")
        found.append(merged(yaml.safe_load(AGENT), change))
    used = {folder / name for name in kustomization.get("resources", [])}
    used |= {folder / patch["path"] for patch in kustomization.get("patches", [])}
    used |= {folder / name for generator in kustomization.get("configMapGenerator", []) for name in generator["files"]}
    unused = {path for path in folder.iterdir() if path.name != "kustomization.yaml"} - used
    assert not unused, f"nobody names {unused}"
    return found


def pod_of(item: dict[str, Any]) -> dict[str, Any] | None:
    return item.get("spec", {}).get("template", {}).get("spec")


def check_pod(name: str, pod: dict[str, Any], grace: int) -> None:
    for container in pod.get("initContainers", []) + pod["containers"]:
        if not container["image"].startswith("mcp-taskd"):
            continue
        context = pod.get("securityContext", {}) | container.get("securityContext", {})
        wanted = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        for key, value in wanted.items():
            assert context.get(key) == value, f"{name}: {key} is not {value}"
        assert context["capabilities"] == {"drop": ["ALL"]}, f"{name}: capabilities"
        assert context["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: seccomp"
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, f"{name}: a volume is missing"
        if "serve" in container["args"]:
            assert pod["terminationGracePeriodSeconds"] > grace, f"{name}: killed before the drain is over"
            probes = {key: container[key]["httpGet"]["path"] for key in ("startupProbe", "livenessProbe", "readinessProbe")}
            assert list(probes.values()) == ["/startupz", "/livez", "/readyz"], f"{name}: {probes}"


def main() -> None:
    count = 0
    for file in sorted(Path(sys.argv[1]).glob("*/kustomization.yaml")):
        settings = yaml.safe_load((file.parent / "config.yaml").read_text())
        items = objects(file.parent)
        for item in items:
            name = f"{file.parent.name}/{item['kind']}/{item['metadata']['name']}"
            kubernetes_validate.validate(copy.deepcopy(item), VERSION, strict=True)
            pod = pod_of(item)
            if pod is not None:
                check_pod(name, pod, settings["server"]["shutdown_grace_seconds"])
            count += 1
        labels = [item["spec"]["template"]["metadata"]["labels"] for item in items if pod_of(item)]
        for item in items:
            selector = item.get("spec", {}).get("selector")
            if item["kind"] in ("Service", "PodDisruptionBudget"):
                selector = selector.get("matchLabels", selector)
                assert any(selector.items() <= given.items() for given in labels), f"{item['kind']} selects no pod"
    assert count, "no manifest was found"
    print(f"{count} objects keep the schemas of Kubernetes {VERSION}")


if __name__ == "__main__":
    main()
