"""Kill code just before the n-th change that it makes to a folder, for each n.

Run as a program, this reads lines of JSON with `step`, `folder` and `code`, and prints how each code ended that it ran
in a process of its own, which starts quickly: everything is imported already.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
_LOCKS = (".lock", ".writers")
#: Runs a code that is to be killed before a change to a folder, or not at all for 0; returns its exit code.
Steps = Callable[[int, Path, str], int]


@contextmanager
def start_steps(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Steps]:
    """The program, which imports modules from a folder, too."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **(env or {}), "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def run(step: int, watched: Path, code: str) -> int:
            print(json.dumps({"step": step, "folder": str(watched), "code": code}), file=process.stdin, flush=True)
            return int(process.stdout.readline())  # type: ignore[union-attr]

        yield run
        process.stdin.close()


def _kill_before(step: int, folder: str) -> None:
    """Kill this process before its n-th change to a folder."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal step
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (is_write or event in _CHANGES) or folder not in str(arguments[0]):
            return
        # Making a folder, or opening a lock, that is there changes nothing.
        if not (os.path.exists(arguments[0]) and (event == "os.mkdir" or Path(arguments[0]).name in _LOCKS)):
            step -= 1
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main() -> None:
    import metrist
    from metrist.evaluate import leaderboard, rerank  # noqa: F401
    from metrist.run import prefer, removal, stored_pipeline  # noqa: F401

    with TemporaryDirectory() as name:  # Loads what is loaded when it is first used.
        metrist.score([{"item": "1", "system": "s", "output": "a", "references": ["a"]}], ["rougeL", "chrf"], out=name)
    # Every block of results becomes a part, or is logged first, and there are parts to merge.
    stored_pipeline.SAVE_SECONDS, stored_pipeline._SAVE_SHARE = 1e-6, 0.0
    stored_pipeline._COSTLY_SECONDS, stored_pipeline._LOGGED_SECONDS = 0.02, 0.05
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _kill_before(job["step"], job["folder"])
            try:
                exec(job["code"], {"metrist": metrist})
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
