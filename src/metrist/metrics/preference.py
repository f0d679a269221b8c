"""How much people would prefer an output, by a model that has learned from their choices (paper 003, HEAP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist import criteria
from metrist.criteria import Criterion
from metrist.errors import SpecError
from metrist.metrics.neural import CUT, Neural
from metrist.metrics.shard import Shard
from metrist.models import reward
from metrist.models.options import Options
from metrist.models.reward_layout import Fields, Judged
from metrist.models.reward_settings import RewardSettings
from metrist.models.weights import find
from metrist.records import Record
from metrist.scores import Score, Scores

Numbers = NDArray[np.float64]

REWARD = "reward"
SPREAD = "spread"
#: 1 where the criterion is about a context and the record has none.
NO_CONTEXT = "no_context"
#: What most records tell of an output's origin.
_USUAL = ("instruction", "source")
_EMPTY = "the output is empty: there is nothing to prefer"


@dataclass(frozen=True, kw_only=True)
class Preference(Neural):
    """The reward of a model that was trained to give the output people prefer a higher one than the other."""

    # Several models are an ensemble.
    model: str | tuple[str, ...]  # type: ignore[assignment]
    criterion: str = "overall"
    #: In words of one's own; the criterion then only says which direction is the better one.
    instruction: str | None = None
    #: Fields or columns of the record that the model reads before the output; None: what the criterion asks for.
    context: tuple[str, ...] | None = None

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "preference"

    def __post_init__(self) -> None:
        asked = criteria.find(self.criterion)
        # One criterion, one name: it is part of the metric's identity.
        object.__setattr__(self, "criterion", asked.code)
        object.__setattr__(self, "model", _one_or_several(self.model))
        object.__setattr__(self, "higher_is_better", not asked.opposite)
        if self.context is not None:
            object.__setattr__(self, "context", tuple(self.context))
        if self.instruction is not None and not self.instruction.strip():
            raise SpecError(f"{self.name}: instruction must say what is asked of an output, or be left out")

    @property
    def models(self) -> list[Options]:
        """What each model is loaded with."""
        named = (self.model,) if isinstance(self.model, str) else self.model
        shared = Options(model="", revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code)
        return [replace(shared, model=one) for one in named]

    def facts(self) -> Mapping[str, str]:
        """The hash of each model's weights."""
        return {"weights": ", ".join(find(one).fingerprint for one in self.models)}

    def score(self, shard: Shard) -> Scores:
        able = [i for i, record in enumerate(shard.records) if record.output.strip()]
        failures = dict.fromkeys(set(range(len(shard))) - set(able), _EMPTY)
        records = [shard.records[i] for i in able]
        if not records:
            return Scores(values=np.empty(0)).spread(len(shard), [], failures)
        fields = [self._fields(record) for record in records]
        found = [self._asked(one, fields) for one in self.models]
        values = np.stack([_standard(rewards.values, settings) for rewards, settings in found])
        parts = {**_parts([rewards.values for rewards, _ in found], values), **self._lack(fields)}
        parts[CUT] = np.max([rewards.cut for rewards, _ in found], axis=0).astype(np.float64)
        return Scores(values=values.mean(axis=0), parts=parts).spread(len(shard), able, failures)

    def against(self, first: Score, second: Score) -> str:
        """The two scores, and how sure the model is that the first is the better one, if it says so itself: that is
        what it was trained to tell."""
        leads = np.array([first.parts[name] - second.parts[name] for name in first.parts if name.startswith(REWARD)])
        better = leads if self.higher_is_better else -leads
        sure = float(np.mean(1 / (1 + np.exp(-better))))
        return f"{super().against(first, second)}; the first is better with a probability of {sure:.3f}"

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut, and how many lacked the context that the criterion is about."""
        lacking = int(np.nansum(scores.parts.get(NO_CONTEXT, np.zeros(1))))
        said = (
            f"{self.text}: {lacking:,} of {len(scores):,} outputs have no {_listed(self._asks_for)}, and were judged "
            "without"
        )
        return [*super().remarks(scores), *([said] if lacking else [])]

    @property
    def _criterion(self) -> Criterion:
        return criteria.find(self.criterion)

    @property
    def _asks_for(self) -> tuple[str, ...]:
        """Names of what the model should read before the output."""
        if self.context is not None:
            return self.context
        return self._criterion.fields[:-1]

    def _asked(self, options: Options, fields: Sequence[Fields]) -> tuple[reward.Rewards, RewardSettings]:
        model = reward.load(options)
        instruction = self.instruction or _learned(model.settings, self._criterion)
        return model.rewards([Judged(instruction, one) for one in fields]), model.settings

    def _fields(self, record: Record) -> Fields:
        """The context's fields and the output, each with its label."""
        wanted = self._asks_for
        if self.context is None and wanted and not (_own(wanted) and all(_texts(record, name) for name in wanted)):
            # The record does not have the columns of the data that the criterion comes from.
            wanted = _USUAL
        context = [(name, text) for name in wanted for text in _texts(record, name)]
        return (*context, (self._criterion.answer, record.output))

    def _lack(self, fields: Sequence[Fields]) -> dict[str, Numbers]:
        if not self._asks_for:
            return {}
        return {NO_CONTEXT: np.array([float(len(one) == 1) for one in fields])}


def _one_or_several(model: str | Sequence[str]) -> str | tuple[str, ...]:
    if isinstance(model, str):
        return model
    several = tuple(model)
    if len(set(several)) < len(several) or not several:
        raise SpecError(f"preference: the models of an ensemble must be different ones, got {list(several)}")
    return several if len(several) > 1 else several[0]


def _learned(settings: RewardSettings, asked: Criterion) -> str:
    """The words in which the model learned the criterion; where it did not, the criterion's own."""
    return settings.criteria.get(asked.code) or settings.criteria.get(asked.name) or asked.instruction


def _texts(record: Record, name: str) -> list[str]:
    """What the record has under that name: a field of every record, or a column of this one."""
    found = getattr(record, name) if name in (*_USUAL, "references") else record.extra.get(name)
    texts = [found] if isinstance(found, str) else found if isinstance(found, tuple | list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _standard(rewards: Numbers, settings: RewardSettings) -> Numbers:
    """Rewards as distances from the mean of the answers that the model was trained on, in their standard deviation."""
    return (rewards - settings.centre) / (settings.spread or 1.0)


def _parts(rewards: Sequence[Numbers], values: Numbers) -> dict[str, Numbers]:
    """Rewards as the models gave them, and how far several lie apart."""
    if len(rewards) == 1:
        return {REWARD: rewards[0]}
    each = {f"{REWARD}_{number}": one for number, one in enumerate(rewards, start=1)}
    return {SPREAD: values.std(axis=0, ddof=1), **each}


def _own(names: Sequence[str]) -> bool:
    """Whether the names are columns of some data set, and not fields that records have anyway."""
    return not set(names) <= set(_USUAL)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names if _own(names) else _USUAL)
