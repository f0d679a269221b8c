"""Metrics with models and their originals: `python -m bench.neural [--write]`.

On the CPU, and BARTScore with BART-large's size on a CUDA GPU if there is one.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from bench import bartscore_cpu, bertscore_cpu
from bench.texts import DATA


def main() -> None:
    bertscore_cpu.main()
    bartscore_cpu.main()
    if _has_gpu():
        # In its own process, so that the GPU's memory is freed afterwards.
        subprocess.run([sys.executable, "bench/seq2seq_gpu.py", "--data", str(DATA)], check=True)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
