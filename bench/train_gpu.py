"""Preference models trained as the HEAP study does it: wall time, tokens a second, the share of the card's peak.

    PYTHONPATH=src python bench/train_gpu.py --pairs heap-pairs.jsonl.xz --base DIR --setup multi --seeds 5 -o OUT
    python -m bench.train_gpu              # a tiny model and invented pairs: that it runs, and how it reports

Everything of a study can be had: several setups, both splits, several trainings at once, settings chosen on development
pairs. The same command goes on with a study that was stopped. Only the programming interface is used, so that a machine
without the command line's packages will do.
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
from metrist.models.reward_layout import Keep, Layout, Pooling
from metrist.studies.heap.jobs import SETUPS, SPLITS, Result, Settings
from metrist.studies.heap.results import read_results
from metrist.studies.heap.study import Study, run
from metrist.studies.heap.worker_pool import NoStudyCallback
from metrist.train.recipe import Recipe
from metrist.train.task import Evaluation, TrainingProgress

#: Dense bfloat16 peak of an H200 in FLOP a second; other cards will print a share of this one's.
PEAK = 989e12
_TEXT = """
the a cat dog sat ran on over mat river story is was not very good bad people city day time . , ?
"""
_WORDS = _TEXT.split()


class Lines(NoStudyCallback):
    """What happens, a line each."""

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
    asked = _arguments()
    if asked.tiny:
        with tempfile.TemporaryDirectory() as folder:
            _tiny(asked, Path(folder))
            _run(asked)
    else:
        _run(asked)


def _run(asked: argparse.Namespace) -> None:
    study = _study(asked)
    _describe(asked)
    before = {path.parent.name for path in (study.out / "trainings").glob("*/results.json")}
    began = time.monotonic()
    outcome = run(study, Lines(asked.every))
    wall = time.monotonic() - began
    # Plain text is laid out with rich, which such a machine may lack.
    form = "text" if importlib.util.find_spec("rich") else "markdown"
    for table in outcome.tables:
        print("\n" + table.render(form))
    results = [one for one in read_results(study.out).results if one.job.name not in before]
    print("\n" + json.dumps(_speed(results, wall, asked)))


def _study(asked: argparse.Namespace) -> Study:
    setups = SETUPS if asked.setup == "all" else tuple(asked.setup.split(","))
    if unknown := [setup for setup in setups if setup not in SETUPS]:
        sys.exit(f"no setup {unknown[0]!r}; there are {', '.join(SETUPS)} and all")
    recipe_names = ("epochs", "batch", "lr", "schedule", "warmup", "weight_decay", "dtype", "max_tokens", "bucket")
    recipe = Recipe(
        **{name: getattr(asked, name) for name in (*recipe_names, "eval_every", "patience")}, clip=asked.clip or None
    )
    settings = Settings(
        base=Options(model=str(asked.base)),
        layout=Layout(labelled=asked.labelled, max_length=asked.max_length, keep=asked.keep),
        pooling=asked.pooling,
        recipe=recipe,
        balance=asked.balance,
        ties=asked.ties,
        regression=asked.regression,
        head_lr=asked.head_lr,
        dev_most=asked.dev_most or None,
    )
    return Study(
        pairs=asked.pairs,
        out=asked.out,
        settings=settings,
        setups=setups,
        splits=SPLITS if asked.split == "both" else (asked.split,),
        seeds=asked.seeds,
        criteria=tuple(filter(None, asked.criteria.split(","))),
        at_once=asked.jobs,
        choose=tuple(filter(None, asked.choose.split(","))),
        budget=asked.budget,
        paper_settings=asked.paper_settings,
        keep_models=not asked.no_models,
        checkpoint_every=asked.checkpoint_every,
    )


def _speed(results: Sequence[Result], wall: float, asked: argparse.Namespace) -> dict[str, Any]:
    """6 · weights · tokens is what learning computes; the table of the vocabulary is looked up, not multiplied."""
    trained = [one.training["training"] for one in results if one.training["training"]]
    tokens, seconds = (sum(one[name] for one in trained) for name in ("tokens", "seconds"))
    every, looked_up = _weights(asked.base)
    found = {
        "trainings": len(results),
        "wall_seconds": round(wall, 1),
        "training_seconds": round(seconds, 1),
        "longest_training_seconds": max((one["seconds"] for one in trained), default=0.0),
        "at_once": asked.jobs,
        "tokens": tokens,
        "tokens_per_second": round(tokens / wall),
        "tokens_per_training_second": round(tokens / seconds) if seconds else 0,
        "weights": every,
        "share_of_h200_bf16_peak": round(6 * every * tokens / wall / PEAK, 4),
        "share_without_embeddings": round(6 * (every - looked_up) * tokens / wall / PEAK, 4),
    }
    if _card():
        import torch

        found["card"] = torch.cuda.get_device_name()
    return found


def _weights(base: Path) -> tuple[int, int]:
    """All weights of the base model, and those of its vocabulary."""
    import transformers

    model = transformers.AutoModel.from_pretrained(base, local_files_only=True)
    return sum(one.numel() for one in model.parameters()), model.get_input_embeddings().weight.numel()


def _describe(asked: argparse.Namespace) -> None:
    import torch
    import transformers

    where = torch.cuda.get_device_name() if _card() else f"a CPU ({torch.get_num_threads()} threads)"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, on {where}")
    if asked.tiny:
        print("A tiny random model learns invented pairs: this shows that a study runs, and none of its figures mean")
        print("anything. Give --pairs, --base and -o, on a machine with a card, for figures that do.")


def _card() -> bool:
    import torch

    return torch.cuda.is_available()


def _tiny(asked: argparse.Namespace, folder: Path) -> None:
    """A tiny BERT and pairs whose good answer has a cat in it, in place of real ones."""
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
    dice = random.Random(0)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for code in ("AG", "AV"):
            for number in range(80):
                story = " ".join(dice.choices(_WORDS, k=8))
                sides = {
                    side: [["narrative", story], ["question", "why"], ["answer", f"{dice.choice(_WORDS[4:])} {word} ."]]
                    for side, word in (("good", "cat"), ("bad", "dog"))
                }
                split = "train" if number < 50 else "dev" if number < 60 else "test"
                file.write(json.dumps({"task": code, "pair": number, "split": split, **sides}) + "\n")
    asked.base, asked.pairs, asked.out = folder / "base", folder / "pairs.jsonl", asked.out or folder / "study"
    asked.epochs, asked.lr, asked.batch, asked.seeds = 3, 3e-3, 8, min(asked.seeds, 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, help="the suite's pairs, such as heap-pairs.jsonl.xz")
    parser.add_argument("--base", type=Path, help="the folder of the pre-trained model")
    parser.add_argument("-o", "--out", type=Path, help="the study's folder")
    parser.add_argument("--setup", default="multi", help=f"some of {', '.join(SETUPS)}, with commas between; or all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--split", choices=[*SPLITS, "both"], default="both")
    parser.add_argument("--criteria", default="", help="codes with commas between; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--choose", default="", help="settings to choose on development pairs, with commas between")
    parser.add_argument("--budget", type=int, default=12, help="trial trainings for each choice")
    parser.add_argument("--paper-settings", action="store_true", help="begin with the paper's Table 4")
    parser.add_argument("--no-models", action="store_true", help="keep results only")
    _add_recipe(parser)
    asked = parser.parse_args()
    asked.tiny = asked.pairs is None and asked.base is None
    if not asked.tiny and None in (asked.pairs, asked.base, asked.out):
        parser.error("--pairs, --base and -o go together; without any of them a tiny model is trained")
    return asked


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
    parser.add_argument("--keep", choices=get_args(Keep), default="end", help="the side of a long context that stays")
    parser.add_argument("--ties", choices=["drop", "soft"], default="drop")
    parser.add_argument("--labelled", action="store_true", help="name each field before its text")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
