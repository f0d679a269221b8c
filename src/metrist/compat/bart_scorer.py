"""`BARTScorer` as in the authors' bart_score.py: the same calls, the same numbers.

It differs in four ways: equal work is done once, so `batch_size` has no effect; errors are raised instead of ending the
process; truncated texts are reported; `load` reads tensors only, so that no code in a pickle runs.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from metrist.errors import ModelError, RunError, format_count
from metrist.metrics.likelihood.layout import score_pairs
from metrist.metrics.likelihood.likelihood import CNN
from metrist.models.devices import Options, import_torch
from metrist.models.loading import load_seq2seq
from metrist.models.pretrained import convert_state_dict
from metrist.models.protocols import LikelihoodModel
from metrist.models.weights import find_weights
from metrist.runtime import Runtime

#: Bytes of the header of a safetensors file, as the package itself limits it.
_LARGEST_HEADER = 100_000_000
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json")
#: Tensors that a file may omit if the model shares its embeddings.
_SHARED_TENSORS = ("embed_tokens.weight", "shared.weight", "lm_head.weight", "embed_positions.weights")


class BARTScorer:
    """Mean log-probabilities of targets given sources, under BART or another sequence-to-sequence model.
    `checkpoint` is a hub name or a folder."""

    def __init__(self, device: str = "cuda:0", max_length: int = 1024, checkpoint: str = CNN) -> None:
        self.device = _choose_device(str(device))
        self.max_length = max_length
        self.checkpoint = str(checkpoint)
        self._load_model(self.checkpoint)

    @property
    def model(self) -> Any:
        """The transformers model, ready to score."""
        return self._attribute("model")

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._attribute("tokenizer")

    def load(self, path: str | os.PathLike[str] | None = None) -> None:
        """Use other weights: a state dict for the model of `checkpoint`, as safetensors or as `torch.save` wrote it, or
        the folder of a model. A pickled state dict is converted by a reader that accepts tensors only."""
        weights = Path("models/bart.pth" if path is None else path)
        if weights.is_dir():
            self._load_model(str(weights))
            return
        if not weights.is_file():
            raise ModelError(
                f"there is no {weights}; give the file of a state dict, or the folder of a model", code="missing_file"
            )
        with TemporaryDirectory(prefix="metrist-") as temporary:
            tensors = weights
            if weights.suffix != ".safetensors":
                tensors = Path(temporary) / "converted.safetensors"
                convert_state_dict(weights, tensors)
            origin = find_weights(Options(model=self.checkpoint)).folder
            if missing := sorted(_tensor_names(origin.glob("*.safetensors")) - _tensor_names([tensors])):
                raise ModelError(
                    f"{weights} is not a state dict of {self.checkpoint}: it lacks {len(missing):,} of its tensors, "
                    f"such as {missing[0]}",
                    code="invalid_value",
                )
            # A folder with these weights and everything else of the model.
            folder = Path(temporary) / "model"
            folder.mkdir()
            for file in origin.iterdir():
                if file.is_file() and not file.name.endswith(_WEIGHT_FILES):
                    shutil.copyfile(file, folder / file.name)
            (folder / "model.safetensors").symlink_to(tensors.absolute())
            self._load_model(str(folder))

    def test(self, batch_size: int = 3) -> None:
        """Print the scores of three pairs of texts: a paraphrase, a statement about something else, and an opposite."""
        sources = ["The train was late again.", "The museum opens at nine.", "She liked the second book best."]
        targets = ["Once more the train did not come on time.", "Cats sleep a lot.", "She disliked the second book."]
        print(self.score(sources, targets, batch_size))

    def score(self, srcs: Sequence[str], tgts: Sequence[str], batch_size: int = 4) -> list[float]:  # noqa: ARG002
        """For each source and target, the mean log-probability of the target's tokens given the source."""
        _check_list("srcs", srcs)
        _check_list("tgts", tgts)
        if len(srcs) != len(tgts):
            raise RunError(
                f"expected as many sources as targets, got {len(srcs):,} and {len(tgts):,}", code="invalid_value"
            )
        scores = score_pairs(self._model, list(zip(srcs, tgts, strict=True)), max_tokens=self.max_length)
        if scores.failures:
            first = min(scores.failures)
            raise RunError(f"pair {first} cannot be scored: {scores.failures[first]}")
        truncated = scores.condition_cut + scores.target_cut
        if truncated.any():
            pairs = f"{np.count_nonzero(truncated):,} of {format_count(len(truncated), 'pair')}"
            limit = f"max_length={self.max_length} or the model allows"
            left_out = f"{int(truncated.sum()):,} tokens were left out"
            warnings.warn(f"{pairs} had texts of more tokens than {limit}; {left_out}", stacklevel=2)
        return [float(value) for value in scores.values]

    def multi_ref_score(
        self, srcs: Sequence[str], tgts: Sequence[Sequence[str]], agg: str = "mean", batch_size: int = 4
    ) -> list[float]:
        """For each source the mean, or with agg='max' the maximum, over its targets. All sources must have equally
        many targets."""
        _check_list("srcs", srcs)
        _check_list("tgts", tgts)
        for number, references in enumerate(tgts):
            _check_list(f"tgts[{number}]", references)
        counts = {len(references) for references in tgts}
        if len(counts) > 1:
            # The original's message, which scripts may look for.
            raise RunError("You have different number of references per test sample.", code="invalid_value")
        if agg not in ("mean", "max"):
            raise NotImplementedError(f"agg must be 'mean' or 'max', got {agg!r}")
        number = counts.pop() if counts else 0
        if not number:
            return []
        pairs = [(source, target) for source, references in zip(srcs, tgts, strict=True) for target in references]
        scores = self.score([source for source, _ in pairs], [target for _, target in pairs], batch_size)
        matrix = np.array(scores).reshape(-1, number)
        return [float(value) for value in (matrix.mean(axis=1) if agg == "mean" else matrix.max(axis=1))]

    def _load_model(self, model: str) -> None:
        runtime = Runtime.current().override(device=self.device)
        options = Options(model=model)
        self._loaded = load_seq2seq(options, runtime=replace(runtime, cache=None))
        self._model: LikelihoodModel = load_seq2seq(options, runtime=runtime)

    def _attribute(self, name: str) -> Any:
        value = getattr(self._loaded, name, None)
        if value is None:
            raise ModelError(
                f"{self.checkpoint} runs without torch, so it has no {name} of transformers", code="unsupported"
            )
        return value


def _check_list(name: str, texts: Any) -> None:
    """Refuse a single text, which would be taken for a list of its letters."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"BARTScorer: {name} must be a list of texts, got one text; write [{name}]")


def _choose_device(device: str) -> str:
    """The device, or the CPU if there is no such GPU: 'cuda:0' is the default of the original."""
    torch = import_torch("BARTScorer")
    kind, _, number = device.partition(":")
    if kind != "cuda" or int(number or 0) < torch.cuda.device_count():
        return device
    warnings.warn(f"there is no {device} here: BARTScorer computes on the CPU", stacklevel=3)
    return "cpu"


def _tensor_names(files: Iterable[Path]) -> set[str]:
    """The names of the required tensors of safetensors files, without the prefix 'model.' that some files have. A file
    begins with 8 bytes for the header's length and the header as JSON."""
    names: set[str] = set()
    for path in files:
        try:
            with path.open("rb") as file:
                size = min(int.from_bytes(file.read(8), "little"), _LARGEST_HEADER)
                header = json.loads(file.read(size))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{path} is not a safetensors file: {error}", code="unreadable") from None
        if not isinstance(header, dict):
            raise ModelError(f"{path} is not a safetensors file: its header is not a JSON object", code="unreadable")
        names.update(name.removeprefix("model.") for name in header if name != "__metadata__")
    return {name for name in names if not name.endswith(_SHARED_TENSORS)}
