#!/usr/bin/env python3
"""What a binary contains: its licences, or a bill of materials (CycloneDX 1.6), from `cargo metadata` and the crates' sources.

    release/inventory.py licences > THIRD_PARTY.txt
    release/inventory.py sbom     > mcp-taskd.cdx.json
    release/inventory.py check      every crate has a licence text, or one that is known

Only what goes into the program counts: no tests, no build tools. Needs nothing but Python and cargo.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "mcp-taskd"
TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT")


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def contained(data):
    """The program's package and everything that is linked into it, with the edges between them."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == PROGRAM)
    edges, open_ids = {}, [root]
    while open_ids:
        at = open_ids.pop()
        if at in edges:
            continue
        # A procedural macro runs in the compiler, and what it depends on does too.
        if any("proc-macro" in target["kind"] for target in packages[at]["targets"]):
            edges[at] = None
            continue
        linked = [dep["pkg"] for dep in nodes[at]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        edges[at] = sorted(linked)
        open_ids.extend(linked)
    edges = {id: deps for id, deps in edges.items() if deps is not None}
    return root, {id: packages[id] for id in sorted(edges)}, {
        id: [dep for dep in deps if dep in edges] for id, deps in edges.items()
    }


def texts(package):
    folder = Path(package["manifest_path"]).parent
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(NAMES))


def licence(package):
    return (package["license"] or "").replace("/", " OR ")


def licences(root, packages):
    print(f"{PROGRAM} contains the following works of others.\n")
    by_text = {}
    for id, package in packages.items():
        if package["source"] is None:
            continue
        print(f"{package['name']} {package['version']}  {licence(package)}  {package['repository'] or ''}".rstrip())
        for path in texts(package):
            text = path.read_text("utf-8", "replace").strip()
            by_text.setdefault(text, []).append(f"{package['name']} {package['version']}")
    for text, users in sorted(by_text.items(), key=lambda entry: entry[1]):
        print(f"\n{'-' * 80}\n{', '.join(users)}\n{'-' * 80}\n\n{text}")


def sbom(root, packages, edges):
    def component(package):
        kind = "application" if package["name"] == PROGRAM else "library"
        made = {
            "type": kind,
            "bom-ref": reference(package),
            "name": package["name"],
            "version": package["version"],
            "licenses": [{"expression": licence(package)}],
        }
        if package["source"]:
            made["purl"] = f"pkg:cargo/{package['name']}@{package['version']}"
        if package["repository"]:
            made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return made

    def reference(package):
        return f"{package['name']}@{package['version']}"

    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(packages[root])},
        "components": [component(package) for id, package in packages.items() if id != root],
        "dependencies": [
            {"ref": reference(packages[id]), "dependsOn": [reference(packages[dep]) for dep in edges[id]]} for id in packages
        ],
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


def check(packages):
    """A licence text is wanted of every crate; one that ships none must be under MIT or Apache-2.0, whose texts are here."""
    bare = [package for package in packages.values() if package["source"] and not texts(package)]
    wrong = [package["name"] for package in bare if not {"MIT", "Apache-2.0"} & set(licence(package).split())]
    if wrong:
        sys.exit(f"no licence text and no known licence: {', '.join(wrong)}")
    others = sum(package["source"] is not None for package in packages.values())
    print(f"{others} crates in the program, {len(bare)} of them without a licence text of their own")


def main():
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what not in ("licences", "sbom", "check"):
        sys.exit(__doc__)
    root, packages, edges = contained(metadata())
    if what == "licences":
        licences(root, packages)
    elif what == "sbom":
        sbom(root, packages, edges)
    else:
        check(packages)


if __name__ == "__main__":
    main()
