"""Weights without the rest of a model: a safetensors file beside another model's config and tokenizer."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from metrist.errors import ModelError, RunError
from metrist.metrics.likelihood.layout import PairScores, score_pairs
from metrist.metrics.likelihood.likelihood import CNN, CONVERSION
from metrist.models.devices import Options, import_torch
from metrist.models.loading import load_seq2seq
from metrist.models.protocols import LikelihoodModel
from metrist.models.weights import find_weights
from metrist.runtime import Runtime

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json")
#: Names under which models that share their embeddings may leave them out.
_SHARED = ("embed_tokens.weight", "shared.weight", "lm_head.weight", "embed_positions.weights")


@contextmanager
def assembled(weights: Path, model: Options) -> Iterator[Path]:
    """A folder with these weights and all else of the model, for as long as it takes to load it."""
    origin = find_weights(model).folder
    if missing := sorted(_names(origin.glob("*.safetensors")) - _names([weights])):
        raise ModelError(
            f"{weights} holds no state dict of {model.model}: it lacks {len(missing):,} of its tensors, such as "
            f"{missing[0]}"
        )
    with TemporaryDirectory(prefix="metrist-") as name:
        folder = Path(name)
        for file in origin.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, folder / file.name)
        (folder / "model.safetensors").symlink_to(weights.absolute())
        yield folder


def _names(files: Iterable[Path]) -> set[str]:
    """The tensors that must be there, whether or not a file puts 'model.' before their names."""
    names = {name.removeprefix("model.") for file in files for name in _header(file)}
    return {name for name in names if not name.endswith(_SHARED)} - {"__metadata__"}


def _header(file: Path) -> dict[str, object]:
    """A safetensors file begins with the length of its header, 8 bytes, and the header, which is JSON."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    except (OSError, ValueError, OverflowError, MemoryError) as fault:
        raise ModelError(f"{file} is no safetensors file: {fault}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{file} is no safetensors file: its header is no JSON object")
    return header


# `BARTScorer` as in the authors' bart_score.py: the same calls, the same numbers.
#
# What differs: equal work is done once, so `batch_size` changes nothing; a fault is raised instead of ending the
# process;
# texts that are cut are told of; pickles are not read.


class BARTScorer:
    """Mean log-probabilities of targets given sources, under BART or another sequence-to-sequence model.
    `checkpoint` is a hub name or a folder."""

    def __init__(self, device: str = "cuda:0", max_length: int = 1024, checkpoint: str = CNN) -> None:
        self.device = _usable(str(device))
        self.max_length = max_length
        self.checkpoint = str(checkpoint)
        self._model = self._loaded(self.checkpoint)

    def load(self, path: str | os.PathLike[str] | None = None) -> None:
        """Use other weights: a state dict as safetensors, for the model of `checkpoint`, or a whole model's folder."""
        found = Path("models/bart.pth" if path is None else path)
        if found.is_dir():
            self._model = self._loaded(str(found))
            return
        if found.suffix != ".safetensors":
            lines = (
                CONVERSION.replace(CNN, self.checkpoint).replace("bart_score.pth", str(found)).replace("\n", "\n    ")
            )
            raise ModelError(
                f"{found} is neither a folder nor a .safetensors file. A pickled state dict can run code when it is "
                f"read, so metrist reads none; these lines turn it into a folder:\n\n    {lines}\n\nand then "
                "load('bart-large-cnn-para')"
            )
        with assembled(found, Options(model=self.checkpoint)) as folder:
            self._model = self._loaded(str(folder))

    def score(self, srcs: Sequence[str], tgts: Sequence[str], batch_size: int = 4) -> list[float]:  # noqa: ARG002
        """For each source and target, the mean log-probability of the target's tokens given the source."""
        if len(srcs) != len(tgts):
            raise RunError(f"as many sources as targets are wanted, got {len(srcs):,} and {len(tgts):,}")
        answers = score_pairs(self._model, list(zip(srcs, tgts, strict=True)), max_tokens=self.max_length)
        if answers.failures:
            first = min(answers.failures)
            raise RunError(f"pair {first} cannot be scored: {answers.failures[first]}")
        self._tell_cut(answers)
        return [float(value) for value in answers.values]

    def multi_ref_score(
        self, srcs: Sequence[str], tgts: Sequence[Sequence[str]], agg: str = "mean", batch_size: int = 4
    ) -> list[float]:
        """For each source the mean, or with agg='max' the best, over its targets, of which all sources have as many."""
        counts = {len(references) for references in tgts}
        if len(counts) > 1:
            # The words are the original's, which scripts may look for.
            raise RunError("You have different number of references per test sample.")
        if agg not in ("mean", "max"):
            raise NotImplementedError(f"agg must be 'mean' or 'max', got {agg!r}")
        number = counts.pop() if counts else 0
        if not number:
            return []
        pairs = [(source, target) for source, references in zip(srcs, tgts, strict=True) for target in references]
        scores = self.score([source for source, _ in pairs], [target for _, target in pairs], batch_size)
        matrix = np.array(scores).reshape(-1, number)
        return [float(value) for value in (matrix.mean(axis=1) if agg == "mean" else matrix.max(axis=1))]

    def _loaded(self, model: str) -> LikelihoodModel:
        return load_seq2seq(Options(model=model), runtime=Runtime.current().override(device=self.device))

    def _tell_cut(self, answers: PairScores) -> None:
        cut = answers.condition_cut + answers.target_cut
        if cut.any():
            warnings.warn(
                f"{np.count_nonzero(cut):,} of {len(cut):,} pairs had texts of more tokens than max_length="
                f"{self.max_length} or the model allows; {int(cut.sum()):,} tokens were left out",
                stacklevel=3,
            )


def _usable(device: str) -> str:
    """The device, or the CPU where a card is asked for that is not there: 'cuda:0' is what the original begins with."""
    torch = import_torch("BARTScorer")
    kind, _, number = device.partition(":")
    if kind != "cuda" or int(number or 0) < torch.cuda.device_count():
        return device
    warnings.warn(f"there is no {device} here: BARTScorer computes on the CPU", stacklevel=3)
    return "cpu"
