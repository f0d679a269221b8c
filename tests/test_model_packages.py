"""The packages of shipped models in models/: complete, small enough, and named where users look."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from metrist.models.numpy_inference.storage import CONFIG, PACKAGES, TOKENIZER, WEIGHTS
from metrist.models.weights import SHIPPED, distribution_name, find_adapter

ROOT = Path(__file__).resolve().parents[1]
HOMES = {
    package: ROOT / "models" / package.removeprefix("metrist_models").strip("_").replace("_", "-")
    for package in PACKAGES
}
#: The packages that an extra of their own installs, beside those of `standard`.
EXTRAS = {"metrist_models_english_large": "large", "metrist_models_analyst": "analyst"}
FOLDERS = sorted(
    folder
    for package, home in HOMES.items()
    for folder in (home / "src" / package).iterdir()
    if (folder / CONFIG).is_file()
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_its_name_its_licences_and_a_place_in_an_extra(package: str) -> None:
    home, name = HOMES[package], package.replace("_", "-")
    project = tomllib.loads((home / "pyproject.toml").read_text())
    assert project["project"]["name"] == name
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"src/{package}"]
    assert all((home / file).is_file() for file in [*project["project"]["license-files"], "README.md"])
    # Without a leading slash, a pattern also matches in other packages' folders below this one.
    assert all(pattern.startswith("/") for pattern in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    homes = {extra for extra, names in extras.items() if any(each.startswith(f"{name}>=") for each in names)}
    assert homes == {EXTRAS.get(package, "standard")}
    assert "metrist[standard]" in extras["large"]


@pytest.mark.parametrize("folder", [pytest.param(folder, id=folder.name) for folder in FOLDERS])
def test_a_model_is_complete_and_described(folder: Path) -> None:
    assert all((folder / name).is_file() for name in (WEIGHTS, TOKENIZER, "card.md"))
    home = folder.parents[2]
    assert f"{SHIPPED}{folder.name}`" in (home / "README.md").read_text()
    assert f"\n{folder.name}\n" in (home / "NOTICE").read_text()
    # By its name, a message says which package to install.
    assert distribution_name(SHIPPED + folder.name) == folder.parent.name.replace("_", "-")


def test_packages_are_small_enough_for_an_index() -> None:
    sizes = {
        package: sum(path.stat().st_size for path in (home / "src" / package).rglob("*") if path.is_file())
        for package, home in HOMES.items()
    }
    # Weights hardly shrink in a wheel.
    assert max(sizes.values()) < 95e6
    # The adapter of an LLM is no model that a metric takes by default.
    assert sum(size for package, size in sizes.items() if package != "metrist_models_analyst") < 290e6


def test_the_adapter_is_complete_and_described() -> None:
    adapter = find_adapter("metrist:analyst")
    home = HOMES["metrist_models_analyst"]
    assert adapter.config["base_model_name_or_path"] == "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    assert (adapter.folder / "card.md").is_file()
    assert "`metrist:analyst`" in (home / "README.md").read_text()
    assert "\nanalyst\n" in (home / "NOTICE").read_text()
    assert distribution_name("metrist:analyst") == "metrist-models-analyst"


def test_wheels_that_are_too_large_are_named(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / ".ci" / "check_model_packages.py"), str(tmp_path)]
    assert b"has no wheels" in subprocess.run(script, capture_output=True, check=False).stderr
    for name in ("a-1-py3-none-any.whl", "b-1-py3-none-any.whl", "c-1-py3-none-any.whl"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(86_000_000)  # Without content: the disk stores nothing.
    assert subprocess.run(script, capture_output=True, check=False).returncode == 0
    with (tmp_path / "b-1-py3-none-any.whl").open("wb") as file:
        file.truncate(95_000_001)
    done = subprocess.run(script, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert "b-1-py3-none-any.whl has 95,000,001 bytes" in done.stderr
    assert "all wheels together have 267,000,001 bytes" in done.stderr
