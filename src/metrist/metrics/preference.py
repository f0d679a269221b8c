"""How much people would prefer an output, by a model that has learned from their choices (paper 003, HEAP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import criteria
from metrist.criteria import Criterion
from metrist.errors import SpecError, did_you_mean
from metrist.metrics.model_metric import CUT, ModelMetric
from metrist.metrics.shard import Shard
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import Rewards
from metrist.models.reward_layout import Fields, RewardInput, RewardSettings
from metrist.models.weights import find_weights
from metrist.records import Record
from metrist.scores import Score, Scores

#: What most records tell of an output's origin.
_USUAL = ("instruction", "source")
_REFERENCES = ("reference", "references")


class PreferenceInput(NamedTuple):
    """The context's fields and the output, each with its label; `wanted` says whether there should be a context."""

    fields: Fields
    wanted: bool


def build_input(
    record: Record, context: tuple[str, ...] | None, learned: tuple[str, ...] | None, known: Criterion | None
) -> PreferenceInput:
    """By the user's own `context`, else by the labels that the model `learned` the criterion with (the answer's last),
    else by what the tables know of the criterion."""
    answer = learned[-1] if learned else known.answer if known else "output"
    if context is not None:
        names, told = context, _named(record, context)
    elif learned:
        names, told = learned[:-1], _as_learned(record, learned[:-1])
    else:
        names = known.fields[:-1] if known else _USUAL
        told = _as_in_tables(record, names)
    return PreferenceInput((*told, (answer, record.output)), bool(names))


def _named(record: Record, names: tuple[str, ...]) -> Fields:
    # Pairs that are built of records call the first of the references so.
    labels = {"references": "reference"}
    return tuple((labels.get(name, name), text) for name in names for text in _texts(record, name))


def _as_learned(record: Record, labels: tuple[str, ...]) -> Fields:
    """What the record has under the labels. One that it does not have (a dialogue, an article) is taken to be its
    source, or else its instruction, unless that is shown already; references nothing stands in for."""
    left = [name for name in ("source", "instruction") if name not in labels or not _texts(record, name)]
    told: list[tuple[str, str]] = []
    for label in labels:
        texts = _texts(record, label)
        while not texts and label not in _REFERENCES and left:
            texts = _texts(record, left.pop(0))
        told += [(label, text) for text in texts]
    return tuple(told)


def _as_in_tables(record: Record, names: tuple[str, ...]) -> Fields:
    if names and (set(names) <= set(_USUAL) or not all(_texts(record, name) for name in names)):
        # The record does not have the columns of the data that the criterion comes from.
        names = _USUAL
    return _named(record, names)


def _texts(record: Record, name: str) -> list[str]:
    """What the record has under that name: a field of every record (the first of its references), or a column."""
    found = record.extra.get(name)
    if name in _REFERENCES and not found:
        return [text for text in record.references or () if text.strip()][:1]
    if name in _USUAL:
        found = getattr(record, name)
    texts = [found] if isinstance(found, str) else found if isinstance(found, tuple | list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]


Numbers = NDArray[np.float64]

REWARD = "reward"
SPREAD = "spread"
#: 1 where the criterion is about a context and the record has none.
NO_CONTEXT = "no_context"
#: 1 where the model never learned the criterion; in an ensemble with the model's number behind it.
UNLEARNED = "unlearned"
_EMPTY = "the output is empty: there is nothing to prefer"
_UNREADABLE = "the output has nothing that the model can read"


@dataclass(frozen=True, kw_only=True)
class Preference(ModelMetric):
    """The reward of a model that was trained to give the output people prefer a higher one than the other."""

    # Several models are an ensemble.
    model: str | tuple[str, ...] = "metrist:preference-small"  # type: ignore[assignment]
    criterion: str = "overall"
    #: In words of one's own; the criterion then only says which direction is the better one.
    instruction: str | None = None
    #: Fields or columns of the record that the model reads before the output; None: what it learned the criterion
    #: with, or else what the criterion asks for.
    context: tuple[str, ...] | None = None

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "preference"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Whether a model has learned a criterion that no table knows is seen when its folder is read.
        if (known := _in_tables(self.criterion)) is not None:
            # One criterion, one name: it is part of the metric's identity.
            object.__setattr__(self, "criterion", known.code)
        object.__setattr__(self, "model", _one_or_several(self.model))
        object.__setattr__(self, "higher_is_better", known is None or not known.opposite)
        if isinstance(self.context, str):
            raise SpecError(f"{self.name}: context must be a list of fields, got {self.context!r}")
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
        found = [find_weights(one) for one in self.models]
        if _in_tables(self.criterion) is None:
            for one in found:
                _learned_as(self.criterion, RewardSettings.read(one.folder, one.name), one.name)
        weights = [one.fingerprint for one in found]
        if len(set(weights)) < len(weights):
            named = [one.name for one in found]
            raise SpecError(f"preference: the models of an ensemble must be different ones, got the same in {named}")
        return {"weights": ", ".join(weights)}

    def score(self, shard: Shard) -> Scores:
        able = [i for i, record in enumerate(shard.records) if record.output.strip()]
        failures = dict.fromkeys(set(range(len(shard))) - set(able), _EMPTY)
        records = [shard.records[i] for i in able]
        if not records:
            return Scores(values=np.empty(0)).spread(len(shard), [], failures)
        found = [self._asked(one, records) for one in self.models]
        parts = {**_parts(found), **_lacking(found), **_unlearned(found)}
        parts[CUT] = np.max([one.rewards.cut for one in found], axis=0).astype(np.float64)
        read = np.min([one.rewards.read for one in found], axis=0) > 0
        failures |= {able[at]: _UNREADABLE for at in np.flatnonzero(~read)}
        scores = Scores(values=_values(found)[read], parts={name: part[read] for name, part in parts.items()})
        return scores.spread(len(shard), [able[at] for at in np.flatnonzero(read)], failures)

    def against(self, first: Score, second: Score) -> str:
        """The two scores, and how sure the model is that the first is the better one, if it says so itself: that is
        what it was trained to tell."""
        leads = [first.parts[name] - second.parts[name] for name in first.parts if name.startswith(REWARD)]
        # The mean, as in the value: what is chosen by that and the probability never contradict each other.
        lead = float(np.mean(leads)) * (1 if self.higher_is_better else -1)
        sure = 1 / (1 + np.exp(-lead))
        return f"{super().against(first, second)}; the first is better with a probability of {sure:.3f}"

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut, how many lacked the context that the criterion is about, and which models
        never learned what they were asked."""
        lacking = int(np.nansum(scores.parts.get(NO_CONTEXT, np.zeros(1))))
        asked_for = " or ".join(self.context or ("source", f"other context for {self.criterion!r}"))
        said = f"{self.text}: {lacking:,} of {len(scores):,} outputs have no {asked_for}, and were judged without"
        return [*super().remarks(scores), *([said] if lacking else []), *self._guessed(scores)]

    def _guessed(self, scores: Scores) -> list[str]:
        names = [one.model for one in self.models]
        parts = _each(UNLEARNED, len(names))
        guessing = [name for name, part in zip(names, parts, strict=True) if part in scores.parts]
        unlearned = (
            f"{self.criterion!r}, and judged by the criterion's own words"
            if self.instruction is None
            else "this instruction, and follows it as far as it resembles those that it has learned"
        )
        return [f"{self.text}: {name} has not learned {unlearned}: take the scores for a guess" for name in guessing]

    def _asked(self, options: Options, records: Sequence[Record]) -> _Found:
        model = loading.load_reward(options)
        settings, known = model.settings, _in_tables(self.criterion)
        learned = _learned_as(self.criterion, settings, options.model)
        instruction = self.instruction or _instruction(learned, settings, known)
        seen = [build_input(record, self.context, settings.fields.get(learned or ""), known) for record in records]
        rewards = model.rewards([RewardInput(instruction, one.fields) for one in seen])
        # In words of one's own nothing but the instruction is asked for.
        guesses = learned is None if self.instruction is None else self.instruction not in _words(settings)
        return _Found(rewards, settings, seen, guesses=guesses)


class _Found(NamedTuple):
    """What a model says of some outputs, and what it was shown."""

    rewards: Rewards
    settings: RewardSettings
    seen: Sequence[PreferenceInput]
    #: Whether it was asked for something that it never learned.
    guesses: bool


def _one_or_several(model: str | Sequence[str]) -> str | tuple[str, ...]:
    several = (model,) if isinstance(model, str) else tuple(model)
    if not several or not all(one.strip() for one in several):
        raise SpecError(f"preference: model must name a preference model, or several in a list, got {model!r}")
    if len(set(several)) < len(several):
        raise SpecError(f"preference: the models of an ensemble must be different ones, got {list(several)}")
    return several if len(several) > 1 else several[0]


def _in_tables(criterion: str) -> Criterion | None:
    try:
        return criteria.find(criterion)
    except SpecError:
        return None


def _learned_as(criterion: str, settings: RewardSettings, model: str) -> str | None:
    """The name by which the model learned the criterion; None where it did not, but metrist has words for it."""
    known = _in_tables(criterion)
    names = (criterion, *((known.code, known.name) if known else ()))
    in_small = {name.lower(): name for name in settings.criteria}
    learned = (*(name for name in names if name in settings.criteria), *(in_small.get(name.lower()) for name in names))
    found = next((name for name in learned if name is not None), None)
    if found is None and known is None:
        raise SpecError(_unknown(criterion, settings, model))
    return found


def _unknown(criterion: str, settings: RewardSettings, model: str) -> str:
    nearest = did_you_mean(criterion, [*settings.criteria, *criteria.names()]).removesuffix("?")
    return (
        f"preference: no criterion named {criterion!r}{nearest}; {model} has learned "
        f"{', '.join(settings.criteria) or 'none by name'}, and metrist's own are {', '.join(criteria.names())}; to "
        "ask in your own words set instruction instead"
    )


def _instruction(learned: str | None, settings: RewardSettings, known: Criterion | None) -> str:
    """The words in which the model learned the criterion; where it did not, the criterion's own."""
    if learned is not None:
        return settings.criteria[learned]
    return known.instruction if known else ""


def _words(settings: RewardSettings) -> set[str]:
    """The instructions that the model knows: those of its folder, and the other wordings of the same criteria."""
    known = [one for name in settings.criteria if (one := _in_tables(name)) is not None]
    return {*settings.criteria.values(), *(words for one in known for words in one.instructions)}


def _values(found: Sequence[_Found]) -> Numbers:
    """Mean rewards as distances from the mean of the answers that the models were trained on, in their standard
    deviation."""
    rewards = np.mean([one.rewards.values - one.settings.centre for one in found], axis=0)
    values: Numbers = rewards / np.mean([one.settings.spread or 1.0 for one in found])
    return values


def _parts(found: Sequence[_Found]) -> dict[str, Numbers]:
    """Rewards as the models gave them, and how far several lie apart, each in its own unit."""
    each = {name: one.rewards.values for name, one in zip(_each(REWARD, len(found)), found, strict=True)}
    if len(found) == 1:
        return each
    return {SPREAD: np.std([_values([one]) for one in found], axis=0, ddof=1), **each}


def _each(part: str, models: int) -> list[str]:
    """A part's name for each model: as it is for one, numbered for several."""
    return [part] if models == 1 else [f"{part}_{number}" for number in range(1, models + 1)]


def _lacking(found: Sequence[_Found]) -> dict[str, Numbers]:
    """Where a model was to read a context and there was none."""
    asking = [one.seen for one in found if one.seen[0].wanted]
    if not asking:
        return {}
    return {NO_CONTEXT: np.max([[float(len(one.fields) == 1) for one in seen] for seen in asking], axis=0)}


def _unlearned(found: Sequence[_Found]) -> dict[str, Numbers]:
    """Which models were asked for something that they never learned."""
    names = _each(UNLEARNED, len(found))
    return {name: np.ones(len(one.seen)) for name, one in zip(names, found, strict=True) if one.guesses}
