"""How much people would prefer an output, by a model that was trained on their choices (HEAP paper)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import criteria
from metrist.criteria import Criterion
from metrist.errors import SpecError, agree, did_you_mean, format_count
from metrist.metrics.base import Shard
from metrist.metrics.model_metric import CUT, SHORT_NAMES, ModelMetric
from metrist.metrics.prompt_layout import DIALOGUE, resolve_task
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.reward_layout import Fields, RewardInput, Rewards, RewardSettings
from metrist.models.weights import find_weights
from metrist.records import CONTEXT_FIELDS, Record
from metrist.runtime import Runtime
from metrist.scores import Score, Scores

Numbers = NDArray[np.float64]

REWARD = "reward"
SPREAD = "spread"
#: 1 where the criterion is about a context and the record has none.
NO_CONTEXT = "no_context"
#: 1 where the model was not trained on the criterion; in an ensemble with the model's number appended.
UNLEARNED = "unlearned"
_EMPTY = "the output is empty: there is nothing to prefer"
_UNREADABLE = "the output has nothing that the model can read"
#: The context that most records have.
_USUAL_CONTEXT = ("instruction", "source")  # in the order of prompts
_REFERENCES = ("reference", "references")
#: What begins a line of a dialogue, such as `User:`. Names of people are left: they may belong to what is said.
_SPEAKER = re.compile(
    r"^[ \t]*(?:(?i:user|system|human|assistant|bot|chatbot|agent|customer|(?:speaker|person) ?\w{1,2})|[AB]|P[12])"
    r"[ \t]*:[ \t]*",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class PreferenceMetric(ModelMetric):
    """The reward of a model that was trained to give the output that people prefer a higher reward than the other."""

    # Several models are an ensemble; 'small' and 'large' are short for the English models that ship.
    model: str | tuple[str, ...] = "metrist:preference-small"  # type: ignore[assignment]
    criterion: str = "overall"
    #: The user's own wording; the criterion then only determines which direction is better.
    instruction: str | None = None
    #: Fields or columns of the record that the model reads before the output. None: those that it was trained with for
    #: this criterion, otherwise those that the criterion defines.
    context: tuple[str, ...] | None = None

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "preference"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Whether a model was trained on a criterion that metrist does not define is known only from its folder.
        if (criterion := _find_criterion(self.criterion)) is not None:
            # One name per criterion: it is part of the metric's identity.
            object.__setattr__(self, "criterion", criterion.code)
        models = tuple(SHORT_NAMES.get(m, m) for m in ((self.model,) if isinstance(self.model, str) else self.model))
        if not models or not all(model.strip() for model in models):
            raise SpecError(f"preference: model must name a preference model, or several in a list, got {self.model!r}")
        if len(set(models)) < len(models):
            raise SpecError(f"preference: the models of an ensemble must be different ones, got {list(models)}")
        object.__setattr__(self, "model", models if len(models) > 1 else models[0])
        self.name_extra(*models)
        object.__setattr__(self, "higher_is_better", criterion is None or not criterion.opposite)
        if isinstance(self.context, str):
            raise SpecError(f"{self.name}: context must be a list of fields, got {self.context!r}")
        if self.context is not None:
            object.__setattr__(self, "context", tuple(self.context))
        if self.instruction is not None and not self.instruction.strip():
            raise SpecError(f"{self.name}: instruction must say what is asked of an output, or be left out")

    @property
    def models(self) -> list[Options]:
        names = (self.model,) if isinstance(self.model, str) else self.model
        shared = Options(model="", revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code)
        return [replace(shared, model=name) for name in names]

    def facts(self) -> Mapping[str, str]:
        models = [find_weights(options) for options in self.models]
        if _find_criterion(self.criterion) is None:
            for weights in models:
                _find_learned(self.criterion, RewardSettings.read(weights.folder, weights.name), weights.name)
        fingerprints = [weights.fingerprint for weights in models]
        if len(set(fingerprints)) < len(fingerprints):
            names = [weights.name for weights in models]
            raise SpecError(f"preference: the models of an ensemble must be different ones, got the same in {names}")
        return {"weights": ", ".join(fingerprints)}

    def score(self, shard: Shard) -> Scores:
        return self.score_known_languages(shard, self._score)

    def _score(self, shard: Shard) -> Scores:
        prepared = [
            remove_speakers(record) if resolve_task(record.task) == DIALOGUE else record for record in shard.records
        ]
        positions = [i for i, record in enumerate(prepared) if record.output.strip()]
        failures = dict.fromkeys(set(range(len(shard))) - set(positions), _EMPTY)
        records = [prepared[i] for i in positions]
        if not records:
            return Scores(values=np.empty(0)).spread(len(shard), [], failures)
        results = [self._score_with(options, records, shard.runtime) for options in self.models]
        parts = _compute_parts(results)
        readable = np.min([result.rewards.read for result in results], axis=0) > 0
        failures |= {positions[i]: _UNREADABLE for i in np.flatnonzero(~readable)}
        scores = Scores(
            values=_standardize(results)[readable], parts={name: part[readable] for name, part in parts.items()}
        )
        return scores.spread(len(shard), [positions[i] for i in np.flatnonzero(readable)], failures)

    def against(self, first: Score, second: Score) -> str:
        """The two scores, and the probability that the first output is better, which is what the model was trained to
        estimate."""
        leads = [first.parts[name] - second.parts[name] for name in first.parts if name.startswith(REWARD)]
        # The mean, as in the value: the choice and the probability never contradict each other.
        lead = float(np.mean(leads)) * (1 if self.higher_is_better else -1)
        probability = 1 / (1 + np.exp(-lead))
        return f"{super().against(first, second)}; the first is better with a probability of {probability:.3f}"

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if lacking := int(np.nansum(scores.parts.get(NO_CONTEXT, np.zeros(1)))):
            context = " or ".join(self.context or ("source", f"other context for {self.criterion!r}"))
            outputs = f"{lacking:,} of {format_count(len(scores), 'output')} {agree(lacking, 'has', 'have')}"
            remarks.append(f"{self.label}: {outputs} no {context}, and {agree(lacking, 'was', 'were')} judged without")
        unlearned = (
            f"{self.criterion!r}, and judged by the criterion's own wording"
            if self.instruction is None
            else "this instruction, and follows it as far as it resembles those that it has learned"
        )
        names = [options.model for options in self.models]
        return [
            *remarks,
            *(
                f"{self.label}: {name} has not learned {unlearned}: take the scores for a guess"
                for name, part in zip(names, _number_part(UNLEARNED, len(names)), strict=True)
                if part in scores.parts
            ),
        ]

    def _score_with(self, options: Options, records: Sequence[Record], runtime: Runtime | None) -> _ModelResult:
        model = loading.load_reward(options, runtime=runtime)
        settings, criterion = model.settings, _find_criterion(self.criterion)
        learned = _find_learned(self.criterion, settings, options.model)
        default = settings.criteria[learned] if learned is not None else criterion.instruction if criterion else ""
        instruction = self.instruction or default
        labels = settings.fields.get(learned or "")
        inputs = [build_input(record, self.context, labels, criterion) for record in records]
        rewards = model.rewards([RewardInput(instruction, preference_input.fields) for preference_input in inputs])
        unlearned = learned is None
        if self.instruction is not None:
            # The model knows the instructions of its training, and other wordings of the same criteria.
            known = [criterion for name in settings.criteria if (criterion := _find_criterion(name)) is not None]
            wordings = [wording for criterion in known for wording in criterion.instructions]
            unlearned = self.instruction not in (*settings.criteria.values(), *wordings)
        return _ModelResult(rewards, settings, inputs, unlearned=unlearned)


class _ModelResult(NamedTuple):
    """The rewards of one model with its settings and inputs."""

    rewards: Rewards
    settings: RewardSettings
    inputs: Sequence[PreferenceInput]
    #: Whether the model was not trained on the criterion or instruction.
    unlearned: bool


def remove_speakers(record: Record) -> Record:
    """A dialogue without labels of speakers. The shipped models learned from dialogues without them, and judge replies
    worse beside them."""
    source = record.source and _SPEAKER.sub("", record.source)
    return replace(record, source=source, output=_SPEAKER.sub("", record.output))


# --- Criteria


def _find_criterion(name: str) -> Criterion | None:
    try:
        return criteria.find(name)
    except SpecError:
        return None


def _find_learned(criterion: str, settings: RewardSettings, model: str) -> str | None:
    """The name under which the model was trained on the criterion; None if it was not, but metrist defines it."""
    known = _find_criterion(criterion)
    names = (criterion, *((known.code, known.name) if known else ()))
    by_lower_case = {name.lower(): name for name in settings.criteria}
    candidates = (
        *(name for name in names if name in settings.criteria),
        *(by_lower_case.get(name.lower()) for name in names),
    )
    learned = next((name for name in candidates if name is not None), None)
    if learned is None and known is None:
        nearest = did_you_mean(criterion, [*settings.criteria, *criteria.names()]).removesuffix("?")
        raise SpecError(
            f"preference: no criterion named {criterion!r}{nearest}; {model} has learned "
            f"{', '.join(settings.criteria) or 'none by name'}, and metrist's own are {', '.join(criteria.names())}",
            code="unknown_name",
        )
    return learned


# --- Values and parts


def _standardize(results: Sequence[_ModelResult]) -> Numbers:
    """Mean rewards as distances from the mean of the training answers, in their standard deviations."""
    rewards = np.mean([result.rewards.values - result.settings.centre for result in results], axis=0)
    values: Numbers = rewards / np.mean([result.settings.spread or 1.0 for result in results])
    return values


def _compute_parts(results: Sequence[_ModelResult]) -> dict[str, Numbers]:
    """Each model's reward, the spread of an ensemble, and where context was missing, a criterion was not learned or
    tokens were cut."""
    count = len(results)
    parts: dict[str, Numbers] = {}
    if count > 1:
        # Each model's rewards in its own unit.
        parts[SPREAD] = np.std([_standardize([result]) for result in results], axis=0, ddof=1)
    for name, result in zip(_number_part(REWARD, count), results, strict=True):
        parts[name] = result.rewards.values
    # The output itself is the last field; a context is missing if it is the only one.
    missing = [
        [float(len(preference_input.fields) == 1) for preference_input in result.inputs]
        for result in results
        if result.inputs[0].needs_context
    ]
    if missing:
        parts[NO_CONTEXT] = np.max(missing, axis=0)
    for name, result in zip(_number_part(UNLEARNED, count), results, strict=True):
        if result.unlearned:
            parts[name] = np.ones(len(result.inputs))
    parts[CUT] = np.max([result.rewards.cut for result in results], axis=0).astype(np.float64)
    return parts


def _number_part(part: str, models: int) -> list[str]:
    """The name of a part for each model: unchanged for one, numbered for several."""
    return [part] if models == 1 else [f"{part}_{number}" for number in range(1, models + 1)]


# --- Inputs of the model


class PreferenceInput(NamedTuple):
    """The labelled fields of the context and the output, which is last."""

    fields: Fields
    #: Whether there should be a context.
    needs_context: bool


def build_input(
    record: Record, context: tuple[str, ...] | None, labels: tuple[str, ...] | None, criterion: Criterion | None
) -> PreferenceInput:
    """The fields that the user names in `context`; else those of the `labels` that the model was trained with (the
    answer's is last); else those that the criterion defines."""
    answer = labels[-1] if labels else criterion.answer if criterion else "output"
    fields: Fields = ()
    if context is not None:
        names, fields = context, _select_fields(record, context)
    elif labels:
        names = labels[:-1]
        # For a label that the record does not have (a dialogue, an article), its source or else its instruction is
        # used, unless that has a label of its own. References have no substitute.
        substitutes = [name for name in CONTEXT_FIELDS if name not in names or not _find_texts(record, name)]
        for label in names:
            texts = _find_texts(record, label)
            while not texts and label not in _REFERENCES and substitutes:
                texts = _find_texts(record, substitutes.pop(0))
            fields += tuple((label, text) for text in texts)
    else:
        names = criterion.fields[:-1] if criterion else _USUAL_CONTEXT
        if names and (set(names) <= set(_USUAL_CONTEXT) or not all(_find_texts(record, name) for name in names)):
            # The record does not have the columns of the data that the criterion comes from.
            fields = _select_fields(record, _USUAL_CONTEXT)
        else:
            fields = _select_fields(record, names)
    return PreferenceInput((*fields, (answer, record.output)), bool(names))


def _select_fields(record: Record, names: tuple[str, ...]) -> Fields:
    # Training pairs that are built from records label the first reference this way.
    labels = {"references": "reference"}
    return tuple((labels.get(name, name), text) for name in names for text in _find_texts(record, name))


def _find_texts(record: Record, name: str) -> list[str]:
    """The record's texts of that name: a field of every record (the first of its references), or a column."""
    value = record.extra.get(name)
    if name in _REFERENCES and not value:
        return [text for text in record.references or () if text.strip()][:1]
    if name in CONTEXT_FIELDS:
        value = getattr(record, name)
    texts = [value] if isinstance(value, str) else value if isinstance(value, tuple | list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]
