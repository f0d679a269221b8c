"""Metrics with models beside the originals, in one run: `python -m bench.neural [--write]`.

On the CPU always; on a CUDA card, where there is one, BARTScore's work at BART-large's size too.
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
    if _has_card():
        # In a process of its own, which takes the card's memory and gives it back.
        subprocess.run([sys.executable, "bench/seq2seq_gpu.py", "--data", str(DATA)], check=True)


def _has_card() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
