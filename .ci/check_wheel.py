"""Check an installed metrist: its kernels are compiled, and score the sample as plain Python does.

Run it with the Python of the environment that the wheel was installed into.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import metrist
from metrist.kernels import have_compiled

SAMPLE = Path(__file__).resolve().parent.parent / "demo" / "sample.jsonl"
METRICS = ("rougeL", "bleu", "chrf", "ter")


def scored(kernels: str) -> str:
    """What the command line prints about the sample, with METRIST_KERNELS set to `kernels`."""
    chosen = [word for name in METRICS for word in ("-m", name)]
    command = [sys.executable, "-m", "metrist", "score", str(SAMPLE), *chosen]
    environment = {**os.environ, "METRIST_KERNELS": kernels}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"scoring failed:\n{done.stderr}")
    return done.stdout


def main() -> None:
    print(f"metrist {metrist.__version__} in {Path(metrist.__file__).parent}, Python {sys.version.split()[0]}")
    if not have_compiled:
        sys.exit("the kernels are not compiled: metrist.kernels.have_compiled is False")
    table = scored("")
    print(table)
    if table != scored("python"):
        sys.exit("the compiled kernels and plain Python print different tables")


if __name__ == "__main__":
    main()
