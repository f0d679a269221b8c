"""What starting costs: CPU seconds of `import metrist` and of `metrist --help` in fresh processes, and which heavy
modules they load. `python -m bench.start [--write]`"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.document import machine, put

RUNS = 9
HEAVY = ("numpy", "pandas", "polars", "pyarrow", "rich", "sacrebleu", "scipy", "torch", "typer")
HELP = "import sys; sys.argv = ['metrist', '--help']; from metrist.cli.app import main; main()"
PROGRAMS = {"python (nothing imported)": "pass", "import metrist": "import metrist", "metrist --help": HELP}
REPORT = f"""
import atexit, sys
atexit.register(lambda: print('LOADED', *(name for name in {HEAVY!r} if name in sys.modules)))
"""


def main() -> None:
    rows = "\n".join(_row(name, program) for name, program in PROGRAMS.items())
    report = "\n".join(
        [_about(), "", "| | CPU seconds, median | least | heavy modules loaded |", "|---|--:|--:|---|", rows]
    )
    print(report)
    if "--write" in sys.argv[1:]:
        put("bench-start", report)


def _about() -> str:
    return (
        f"Measured by `make bench-start` on {machine()}; {RUNS} fresh processes each, the interpreter's start included."
    )


def _row(name: str, program: str) -> str:
    seconds = [cpu_seconds(program) for _ in range(RUNS)]
    loaded = ", ".join(loaded_by(program)) or "none"
    return f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f} | {loaded} |"


def cpu_seconds(program: str) -> float:
    """User and system time of a process, its interpreter's start included."""
    before = _children()
    subprocess.run(_command(program), check=True, stdout=subprocess.DEVNULL)
    return _children() - before


def loaded_by(program: str) -> Sequence[str]:
    said = subprocess.run(_command(REPORT + program), check=True, capture_output=True, text=True).stdout
    return said.rpartition("LOADED")[2].split()


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


if __name__ == "__main__":
    main()
