"""Forked processes for tests that train and kill: a fork saves the seconds of importing torch."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path


def forked(work: Callable[[], object], environment: Mapping[str, str] | None = None) -> int:
    """Start a process that does the work, with these variables added to its environment; return its id."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The parent's threads are not forked; none is needed.
        process = os.fork()
    if process:
        return process
    code = 1
    signal.alarm(600)  # One that hangs does not hold up the tests.
    try:
        os.environ.update(environment or {})
        torch.set_num_threads(1)
        work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def forked_command(*arguments: object, output: Path, environment: Mapping[str, str] | None = None) -> int:
    """Start `metrist ARGUMENTS`, which prints into a file; return the process's id."""

    def run() -> None:
        from metrist.cli.app import main

        warnings.simplefilter("ignore")  # A program shows them; in tests they would be raised.
        sys.argv = ["metrist", *map(str, arguments)]
        with output.open("w", encoding="utf-8", buffering=1) as sys.stdout:
            sys.stderr = sys.stdout
            main()

    return forked(run, environment)


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
