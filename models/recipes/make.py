"""Run the steps of a recipe.

    python models/recipes/make.py RECIPE.toml WORK --input NAME=PATH ... [--from STEP] [--only STEP] [--small]

A step is a script of this folder, or `metrist` with its arguments. {work} stands for WORK, {NAME} for an input, which
the recipe describes under [inputs]. --small adds what a step says under `small`: a few rows and steps, to try the
recipe on a CPU. --dry-run prints the commands. A finished training is not repeated.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def list_commands(recipe: dict[str, Any], values: dict[str, str], *, small: bool) -> list[list[str]]:
    commands = []
    for step in recipe["steps"]:
        words = shlex.split(f"{step['run']} {step.get('small', '')}" if small else step["run"])
        program, *arguments = (word.format(**values) for word in words)
        if program == "metrist":
            commands.append([sys.executable, "-m", "metrist", *arguments])
        else:
            paths = [str(FOLDER / word) if word.endswith(".toml") else word for word in arguments]
            commands.append([sys.executable, str(FOLDER / program), *paths])
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="STEP")
    parser.add_argument("--only", type=int, metavar="STEP")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    recipe = tomllib.loads(arguments.recipe.read_text(encoding="utf-8"))
    values = {"work": str(arguments.work), **dict(item.split("=", 1) for item in arguments.input)}
    if missing := recipe["inputs"].keys() - values.keys():
        parser.error(
            "missing: " + "; ".join(f"--input {name}=… ({recipe['inputs'][name]})" for name in sorted(missing))
        )
    arguments.work.mkdir(parents=True, exist_ok=True)
    for number, command in enumerate(list_commands(recipe, values, small=arguments.small), 1):
        if number >= arguments.first and arguments.only in (None, number):
            print(f"step {number}: {shlex.join(command[1:])}", flush=True)
            if not arguments.dry_run:
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
