"""`metrist setup` makes a real environment here, of a package that needs no network."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError, RunError, SpecError
from metrist.metrics.external import environments
from metrist.metrics.external.environments import PackageRecipe, environment_python, find_environment, plan_setup
from metrist.metrics.external.packages import Comet, UniEval

HERE = sys.version_info[1]


def make_wheel(folder: Path, body: str) -> Path:
    """A package that the adapter takes for unbabel-comet."""
    path = folder / "unbabel_comet-2.2.7-py3-none-any.whl"
    notes = "unbabel_comet-2.2.7.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("comet/__init__.py", body)
        wheel.writestr(f"{notes}/METADATA", "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 2.2.7\n")
        wheel.writestr(f"{notes}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{notes}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path / "environments"))
    monkeypatch.delenv("METRIST_COMET_PYTHON", raising=False)
    monkeypatch.delenv("METRIST_UNIEVAL_FOLDER", raising=False)


def pretend_environment(folder: Path) -> None:
    environment_python(folder).parent.mkdir(parents=True)
    environment_python(folder).touch()
    (folder / "metrist.json").write_text("{}")


def use_recipe(monkeypatch: pytest.MonkeyPatch, name: str = "comet", **changes: object) -> None:
    settings = {"packages": (), "module": "comet", "pythons": (HERE, HERE), "megabytes": 1, **changes}
    monkeypatch.setattr(environments, "RECIPES", {**environments.RECIPES, name: PackageRecipe(**settings)})


def test_an_environment_is_made_once_and_found_by_its_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first package cannot be imported; the same command goes on with one that can."""
    broken = make_wheel(tmp_path, "raise ImportError('no pkg_resources')")
    use_recipe(monkeypatch, packages=("--no-index", "--force-reinstall", str(broken)))
    lines: list[str] = []
    with raises_code(ModelError, "model_unusable", "ImportError: no pkg_resources"):
        environments.make_environment(plan_setup("comet"), lines.append)
    assert find_environment("comet") is None
    with raises_code(ModelError, "model_unusable", "`metrist setup comet`"):
        assert Comet().signature
    make_wheel(tmp_path, "")
    folder = environments.make_environment(plan_setup("comet"), lines.append)
    assert folder == find_environment("comet")
    assert "step 2 of 3: install the packages" in lines
    assert Comet().facts()["unbabel-comet"] == "2.2.7"
    program = Comet()._program(1)
    assert program.command[0] == str(environment_python(folder))


def test_a_named_python_precedes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "environments" / "comet"
    pretend_environment(folder)
    assert Comet()._program(1).command[0] == str(environment_python(folder))
    monkeypatch.setenv("METRIST_COMET_PYTHON", "other")
    assert Comet()._program(1).command[0] == "other"
    assert Comet(python="third")._program(1).command[0] == "third"


def test_code_that_is_no_package_lies_in_the_environment(tmp_path: Path) -> None:
    with raises_code(ModelError, "invalid_value", "`metrist setup unieval`"):
        UniEval()._version_arguments()
    folder = tmp_path / "environments" / "unieval"
    pretend_environment(folder)
    assert UniEval()._version_arguments() == [str(folder / "UniEval")]


def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises_code(SpecError, "unknown_name", "'bluert'", "'bleurt'"):
        plan_setup("bluert")
    with raises_code(ModelError, "model_unusable", tmp_path / "none", "python="):
        plan_setup("comet", str(tmp_path / "none"))
    use_recipe(monkeypatch, pythons=(HERE + 1, HERE + 1))
    with raises_code(ModelError, "model_unusable", f"{sys.executable} is Python 3.{HERE}"):
        plan_setup("comet", sys.executable)
    use_recipe(monkeypatch, megabytes=10**12)
    with raises_code(RunError, "invalid_value", "GB", environments.VARIABLE):
        plan_setup("comet")
    assert not (tmp_path / "environments").exists()


def test_without_a_network_the_failure_says_so(tmp_path: Path) -> None:
    """pip's own words when a host cannot be resolved, printed by a program in its place."""
    words = "Failed to establish a new connection: NewConnectionError\nERROR: No matching distribution found for x"
    program = tmp_path / "fails.py"
    program.write_text(f"import sys\nprint({words!r})\nsys.exit(1)\n")
    with raises_code(ModelError, "model_unusable", "No matching distribution found for x", "PIP_INDEX_URL"):
        environments._run("comet", "install the packages", [sys.executable, str(program)], lambda _line: None)
    with raises_code(ModelError, "model_unusable", "nothing-such"):
        environments._run("comet", "get the code", ["nothing-such"], lambda _line: None)


def test_without_github_the_reason_is_that_of_git_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's output of `pip install git+https://github.com/…` on a machine without a network."""
    fatal = "fatal: unable to access 'https://github.com/x/y.git/': Could not resolve host: github.com"
    words = f"  {fatal}\n  error: subprocess-exited-with-error\n  × git clone\nerror: subprocess-exited-with-error"
    package = tmp_path / "package"
    package.mkdir()
    (package / "setup.py").write_text(f"import sys\nsys.exit({words!r})\n")
    failing = [sys.executable, str(package / "setup.py")]
    plan = plan_setup_with(monkeypatch, failing)
    with raises_code(ModelError, "model_unusable", "install the packages", fatal):
        environments.make_environment(plan, lambda _line: None)
    assert not plan.folder.exists()
    # What an earlier call has installed stays.
    plan.folder.mkdir()
    monkeypatch.setattr(environments, "_read_version", lambda _python: plan.version)
    with pytest.raises(ModelError):
        environments.make_environment(plan, lambda _line: None)
    assert plan.folder.exists()


def plan_setup_with(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> environments.Setup:
    """A setup whose first step makes its folder, and whose second is this command."""
    use_recipe(monkeypatch)
    make = [sys.executable, "-c", f"import os; os.makedirs({str(plan_setup('comet').folder)!r}, exist_ok=True)"]
    steps = [("make the environment", make), ("install the packages", command)]
    monkeypatch.setattr(environments.Setup, "steps", property(lambda _setup: steps))
    return plan_setup("comet")


def test_the_commands_pin_versions_and_spare_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.shutil, "which", lambda _name: None)
    monkeypatch.setattr(environments, "_read_version", lambda _python: (3, 11))
    commands = [" ".join(command) for _, command in plan_setup("comet").steps]
    assert commands[1].endswith("unbabel-comet==2.2.7 setuptools<81 torch==2.13.0")
    commands = [" ".join(command) for _, command in plan_setup("unieval").steps]
    assert " torch " not in commands[2]
    assert commands[1].startswith("git clone --depth 1 https://github.com/maszhongming/UniEval ")
    assert os.environ[environments.VARIABLE] in commands[3]
