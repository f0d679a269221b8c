"""Programs that start quickly: a process that has imported metrist forks itself for each of them.

A new Python process takes about a second to import what most commands need; pages of the docs run more than a hundred.
The server has done nothing but import modules, so that a program finds what it would find in a new process.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

#: What most commands import when they run; pyarrow imports pandas if it is installed.
_MODULES = (
    "numpy.random", "pandas", "duckdb", "jinja2", "pydantic.fields", "pydantic.type_adapter",
    "metrist.cli.app", "metrist.run", "metrist.run.estimate", "metrist.run.verify",
    "metrist.evaluate.compare.comparison", "metrist.evaluate.meta.analyses", "metrist.evaluate.report",
    "metrist.metrics.lexical.bleu", "metrist.metrics.lexical.chrf", "metrist.metrics.lexical.rouge",
    "metrist.metrics.lexical.ter", "metrist.metrics.lexical.descriptive",
    "metrist.report.progress", "metrist.report.tables", "metrist.run.stored_pipeline", "metrist.io.layouts",
)  # fmt: skip
_LIMIT_SECONDS = 600


class CommandServer:
    """`with CommandServer() as server: server.run(["metrist", "score", "a.jsonl"], folder, environment)`."""

    def __enter__(self) -> CommandServer:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # Closes its standard input, which ends it.

    def run(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `metrist ARGUMENTS` or `python FILE`; standard output and errors come back together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
            request = {"command": list(command), "folder": str(folder), "environment": dict(environment)}
            self._process.stdin.write(json.dumps({**request, "output": output.name}) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(command, code, output.read())


def serve() -> dict[str, Any] | None:
    """Fork for each request. Returns in the new process, with its request; in the server, when there are no more."""
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if not process:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    return None


def become_program(command: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """Be what a new process with this command would be."""
    signal.alarm(_LIMIT_SECONDS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    opened = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    program, *sys.argv = command
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if program == "python":
        sys.path[:0] = [folder, *paths]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        from metrist.cli.app import main

        sys.argv.insert(0, program)
        sys.path[:0] = paths
        main()


def run_to_the_end(request: dict[str, Any]) -> None:
    """End as a program ends, except that modules stay in memory: to tear them down takes longer than most commands."""
    code: Any = 0
    try:
        become_program(**request)
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    import typer.main

    for name in _MODULES:
        import_module(name)
    # All commands with their options, built once instead of by each program.
    built = typer.main.get_command(sys.modules["metrist.cli.app"].app)
    for command in built.commands.values():  # type: ignore[attr-defined]
        _ = command.params
    typer.main.get_command = lambda _: built  # type: ignore[assignment]
    del sys.path[0]  # The folder of this file.
    if request := serve():
        run_to_the_end(request)
