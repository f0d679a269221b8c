"""The bill of materials of a release: complete, and of the form that CycloneDX 1.6 prescribes. Locked versions: with
hashes, and audited only where an advisory service answered."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = [ROOT, *sorted(path.parent for path in (ROOT / "models").rglob("pyproject.toml"))]


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sbom, audit = _load("sbom"), _load("audit_dependencies")


def _build_wheel(project: Path, folder: Path) -> Path:
    """A wheel with the metadata of a project and the models in its source, as hatchling writes them."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = facts["name"], facts.get("version", "1.2.3")
    lines = [f"Name: {name}", f"Version: {version}", f"Summary: {facts['description']}"]
    lines.append(f"License-Expression: {facts['license']}")
    lines += [f"Requires-Dist: {requirement}" for requirement in facts.get("dependencies", ())]
    for extra, requirements in facts.get("optional-dependencies", {}).items():
        for requirement in requirements:
            text, _, condition = requirement.partition(";")
            joined = f"({condition.strip()}) and " if condition else ""
            lines.append(f"Requires-Dist: {text}; {joined}extra == '{extra}'")
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\ntext")
        if project != ROOT:
            package = name.replace("-", "_")
            for weights in (project / "src" / package).rglob("*.safetensors"):
                archive.writestr(f"{package}/{weights.parent.name}/{weights.name}", weights.read_bytes()[:64])
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return [_build_wheel(project, folder) for project in PROJECTS]


@pytest.fixture(scope="module")
def bill(wheels: list[Path]) -> dict[str, Any]:
    result: dict[str, Any] = sbom.build_bill(wheels, sbom.read_pins(ROOT / "constraints-ci.txt"))
    return result


def test_the_bill_has_the_form_of_cyclonedx(bill: dict[str, Any]) -> None:
    # The rules of https://cyclonedx.org/docs/1.6/json/ for the parts that are used; cyclonedx-python-lib checked the
    # whole schema when this was written.
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)
    for component in bill["components"]:
        assert component["type"] in ("library", "machine-learning-model")
        assert component["name"]
        assert all(re.fullmatch("[0-9a-f]{64}", own["content"]) for own in component.get("hashes", ()))
    for entry in bill["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= set(references)
    assert json.loads(json.dumps(bill)) == bill


def test_all_that_ships_is_listed_with_its_licence_and_hash(bill: dict[str, Any], wheels: list[Path]) -> None:
    files = {
        reference["url"]: reference["hashes"][0]["content"]
        for component in bill["components"]
        for reference in component.get("externalReferences", ())
    }
    assert files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}
    models = [component for component in bill["components"] if component["type"] == "machine-learning-model"]
    folders = [path for project in PROJECTS[1:] for path in (project / "src").rglob("*.safetensors")]
    assert len({path.parent for path in folders}) == len({model["name"] for model in models})
    own = [component for component in bill["components"] if component["name"].startswith("metrist")]
    for component in own:
        assert component["licenses"][0]["expression"]
        assert component["version"]


def test_what_is_needed_is_listed_in_the_versions_that_ci_tests(bill: dict[str, Any]) -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        sbom.normalize(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
        for group in (facts["dependencies"], *facts["optional-dependencies"].values())
        for requirement in group
    }
    listed = {component["name"] for component in bill["components"]}
    assert names <= listed
    pins = sbom.read_pins(ROOT / "constraints-ci.txt")
    for component in bill["components"]:
        if component["name"] in pins:
            assert component["version"] in pins[component["name"]]


def test_equal_packages_give_equal_bills(bill: dict[str, Any], wheels: list[Path]) -> None:
    assert sbom.build_bill(wheels, sbom.read_pins(ROOT / "constraints-ci.txt")) == bill


def test_without_packages_there_is_no_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sbom.main(tmp_path / "sbom.json", [tmp_path]) == 1
    assert "build them first" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["requirements-build.txt", "requirements-release.txt"])
def test_what_builds_a_release_is_locked_with_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    assert all(re.search(r"==.*--hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_the_locked_versions_have_all_that_ships_needs() -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("standard", "large", "llm", "serve", "otel", "web", "tables", "plots", "neural", "train", "client")
    wanted = [*facts["dependencies"], *(own for extra in extras for own in facts["optional-dependencies"][extra])]
    names = {sbom.normalize(re.match(r"[\w.-]+", own)[0]) for own in wanted}  # type: ignore[index]
    pins = sbom.read_pins(ROOT / "constraints-ci.txt")
    assert {name for name in names if not name.startswith("metrist")} <= pins.keys()


@pytest.mark.parametrize(
    ("packages", "code", "word"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "no known vulnerability in 1"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}], 1, "X-1, mended in 2"),
        ([{"name": "a", "skip_reason": "not found"}], 2, "could not be audited"),
    ],
)
def test_an_audit_without_an_answer_is_no_success(packages: Any, code: int, word: str) -> None:
    result, lines = audit.judge(packages)
    assert result == code
    assert word in lines[0]
