"""Python environments for the packages that adapters call, made by `metrist setup` under the user's cache folder.

FOLDER/comet/                 a virtual environment
FOLDER/comet/metrist.json     what was installed; written last, so an environment without it is not used
FOLDER/unieval/UniEval/       code that is not a package
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metrist.errors import ModelError, RunError, SpecError, did_you_mean

#: Names the folder of all environments.
VARIABLE = "METRIST_ENVIRONMENTS"
_NOTE = "metrist.json"
#: As in constraints-cpu.txt: without a CUDA card, an open range of torch would pull gigabytes of CUDA libraries.
_CPU_TORCH = "torch==2.13.0"
_INSTALL = "install the packages"
_VERSION_SECONDS = 60
_OFFLINE = ("NewConnectionError", "Name or service not known", "name resolution", "Could not resolve host", "timed out")

#: Called with a line about the step under way.
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRecipe:
    """How to make a package's environment. `pythons` are the oldest and the newest Python (3, minor) for which all
    dependencies have wheels; `megabytes` is its size without CUDA; `module` must be importable at the end; `clone` is
    (URL, folder) of code that is not a package; `downloads` are modules of the environment to run;
    `next_step` is what the user must still do."""

    packages: tuple[str, ...]
    module: str
    pythons: tuple[int, int]
    megabytes: int
    uses_torch: bool = False
    clone: tuple[str, str] | None = None
    downloads: tuple[tuple[str, ...], ...] = ()
    next_step: str = ""


RECIPES: Mapping[str, PackageRecipe] = {
    "comet": PackageRecipe(
        # Without pkg_resources, which later versions of setuptools lack, its imports fail.
        packages=("unbabel-comet==2.2.7", "setuptools<81"),
        module="comet",
        # It needs numpy 1, which has no wheels for Python 3.13.
        pythons=(9, 12),
        megabytes=1400,
        uses_torch=True,
        next_step="the first score downloads the model from the Hugging Face hub (2.3 GB for the default one)",
    ),
    "bleurt": PackageRecipe(
        packages=(
            "BLEURT @ git+https://github.com/google-research/bleurt.git@cebe7e6f996b40910cfaa520a63db47807e3bf5c",
            "tensorflow<2.16",
        ),
        module="bleurt.score",
        pythons=(9, 11),
        megabytes=2500,
        next_step="download a checkpoint, such as https://storage.googleapis.com/bleurt-oss-21/BLEURT-20.zip, unpack "
        "it, and name its parent folder: METRIST_BLEURT_CHECKPOINTS=FOLDER",
    ),
    "unieval": PackageRecipe(
        packages=("torch", "transformers<5", "nltk", "prettytable", "sentencepiece", "protobuf"),
        module="transformers",
        pythons=(9, 12),
        megabytes=1300,
        uses_torch=True,
        clone=("https://github.com/maszhongming/UniEval", "UniEval"),
        downloads=(("nltk.downloader", "-d", "{environment}/nltk_data", "punkt", "punkt_tab"),),
        next_step="the first score downloads the model from the Hugging Face hub (3 GB)",
    ),
}


def environments_folder() -> Path:
    if named := os.environ.get(VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "environments"


def find_environment(name: str) -> Path | None:
    """Return the folder of a complete environment; None if `metrist setup` has not made one."""
    folder = environments_folder() / name
    return folder if (folder / _NOTE).is_file() and environment_python(folder).is_file() else None


def environment_python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def clone_folder(name: str) -> Path | None:
    folder, recipe = find_environment(name), RECIPES[name]
    return folder / recipe.clone[1] if folder and recipe.clone else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The commands that make an environment, in order."""

    name: str
    recipe: PackageRecipe
    folder: Path
    python: str
    version: tuple[int, int]

    @property
    def steps(self) -> list[tuple[str, list[str]]]:
        """Title and command of each step; every step may be repeated."""
        own = str(environment_python(self.folder))
        steps = [("make the environment", [self.python, "-m", "venv", str(self.folder)])]
        install = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        packages = list(self.recipe.packages)
        if self.recipe.uses_torch and not shutil.which("nvidia-smi"):
            packages = [package for package in packages if package != "torch"] + [_CPU_TORCH]
        if self.recipe.clone:
            # Before the packages: it is small, and where it cannot be had they would be of no use.
            url, target = self.recipe.clone
            steps.append(("get the code", ["git", "clone", "--depth", "1", url, str(self.folder / target)]))
        steps.append((_INSTALL, [*install, *packages]))
        for words in self.recipe.downloads:
            filled = [word.replace("{environment}", str(self.folder)) for word in words]
            steps.append(("download its data", [own, "-m", *filled]))
        steps.append(("try to import it", [own, "-c", f"import {self.recipe.module}"]))
        return steps


def plan_setup(name: str, python: str | None = None) -> Setup:
    """Check the name, choose a Python, and check the disk; write nothing."""
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise SpecError(
            f"no environment is known for {name!r}; there are {known}{did_you_mean(name, RECIPES)}", code="unknown_name"
        )
    recipe, folder = RECIPES[name], environments_folder() / name
    path, version = _choose_python(name, recipe, python)
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e6
    if free < recipe.megabytes and find_environment(name) is None:
        raise RunError(
            f"{name} needs about {recipe.megabytes / 1000:.1f} GB in {folder}, and {free / 1000:.1f} GB are free; "
            f"name a folder on another disk: {VARIABLE}=FOLDER",
            code="invalid_value",
        )
    return Setup(name=name, recipe=recipe, folder=folder, python=path, version=version)


def make_environment(setup: Setup, report: Report) -> Path:
    """Run the steps that are still to be done, check the result, and note that it is complete. A new environment into
    which nothing could be installed is removed again."""
    own = environment_python(setup.folder)
    (setup.folder / _NOTE).unlink(missing_ok=True)
    if setup.folder.exists() and _read_version(str(own)) != setup.version:
        report(f"{setup.folder} holds an unusable environment, or one of another Python: it is made again")
        shutil.rmtree(setup.folder)
    try:
        setup.folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise RunError(f"{setup.folder.parent}: cannot be created: {fault.strerror}", code="cannot_write") from fault
    steps, is_empty = setup.steps, not setup.folder.exists()
    try:
        for number, (title, command) in enumerate(steps, 1):
            report(f"step {number} of {len(steps)}: {title}")
            if command[0] == "git" and Path(command[-1], ".git").exists():
                continue
            _run(setup.name, title, command, report)
            is_empty = is_empty and title != _INSTALL
    except BaseException:
        if is_empty:
            shutil.rmtree(setup.folder, ignore_errors=True)
        raise
    facts = {"packages": list(setup.recipe.packages), "python": ".".join(map(str, setup.version))}
    part = setup.folder / f"{_NOTE}.part"
    part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    part.replace(setup.folder / _NOTE)
    return setup.folder


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _choose_python(name: str, recipe: PackageRecipe, python: str | None) -> tuple[str, tuple[int, int]]:
    oldest, newest = recipe.pythons
    candidates = [python] if python else [sys.executable, *(f"python3.{n}" for n in range(newest, oldest - 1, -1))]
    versions = {}
    for candidate in candidates:
        version = _read_version(candidate)
        if version and version[0] == 3 and oldest <= version[1] <= newest:
            return candidate, version
        versions[candidate] = version
    tried = ", ".join(
        f"{candidate} is Python {version[0]}.{version[1]}" if version else f"{candidate} cannot be run"
        for candidate, version in versions.items()
        if version or python
    )
    raise ModelError(
        f"{name} needs Python 3.{oldest} to 3.{newest}, for which its dependencies are published; {tried}. "
        "Name one that fits: `python='PATH'`"
    )


def _read_version(python: str) -> tuple[int, int] | None:
    """Return the version of a Python; None if it cannot be run."""
    command = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True)
        major, minor = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor


def _run(name: str, title: str, command: Sequence[str], report: Report) -> None:
    """Run a step; report its lines, and raise ModelError with the last ones if it fails."""
    # The environment of this Python must not reach the other one.
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    tail: deque[str] = deque(maxlen=40)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**variables, "GIT_TERMINAL_PROMPT": "0"},
        )
    except OSError as fault:
        raise ModelError(f"setup of {name}: cannot run {command[0]}: {fault.strerror}; install it first") from None
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.strip():
                    tail.append(line.strip())
                    report(line.strip())
        except BaseException:
            process.kill()
            raise
    if not process.returncode:
        return
    errors = [line for line in tail if re.match(r"(ERROR|fatal|error|\w*Error)\b", line)]
    # Behind "error: subprocess-exited-with-error" of pip is what the program says that it ran.
    reasons = [line for line in errors if "subprocess" not in line] or errors or list(tail)[-1:]
    reason = reasons[-1] if reasons else "it gave no reason"
    advice = "Run"
    if any(sign in line for line in tail for sign in _OFFLINE):
        index = "" if "github.com" in reason else ", or set PIP_INDEX_URL to an index that can be reached"
        advice = f"Go online{index}; then run"
    raise ModelError(f"setup of {name} failed at the step to {title}: {reason}. {advice} the same command again")
