"""Metrics with models and their originals: `python -m bench.neural [--write]`.

On the CPU, and BARTScore and BERTScore with large models on a CUDA GPU if there is one.
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
        # Each in its own process, so that the GPU's memory is freed afterwards.
        for module in ("bench.seq2seq_gpu", "bench.bertscore_gpu"):
            subprocess.run([sys.executable, "-m", module, "--data", str(DATA)], check=True)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
