"""Build hook: compiles the text kernels when a C compiler is there, and goes on without them when not.

METRIST_BUILD_KERNELS=no leaves them out; METRIST_BUILD_KERNELS=require makes a build fail that cannot have them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src", "metrist", "kernels")
# No -march=native: a wheel must run on other machines than the one that built it.
# No contraction of a multiplication and an addition: results must not depend on the compiler and the processor.
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
SHARED = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)


class CannotCompile(Exception):
    """Why there will be no compiled kernels."""


class CustomBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel, editable ones too: there the extension stays beside its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        extension = extension_path(Path(self.root) / KERNELS)
        # What an earlier build left may be of another time, and must not be what this one ships.
        extension.unlink(missing_ok=True)
        wish = os.environ.get("METRIST_BUILD_KERNELS", "")
        if wish == "no":
            return
        try:
            compile_kernels(extension)
        except CannotCompile as reason:
            if wish == "require":
                raise
            self.app.display_info(f"metrist ({version}): the kernels stay plain Python, since {reason}")
        else:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"/{(KERNELS / extension.name).as_posix()}")


def extension_path(kernels: Path) -> Path:
    return kernels / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_kernels(extension: Path) -> None:
    """Compile all of native/*.c into one extension, which appears complete or not at all."""
    sources = sorted(str(path) for path in extension.parent.glob("native/*.c"))
    with tempfile.TemporaryDirectory(dir=extension.parent, prefix=".build-") as folder:
        made = Path(folder) / extension.name
        flags = [*FLAGS, *given("CFLAGS"), *given("ARCHFLAGS"), f"-I{include_folder()}"]
        run([*compiler(), *flags, *SHARED, *sources, "-o", str(made), *given("LDFLAGS"), "-lm"])
        made.replace(extension)


def compiler() -> list[str]:
    """The compiler that the user names, or Python was built with, or any: as a command."""
    named = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    for command in (shlex.split(name) for name in named if name):
        if command and shutil.which(command[0]):
            return command
    raise CannotCompile("no C compiler was found")


def include_folder() -> Path:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise CannotCompile(f"Python.h is not in {folder}")
    return folder


def given(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
    except OSError as fault:
        raise CannotCompile(f"{command[0]} could not be run: {fault}") from fault
    except subprocess.CalledProcessError as fault:
        said = fault.stderr.strip().splitlines() or ["(it said nothing)"]
        raise CannotCompile(f"{command[0]} failed: {said[-1]}") from fault
