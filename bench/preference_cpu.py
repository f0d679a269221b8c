"""A preference model on a CPU: metrist's own format and torch. `python -m bench.preference_cpu [FOLDER] [--write]`

FOLDER is a model that `metrist train preference` wrote; the default is all-MiniLM-L6-v2 with a random head, which is as
large as the model that ships. That model has its own row. All score the same outputs, of 128 tokens with instruction
and context, on all cores, each in its own process, in turn. Wall-clock time is measured, so run nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bench.bertscore_cpu import find_model
from bench.document import machine, run_in_child, show_section

SHIPPED = "preference-small"
OUTPUTS = 128
TOKENS = 128
ROUNDS = 3
BATCH = 16
INSTRUCTION = "Judge how good the output is on the whole."

#: From outputs to rewards.
Scorer = Callable[[Sequence[str]], Any]


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if "--measure" in sys.argv[1:]:
        print(json.dumps(measure_scorer(arguments[0], Path(arguments[1]))))
        return
    with tempfile.TemporaryDirectory() as directory:
        trained = Path(arguments[0]) if arguments else build_random_model(Path(directory) / "trained")
        name = arguments[0] if arguments else "all-MiniLM-L6-v2 with a random head"
        text = report(name, trained, Path(directory) / "exported")
    show_section("bench-preference-cpu", text)


def report(model: str, trained: Path, exported: Path) -> str:
    """Measure, and return the table with a description of the setup."""
    from metrist.models.numpy_inference.export import export_reward

    export_reward(trained, exported)
    folders = {"torch": trained, "metrist": exported, "shipped": Path(str(files("metrist_models"))) / SHIPPED}
    runs = [(name, measure_in_process(name, folder)) for _ in range(ROUNDS) for name, folder in folders.items()]
    best = {
        name: {key: min(run[key] for run_name, run in runs if run_name == name) for key in runs[0][1]}
        for name in folders
    }
    names = {
        "torch": f"torch {version('torch')}, transformers {version('transformers')}",
        "metrist": "metrist, the same model with 8 bits",
        "shipped": f"metrist, {SHIPPED} as it ships",
    }
    lines = [
        f"A preference model, measured by `python -m bench.preference_cpu` on {os.cpu_count()} cores of {machine()}: "
        f"the best of {ROUNDS} processes each, in turn. {model}, and {SHIPPED}; {OUTPUTS} outputs of {TOKENS} tokens, "
        "float32. Loading time is that of a new process from the first import to the first reward.",
        "",
        "| | loads in | outputs/s | CPU seconds for all |",
        "|---|--:|--:|--:|",
    ]
    for name, run in best.items():
        rate = OUTPUTS / run["seconds"]
        lines.append(f"| {names[name]} | {run['load']:.2f} s | {rate:.0f} | {run['cpu']:.1f} |")
    return "\n".join(lines)


def measure_in_process(name: str, folder: Path) -> dict[str, float]:
    settings = {"METRIST_DEVICE": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
    measured: dict[str, float] = run_in_child("bench.preference_cpu", "--measure", name, str(folder), **settings)
    return measured


def measure_scorer(name: str, folder: Path) -> dict[str, float]:
    """Return the loading time, and the wall-clock and CPU time of scoring all outputs."""
    before = time.perf_counter()
    score = (torch_scorer if name == "torch" else metrist_scorer)(folder)
    score(["one"])
    load = time.perf_counter() - before
    outputs = _outputs(folder)
    score(outputs[:BATCH])
    wall, cpu = time.perf_counter(), time.process_time()
    values = score(outputs)
    assert len(set(np.asarray(values).tolist())) == len(outputs)
    return {"load": load, "seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def metrist_scorer(folder: Path) -> Scorer:
    from metrist.models import loading
    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardInput

    model = loading.load_reward(Options(model=str(folder)))
    return lambda outputs: model.rewards([RewardInput(INSTRUCTION, (("output", text),)) for text in outputs]).values


def torch_scorer(folder: Path) -> Scorer:
    """Score with a plain torch loop, as a user would write it."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder, add_pooling_layer=False).eval(),
    )
    head = load_file(folder / "reward_head.safetensors")["weight"][0]

    @torch.inference_mode()
    def score(outputs: Sequence[str]) -> Any:
        rewards = []
        for start in range(0, len(outputs), BATCH):
            part = list(outputs[start : start + BATCH])
            rows = tokenizer([INSTRUCTION] * len(part), part, padding=True, return_tensors="pt")
            mask = rows["attention_mask"][..., None]
            rewards.append((model(**rows).last_hidden_state * mask).sum(1) / mask.sum(1) @ head)
        return torch.cat(rewards).numpy()

    return score


def _outputs(folder: Path) -> list[str]:
    """Return texts of random one-token words that fill a row of `TOKENS` tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and word.islower())
    room = TOKENS - len(tokenizer.encode(INSTRUCTION, "").ids)
    rng = np.random.default_rng(7)
    return [" ".join(rng.choice(words, room)) for _ in range(OUTPUTS)]


def build_random_model(folder: Path) -> Path:
    from transformers import AutoTokenizer

    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardLayout
    from metrist.models.reward_model import TorchReward

    reward = TorchReward.untrained(Options(model=find_model()), RewardLayout(), pooling="mean")
    folder.mkdir()
    reward.model.save(folder, AutoTokenizer.from_pretrained(find_model()), reward.settings)
    return folder


if __name__ == "__main__":
    main()
