"""Likelihood metrics: the mean log-probability of a text's tokens given another text, as in BARTScore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import ClassVar

import numpy as np

from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Reduce, Shard, hash_file
from metrist.metrics.likelihood.layout import (
    NEEDS,
    Direction,
    Long,
    Numbers,
    PairScores,
    ShardLayout,
    Side,
    collect_pairs,
    lay_out,
    prompt_facts,
    read_phrases,
    score_pairs,
)
from metrist.metrics.model_metric import CUT, ModelMetric, count_above, count_scored
from metrist.metrics.token_weights import DocumentFrequencies, Weighting, make_weigher, read_texts
from metrist.models.devices import Options
from metrist.models.loading import load_seq2seq
from metrist.models.protocols import LikelihoodModel
from metrist.records import Need, Record
from metrist.scores import Scores

WINDOWS = "windows"
VARIANCE = "prompt_variance"
#: Name of the part without a prompt, next to those with one.
NO_PROMPT = "(no prompt)"


@dataclass(frozen=True, kw_only=True)
class Likelihood(ModelMetric):
    """The mean log-probability of a text's tokens given another text, under a sequence-to-sequence model."""

    model: str = "metrist:likelihood-small"
    direction: Direction = "source->output"
    prompts: str | tuple[str, ...] = "none"
    prompt_side: Side = "target"
    weighting: Weighting = "uniform"
    #: A file with one text per line (or records) from which 'idf' counts document frequencies.
    idf: str | None = None
    reduce: Reduce = "native"
    max_tokens: int = 1024
    long: Long = "truncate"
    #: Language of outputs and references, and of the sources if it differs, as the model's tokenizer names them.
    language: str | None = None
    source_language: str | None = None
    condition_prefix: str = ""
    #: An instruction such as the language to write in; its tokens do not count in the mean.
    target_prefix: str = ""

    bounds: ClassVar[tuple[float, float]] = (-np.inf, 0.0)
    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "likelihood"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens < 4:
            raise SpecError(f"{self.name}: max_tokens must be at least 4, got {self.max_tokens}")
        if (self.weighting == "idf") != (self.idf is not None):
            example = f"{self.name}(weighting='idf', idf='texts.txt') with one text per line"
            raise SpecError(f"{self.name}: weighting='idf' and idf go together, as in {example}", code="conflict")
        if self.source_language is not None and self.language is None:
            raise SpecError(
                f"{self.name}: source_language needs language too, the language of the outputs", code="missing_value"
            )
        if not isinstance(self.prompts, str):
            object.__setattr__(self, "prompts", tuple(self.prompts) or "none")

    @property
    def options(self) -> Options:
        if self.language is None:
            return super().options
        source = self.source_language if self.direction == "source->output" else None
        return replace(super().options, languages=(source or self.language, self.language))

    @property
    def needs(self) -> tuple[Need, ...]:
        return NEEDS[self.direction]

    def facts(self) -> Mapping[str, str]:
        prompts = {} if self.prompts == "none" else prompt_facts(self.prompts)
        idf = {"idf": hash_file(self.idf)} if self.idf is not None else {}
        return {**super().facts(), **prompts, **idf}

    def score(self, shard: Shard) -> Scores:
        return self.score_known_languages(shard, self._score)

    def _score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        layout, scores, by_prompt, by_part = self._evaluate(shard)
        parts = {name: values.mean(axis=1) for name, values in by_part.items()}
        if len(layout.phrases) > 1:
            parts[VARIANCE] = by_prompt.var(axis=1)
        if self.long != "truncate":
            parts[WINDOWS] = layout.count_windows()
        parts[CUT] = layout.count_cut_tokens(scores)
        return layout.make_scores(len(shard), by_prompt.mean(axis=1), parts, scores, tokens=shard.tokens)

    def each_prompt(self, shard: Shard) -> Scores:
        """The score, with the score of each prompt alone as a part named by its phrase. The cost is the same as for
        `score`."""
        return self.score_known_languages(shard, self._score_prompts)

    def _score_prompts(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        layout, scores, by_prompt, _ = self._evaluate(shard)
        names = (phrase or NO_PROMPT for phrase in layout.phrases)
        parts = dict(zip(names, by_prompt.T, strict=True))
        return layout.make_scores(len(shard), by_prompt.mean(axis=1), parts, scores)

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if self.long != "truncate" and (count := count_above(scores, WINDOWS, 1)):
            remarks.append(f"{self.label}: {count:,} of {count_scored(scores)} had a condition read in several windows")
        return remarks

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return [f"{warning}; model= names another model" for warning in super().describe_misuse(records)]

    def _evaluate(self, shard: Shard) -> tuple[ShardLayout, PairScores, Numbers, Mapping[str, Numbers]]:
        """The scored texts of a shard, with values of shape (scorable records, prompts), and the same for each part of
        the direction."""
        model = load_seq2seq(self.options, runtime=shard.runtime)
        pairs = collect_pairs(shard.records, self.direction)
        layout = lay_out(
            pairs,
            read_phrases(self.prompts),
            self.prompt_side,
            condition_prefix=self.condition_prefix,
            target_prefix=self.target_prefix,
            split=_make_splitter(model, self.max_tokens) if self.long != "truncate" else None,
        )
        weigh = None
        if self.weighting != "uniform" or self.target_prefix or self.language:
            frequencies = None
            if self.idf is not None:
                frequencies = _count_documents(self.options, self.idf, hash_file(self.idf))
            weigh = make_weigher(
                self.weighting,
                model,
                max_tokens=self.max_tokens,
                frequencies=frequencies,
                prefix=self.target_prefix,
                language=self.language,
            )
        scores = score_pairs(model, layout.texts, max_tokens=self.max_tokens, weigh=weigh, tokens=shard.tokens)
        cells = layout.cell_values(scores, self.long)
        reduced = [pairs.reduce(cells[:, :, prompt], self.reduce) for prompt in range(cells.shape[2])]
        by_prompt = np.stack([values for values, _ in reduced], axis=1)
        parts = {name: np.stack([parts[name] for _, parts in reduced], axis=1) for name in reduced[0][1]}
        return layout, scores, by_prompt, parts


def _make_splitter(model: LikelihoodModel, max_tokens: int) -> Callable[[str, str], Sequence[str]]:
    """A function that splits a condition into windows which leave room for what is added to them."""

    @cache
    def split(condition: str, addition: str) -> list[str]:
        windows = model.windows(f"{condition} {addition}".strip(), max_tokens)
        if len(windows) == 1:
            return [condition]
        if not addition:
            return windows
        # The model's own limit may be below `max_tokens`: its windows show how many tokens fit.
        room = max(len(model.pieces(window, max_tokens)) for window in windows)
        return model.windows(condition, max(room - len(model.pieces(addition)), 1))

    return split


@lru_cache(maxsize=4)
def _count_documents(options: Options, path: str, _hash: str) -> DocumentFrequencies:
    model = load_seq2seq(options)
    return DocumentFrequencies.count(model.pieces(text) for text in read_texts(path))


# --- BARTScore and Prism: the same metric with the models of the papers

LARGE = "facebook/bart-large"
CNN = "facebook/bart-large-cnn"

#: Converts the published ParaBank2 weights into a folder that can be loaded. A pickle can run code when it is loaded,
#: so metrist loads none; `weights_only` keeps torch from running code.
CONVERSION = f"""\
import torch
from transformers import AutoTokenizer, BartForConditionalGeneration

model = BartForConditionalGeneration.from_pretrained("{CNN}")
model.load_state_dict(torch.load("bart_score.pth", map_location="cpu", weights_only=True))
model.save_pretrained("bart-large-cnn-para")
AutoTokenizer.from_pretrained("{CNN}").save_pretrained("bart-large-cnn-para")"""


@dataclass(frozen=True, kw_only=True)
class BartScore(Likelihood):
    """BARTScore (Yuan, Neubig and Liu, 2021) with the model of its reference implementation, or any other."""

    model: str = CNN

    extra: ClassVar[str | None] = "neural"
    catalog_name: ClassVar[str | None] = "bartscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        default = type(self).model
        if "model" in self.in_name and self.model != default:
            raise SpecError(f"{self.name} is {default}; for another model use bartscore(model={self.model!r})")


@dataclass(frozen=True, kw_only=True)
class BartScoreLarge(BartScore):
    """BARTSCORE of the paper: pre-trained BART."""

    model: str = LARGE

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_large"


@dataclass(frozen=True, kw_only=True)
class BartScoreCnn(BartScore):
    """BARTSCORE-CNN of the paper: BART fine-tuned on news summaries."""

    model: str = CNN

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_cnn"


@dataclass(frozen=True, kw_only=True)
class BartScorePara(BartScore):
    """BARTSCORE-CNN-PARA of the paper: BARTSCORE-CNN fine-tuned on paraphrases. The user provides the weights."""

    model: str = ""

    catalog_name: ClassVar[str | None] = "bartscore_para"

    @property
    def options(self) -> Options:
        if not self.model:
            lines = CONVERSION.replace("\n", "\n    ")
            raise ModelError(
                f"{self.name} needs a folder with the paper's weights: {self.name}(model='bart-large-cnn-para'). This "
                "script makes it from bart_score.pth, linked from https://github.com/neulab/BARTScore:\n\n"
                f"    {lines}",
                code="missing_value",
            )
        return super().options


@dataclass(frozen=True, kw_only=True)
class PrismStyle(Likelihood):
    """Prism's score (Thompson and Post, 2020) under a multilingual translation model: output and reference as
    paraphrases of each other, in both directions. With direction='source->output' no reference is needed."""

    model: str = "facebook/m2m100_418M"
    direction: Direction = "f"
    language: str | None = "en"

    extra: ClassVar[str | None] = "neural"
    catalog_name: ClassVar[str | None] = "prism_style"
