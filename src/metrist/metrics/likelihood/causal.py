"""GPTScore: how likely a model finds an output when it was asked for one with some aspect (Fu et al., 2023).

What is asked stands in `prompts/gptscore.toml`, one sentence per task and aspect, or comes from the user.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, did_you_mean
from metrist.metrics.base import Reduce, check_choice
from metrist.metrics.likelihood.layout import (
    DIRECTIONS,
    ROLES,
    Direction,
    Layout,
    Long,
    PairScores,
    Roles,
    TextPairs,
    collect_pairs,
    required_fields,
    score_pairs,
)
from metrist.metrics.model_metric import CUT, ModelMetric
from metrist.metrics.shard import Shard
from metrist.models import loading
from metrist.models.loading import load_reader
from metrist.models.protocols import LikelihoodModel, Likelihoods, TextModel
from metrist.records import Need
from metrist.scores import Column, Failure, FailureKind, Score, Scores

Kind = Literal["causal", "seq2seq"]
_TEXT, _INSTRUCTION = "{text}", "{instruction}"
#: The table of the directions between reference and output, which is no task.
_REWRITING = "rewriting"
_ASPECT = "quality"
_WINDOWS = "windows"
_FEWEST_TOKENS = 4


class Prompt(NamedTuple):
    """What stands around the text that is given; the text to be scored follows."""

    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class GptScore(ModelMetric):
    """The mean log-probability of an output's tokens after an instruction that asks for an aspect, and the source."""

    model: str = "openai-community/gpt2-medium"
    kind: Kind = "causal"
    task: str = "general"
    aspect: str = _ASPECT
    #: In the place of the aspect's sentence; with {text} in it, all that stands before the output.
    instruction: str | None = None
    direction: Direction = "source->output"
    reduce: Reduce = "native"
    max_tokens: int | None = None
    long: Long = "truncate"

    bounds: ClassVar[tuple[float, float]] = (-np.inf, 0.0)
    catalog_name: ClassVar[str | None] = "gptscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "kind", get_args(Kind))
        check_choice(self, "direction", DIRECTIONS)
        check_choice(self, "reduce", get_args(Reduce))
        check_choice(self, "long", get_args(Long))
        check_choice(self, "task", tasks())
        if self.max_tokens is not None and self.max_tokens < _FEWEST_TOKENS:
            raise SpecError(f"{self.name}: max_tokens must be None or at least {_FEWEST_TOKENS}, got {self.max_tokens}")
        if self.instruction is None:
            self._check_aspect()
        elif self.aspect != _ASPECT:
            raise SpecError(
                f"{self.name}: instruction stands in the place of the aspect's own: give aspect={self.aspect!r} or "
                "instruction, not both"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        return required_fields(self.direction)

    def facts(self) -> Mapping[str, str]:
        """The weights, and a hash of the words that stand around the texts."""
        said = "\0".join(part for way in ROLES[self.direction] for part in self.prompt(way))
        digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return {**super().facts(), "prompt": digest}

    def prompt(self, way: Roles) -> Prompt:
        """What the model reads before and after the text that is given."""
        table = _tables()[self._table(way)]
        asked_for = table["aspects"].get(self.aspect, "") if self.instruction is None else self.instruction
        whole = asked_for if _TEXT in asked_for else table["layout"].replace(_INSTRUCTION, asked_for)
        before, _, after = whole.partition(_TEXT)
        return Prompt(before, after)

    def score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        model = loading.load_causal(self.options) if self.kind == "causal" else loading.load_seq2seq(self.options)
        pairs = collect_pairs(shard.records, self.direction)
        scorings = self._laid_out(pairs, model)
        answers = score_pairs(model, scorings.texts, max_tokens=self.max_tokens, tokens=shard.tokens)
        values, parts = pairs.reduced(scorings.cells(answers, self.long)[:, :, 0], self.reduce)
        if self.long != "truncate":
            parts[_WINDOWS] = scorings.most_windows()
        parts[CUT] = scorings.cut(answers)
        return _placed(len(shard), scorings, answers, values, parts, tokens=shard.tokens)

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut, and how many conditions were read in windows, if any."""
        windows = scores.parts.get(_WINDOWS)
        split = int(np.count_nonzero(windows > 1)) if windows is not None else 0
        said = f"{self.text}: {split:,} of {len(scores):,} outputs had a condition that was read in several windows"
        return [*super().remarks(scores), *([said] if split else [])]

    def _table(self, way: Roles) -> str:
        return self.task if way.condition == "source" else _REWRITING

    def _check_aspect(self) -> None:
        table = self._table(ROLES[self.direction][0])
        known = _tables()[table]["aspects"]
        if self.aspect not in known:
            place = f"the task {table!r}" if table != _REWRITING else f"the direction {self.direction!r}"
            raise SpecError(
                f"{self.name}: {place} has no aspect {self.aspect!r}; it has {', '.join(map(repr, known))}"
                f"{did_you_mean(self.aspect, known)} (instruction='...' asks for anything else)"
            )

    def _laid_out(self, pairs: TextPairs, model: LikelihoodModel) -> Layout:
        """Every pair with the instruction around its condition, or around each window of it."""
        texts: list[tuple[str, str]] = []
        starts = [0]
        for way, listed in zip(pairs.ways, pairs.pairs, strict=True):
            prompt = self.prompt(way)
            windows = self._windows(prompt, model)
            for condition, target in listed:
                texts += ((f"{prompt.before}{window}{prompt.after}", target) for window in windows(condition))
                starts.append(len(texts))
        return Layout(asked=pairs, phrases=("",), texts=texts, starts=np.array(starts, np.int64))

    def _windows(self, prompt: Prompt, model: LikelihoodModel) -> Callable[[str], Sequence[str]]:
        if self.long == "truncate":
            return lambda condition: [condition]
        added = len(model.pieces(prompt.before)) + len(model.pieces(prompt.after))

        @cache
        def windows(condition: str) -> list[str]:
            room = None if self.max_tokens is None else max(1, self.max_tokens - added)
            found = model.windows(condition, room)
            if room is None and len(found) > 1:
                # The model knows its room but not the prompt: the first window says how much that is.
                found = model.windows(condition, max(1, len(model.pieces(found[0])) - added))
            return found

        return windows


def tasks() -> list[str]:
    """The tasks that have instructions of their own."""
    return [name for name in _tables() if name != _REWRITING]


def aspects(task: str) -> Mapping[str, str]:
    """A task's aspects and what is asked for each."""
    found: Mapping[str, str] = _tables()[task]["aspects"]
    return found


@cache
def _tables() -> dict[str, dict[str, Any]]:
    file = resources.files("metrist.metrics.likelihood") / "prompts" / "gptscore.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _placed(
    size: int,
    scorings: Layout,
    answers: PairScores,
    values: NDArray[np.float64],
    parts: Mapping[str, NDArray[np.float64]],
    *,
    tokens: bool,
) -> Scores:
    """Scores of all records of a shard, from those of the records that could be asked about."""
    able, failed = scorings.asked.able, scorings.failures(answers)
    scored = [n for n in range(len(able)) if n not in failed]
    readings = scorings.readings(answers) if tokens else {}
    found = Scores(
        values=values[scored],
        parts={name: column[scored] for name, column in parts.items()},
        tokens={i: readings[n] for i, n in enumerate(scored) if n in readings},
    )
    failures = {**scorings.asked.failures, **{able[n]: reason for n, reason in failed.items()}}
    return found.spread(size, [able[n] for n in scored], failures)


# Perplexity: how much a language model is surprised by an output on its own, without source or reference.

#
# An output's row of statistics is (sum of log-probabilities, number of tokens or characters),
# so a system's perplexity is
# that of all its outputs together and not the mean of theirs.


Normalise = Literal["token", "character"]

_EMPTY = Failure(FailureKind.missing_input, "the output is empty: it has no tokens to be likely")
_IMPOSSIBLE = "the model holds a token of the output for impossible"


@dataclass(frozen=True, kw_only=True)
class Perplexity(ModelMetric):
    """exp of the mean negative log-probability of an output's tokens under a causal language model."""

    model: str = "openai-community/gpt2"
    normalise: Normalise = "token"
    #: The size of a window; None: the model's context.
    max_tokens: int | None = None

    higher_is_better: ClassVar[bool | None] = False
    bounds: ClassVar[tuple[float, float]] = (1.0, np.inf)
    catalog_name: ClassVar[str | None] = "perplexity"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "normalise", get_args(Normalise))
        if self.max_tokens is not None and self.max_tokens < 4:
            raise SpecError(f"{self.name}: max_tokens must be None or at least 4, got {self.max_tokens}")

    def score(self, shard: Shard) -> Scores:
        texts = [record.output for record in shard.records]
        if not any(map(str.strip, texts)):
            return Scores.of(Score.failed(_EMPTY) for _ in texts)
        model = load_reader(self.options)
        filled = [text for text in dict.fromkeys(texts) if text.strip()]
        found = model.running(filled, self.max_tokens)
        place = {text: n for n, text in enumerate(filled)}
        by_text = {text: self._score(model, text, found, n, shard.tokens) for text, n in place.items()}
        empty = Score.failed(_EMPTY)
        return Scores.of(by_text.get(text, empty) for text in texts)

    def pool(self, sums: Column) -> Column:
        """The perplexity of all outputs together."""
        sums = np.asarray(sums, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            pooled: Column = np.exp(-sums[..., 0] / sums[..., 1])
        return pooled

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs were longer than the model's context, if any."""
        windows = scores.parts.get(_WINDOWS)
        split = int(np.count_nonzero(windows > 1)) if windows is not None else 0
        said = f"{self.text}: {split:,} of {len(scores):,} outputs were too long for the model and read in windows"
        return [*super().remarks(scores), *([said] if split else [])]

    def _score(self, model: TextModel, text: str, found: Likelihoods, n: int, tokens: bool) -> Score:
        logprobs = found.of(n).astype(np.float64)
        if n in found.failures:
            return Score.failed(found.failures[n])
        total, count = float(logprobs.sum()), len(logprobs) if self.normalise == "token" else len(text)
        with np.errstate(over="ignore"):
            value = float(np.exp(-total / count))
        if not np.isfinite(value):
            return Score.failed(_IMPOSSIBLE)
        parts = {
            "logprob": total / len(logprobs),
            "tokens": float(len(logprobs)),
            _WINDOWS: float(model.in_windows(text, self.max_tokens)),
            CUT: float(found.target_cut[n]),
        }
        reading = [_reading(model, found, n)] if tokens else None
        return Score(value=value, parts=parts, stats=(total, float(count)), tokens=reading)


def _reading(model: TextModel, found: Likelihoods, n: int) -> dict[str, Any]:
    tokens = found.tokens[found.starts[n] : found.starts[n + 1]].tolist()
    logprobs = [round(float(one), 5) for one in found.of(n)]
    return {"condition": "nothing", "target": "output", "pieces": model.spelled(tokens), "logprobs": logprobs}
