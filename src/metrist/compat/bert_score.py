"""`score` and `BERTScorer` as in the package bert-score 0.3.13: the same calls, the same numbers.

    from metrist.compat.bert_score import BERTScorer, score  # instead of: from bert_score import BERTScorer, score

It differs in these ways: each distinct text is encoded once, in batches by length, so `batch_size`, `nthreads` and
`use_fast_tokenizer` have no effect; a token whose best cosine is negative keeps it, whatever texts are scored together;
and `plot_example` is left out.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.errors import InputError, RunError
from metrist.metrics.base import Shard
from metrist.metrics.embedding.bertscore import BertScore, read_baseline
from metrist.metrics.token_weights import DocumentFrequencies
from metrist.models import loading
from metrist.models.devices import import_torch
from metrist.models.protocols import EncoderModel, States
from metrist.records import Record
from metrist.runtime import Runtime

#: The version of bert-score whose numbers these are.
BERT_SCORE_VERSION = "0.3.13"
_MODELS = {
    "en": "roberta-large",
    "zh": "bert-base-chinese",
    "tr": "dbmdz/bert-base-turkish-cased",
    "en-sci": "allenai/scibert_scivocab_uncased",
}
_OTHER_LANGUAGES = "bert-base-multilingual-cased"
Numbers = NDArray[np.float64]


class TokenWeights(Protocol):
    """Gives each token its weight."""

    def idf(self, tokens: Any) -> Numbers:
        """Return the weight of each token id."""
        ...


@dataclass(frozen=True)
class GivenWeights:
    """Weights by token id, as bert-score's `idf` accepts them."""

    weights: Mapping[int, float]

    def idf(self, tokens: Any) -> Numbers:
        """Return the weight of each token id."""
        return np.array([self.weights[int(token)] for token in tokens], np.float64)


@dataclass(frozen=True, kw_only=True)
class _PeerScore(BertScore):
    """BERTScore on a given device, with token weights that are counted from the references."""

    device: str | None = field(default=None, compare=False)
    token_weights: TokenWeights | None = field(default=None, compare=False)

    def encoder(self) -> EncoderModel:
        runtime = Runtime.current()
        return loading.load_encoder(
            self.options, runtime=runtime if self.device is None else runtime.override(device=self.device)
        )

    def weights(self, states: States) -> Numbers:
        return super().weights(states) if self.token_weights is None else self.token_weights.idf(states.tokens)


class BERTScorer:
    """BERTScore with a model that stays loaded.

    `model_type` is a hub name or a folder; without it, `lang` chooses one. `num_layers` defaults to the layer that
    BERTScore's authors chose for the model, or the last. With `rescale_with_baseline`, the baselines are those of
    `baseline_path`, or of the package bert-score where it is installed.
    """

    def __init__(
        self,
        model_type: str | None = None,
        num_layers: int | None = None,
        batch_size: int = 64,
        nthreads: int = 4,
        all_layers: bool = False,
        idf: bool = False,
        idf_sents: Sequence[str] | None = None,
        device: str | None = None,
        lang: str | None = None,
        rescale_with_baseline: bool = False,
        baseline_path: str | None = None,
        use_fast_tokenizer: bool = False,
    ) -> None:
        if lang is None and model_type is None:
            raise ValueError("BERTScorer needs lang, such as 'en', or model_type")
        if rescale_with_baseline and lang is None and baseline_path is None:
            raise ValueError("rescale_with_baseline needs lang or baseline_path")
        self.lang, self.idf, self.all_layers = lang, idf, all_layers
        self.batch_size, self.nthreads, self.use_fast_tokenizer = batch_size, nthreads, use_fast_tokenizer
        self.rescale_with_baseline = rescale_with_baseline
        self.use_custom_baseline = baseline_path is not None
        self.model_type = model_type or _MODELS.get((lang or "").lower(), _OTHER_LANGUAGES)
        self.device = device
        self._metric = _PeerScore(model=self.model_type, layer=num_layers, long="truncate", device=device)
        encoder = self._metric.encoder()
        layer = self._metric.resolved_layer
        self._layers = encoder.layers
        self.num_layers = encoder.layers if layer is None else layer
        self.baseline_path = baseline_path
        if rescale_with_baseline and baseline_path is None:
            self.baseline_path = str(_find_baseline(lang or "", self.model_type))
        self._token_weights: DocumentFrequencies | None = None
        if idf_sents is not None:
            self.compute_idf(idf_sents)

    @property
    def hash(self) -> str:
        """What the scores depend on, in the form of bert-score's hash."""
        weighting = "idf" if self.idf else "no-idf"
        rescaled = "-custom-rescaled" if self.use_custom_baseline else "-rescaled"
        return (
            f"{self.model_type}_L{self.num_layers}_{weighting}_version={BERT_SCORE_VERSION}(metrist={__version__})"
            f"{rescaled if self.rescale_with_baseline else ''}"
        )

    def compute_idf(self, sents: Sequence[str]) -> None:
        """Count the texts' tokens, for `idf=True`."""
        if self._token_weights is not None:
            warnings.warn("the earlier idf weights are replaced", stacklevel=2)
        self._token_weights = self._count(sents)

    def score(
        self,
        cands: Sequence[str],
        refs: Sequence[str] | Sequence[Sequence[str]],
        verbose: bool = False,  # noqa: ARG002
        batch_size: int = 64,  # noqa: ARG002
        return_hash: bool = False,
    ) -> Any:
        """Tensors of precision, recall and F, one number per output; with several references the best of each. With
        `all_layers` each has a row per layer. `return_hash` adds the hash."""
        if self.idf and self._token_weights is None:
            raise RunError(
                "idf=True needs weights: pass idf_sents=…, or call compute_idf with all references",
                code="missing_value",
            )
        result = self._score(cands, _as_lists(cands, refs), self._token_weights if self.idf else None)
        return (result, self.hash) if return_hash else result

    def _count(self, texts: Sequence[str]) -> DocumentFrequencies:
        encoder = self._metric.encoder()
        stripped = [encoder.word_start + text.strip() for text in texts]
        return DocumentFrequencies.count(encoder.token_ids(stripped, "truncate"))

    def _score(
        self,
        outputs: Sequence[str],
        references: Sequence[Sequence[str]],
        token_weights: TokenWeights | None,
    ) -> tuple[Any, Any, Any]:
        records = [
            Record(item=str(n), system="", output=output, references=tuple(references[n]))
            for n, output in enumerate(outputs)
        ]
        shard = Shard(records)
        by_layer = []
        for layer in range(self._layers + 1) if self.all_layers else [self.num_layers]:
            metric = _PeerScore(
                model=self.model_type, layer=layer, long="truncate", device=self.device, token_weights=token_weights
            )
            scores = metric.score(shard)
            if scores.failures:
                warnings.warn(f"{len(scores.failures):,} outputs or references without tokens score 0", stacklevel=3)
            values = np.column_stack([scores.parts[name] for name in ("precision", "recall", "f")])
            values = np.nan_to_num(values, nan=0.0)
            if self.rescale_with_baseline and self.baseline_path is not None:
                baseline = read_baseline(self.baseline_path, layer)
                values = (values - baseline) / (1 - baseline)
            by_layer.append(values)
        rows = np.stack(by_layer)
        torch = import_torch("BERTScorer")
        columns = np.moveaxis(rows, -1, 0) if self.all_layers else rows[0].T
        precision, recall, f = (torch.from_numpy(column.astype(np.float32)) for column in columns)
        return precision, recall, f

    def __repr__(self) -> str:
        return f"BERTScorer(hash={self.hash}, batch_size={self.batch_size}, nthreads={self.nthreads})"


def score(
    cands: Sequence[str],
    refs: Sequence[str] | Sequence[Sequence[str]],
    model_type: str | None = None,
    num_layers: int | None = None,
    verbose: bool = False,  # noqa: ARG001
    idf: bool | Mapping[int, float] = False,
    device: str | None = None,
    batch_size: int = 64,
    nthreads: int = 4,
    all_layers: bool = False,
    lang: str | None = None,
    return_hash: bool = False,
    rescale_with_baseline: bool = False,
    baseline_path: str | None = None,
    use_fast_tokenizer: bool = False,
) -> Any:
    """Tensors of precision, recall and F, one number per output. `idf=True` counts the tokens of all references;
    a mapping gives the weights of token ids."""
    references = _as_lists(cands, refs)
    scorer = BERTScorer(
        model_type,
        num_layers,
        batch_size,
        nthreads,
        all_layers,
        bool(idf),
        None,
        device,
        lang,
        rescale_with_baseline,
        baseline_path,
        use_fast_tokenizer,
    )
    weights: TokenWeights | None = None
    if isinstance(idf, Mapping):
        weights = GivenWeights(idf)
    elif idf:
        weights = scorer._count([text for row in references for text in row])
    result = scorer._score(cands, references, weights)
    return (result, scorer.hash) if return_hash else result


def _as_lists(outputs: Sequence[str], references: Sequence[Any]) -> list[list[str]]:
    for name, texts in (("cands", outputs), ("refs", references)):
        if isinstance(texts, str | bytes):
            raise TypeError(f"{name} must be a list of texts, got one text; write [{name}]")
    if len(outputs) != len(references):
        raise ValueError(f"expected as many outputs as references, got {len(outputs):,} and {len(references):,}")
    return [[row] if isinstance(row, str) else list(row) for row in references]


def _find_baseline(lang: str, model_type: str) -> Path:
    """The file of baselines in the installed package bert-score, which is not imported."""
    package = importlib.util.find_spec("bert_score")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "rescale_baseline" / lang.lower() / f"{model_type}.tsv"
        if file.is_file():
            return file
    raise InputError(
        f"no baseline for {model_type} in {lang!r}: give baseline_path=, such as rescale_baseline/en/roberta-large.tsv "
        "of the package bert-score (pip install bert-score)",
        code="missing_value",
    )
