"""The command that installs a missing extra names a route that works where metrist runs; words of messages."""

from __future__ import annotations

import ast
import json
import pickle
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest

from metrist import errors
from metrist.errors import (
    ErrorCode,
    InputError,
    MissingExtra,
    RunError,
    format_count,
    format_path,
    install_command,
    label_item,
)

#: Functions that take a note for the user.
NOTING = ("append", "announce", "build_unmeasured")

# conftest.py replaces these so that other tests see the same message everywhere.
find_origin = errors.find_origin


def make_checkout(folder: Path) -> Path:
    for name in ("pyproject.toml", "hatch_build.py", "models/pyproject.toml", "constraints-cpu.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)


@pytest.mark.usefixtures("no_gpu")
def test_in_a_checkout_the_command_names_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_checkout(tmp_path / "my clone")
    monkeypatch.setattr(errors, "find_origin", lambda: root)
    assert str(MissingExtra("x", "llm")) == f"x needs an optional dependency: pip install '{root}[llm]'"
    models = " ".join(f"'{root}/models{part}'" for part in ("", "/english", "/multilingual"))
    assert install_command("standard") == f"pip install {models} '{root}[standard]'"
    assert install_command("large") == f"pip install {models} '{root}/models/english-large' '{root}[large]'"
    assert install_command("neural") == f"pip install '{root}[neural]' --constraint '{root}/constraints-cpu.txt'"


def test_an_editable_install_stays_editable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(errors.__file__).resolve().parents[2]
    monkeypatch.setattr(errors, "find_origin", lambda: root)
    assert f" install -e '{root}[plots]'" in install_command("plots")


def test_next_to_a_wheel_the_command_finds_the_models_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "local" / "metrist-0.1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    monkeypatch.setattr(errors, "find_origin", lambda: wheel)
    assert install_command("standard") == f"pip install --find-links {wheel.parent} 'metrist[standard]'"
    models = tmp_path / "models" / "metrist_models-0.1-py3-none-any.whl"
    models.parent.mkdir()
    models.touch()
    links = f"--find-links {wheel.parent} --find-links {models.parent}"
    assert install_command("standard") == f"pip install {links} 'metrist[standard]'"


def test_from_an_index_the_command_is_the_usual_one() -> None:
    assert install_command("standard") == "pip install 'metrist[standard]'"


def test_the_origin_is_the_checkout_of_the_source_or_what_pip_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_checkout(tmp_path / "my clone")
    source = root / "src" / "metrist" / "errors.py"
    with monkeypatch.context() as patch:
        patch.setattr(errors, "__file__", str(source))
        assert find_origin() == root
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "metrist" / "errors.py"))
    notes = {"checkout": root.as_uri(), "gone": (tmp_path / "gone").as_uri(), "web": "https://example.org/metrist"}
    origins = {}
    for name, url in notes.items():
        text = json.dumps({"url": url, "dir_info": {}})
        monkeypatch.setattr(metadata, "distribution", lambda _name: metadata.PathDistribution(tmp_path))
        monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda _self, _name, text=text: text)
        origins[name] = find_origin()
    assert origins == {"checkout": root, "gone": None, "web": None}
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda _self, _name: None)
    assert find_origin() is None


def test_another_environments_pip_is_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda _name: str(tmp_path / "bin" / "pip"))
    assert errors.find_pip() == f"{sys.executable} -m pip"
    monkeypatch.setattr(shutil, "which", lambda _name: f"{sys.prefix}/bin/pip")
    assert errors.find_pip() == "pip"


def test_counts_are_in_the_singular_or_the_plural() -> None:
    assert [format_count(n, "bad row") for n in (0, 1, 1200)] == ["0 bad rows", "1 bad row", "1,200 bad rows"]
    assert [format_count(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_a_path_is_written_as_one_would_type_it_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert format_path(tmp_path / "here" / "in.csv") == "in.csv"
    assert format_path("../other/in.csv") == format_path(tmp_path / "other" / "in.csv") == "../other/in.csv"
    assert format_path(tmp_path / "run" / ".." / "in.csv") == "../in.csv"
    assert format_path("/x") == "/x"
    assert format_path("-in.csv") == "./-in.csv"


def test_a_source_that_serves_as_item_is_shown_by_its_first_words() -> None:
    article = "The first words of an article\nthat goes on " + "and on " * 100
    assert label_item("doc-1") == label_item("doc-1", 7) == "doc-1"
    assert label_item(article) == "The first words of an article that goes on and on and on …"
    assert label_item(article, 1200) == "The first words of an article that goes on and on and on … (number 1,200)"
    assert label_item("漢" * 100) == "漢" * 60 + " …"
    assert label_item("two\nlines") == "two lines"
    assert label_item(" " * 100, 3) == " (number 3)"


def test_the_page_of_errors_lists_all_codes() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE) == list(get_args(ErrorCode))


def test_a_code_is_that_of_the_class_or_given_and_survives_pickling() -> None:
    assert InputError("x").code == "unreadable"
    assert MissingExtra("x", "llm").code == "missing_dependency"
    sent = pickle.loads(pickle.dumps(RunError("no metric 'x'", code="unknown_name")))
    assert (sent.code, str(sent)) == ("unknown_name", "no metric 'x'")


def test_errors_and_notes_of_python_name_arguments_and_no_options() -> None:
    """The command line writes its options for the arguments. Whole commands, of metrist or pip, have options."""
    package = Path(errors.__file__).parent
    named = []
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "cli"):
            continue
        source = path.read_text(encoding="utf-8")
        if not re.search(r"--[a-z]", source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _get_name(node.func) in NOTING):
                parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                text = " ".join(part for part in parts if isinstance(part, str))
                if re.search(r"--[a-z]", text) and not re.search(r"metrist [a-z]+ |pip install|git clone", text):
                    named.append(f"{path.relative_to(package)}:{node.lineno}")
    assert named == []


def _get_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
