"""Write the software bill of materials of a release: CycloneDX 1.6 as JSON, from the packages that were built.

    python .ci/sbom.py dist/sbom.cdx.json dist/metrist dist/models

Listed are metrist and its packages of models with the SHA-256 of each wheel, the models inside with that of their
weights, and the packages that they need, in the versions that CI tests with (constraints-ci.txt). Licences are those
that the packages' own metadata declare. Equal packages give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Names the bill: equal content has equal numbers.
_NAMESPACE = uuid.UUID("5f0c3a34-6a63-5f0b-9f57-0d6f3c1f8e11")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?")
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")


def main(target: Path, folders: Sequence[Path]) -> int:
    wheels = sorted(path for folder in folders for path in folder.glob("*.whl"))
    if not wheels:
        print(f"no wheels in {', '.join(map(str, folders))}: build them first", file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    bill = build_bill(wheels, read_pins(ROOT / "constraints-ci.txt"))
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(bill['components'])} components")
    return 0


def build_bill(wheels: Sequence[Path], pins: dict[str, list[str]]) -> dict[str, Any]:
    """The bill of these wheels. `pins` are the versions of a package by its name."""
    own: dict[str, dict[str, Any]] = {}
    needs: dict[str, set[str]] = {}
    models: list[dict[str, Any]] = []
    for wheel in wheels:
        metadata, content = read_wheel(wheel)
        name = normalize(metadata["Name"])
        component = own.setdefault(name, _describe_package(metadata))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        component["externalReferences"].append(
            {"type": "distribution", "url": wheel.name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        )
        needs[name] = {package for package, _ in list_requirements(metadata)}
        if not any(model["group"] == name for model in models):
            models += [_describe_model(metadata, path, data) for path, data in content]
    others = [
        _describe_pin(name, version)
        for name in sorted({name for packages in needs.values() for name in packages} - own.keys())
        for version in pins.get(name, [""])
    ]
    components = [*own.values(), *models, *others]
    dependencies = [
        {
            "ref": own[name]["bom-ref"],
            "dependsOn": sorted(
                component["bom-ref"]
                for component in components
                if component["name"] in packages or component.get("group") == name
            ),
        }
        for name, packages in needs.items()
    ]
    number = uuid.uuid5(_NAMESPACE, json.dumps([components, dependencies], sort_keys=True))
    root = own.get("metrist") or next(iter(own.values()))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": {**root, "bom-ref": f"{root['bom-ref']}#release"}},
        "components": components,
        "dependencies": dependencies,
    }


def read_wheel(path: Path) -> tuple[Message, list[tuple[str, bytes]]]:
    """The metadata of a wheel, and its models' weights by their path."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        weights = [(name, archive.read(name)) for name in sorted(names) if name.endswith(".safetensors")]
        return HeaderParser().parsestr(archive.read(metadata).decode("utf-8")), weights


def list_requirements(metadata: Message) -> Iterator[tuple[str, str]]:
    """The packages that one needs, those of its extras included, with the condition of each."""
    for requirement in metadata.get_all("Requires-Dist") or ():
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{metadata['Name']}: the requirement {requirement!r} cannot be read")
        if normalize(match[1]) != normalize(metadata["Name"]):  # An extra may name another extra of the same package.
            yield normalize(match[1]), (match[4] or "").strip()


def read_pins(path: Path) -> dict[str, list[str]]:
    """The versions of each package in a file of constraints; several where they depend on the Python version."""
    pins: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _PIN.match(line):
            pins.setdefault(normalize(match[1]), []).append(match[2])
    return pins


def normalize(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _describe_package(metadata: Message) -> dict[str, Any]:
    name, version = normalize(metadata["Name"]), metadata["Version"]
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "description": metadata["Summary"],
        "licenses": [{"expression": metadata["License-Expression"]}],
        "purl": f"pkg:pypi/{name}@{version}",
        "externalReferences": [],
    }


def _describe_model(metadata: Message, path: str, data: bytes) -> dict[str, Any]:
    name = normalize(metadata["Name"])
    return {
        "type": "machine-learning-model",
        "bom-ref": f"{name}/{path}",
        "group": name,
        "name": f"metrist:{Path(path).parent.name}",
        "version": metadata["Version"],
        "licenses": [{"expression": metadata["License-Expression"]}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
    }


def _describe_pin(name: str, version: str) -> dict[str, Any]:
    at = f"@{version}" if version else ""
    component = {"type": "library", "bom-ref": f"pkg:pypi/{name}{at}", "name": name, "purl": f"pkg:pypi/{name}{at}"}
    return {**component, "version": version} if version else component


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]]))
