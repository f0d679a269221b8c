"""Likelihood metrics under language models: GPTScore and perplexity."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from metrist.errors import SpecError, agree, did_you_mean
from metrist.metrics.base import Reduce, Shard, check_choice
from metrist.metrics.likelihood.layout import (
    NEEDS,
    ROLES,
    Direction,
    Long,
    Roles,
    ShardLayout,
    collect_pairs,
    score_pairs,
)
from metrist.metrics.model_metric import CUT, ModelMetric, count_above, count_scored
from metrist.models import loading
from metrist.models.protocols import LikelihoodModel, Likelihoods, TextModel
from metrist.records import Need
from metrist.scores import Column, Failure, FailureKind, Score, Scores

_WINDOWS = "windows"
_MIN_TOKENS = 4

# --- GPTScore

Kind = Literal["causal", "seq2seq"]
_TEXT, _INSTRUCTION = "{text}", "{instruction}"
#: The table for the directions between reference and output; it is not a task.
_REWRITING = "rewriting"
_DEFAULT_ASPECT = "quality"


class Prompt(NamedTuple):
    """What precedes and follows the given text; the text to be scored comes last."""

    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class GptScore(ModelMetric):
    """The mean log-probability of an output's tokens after an instruction that asks for an aspect, and the source (Fu
    et al., 2023). The instructions are in `prompts/gptscore.toml`, one sentence per task and aspect."""

    model: str = "openai-community/gpt2-medium"
    kind: Kind = "causal"
    task: str = "general"
    aspect: str = _DEFAULT_ASPECT
    #: Replaces the aspect's sentence; if it contains {text}, it replaces all that precedes the output.
    instruction: str | None = None
    direction: Direction = "source->output"
    reduce: Reduce = "native"
    max_tokens: int | None = None
    long: Long = "truncate"

    bounds: ClassVar[tuple[float, float]] = (-np.inf, 0.0)
    catalog_name: ClassVar[str | None] = "gptscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "task", (task for task in _read_tables() if task != _REWRITING))
        _check_max_tokens(self, self.max_tokens)
        if self.instruction is None:
            table = self._table(ROLES[self.direction][0])
            known = _read_tables()[table]["aspects"]
            if self.aspect not in known:
                place = f"the task {table!r}" if table != _REWRITING else f"the direction {self.direction!r}"
                raise SpecError(
                    f"{self.name}: {place} has no aspect {self.aspect!r}; it has {', '.join(map(repr, known))}"
                    f"{did_you_mean(self.aspect, known)} (instruction='...' asks for anything else)",
                    code="unknown_name",
                )
        elif self.aspect != _DEFAULT_ASPECT:
            raise SpecError(f"{self.name}: give aspect={self.aspect!r} or instruction, not both", code="conflict")

    @property
    def needs(self) -> tuple[Need, ...]:
        return NEEDS[self.direction]

    def facts(self) -> Mapping[str, str]:
        prompt = "\0".join(part for roles in ROLES[self.direction] for part in self.prompt(roles))
        digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return {**super().facts(), "prompt": digest}

    def prompt(self, roles: Roles) -> Prompt:
        """What the model reads before and after the given text."""
        table = _read_tables()[self._table(roles)]
        instruction = table["aspects"].get(self.aspect, "") if self.instruction is None else self.instruction
        whole = instruction if _TEXT in instruction else table["layout"].replace(_INSTRUCTION, instruction)
        before, _, after = whole.partition(_TEXT)
        return Prompt(before, after)

    def score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        load = loading.load_causal if self.kind == "causal" else loading.load_seq2seq
        model = load(self.options, runtime=shard.runtime)
        pairs = collect_pairs(shard.records, self.direction)
        # The instruction stands around each condition, or around each window of it.
        texts: list[tuple[str, str]] = []
        starts = [0]
        for roles, role_pairs in zip(pairs.roles, pairs.pairs, strict=True):
            prompt = self.prompt(roles)
            split = self._make_splitter(prompt, model)
            for condition, target in role_pairs:
                texts += ((f"{prompt.before}{window}{prompt.after}", target) for window in split(condition))
                starts.append(len(texts))
        layout = ShardLayout(text_pairs=pairs, phrases=("",), texts=texts, starts=np.array(starts, np.int64))
        scores = score_pairs(model, layout.texts, max_tokens=self.max_tokens, tokens=shard.tokens)
        values, parts = pairs.reduce(layout.cell_values(scores, self.long)[:, :, 0], self.reduce)
        if self.long != "truncate":
            parts[_WINDOWS] = layout.count_windows()
        parts[CUT] = layout.count_cut_tokens(scores)
        return layout.make_scores(len(shard), values, parts, scores, tokens=shard.tokens)

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if count := count_above(scores, _WINDOWS, 1):
            remarks.append(f"{self.label}: {count:,} of {count_scored(scores)} had a condition read in several windows")
        return remarks

    def _table(self, roles: Roles) -> str:
        return self.task if roles.condition == "source" else _REWRITING

    def _make_splitter(self, prompt: Prompt, model: LikelihoodModel) -> Callable[[str], Sequence[str]]:
        if self.long == "truncate":
            return lambda condition: [condition]
        prompt_length = len(model.pieces(prompt.before)) + len(model.pieces(prompt.after))

        @cache
        def split(condition: str) -> list[str]:
            room = None if self.max_tokens is None else max(1, self.max_tokens - prompt_length)
            windows = model.windows(condition, room)
            if room is None and len(windows) > 1:
                # The model knows its own limit but not the prompt: the first window shows the limit.
                windows = model.windows(condition, max(1, len(model.pieces(windows[0])) - prompt_length))
            return windows

        return split


@cache
def _read_tables() -> dict[str, dict[str, Any]]:
    file = resources.files("metrist.metrics.likelihood") / "prompts" / "gptscore.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _check_max_tokens(metric: ModelMetric, max_tokens: int | None) -> None:
    if max_tokens is not None and max_tokens < _MIN_TOKENS:
        raise SpecError(f"{metric.name}: max_tokens must be None or at least {_MIN_TOKENS}, got {max_tokens}")


# --- Perplexity

Normalise = Literal["token", "character"]
_EMPTY = Failure(FailureKind.missing_input, "the output is empty: there are no tokens to score")
_ZERO_PROBABILITY = "the model assigned zero probability to a token of the output"


@dataclass(frozen=True, kw_only=True)
class Perplexity(ModelMetric):
    """exp of the mean negative log-probability of an output's tokens under a causal language model, without source or
    references.

    A row of statistics is (sum of log-probabilities, number of tokens or characters): the perplexity of a system is
    that of all its outputs together, not the mean of theirs.
    """

    model: str = "openai-community/gpt2"
    normalise: Normalise = "token"
    #: The size of a window; None: the model's context.
    max_tokens: int | None = None

    higher_is_better: ClassVar[bool | None] = False
    bounds: ClassVar[tuple[float, float]] = (1.0, np.inf)
    catalog_name: ClassVar[str | None] = "perplexity"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_max_tokens(self, self.max_tokens)

    def score(self, shard: Shard) -> Scores:
        outputs = [record.output for record in shard.records]
        texts = [text for text in dict.fromkeys(outputs) if text.strip()]
        scores: dict[str, Score] = {}
        if texts:
            model = loading.load_reader(self.options, runtime=shard.runtime)
            likelihoods = model.running(texts, self.max_tokens)
            for n, text in enumerate(texts):
                scores[text] = self._score_text(model, text, likelihoods, n, tokens=shard.tokens)
        empty = Score.failed(_EMPTY)
        return Scores.of(scores.get(output, empty) for output in outputs)

    def pool(self, sums: Column) -> Column:
        sums = np.asarray(sums, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            pooled: Column = np.exp(-sums[..., 0] / sums[..., 1])
        return pooled

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if count := count_above(scores, _WINDOWS, 1):
            outputs = f"{count:,} of {count_scored(scores)} {agree(count, 'was', 'were')}"
            remarks.append(f"{self.label}: {outputs} too long for the model and read in windows")
        return remarks

    def _score_text(self, model: TextModel, text: str, likelihoods: Likelihoods, n: int, *, tokens: bool) -> Score:
        logprobs = likelihoods.of(n).astype(np.float64)
        if n in likelihoods.failures:
            return Score.failed(likelihoods.failures[n])
        total = float(logprobs.sum())
        count = len(logprobs) if self.normalise == "token" else len(text)
        with np.errstate(over="ignore"):
            value = float(np.exp(-total / count))
        if not np.isfinite(value):
            return Score.failed(_ZERO_PROBABILITY)
        parts = {
            "logprob": total / len(logprobs),
            "tokens": float(len(logprobs)),
            _WINDOWS: float(model.in_windows(text, self.max_tokens)),
            CUT: float(likelihoods.target_cut[n]),
        }
        reading = None
        if tokens:
            pieces = model.spelled(likelihoods.tokens[likelihoods.starts[n] : likelihoods.starts[n + 1]].tolist())
            shown = [round(float(logprob), 5) for logprob in likelihoods.of(n)]
            reading = [{"condition": "nothing", "target": "output", "pieces": pieces, "logprobs": shown}]
        return Score(value=value, parts=parts, stats=(total, float(count)), tokens=reading)
