"""Train preference models as the HEAP study does: wall time, tokens per second, share of the GPU's peak.

    PYTHONPATH=src python bench/train_gpu.py --pairs heap-pairs.jsonl.xz --base DIR --setup multi --seeds 5 -o OUT
    python -m bench.train_gpu              # a tiny model and invented pairs, to see that it runs

All options of a study are available: several setups, both splits, parallel trainings, settings tuned on development
pairs. The same command resumes a study that was stopped. Only the Python API is used, so that the packages of the
command line are not needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from metrist.models.devices import Options
from metrist.models.reward_layout import Keep, Pooling, RewardLayout
from metrist.studies.heap.jobs import SETUPS, SPLITS, Result, Settings
from metrist.studies.heap.results import read_results
from metrist.studies.heap.study import Study, run
from metrist.studies.heap.training import NoStudyCallback
from metrist.train.recipe import Recipe
from metrist.train.task import Evaluation, TrainingProgress

#: Dense bfloat16 peak of an H200 in FLOP per second; other GPUs print a share of this one's.
PEAK = 989e12
_TEXT = """
the a cat dog sat ran on over mat river story is was not very good bad people city day time . , ?
"""
_WORDS = _TEXT.split()


class LineCallback(NoStudyCallback):
    """Print a line for each event."""

    def __init__(self, every: float) -> None:
        self._every, self._began, self._last = every, time.monotonic(), {"": 0.0}
        self._open = 0

    def on_plan(self, count: int, finished: int) -> None:
        self._open = count - finished
        self.on_message(f"{count:,} trainings, {finished:,} of them finished before")

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        now = time.monotonic()
        if now - self._last.get(name, 0.0) >= self._every:
            self._last[name] = now
            self.on_message(f"{name}: step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}")

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:
        self.on_message(f"{name}: step {evaluation.step:,}, dev {figure} {evaluation.figure:.4f}")

    def on_finish(self, name: str, seconds: float) -> None:
        self._open -= 1
        self.on_message(f"{name}: done in {seconds:,.1f} s; {self._open:,} to go")

    def on_failure(self, name: str, reason: str) -> None:
        self._open -= 1
        self.on_message(f"{name}: FAILED: {reason}")

    def on_message(self, remark: str) -> None:
        print(f"[{time.monotonic() - self._began:7.1f} s] {remark}", flush=True)


def main() -> None:
    arguments = _arguments()
    if arguments.tiny:
        with tempfile.TemporaryDirectory() as folder:
            use_tiny_model(arguments, Path(folder))
            _run(arguments)
    else:
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    study = _study(arguments)
    _describe(arguments)
    before = {path.parent.name for path in (study.out / "trainings").glob("*/results.json")}
    began = time.monotonic()
    outcome = run(study, LineCallback(arguments.every))
    wall = time.monotonic() - began
    # Plain text tables need rich, which may not be installed.
    form = "text" if importlib.util.find_spec("rich") else "markdown"
    for table in outcome.tables:
        print("\n" + table.render(form))
    results = [result for result in read_results(study.out)[0] if result.job.name not in before]
    print("\n" + json.dumps(measure_speed(results, wall, arguments)))


def _study(arguments: argparse.Namespace) -> Study:
    setups = SETUPS if arguments.setup == "all" else tuple(arguments.setup.split(","))
    if unknown := [setup for setup in setups if setup not in SETUPS]:
        sys.exit(f"no setup {unknown[0]!r}; there are {', '.join(SETUPS)} and all")
    recipe_names = ("epochs", "batch", "lr", "schedule", "warmup", "weight_decay", "dtype", "max_tokens", "bucket")
    recipe = Recipe(
        **{name: getattr(arguments, name) for name in (*recipe_names, "eval_every", "patience")},
        clip=arguments.clip or None,
    )
    settings = Settings(
        base=Options(model=str(arguments.base)),
        layout=RewardLayout(labelled=arguments.labelled, max_length=arguments.max_length, keep=arguments.keep),
        pooling=arguments.pooling,
        recipe=recipe,
        balance=arguments.balance,
        ties=arguments.ties,
        regression=arguments.regression,
        head_lr=arguments.head_lr,
        dev_most=arguments.dev_most or None,
    )
    return Study(
        pairs=arguments.pairs,
        out=arguments.out,
        settings=settings,
        setups=setups,
        splits=SPLITS if arguments.split == "both" else (arguments.split,),
        seeds=arguments.seeds,
        criteria=tuple(filter(None, arguments.criteria.split(","))),
        at_once=arguments.jobs,
        choose=tuple(filter(None, arguments.choose.split(","))),
        budget=arguments.budget,
        paper_settings=arguments.paper_settings,
        keep_models=not arguments.no_models,
        checkpoint_every=arguments.checkpoint_every,
    )


def measure_speed(results: Sequence[Result], wall: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the speed. Training computes 6 · weights · tokens operations; embeddings are looked up, not multiplied."""
    cards = [result.training["training"] for result in results if result.training["training"]]
    tokens, seconds = (sum(card[name] for card in cards) for name in ("tokens", "seconds"))
    weights, embeddings = _count_weights(arguments.base)
    report = {
        "trainings": len(results),
        "wall_seconds": round(wall, 1),
        "training_seconds": round(seconds, 1),
        "longest_training_seconds": max((card["seconds"] for card in cards), default=0.0),
        "at_once": arguments.jobs,
        "tokens": tokens,
        "tokens_per_second": round(tokens / wall),
        "tokens_per_training_second": round(tokens / seconds) if seconds else 0,
        "weights": weights,
        "share_of_h200_bf16_peak": round(6 * weights * tokens / wall / PEAK, 4),
        "share_without_embeddings": round(6 * (weights - embeddings) * tokens / wall / PEAK, 4),
    }
    if has_gpu():
        import torch

        report["card"] = torch.cuda.get_device_name()
    return report


def _count_weights(base: Path) -> tuple[int, int]:
    """Count all weights of the base model, and those of its embeddings."""
    import transformers

    model = transformers.AutoModel.from_pretrained(base, local_files_only=True)
    return sum(weight.numel() for weight in model.parameters()), model.get_input_embeddings().weight.numel()


def _describe(arguments: argparse.Namespace) -> None:
    import torch
    import transformers

    where = torch.cuda.get_device_name() if has_gpu() else f"a CPU ({torch.get_num_threads()} threads)"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, on {where}")
    if arguments.tiny:
        print("A tiny random model learns invented pairs. This only shows that a study runs; the figures mean nothing.")
        print("For real figures, use --pairs, --base and -o on a machine with a GPU.")


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def use_tiny_model(arguments: argparse.Namespace, folder: Path) -> None:
    """Use a tiny BERT, and pairs whose good answer contains "cat"."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: n for n, w in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *_WORDS])}, unk_token="[UNK]"))  # fmt: skip  # noqa: E501
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **names).save_pretrained(folder / "base")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=words.get_vocab_size(), max_position_embeddings=64, **shape)).save_pretrained(
        folder / "base"
    )
    rng = random.Random(0)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for code in ("AG", "AV"):
            for number in range(80):
                story = " ".join(rng.choices(_WORDS, k=8))
                sides = {
                    side: [["narrative", story], ["question", "why"], ["answer", f"{rng.choice(_WORDS[4:])} {word} ."]]
                    for side, word in (("good", "cat"), ("bad", "dog"))
                }
                split = "train" if number < 50 else "dev" if number < 60 else "test"
                file.write(json.dumps({"task": code, "pair": number, "split": split, **sides}) + "\n")
    arguments.base, arguments.pairs, arguments.out = (
        folder / "base",
        folder / "pairs.jsonl",
        arguments.out or folder / "study",
    )
    arguments.epochs, arguments.lr, arguments.batch, arguments.seeds = 3, 3e-3, 8, min(arguments.seeds, 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, help="the suite's pairs, such as heap-pairs.jsonl.xz")
    parser.add_argument("--base", type=Path, help="the folder of the pre-trained model")
    parser.add_argument("-o", "--out", type=Path, help="the study's folder")
    parser.add_argument("--setup", default="multi", help=f"some of {', '.join(SETUPS)}, separated by commas; or all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--split", choices=[*SPLITS, "both"], default="both")
    parser.add_argument("--criteria", default="", help="codes separated by commas; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="parallel trainings")
    parser.add_argument("--choose", default="", help="settings to tune on development pairs, separated by commas")
    parser.add_argument("--budget", type=int, default=12, help="trial trainings per tuned choice")
    parser.add_argument("--paper-settings", action="store_true", help="start from the paper's Table 4")
    parser.add_argument("--no-models", action="store_true", help="keep results only")
    _add_recipe(parser)
    arguments = parser.parse_args()
    arguments.tiny = arguments.pairs is None and arguments.base is None
    if not arguments.tiny and None in (arguments.pairs, arguments.base, arguments.out):
        parser.error("--pairs, --base and -o are required together; without them a tiny model is trained")
    return arguments


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    for name, kind, value in (
        ("epochs", int, 5), ("batch", int, 32), ("lr", float, 5e-5), ("warmup", float, 0.1),
        ("weight-decay", float, 0.01), ("clip", float, 1.0), ("max-tokens", int, None), ("bucket", int, 20),
        ("eval-every", int, None), ("patience", int, None), ("max-length", int, 512), ("balance", float, 1.0),
        ("regression", float, 0.0), ("head-lr", float, None), ("dev-most", int, 0), ("checkpoint-every", int, 2_000),
        ("every", float, 20.0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=value)
    parser.add_argument("--schedule", choices=["linear", "cosine", "constant"], default="linear")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--pooling", choices=["auto", *get_args(Pooling)], default="auto", help="what is scored")
    parser.add_argument("--keep", choices=get_args(Keep), default="end", help="the side of a long context that is kept")
    parser.add_argument("--ties", choices=["drop", "soft"], default="drop")
    parser.add_argument("--labelled", action="store_true", help="name each field before its text")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
