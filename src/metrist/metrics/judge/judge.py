"""Grade outputs with an LLM by a rubric.

The rules and the rubric come first and are the same for all records; then a record's texts between fences; then the
form of the answer, with the fences' mark. The wording in this module is part of the prompt's hash.

The answer ends with a JSON object that carries the mark of the prompt's fences as its last member. No text of the
record contains that mark, so an object that has it was not copied from one. If the judge forgets the mark, its last
object is used, unless a text of the record seems to contain grades itself.

The expected grade (G-Eval, Liu et al., 2023) weighs each level of a numeric scale by the probability that the model
gave it. Levels are whole numbers of one or two digits. A model with single-digit tokens writes 10 as two tokens: the
probability of the second comes from the next token, which is known only for the grade that was written. If other such
grades carry weight, the expectation is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np

from metrist.errors import SpecError, format_count
from metrist.llm.messages import Completion, Conversation, Message, TokenChoice
from metrist.metrics.answer_parsing import JsonObject, find_broken_keys, find_objects, is_cut_off
from metrist.metrics.base import Metric, Shard
from metrist.metrics.judge.rubrics import ALL_ASPECTS, MARK_KEY, REASONS_KEY, Aspect, Level, Rubric, load_rubric
from metrist.metrics.llm_metric import LLMMetric, UnparsableAnswer, ask_for_scores, merge_usage
from metrist.metrics.prompt_layout import (
    REMINDER,
    PromptText,
    fence_texts,
    fill_template,
    fold_lookalikes,
    load_template,
    load_templates,
    resolve_instruction,
)
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Score, Scores

Reference = Literal["shown", "hidden"]
Method = Literal["answer", "expectation"]
#: The part that is 1 for a record without an instruction of its own.
DEFAULT_INSTRUCTION = "default_instruction"
#: The keys of a usage that count outputs without a text, and those that were graded without a source.
EMPTY_OUTPUTS, WITHOUT_SOURCE = "empty_outputs", "without_source"
#: The part with the probability of anything but a grade.
OUTSIDE = "outside"
#: Alternatives requested for each token: the maximum of common servers.
_ALTERNATIVES = 20
RULES, QUESTION = "judge_rules", "judge_question"
_WITH_REASONS = (
    "Weigh the output against every aspect before you settle on a grade: the reasons come first, a few sentences with "
    "what is good and what is wrong, and the grades follow from them."
)
_WITHOUT_REASONS = "Give the grades alone, without reasons."
_SEVERAL_REFERENCES = "Each of the references is a right answer in its own way. "
_ONE_REFERENCE = "The reference is a right answer; there may be others. "


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """A conversation about one record, the mark that the answer must carry, and the record's texts in it."""

    conversation: Conversation
    mark: str
    texts: tuple[str, ...]


def record_texts(record: Record, *, references: bool) -> list[PromptText]:
    """The record's texts in the order of the prompt."""
    texts = [PromptText("instruction", resolve_instruction(record)[0])]
    if record.source is not None:
        texts.append(PromptText("source", record.source))
    if references:
        several = len(record.references) > 1
        names = [f"reference {n}" if several else "reference" for n in range(1, len(record.references) + 1)]
        texts += map(PromptText, names, record.references)
    return [*texts, PromptText("output", record.output)]


def build_rules(rubric: Rubric, template: str, *, reasons: bool) -> str:
    """The system message, the same for all records."""
    paragraphs = [f"For: {rubric.about}"] if rubric.about else []
    for aspect in rubric.aspects:
        levels = [f"  {level.name}: {level.meaning}" for level in aspect.levels if level.meaning]
        choices = f" (grades: {aspect.choices})" if len(levels) < len(aspect.levels) else ""
        paragraphs.append("\n".join([f"{aspect.name}: {aspect.question}{choices}", *levels]))
    return fill_template(
        template,
        reminder=REMINDER,
        rubric="\n\n".join(paragraphs),
        answer=_WITH_REASONS if reasons else _WITHOUT_REASONS,
    )


def answer_schema(aspects: Sequence[Aspect], *, reasons: bool) -> Mapping[str, Any]:
    """The JSON schema of an answer, for servers that support one."""
    text = {"type": "string"}
    properties: dict[str, Any] = {REASONS_KEY: text} if reasons else {}
    for aspect in aspects:
        names = [level.name for level in aspect.levels]
        properties[aspect.name] = {"enum": names if aspect.categorical else [json.loads(name) for name in names]}
    properties[MARK_KEY] = text
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _answer_form(aspects: Sequence[Aspect], mark: str, *, reasons: bool) -> str:
    # The slots for grades are not valid JSON: a judge that repeats the form has not graded anything.
    fields = [f'"{REASONS_KEY}": "…"'] if reasons else []
    for aspect in aspects:
        names = " or ".join(f'"{level.name}"' for level in aspect.levels)
        fields.append(f'"{aspect.name}": <{names if aspect.categorical else aspect.choices}>')
    return "{" + ", ".join([*fields, f'"{MARK_KEY}": "{mark}"']) + "}"


@dataclass(frozen=True, kw_only=True)
class Judge(LLMMetric):
    """The grade that an LLM gives an output by a rubric: for one aspect, or the mean over all of them."""

    catalog_name: ClassVar[str | None] = "judge"
    catalog_example: ClassVar[str | None] = "judge(llm=openai(model='gpt-4o-mini'))"

    #: The name of a shipped rubric, or the path of a TOML file.
    rubric: str = "reliability"
    reference: Reference = "hidden"
    #: The aspect that is the value. One answer grades all aspects, and all are parts; expectations need a question
    #: per aspect.
    aspect: str = ALL_ASPECTS
    method: Method = "answer"
    #: A TOML file of texts that replace those of the prompt: `judge_rules`, `judge_question`.
    templates: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rubric = self.load_rubric()
        self._load_templates()
        aspects = self._value_aspects(rubric)
        if self.method == "expectation":
            for aspect in aspects:
                if problem := _find_scale_problem(aspect):
                    raise SpecError(
                        f"{self.name}: method='expectation' does not work for the aspect {aspect.name!r}: {problem}",
                        code="unsupported",
                    )
        object.__setattr__(self, "bounds", aspects[0].bounds)
        object.__setattr__(self, "higher_is_better", rubric.higher_is_better)

    @property
    def needs(self) -> tuple[Need, ...]:
        shown: tuple[Need, ...] = ("references",) if self.reference == "shown" else ()
        return tuple(dict.fromkeys((*self.load_rubric().needs, *shown)))

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        """The aspects whose mean is the value. Where one is the value, by choice, there are none; where it had to be
        chosen, because the scales differ, there are the others."""
        rubric = self.load_rubric()
        aspects = self._value_aspects(rubric)
        if len(aspects) == 1:
            comparable = len({aspect.bounds for aspect in rubric.aspects}) == 1
            aspects = () if comparable else tuple(aspect for aspect in rubric.aspects if aspect != aspects[0])
        return {aspect.name: aspect.bounds for aspect in aspects}

    def load_rubric(self) -> Rubric:
        return load_rubric(self.rubric)

    def _load_templates(self) -> Mapping[str, str]:
        return load_templates((RULES, QUESTION), self.templates)

    def prompt_text(self) -> str:
        rubric, templates, reasons = self.load_rubric(), self._load_templates(), self._asks_reasons
        return "\n".join(
            [
                build_rules(rubric, templates[RULES], reasons=reasons),
                templates[QUESTION],
                _SEVERAL_REFERENCES,
                _ONE_REFERENCE,
                _answer_form(rubric.aspects, "", reasons=reasons),
                load_template("judge_instructions", ".toml"),
            ]
        )

    def facts(self) -> Mapping[str, str]:
        """The rubric's hash, since a path does not identify its content, and the facts of all LLM metrics."""
        return {"rubric": self.load_rubric().digest, **super().facts()}

    def score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        if "source" in self.needs and any(map(_has_blank_source, shard.records)):
            able = [i for i, record in enumerate(shard.records) if not _has_blank_source(record)]
            part = Shard([shard.records[i] for i in able], runtime=shard.runtime)
            return self.score(part).spread(len(shard), able, dict.fromkeys({*range(len(shard))} - {*able}, _NO_SOURCE))
        scores = self._score_answers(shard) if self.method == "answer" else self._score_expectations(shard)
        for i, (score, record) in enumerate(zip(scores, shard.records, strict=True)):
            if score.failure is None:
                default = float(resolve_instruction(record)[1])
                scores[i] = replace(score, parts={**score.parts, DEFAULT_INSTRUCTION: default})
            lacking = {EMPTY_OUTPUTS: not record.output.strip(), WITHOUT_SOURCE: _has_blank_source(record)}
            if any(lacking.values()):
                counts = {name: 1 for name, lacks in lacking.items() if lacks}
                scores[i] = replace(scores[i], usage={**(scores[i].usage or {}), **counts})
        return Scores.of(scores)

    def remarks(self, scores: Scores) -> list[str]:
        column = scores.parts.get(DEFAULT_INSTRUCTION)
        count = int(np.nansum(column)) if column is not None else 0
        scored = len(scores) - len(scores.failures)
        outputs = f"{count:,} of the {scored:,} scored outputs"
        remark = f"{self.label}: {outputs} have no instruction and were judged by the default of their task"
        odd = describe_odd_records(self, scores)
        return [*super().remarks(scores), *odd, *([remark] if 0 < count < scored else [])]

    @property
    def _asks_reasons(self) -> bool:
        # After giving reasons a model is nearly certain of the grade: the expectation would equal the grade.
        return self.method == "answer" and self.load_rubric().reasons == "first"

    def _value_aspects(self, rubric: Rubric) -> tuple[Aspect, ...]:
        """The aspects whose mean is the value."""
        if self.aspect != ALL_ASPECTS:
            return (rubric.aspect(self.aspect),)
        if len({aspect.bounds for aspect in rubric.aspects}) > 1:
            scales = ", ".join("{} {:g} to {:g}".format(aspect.name, *aspect.bounds) for aspect in rubric.aspects)
            advice = f"choose one, such as aspect={rubric.aspects[0].name!r}"
            raise SpecError(f"{self.name}: the aspects of {rubric.name!r} have different scales ({scales}); {advice}")
        return rubric.aspects

    def _build_questions(self, records: Sequence[Record], rubrics: Sequence[Rubric]) -> list[JudgeQuestion]:
        """A question per record and rubric, covering all aspects of the rubric."""
        shown, reasons = self.reference == "shown", self._asks_reasons
        templates = self._load_templates()
        systems = [Message("system", build_rules(rubric, templates[RULES], reasons=reasons)) for rubric in rubrics]
        questions = []
        for record in records:
            texts = record_texts(record, references=shown)
            fenced = fence_texts(texts)
            about_references = _SEVERAL_REFERENCES if len(record.references) > 1 else _ONE_REFERENCE
            for rubric, system in zip(rubrics, systems, strict=True):
                prompt = fill_template(
                    templates[QUESTION],
                    material=fenced.text,
                    mark=fenced.mark,
                    references=about_references if shown else "",
                    reasons="Reasons first, then grades. " if reasons else "",
                    form=_answer_form(rubric.aspects, fenced.mark, reasons=reasons),
                )
                conversation = (system, Message("user", prompt))
                own = tuple(text.text for text in texts)
                questions.append(JudgeQuestion(conversation=conversation, mark=fenced.mark, texts=own))
        return questions

    def _score_answers(self, shard: Shard) -> list[Score]:
        """Ask one question per record, covering all aspects."""
        rubric = self.load_rubric()
        value_names = [aspect.name for aspect in self._value_aspects(rubric)]
        questions = self._build_questions(shard.records, [rubric])
        sampling = self.sampling(schema=answer_schema(rubric.aspects, reasons=self._asks_reasons))

        def parse(index: int, answer: Completion) -> Score:
            question = questions[index]
            grades = parse_grades(answer.text, rubric.aspects, question.mark, question.texts)
            grades.require(value_names)
            names = [aspect.name for aspect in rubric.aspects]
            parts = {name: grades.levels[name].value if name in grades.levels else math.nan for name in names}
            return Score(
                value=math.fsum(parts[name] for name in value_names) / len(value_names),
                parts=parts,
                explanation=grades.reasons or None,
                # An answer that needed repair is kept as it came.
                raw=answer.text if grades.repaired or grades.problems else None,
            )

        conversations = [question.conversation for question in questions]
        return ask_for_scores(self, conversations, sampling, shard.runtime, parse)

    def _score_expectations(self, shard: Shard) -> list[Score]:
        """Ask one question per record and aspect: a grade written earlier would influence the next."""
        rubric = self.load_rubric()
        aspects = self._value_aspects(rubric)
        questions = self._build_questions(shard.records, [replace(rubric, aspects=(aspect,)) for aspect in aspects])
        sampling = self.sampling(logprobs=_ALTERNATIVES)

        def parse(index: int, answer: Completion) -> Score:
            if not answer.tokens:
                raise UnparsableAnswer("the answer has no token probabilities")
            question, aspect = questions[index], aspects[index % len(aspects)]
            # Grades are parsed from the tokens' text, so that offsets refer to tokens.
            grades = parse_grades(join_tokens(answer.tokens), (aspect,), question.mark, question.texts)
            grades.require((aspect.name,))
            expected = compute_expected_grade(answer.tokens, grades.spans[aspect.name], aspect)
            return Score(value=expected.value, parts={OUTSIDE: expected.outside})

        conversations = [question.conversation for question in questions]
        needs_logprobs = (
            f"{self.llm} returns no token probabilities, which method='expectation' needs: use a server that does, "
            "transformers in process, or method='answer'"
        )
        answers = ask_for_scores(self, conversations, sampling, shard.runtime, parse, needs_logprobs=needs_logprobs)
        scores = []
        for start in range(0, len(answers), len(aspects)):
            own = answers[start : start + len(aspects)]
            usage = merge_usage(score.usage for score in own)
            if failed := next((score for score in own if score.failure is not None), None):
                failure = Failure.combine(score.failure for score in own)
                scores.append(replace(failed, failure=failure, usage=usage))
                continue
            parts = {aspect.name: score.value for aspect, score in zip(aspects, own, strict=True)}
            value = math.fsum(parts.values()) / len(parts)
            outside = max(score.parts[OUTSIDE] for score in own)
            scores.append(Score(value=value, parts={**parts, OUTSIDE: outside}, usage=usage))
        return scores


_NO_SOURCE = Failure(FailureKind.missing_input, "the record has no source, which the rubric needs")


def _has_blank_source(record: Record) -> bool:
    return not (record.source or "").strip()


def describe_odd_records(judge: Metric, scores: Scores) -> list[str]:
    """How many outputs were empty, how many were not graded because they lack what the rubric needs, and how many were
    graded without a source where others have one."""
    missing = sum(failure.kind is FailureKind.missing_input for failure in scores.failures.values())
    empty = sum(EMPTY_OUTPUTS in (usage or {}) for usage in scores.usages.values())
    texts = [f"{format_count(missing, 'output')} without {' or '.join(judge.needs)} not graded"] if missing else []
    texts += [f"{format_count(empty, 'empty output')} graded like the others"] if empty else []
    graded = [usage or {} for i, usage in scores.usages.items() if i not in scores.failures]
    bare = sum(WITHOUT_SOURCE in usage for usage in graded)
    if 0 < bare < len(graded):
        texts.append(f"{bare:,} of {len(graded):,} outputs graded without a source, which the others have")
    return [f"{judge.label}: {', '.join(texts)}"] if texts else []


# --- The grades of an answer: only those that the rubric offers, and only the judge's own

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_DIGITS = re.compile(r"[\s\"'“:]*(?P<digits>\d+)(?P<after>[\s\"'”,}]*)")
#: The largest share of probability on beginnings of grades whose ends are unknown.
_MAX_UNCLEAR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """The grades of an answer. `problems` says why an aspect has no grade; `spans` has the offsets of the grades."""

    levels: Mapping[str, Level]
    problems: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    reasons: str
    repaired: bool

    def require(self, names: Iterable[str]) -> None:
        """Reject the answer if one of these aspects has no grade."""
        if problems := [self.problems[name] for name in names if name in self.problems]:
            raise UnparsableAnswer("; ".join(problems))


def parse_grades(answer: str, aspects: Sequence[Aspect], mark: str, texts: Sequence[str]) -> Grades:
    """The judge's own grades. `texts` are the record's texts in the prompt."""
    graded = find_own_object(answer, mark, [aspect.name for aspect in aspects], texts)
    levels: dict[str, Level] = {}
    problems: dict[str, str] = {}
    for aspect in aspects:
        name, key = aspect.name, aspect.name.lower()
        grade = graded.values.get(key)
        level = _find_level(aspect, grade)
        if key not in graded.values:
            problems[name] = f"the answer has no grade for {name}"
        elif key in graded.contradicted:
            problems[name] = f"the answer has two different grades for {name}"
        elif level is None:
            text = f"{grade:g}" if isinstance(grade, float) else repr(grade)
            text = text if len(text) <= 40 else f"{text[:40]}…"
            problems[name] = f"{name}: got {text}, expected one of {aspect.choices}"
        else:
            levels[name] = level
    # The reasons inside the object, or the text before it.
    reasons = graded.values.get(REASONS_KEY)
    if not isinstance(reasons, str) or not reasons.strip():
        reasons = re.sub(r"```\w*\s*$", "", answer[: graded.start])
    return Grades(
        levels=levels,
        problems=problems,
        spans={name: graded.spans[name.lower()] for name in levels},
        reasons=reasons.strip(),
        repaired=graded.repaired,
    )


def find_own_object(answer: str, mark: str, keys: Sequence[str], texts: Sequence[str]) -> JsonObject:
    """The last object that carries the mark; without one, the last object if the texts leave no doubt about it."""
    objects = find_objects(answer)
    if not objects:
        if is_cut_off(answer):
            raise UnparsableAnswer("the answer ends before its JSON object is closed")
        raise UnparsableAnswer("the answer has no JSON object")
    marked = [candidate for candidate in objects if str(candidate.values.get(MARK_KEY)).strip() == mark]
    if not marked and has_planted_grade(keys, texts):
        raise UnparsableAnswer(f"the answer lacks the required {MARK_KEY}, and a text of the record may contain grades")
    own = (marked or objects)[-1]
    graded = {key.lower() for key in keys}
    # If the judge quotes a text without escaping, its own object is not closed, and the next may be the text's.
    if own.broken & graded:
        raise UnparsableAnswer("a JSON object with grades is not closed: the next one may not be the judge's own")
    # A judge that reconsiders means its last grades; those before are a draft.
    if find_broken_keys(answer, own.end) & {*graded, REASONS_KEY, MARK_KEY}:
        raise UnparsableAnswer("the last JSON object is not closed: the grades before it may not be final")
    return own


def has_planted_grade(keys: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether a text contains something that could be parsed as a grade, also in look-alike letters."""
    names = "|".join(re.escape(fold_lookalikes(key)) for key in keys)
    pattern = re.compile(rf"(?:{names})\W*[:=]")
    return any(pattern.search(fold_lookalikes(text)) for text in texts)


def _find_level(aspect: Aspect, grade: Any) -> Level | None:
    """The level that a grade names: in words on a categorical scale, else as a number or its text."""
    if not aspect.categorical and isinstance(grade, str) and _NUMBER.fullmatch(grade.strip()):
        grade = float(grade)
    for level in aspect.levels:
        if aspect.categorical and isinstance(grade, str) and grade.strip().lower() == level.name.lower():
            return level
        if not aspect.categorical and isinstance(grade, float) and grade == level.value:
            return level
    return None


@dataclass(frozen=True, slots=True)
class ExpectedGrade:
    """The mean grade, and the probability of anything but a grade of the scale."""

    value: float
    outside: float


def _find_scale_problem(aspect: Aspect) -> str | None:
    """Why the aspect's scale has no expectation; None if it has one."""
    if aspect.categorical:
        return "its levels are categories"
    if any(not re.fullmatch(r"\d{1,2}", level.name) for level in aspect.levels):
        return "its levels must be whole numbers from 0 to 99, which a model writes as one or two tokens"
    return None


def compute_expected_grade(tokens: Sequence[TokenChoice], span: tuple[int, int], aspect: Aspect) -> ExpectedGrade:
    """The expectation at the grade at offsets `span` of the tokens' text."""
    # The token in which the grade begins, and the grade's digits in it.
    grade = re.search(r"\d+", join_tokens(tokens)[slice(*span)])
    offset = span[0] + (grade.start() if grade else 0)
    ends = accumulate(len(token.text) for token in tokens)
    at = next(index for index, end in enumerate(ends) if offset < end)
    written = _DIGITS.fullmatch(tokens[at].text)
    if not written:
        raise UnparsableAnswer("the grade shares a token with other words, so its probability is unknown")
    # The probability that the next token continues with another digit, by digit.
    next_digits: dict[str, float] = {}
    for token in tokens[at + 1 : at + 2]:
        for text, p in _token_probabilities(token):
            if text[:1].isdigit():
                next_digits[text[0]] = next_digits.get(text[0], 0.0) + p
    mass, unclear = _level_probabilities(tokens[at], written["digits"], next_digits, aspect)
    inside = math.fsum(mass.values())
    if not inside:
        raise UnparsableAnswer(f"{aspect.name}: none of the model's likely tokens is a grade of the rubric")
    if unclear > _MAX_UNCLEAR * inside:
        advice = "use a scale of one digit, or method='answer'"
        raise UnparsableAnswer(
            f"{aspect.name}: the model writes digits one by one, and one may begin a grade; {advice}"
        )
    values = {level.name: level.value for level in aspect.levels}
    mean = math.fsum(values[name] * p for name, p in mass.items()) / inside
    return ExpectedGrade(mean, min(1.0, max(0.0, 1.0 - inside)))


def join_tokens(tokens: Sequence[TokenChoice]) -> str:
    return "".join(token.text for token in tokens)


def _level_probabilities(
    token: TokenChoice, written_digits: str, next_digits: Mapping[str, float], aspect: Aspect
) -> tuple[dict[str, float], float]:
    """The probability of each level, and of beginnings that could become several."""
    # In the rubric's order, not a set's: sums must not differ in the last digit between processes.
    names = [level.name for level in aspect.levels]
    candidates = [(match, p) for text, p in _token_probabilities(token) if (match := _DIGITS.fullmatch(text))]
    candidate_digits = {match["digits"] for match, _ in candidates}
    mass = dict.fromkeys(names, 0.0)
    unclear = 0.0
    for match, p in candidates:
        digits = match["digits"]
        longer = {name for name in names if len(name) > len(digits) and name.startswith(digits)}
        if digits == written_digits and longer and not match["after"]:
            for name in longer:
                mass[name] += p * next_digits.get(name[len(digits)], 0.0)
            if digits in names:
                mass[digits] += p * max(0.0, 1.0 - sum(next_digits.values()))
        elif longer and not match["after"] and not longer <= candidate_digits:
            unclear += p
        elif digits in names:
            mass[digits] += p
    return {name: p for name, p in mass.items() if p > 0}, unclear


def _token_probabilities(token: TokenChoice) -> Iterator[tuple[str, float]]:
    """The written token and its alternatives, each once, with their probabilities."""
    logprobs = {token.text: token.logprob, **dict(token.alternatives)}
    return ((text, math.exp(min(0.0, logprob))) for text, logprob in logprobs.items() if math.isfinite(logprob))
