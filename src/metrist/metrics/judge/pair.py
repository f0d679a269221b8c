"""An LLM chooses between two outputs. It is asked twice, each output being shown first once: a choice that changes with
the order is a tie, and how often that happens is told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from metrist.errors import SpecError
from metrist.llm.messages import Completion, Message
from metrist.metrics.base import check_choice
from metrist.metrics.comparator import TURNED, Comparator, Judgment
from metrist.metrics.judge import rubrics
from metrist.metrics.judge.grades import read_grades
from metrist.metrics.judge.judge import Question, answer_schema, materials_of
from metrist.metrics.judge.rubrics import MARK, REASONS, Aspect, Level
from metrist.metrics.llm_metric import Judging, Unreadable, ask, spent
from metrist.metrics.prompt_layout import REMINDER, Material, filled, lay_out, template
from metrist.ratings import Choice
from metrist.records import Need, Pair, Record
from metrist.scores import Failure, FailureKind

_RULES, _QUESTION = "judge_pair_rules", "judge_pair"
#: The choice is read as a grade is, so that what keeps grades the judge's own keeps choices so.
_BETTER = Aspect(
    "better", "Which output is better?", (Level("A", 1), Level("B", -1), Level("tie", 0)), categorical=True
)
_CHOICES: Mapping[str, Choice] = {"A": "first", "B": "second", "tie": "tie"}
_GENERAL = (
    "Whether the output does what was asked: it is right, it leaves out nothing that matters, it keeps to the point, "
    "and it reads well, in this order."
)
_OF_REFERENCES = "A reference is a right answer; there may be others, and an output may differ from it and be as good. "
_NEEDS: Mapping[str, tuple[Need, ...]] = {"hidden": (), "shown": ("references",)}
_ORDERS = ("as given", "the other way round")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What one answer says of the two outputs as they were shown, with its reasons; or why it cannot be read."""

    choice: Choice | None = None
    reasons: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class JudgePair(Judging, Comparator):
    """Which of two outputs an LLM holds to be better."""

    catalog_name: ClassVar[str | None] = "judge_pair"

    #: What counts, in words; None: what the rubric asks, or else whatever makes an output good.
    criteria: str | None = None
    #: A rubric whose questions say what counts: a shipped one's name, or the path of a TOML file.
    rubric: str | None = None
    reference: Literal["hidden", "shown"] = "hidden"
    #: 'both': each output is shown first once; 'one': a hash of the texts decides which is.
    orders: Literal["both", "one"] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "reference", _NEEDS)
        check_choice(self, "orders", ("both", "one"))
        if self.criteria is not None and not self.criteria.strip():
            raise SpecError(f"{self.name}: criteria must say what counts, got {self.criteria!r}")
        if self.criteria is not None and self.rubric is not None:
            raise SpecError(f"{self.name}: give either criteria or a rubric, not both")
        self._counts()

    @property
    def needs(self) -> tuple[Need, ...]:
        """References, if they are to be shown."""
        return _NEEDS[self.reference]

    def wording(self) -> str:
        return "\n".join([self._rules(), template(_QUESTION), _OF_REFERENCES, _form("")])

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        settled = {i: known for i, pair in enumerate(pairs) if (known := self._settled(pair))}
        judged = iter(self._judged([pair for i, pair in enumerate(pairs) if i not in settled]))
        return [settled.get(i) or next(judged) for i in range(len(pairs))]

    def _settled(self, pair: Pair) -> Judgment | None:
        """What is known of a pair without asking; None where it is not."""
        shown = self.reference == "shown"
        (*around, _), (*others, _) = (materials_of(one, references=shown) for one in (pair.first, pair.second))
        if around != others:
            apart = next(one.name for one in (*around, *others) if one not in around or one not in others)
            why = f"the two records differ in {apart}, so that each order would judge by another: give both the same"
            return Judgment.failed(why)
        if pair.first.output == pair.second.output:
            return Judgment(preference="tie", explanation="The two outputs are the same; nobody was asked.")
        return None

    def _judged(self, pairs: Sequence[Pair]) -> list[Judgment]:
        asked = [self._question(*both) for pair in pairs for both in self._orders(pair)]
        sampling = self.sampling(schema=answer_schema([_BETTER], reasons=True))
        answers = ask(self.llm, [one.conversation for one in asked], sampling)
        read = [read_choice(answer, one) for answer, one in zip(answers, asked, strict=True)]
        if self.orders == "one":
            return [_one(*found) for found in zip(read, answers, map(_turned, pairs), strict=True)]
        return [_both(read[i : i + 2], answers[i : i + 2]) for i in range(0, len(read), 2)]

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:
        """How often the choice changed with the order."""
        known = [one.flipped for one in judgments if one.flipped is not None]
        if self.orders == "one":
            return [f"{self.text}: each pair was shown in one order only, so it is not known how often order decides"]
        if not known:
            return []
        return [f"{self.text}: {sum(known):,} of {len(known):,} choices changed with the order, and are ties"]

    def _counts(self) -> str:
        if self.rubric is None:
            return self.criteria or _GENERAL
        loaded = rubrics.load(self.rubric)
        return "\n".join(f"- {aspect.name}: {aspect.question}" for aspect in loaded.aspects)

    def _rules(self) -> str:
        return filled(template(_RULES), reminder=REMINDER, criteria=self._counts())

    def _orders(self, pair: Pair) -> list[tuple[Record, Record]]:
        both = [(pair.first, pair.second), (pair.second, pair.first)]
        return both if self.orders == "both" else [both[_turned(pair)]]

    def _question(self, first: Record, second: Record) -> Question:
        materials = _materials(first, second, references=self.reference == "shown")
        laid_out = lay_out(materials)
        text = filled(
            template(_QUESTION),
            material=laid_out.text,
            mark=laid_out.mark,
            references=_OF_REFERENCES if self.reference == "shown" else "",
            form=_form(laid_out.mark),
        )
        conversation = (Message("system", self._rules()), Message("user", text))
        return Question(conversation=conversation, mark=laid_out.mark, texts=tuple(one.text for one in materials))


def read_choice(answer: Completion, asked: Question) -> Chosen:
    """The choice that is the LLM's own, and one of those offered."""
    if answer.failure is not None:
        return Chosen(failure=Failure.of(answer.failure))
    try:
        found = read_grades(answer.text, [_BETTER], asked.mark, asked.texts)
        found.need([_BETTER.name])
    except Unreadable as fault:
        cut = " (the answer was cut off: more max_tokens may help)" if answer.finish == "length" else ""
        why = str(fault) if answer.text.strip() else "the answer is empty"
        return Chosen(failure=Failure(FailureKind.unparsable, f"{why}{cut}"), reasons=answer.text.strip())
    return Chosen(choice=_CHOICES[found.levels[_BETTER.name].name], reasons=found.reasons)


def _materials(first: Record, second: Record, *, references: bool) -> list[Material]:
    *around, output = materials_of(first, references=references)
    return [*around, replace(output, name="output A"), Material("output B", second.output)]


def _form(mark: str) -> str:
    # The place for the choice is no JSON: an LLM that repeats the form has not chosen.
    return f'{{"{REASONS}": "…", "{_BETTER.name}": <"A" or "B" or "tie">, "{MARK}": "{mark}"}}'


def _one(found: Chosen, answer: Completion, turned: bool) -> Judgment:
    usage, raws = spent([answer]), (answer.text,)
    if found.choice is None:
        return Judgment.failed(found.failure or "", raws=raws, usage=usage)
    choice = TURNED[found.choice] if turned else found.choice
    shown = "(output A is the second of the pair) " if turned else ""
    told = f"{shown}{found.reasons}"
    return Judgment(preference=choice, explanation=told, shown=(found.choice,), raws=raws, usage=usage)


def _both(read: Sequence[Chosen], answers: Sequence[Completion]) -> Judgment:
    """One judgment of two answers. Where one of them is missing the pair fails: the other alone could be an effect of
    the order."""
    usage, raws = spent(answers), tuple(answer.text for answer in answers)
    reasons = "\n\n".join(f"{order}: {found.reasons}" for order, found in zip(_ORDERS, read, strict=True))
    for order, found in zip(_ORDERS, read, strict=True):
        if found.failure is not None:
            kind = Failure.combine(found.failure for found in read).kind
            return Judgment.failed(f"asked {order}: {found.failure}", kind, explanation=reasons, raws=raws, usage=usage)
    shown = tuple(found.choice for found in read if found.choice is not None)
    flipped = shown[0] != TURNED[shown[1]]
    choice: Choice = "tie" if flipped else shown[0]
    return Judgment(preference=choice, explanation=reasons, flipped=flipped, shown=shown, raws=raws, usage=usage)


def _turned(pair: Pair) -> bool:
    """Whether the second output is shown first: a coin that the texts toss, so that a pair is always shown the same
    way."""
    said = "\0".join((pair.first.item, pair.first.output, pair.second.output)).encode("utf-8", "surrogatepass")
    return bool(hashlib.sha256(said).digest()[0] & 1)
