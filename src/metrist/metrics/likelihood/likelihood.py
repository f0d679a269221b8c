"""How likely a model finds one text given another: the mean log-probability of its tokens (paper 002, BARTScore)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Reduce, check_choice
from metrist.metrics.likelihood.layout import (
    DIRECTIONS,
    Direction,
    Frame,
    Layout,
    Long,
    PairScores,
    Side,
    TextPairs,
    Weigh,
    collect_pairs,
    lay_out,
    prompt_facts,
    read_phrases,
    required_fields,
    score_pairs,
)
from metrist.metrics.model_metric import CUT, ModelMetric
from metrist.metrics.shard import Shard
from metrist.metrics.token_weights import Rarity, Weighting, fingerprint, make_weigher, read_texts
from metrist.models.devices import Options
from metrist.models.loading import load_seq2seq
from metrist.models.protocols import LikelihoodModel
from metrist.records import Need, Record
from metrist.scores import Failure, Scores

Numbers = NDArray[np.float64]
WINDOWS = "windows"
VARIANCE = "prompt_variance"
#: What a score without a prompt is called beside those with one.
NO_PROMPT = "(no prompt)"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Found:
    """What a shard's scorings came to. Arrays have a row per record in `asked.able`."""

    asked: TextPairs
    scorings: Layout
    answers: PairScores
    #: (records, prompts), and the same for each part that a direction has.
    by_prompt: Numbers
    parts: Mapping[str, Numbers]
    failures: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Likelihood(ModelMetric):
    """The mean log-probability of a text's tokens given another text, under a sequence-to-sequence model."""

    model: str = "metrist:likelihood-small"
    direction: Direction = "source->output"
    prompts: str | tuple[str, ...] = "none"
    prompt_side: Side = "target"
    weighting: Weighting = "uniform"
    #: A file with a text on each line, from which 'idf' knows how rare a token is.
    idf: str | None = None
    reduce: Reduce = "native"
    max_tokens: int = 1024
    long: Long = "truncate"
    #: Of outputs and references, and of sources where that is another, as the model's tokenizer calls them.
    language: str | None = None
    source_language: str | None = None
    condition_prefix: str = ""
    #: Its own tokens do not count: it tells the model what to write, a language for instance.
    target_prefix: str = ""

    bounds: ClassVar[tuple[float, float]] = (-np.inf, 0.0)
    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "likelihood"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "direction", DIRECTIONS)
        check_choice(self, "prompt_side", get_args(Side))
        check_choice(self, "weighting", get_args(Weighting))
        check_choice(self, "reduce", get_args(Reduce))
        check_choice(self, "long", get_args(Long))
        if self.max_tokens < 4:
            raise SpecError(f"{self.name}: max_tokens must be at least 4, got {self.max_tokens}")
        if (self.weighting == "idf") != (self.idf is not None):
            wanted = f"{self.name}(weighting='idf', idf='texts.txt'), a file with a text on each line"
            raise SpecError(f"{self.name}: weighting='idf' and idf go together: {wanted}")
        if self.source_language is not None and self.language is None:
            raise SpecError(f"{self.name}: source_language needs language, that of the outputs, beside it")
        if not isinstance(self.prompts, str):
            object.__setattr__(self, "prompts", tuple(self.prompts) or "none")

    @property
    def options(self) -> Options:
        """What the model is loaded with, the languages of condition and target too."""
        if self.language is None:
            return super().options
        given = self.source_language if self.direction == "source->output" else None
        return replace(super().options, languages=(given or self.language, self.language))

    @property
    def needs(self) -> tuple[Need, ...]:
        return required_fields(self.direction)

    def facts(self) -> Mapping[str, str]:
        rare = {"idf": fingerprint(self.idf)} if self.idf is not None else {}
        return {**super().facts(), **prompt_facts(self.prompts), **rare}

    def score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        found = self._found(shard.records, tokens=shard.tokens)
        parts = {name: values.mean(axis=1) for name, values in found.parts.items()}
        if len(found.scorings.phrases) > 1:
            parts[VARIANCE] = found.by_prompt.var(axis=1)
        if self.long != "truncate":
            parts[WINDOWS] = found.scorings.most_windows()
        parts[CUT] = found.scorings.cut(found.answers)
        readings = found.scorings.readings(found.answers) if shard.tokens else {}
        return _placed(len(shard), found, parts, readings)

    def each_prompt(self, shard: Shard) -> Scores:
        """The score with each prompt alone, as parts that are called by their phrases. It costs what the score over all
        prompts costs, since it is the same work."""
        if not len(shard):
            return Scores.of([])
        found = self._found(shard.records, tokens=False)
        named = zip(found.scorings.phrases, found.by_prompt.T, strict=True)
        return _placed(len(shard), found, {phrase or NO_PROMPT: values for phrase, values in named}, {})

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut, and how many conditions were read in windows, if any."""
        windows = scores.parts.get(WINDOWS)
        split = int(np.count_nonzero(windows > 1)) if windows is not None else 0
        said = f"{self.text}: {split:,} of {len(scores):,} outputs had a condition that was read in several windows"
        return [*super().remarks(scores), *([said] if split else [])]

    def _found(self, records: Sequence[Record], *, tokens: bool) -> _Found:
        model = load_seq2seq(self.options)
        pairs = collect_pairs(records, self.direction)
        scorings = lay_out(pairs, self._frame(model))
        answers = score_pairs(
            model, scorings.texts, max_tokens=self.max_tokens, weigh=self._weigh(model), tokens=tokens
        )
        cells = scorings.cells(answers, self.long)
        reduced = [pairs.reduced(cells[:, :, prompt], self.reduce) for prompt in range(cells.shape[2])]
        return _Found(
            asked=pairs,
            scorings=scorings,
            answers=answers,
            by_prompt=np.stack([values for values, _ in reduced], axis=1),
            parts={name: np.stack([parts[name] for _, parts in reduced], axis=1) for name in reduced[0][1]},
            failures=scorings.failures(answers),
        )

    def _frame(self, model: LikelihoodModel) -> Frame:
        return Frame(
            phrases=read_phrases(self.prompts),
            side=self.prompt_side,
            condition_prefix=self.condition_prefix,
            target_prefix=self.target_prefix,
            windows=_whole if self.long == "truncate" else _windows(model, self.max_tokens),
        )

    def _weigh(self, model: LikelihoodModel) -> Weigh | None:
        rarity = _rarity(self.options, self.idf, fingerprint(self.idf)) if self.idf is not None else None
        return make_weigher(
            self.weighting,
            model,
            max_tokens=self.max_tokens,
            rarity=rarity,
            prefix=self.target_prefix,
            language=self.language,
        )


def _whole(condition: str, _added: str) -> list[str]:
    return [condition]


def _windows(model: LikelihoodModel, max_tokens: int) -> Callable[[str, str], Sequence[str]]:
    """Windows that leave room for what is put around them."""

    @cache
    def windows(condition: str, added: str) -> list[str]:
        whole = model.windows(f"{condition} {added}".strip(), max_tokens)
        if len(whole) == 1:
            return [condition]
        if not added:
            return whole
        # The model may take fewer tokens than were asked for: how many, its windows show.
        room = max(len(model.pieces(window, max_tokens)) for window in whole)
        return model.windows(condition, max(room - len(model.pieces(added)), 1))

    return windows


def _placed(size: int, found: _Found, parts: Mapping[str, Numbers], readings: Mapping[int, object]) -> Scores:
    """Scores of all records of a shard, from those of the records that could be asked about."""
    able = found.asked.able
    failures = {**found.asked.failures, **{able[n]: reason for n, reason in found.failures.items()}}
    scored = [n for n in range(len(able)) if n not in found.failures]
    at = [able[n] for n in scored]

    def column(values: Numbers) -> Numbers:
        wide = np.full(size, np.nan)
        wide[at] = values[scored]
        return wide

    return Scores(
        values=column(found.by_prompt.mean(axis=1)),
        parts={name: column(values) for name, values in parts.items()},
        failures={i: Failure.of(reason) for i, reason in failures.items()},
        tokens={able[n]: readings[n] for n in scored if n in readings},
    )


@lru_cache(maxsize=4)
def _rarity(options: Options, path: str, _content: str) -> Rarity:
    model = load_seq2seq(options)
    return Rarity.of(model.pieces(text) for text in read_texts(path))


# BARTScore under the names of its paper: the metric `likelihood` with the models that the paper used.


LARGE = "facebook/bart-large"
CNN = "facebook/bart-large-cnn"

#: How the published ParaBank2 weights become a folder that can be loaded. A pickle can run code when it is read, so
#: metrist reads none; `weights_only` keeps torch from running any either.
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
        own = type(self).model
        if "model" in self.in_name and self.model != own:
            raise SpecError(f"{self.name} is {own}; with another model it is bartscore(model={self.model!r})")


@dataclass(frozen=True, kw_only=True)
class BartScoreLarge(BartScore):
    """BARTSCORE of the paper: BART as it was pre-trained."""

    model: str = LARGE

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_large"


@dataclass(frozen=True, kw_only=True)
class BartScoreCnn(BartScore):
    """BARTSCORE-CNN of the paper: BART fine-tuned on summaries of news."""

    model: str = CNN

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_cnn"


@dataclass(frozen=True, kw_only=True)
class BartScorePara(BartScore):
    """BARTSCORE-CNN-PARA of the paper: the same, fine-tuned further on paraphrases. The user brings the weights."""

    model: str = ""

    catalog_name: ClassVar[str | None] = "bartscore_para"

    @property
    def options(self) -> Options:
        if not self.model:
            lines = CONVERSION.replace("\n", "\n    ")
            raise ModelError(
                f"{self.name} needs a folder with the paper's weights: {self.name}(model='bart-large-cnn-para'). They "
                "were published as a pickled state dict only (bart_score.pth, linked from "
                "https://github.com/neulab/BARTScore), which metrist does not read; these lines make the folder:\n\n"
                f"    {lines}"
            )
        return super().options


# Output and reference as paraphrases of each other, under a multilingual translation model.


@dataclass(frozen=True, kw_only=True)
class PrismStyle(Likelihood):
    """Prism's score (Thompson and Post, 2020): the mean of both directions between reference and output;
    source->output judges without a reference."""

    model: str = "facebook/m2m100_418M"
    direction: Direction = "f"
    language: str | None = "en"

    extra: ClassVar[str | None] = "neural"
    catalog_name: ClassVar[str | None] = "prism_style"
