"""A preference model on a CPU: metrist's own form beside torch. `python -m bench.preference_cpu [FOLDER] [--write]`

FOLDER holds a model as `metrist train preference` writes it; without one it is all-MiniLM-L6-v2 with a random head:
no other work, and as large as the model that ships, which has a row of its own. All judge the same outputs, of 128
tokens with their instruction and context, on all cores, each in a process of its own, in turn. The wall clock counts:
give the machine nothing else to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bench.bertscore_cpu import _model
from bench.document import machine, put

SHIPPED = "preference-small"
OUTPUTS = 128
TOKENS = 128
ROUNDS = 3
BATCH = 16
INSTRUCTION = "Judge how good the output is on the whole."

#: Outputs in, rewards out.
Scorer = Callable[[Sequence[str]], Any]


def main() -> None:
    given = [one for one in sys.argv[1:] if not one.startswith("--")]
    if "--measure" in sys.argv[1:]:
        print(json.dumps(_measured(given[0], Path(given[1]))))
        return
    with tempfile.TemporaryDirectory() as place:
        trained = Path(given[0]) if given else _with_a_random_head(Path(place) / "trained")
        what = given[0] if given else "all-MiniLM-L6-v2 with a random head"
        text = report(what, trained, Path(place) / "plain")
    print(text)
    if "--write" in sys.argv[1:]:
        put("bench-preference-cpu", text)


def report(what: str, trained: Path, plain: Path) -> str:
    """The table, with what was measured said above it."""
    from metrist.models.numpy_inference.export import export_reward

    export_reward(trained, plain)
    asked = {"torch": trained, "metrist": plain, "shipped": Path(str(files("metrist_models"))) / SHIPPED}
    runs = [(name, _in_a_process(name, folder)) for _ in range(ROUNDS) for name, folder in asked.items()]
    best = {name: {key: min(run[key] for one, run in runs if one == name) for key in runs[0][1]} for name in asked}
    names = {
        "torch": f"torch {version('torch')}, transformers {version('transformers')}",
        "metrist": "metrist, the same model in 8 bits",
        "shipped": f"metrist, {SHIPPED} as it ships",
    }
    lines = [
        f"A preference model, measured by `python -m bench.preference_cpu` on {os.cpu_count()} cores of {machine()}: "
        f"the best of {ROUNDS} processes each, in turn. {what}, and {SHIPPED}; {OUTPUTS} outputs of {TOKENS} tokens, "
        "float32; loading is what a new process takes from its first import of either to the first reward.",
        "",
        "| | loads in | outputs/s | CPU seconds for all |",
        "|---|--:|--:|--:|",
    ]
    for name, one in best.items():
        rate = OUTPUTS / one["seconds"]
        lines.append(f"| {names[name]} | {one['load']:.2f} s | {rate:.0f} | {one['cpu']:.1f} |")
    return "\n".join(lines)


def _in_a_process(name: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.preference_cpu", "--measure", name, str(folder)]
    environment = {**os.environ, "METRIST_DEVICE": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def _measured(name: str, folder: Path) -> dict[str, float]:
    """Seconds until the model is there, and those that the outputs take, on the clock and on all cores."""
    before = time.perf_counter()
    score = (_torch if name == "torch" else _metrist)(folder)
    score(["one"])
    load = time.perf_counter() - before
    outputs = _outputs(folder)
    score(outputs[:BATCH])
    clock, spent = time.perf_counter(), time.process_time()
    values = score(outputs)
    assert len(set(np.asarray(values).tolist())) == len(outputs)
    return {"load": load, "seconds": time.perf_counter() - clock, "cpu": time.process_time() - spent}


def _metrist(folder: Path) -> Scorer:
    from metrist.models import loading
    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardInput

    model = loading.load_reward(Options(model=str(folder)))
    return lambda outputs: model.rewards([RewardInput(INSTRUCTION, (("output", one),)) for one in outputs]).values


def _torch(folder: Path) -> Scorer:
    """As one would write it oneself."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder, add_pooling_layer=False).eval(),
    )
    head = load_file(folder / "reward_head.safetensors")["weight"][0]

    @torch.inference_mode()
    def scored(outputs: Sequence[str]) -> Any:
        found = []
        for start in range(0, len(outputs), BATCH):
            part = list(outputs[start : start + BATCH])
            rows = tokenizer([INSTRUCTION] * len(part), part, padding=True, return_tensors="pt")
            mask = rows["attention_mask"][..., None]
            found.append((model(**rows).last_hidden_state * mask).sum(1) / mask.sum(1) @ head)
        return torch.cat(found).numpy()

    return scored


def _outputs(folder: Path) -> list[str]:
    """Random words of one token each, as many as make a row of so many tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and word.islower())
    room = TOKENS - len(tokenizer.encode(INSTRUCTION, "").ids)
    rng = np.random.default_rng(7)
    return [" ".join(rng.choice(words, room)) for _ in range(OUTPUTS)]


def _with_a_random_head(folder: Path) -> Path:
    from transformers import AutoTokenizer

    from metrist.models.devices import Options
    from metrist.models.reward_layout import Layout
    from metrist.models.reward_model import TorchReward

    made = TorchReward.untrained(Options(model=_model()), Layout(), pooling="mean")
    folder.mkdir()
    made.model.save(folder, AutoTokenizer.from_pretrained(_model()), made.settings)
    return folder


if __name__ == "__main__":
    main()
