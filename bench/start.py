"""CPU seconds of `import metrist` and `metrist --help` in fresh processes, and the heavy modules that they load:
`python -m bench.start [--write]`"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.document import machine, show_section

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
        [_describe_setup(), "", "| | CPU seconds, median | minimum | heavy modules loaded |", "|---|--:|--:|---|", rows]
    )
    show_section("bench-start", report)


def _describe_setup() -> str:
    setup = f"Measured by `make bench-start` on {machine()}; {RUNS} fresh processes each"
    return f"{setup}, including the start of the interpreter."


def _row(name: str, program: str) -> str:
    seconds = [cpu_seconds(program) for _ in range(RUNS)]
    loaded = ", ".join(find_loaded(program)) or "none"
    return f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f} | {loaded} |"


def cpu_seconds(program: str) -> float:
    """Return user and system time of a process, including the start of the interpreter."""
    before = _children_seconds()
    subprocess.run(_command(program), check=True, stdout=subprocess.DEVNULL)
    return _children_seconds() - before


def find_loaded(program: str) -> Sequence[str]:
    output = subprocess.run(_command(REPORT + program), check=True, capture_output=True, text=True).stdout
    return output.rpartition("LOADED")[2].split()


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


if __name__ == "__main__":
    main()
