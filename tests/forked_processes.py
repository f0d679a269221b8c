"""Forked processes for tests that train and kill."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Start a process that does the work and return its id; a fork saves the seconds of importing torch."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The parent's threads are not forked; none is needed.
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
