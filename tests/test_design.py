"""docs/reference/design.md agrees with the code: its layers with import contracts, its names with imports."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import metrist

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "design.md").read_text(encoding="utf-8")


def table(heading: str) -> list[tuple[list[str], list[str]]]:
    """The names in backticks in the first and second cell of each row below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", first), re.findall(r"`([^`]+)`", second)) for first, second in rows]


def resolve(name: str) -> object:
    """The module, or the attribute of one, with this dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            value = getattr(value, attribute)
        return value
    raise AssertionError(f"{name} does not exist")


def test_the_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    expected = [{name.strip(" ()").removeprefix("metrist.") for name in layer.split("|")} for layer in layers]
    assert [set(names) for names, _ in table("Layers")] == expected


def test_the_layers_are_complete() -> None:
    package = Path(metrist.__file__).parent
    names = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    listed = [name for names, _ in table("Layers") for name in names]
    assert sorted(listed) == sorted(names - {"__init__", "__main__"})


@pytest.mark.parametrize(("names", "fields"), table("Core types"), ids=lambda value: "-".join(value)[:20])
def test_core_types_have_these_fields(names: list[str], fields: list[str]) -> None:
    (name,) = names
    assert [field.name for field in dataclasses.fields(getattr(metrist, name))] == fields


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(metrist\.[\w.]+)`", PAGE))))
def test_dotted_names_exist(name: str) -> None:
    assert resolve(name) is not None


def test_types_named_on_the_page_are_public() -> None:
    names = set(re.findall(r"`([A-Z]\w+)`", PAGE))
    assert len(names) > 10
    assert [name for name in names if not hasattr(metrist, name)] == []


def test_one_class_has_one_name() -> None:
    """Drop-in classes of `metrist.compat` have the names of the packages that they replace."""
    package = Path(metrist.__file__).parent
    files = [path for path in package.rglob("*.py") if not path.is_relative_to(package / "compat")]
    names = [name for path in files for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M)]
    assert [name for name, count in Counter(names).items() if count > 1 and not name.startswith("_")] == []
