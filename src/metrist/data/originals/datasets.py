"""CHASM: hateful messages and the replies of three systems, rated from 0 to 4 (Ashida and Komachi, 2022).

counter_conan.json and counter_sbic.json hold one object each. An entry has `post` (`text`, `score`: nine ratings of how
offensive it is) and, for GPT-2, GPT-Neo and GPT-3, `text` and `score` with three ratings each of `off`, `stance` and
`info`.

CNI, CNO, CNSt: replies to one message, by the floor of the mean rating; the more offensive reply is CNO's good one.
HSO: messages against each other, the more offensive one being good. As in the code of HEAP's authors, the first 66 % of
the messages meet only one another, and so do the others; give both files together, in the order above.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

from metrist.data.originals.rows import (
    Answer,
    PathLike,
    Question,
    Row,
    cells,
    entries,
    floor_mean,
    grouped,
    rated,
    rows,
    two_by_two,
    winners_first,
)
from metrist.data.pairs import GoodBad
from metrist.errors import InputError
from metrist.io.compression import display_name
from metrist.io.fields import as_number
from metrist.io.row_model import RowError

_SYSTEMS = ("GPT-2", "GPT-Neo", "GPT-3")
_SCORES = {"CNI": "info", "CNO": "off", "CNSt": "stance"}
_FIRST_PART = 0.66


def read_chasm(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of CNI, CNO, CNSt and HSO, criterion after criterion."""
    found = list(entries(paths))
    for code in _SCORES:
        for item, row in found if code in codes else ():
            question = Question(code=code, context=(row.text("post", "text"),), item=item)
            yield from winners_first(question, [_reply(row, system, _SCORES[code]) for system in _SYSTEMS])
    if "HSO" in codes:
        yield from _messages([row for _, row in found])


def _reply(row: Row, system: str, score: str) -> Answer:
    return rated(row.text(system, "text"), floor_mean(row.numbers(system, "score", score)), system)


def _messages(found: list[Row]) -> Iterator[GoodBad]:
    posts = [rated(row.text("post", "text"), floor_mean(row.numbers("post", "score"))) for row in found]
    end = math.floor(len(posts) * _FIRST_PART)
    for item, part in (("first part", posts[:end]), ("second part", posts[end:])):
        yield from two_by_two(Question(code="HSO", context=(), item=item), part)


# CommonGen: sentences made of given words, compared two by two for common sense.
#
# The raters' sheets (CSV, one a rater) have blocks: a line `Concept set: …`, a line `Reference: …`, then lines of two
# sentences and a score from -1 (the second is much more realistic) to 1 (the first is). What stands before the first
# block is the instruction to the raters.
#
# CR: the sentence that the raters' scores favour on the average; a mean of 0 makes no pair. Scores left blank are
# passed
# over. Give all sheets together: the same two sentences stand in several.


_CONCEPTS, _REFERENCE = "Concept set:", "Reference:"


@dataclass(frozen=True, slots=True)
class _Compared:
    concepts: str
    reference: str
    first: str
    second: str
    score: float | None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.concepts, self.reference, self.first, self.second


def read_commongen(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of CR."""
    compared = (one for path in paths for one in _sheet(path)) if "CR" in codes else ()
    for group in grouped((one.key, one) for one in compared):
        total = sum(one.score for one in group if one.score is not None)
        if total:
            one = group[0]
            first, second = Answer(text=one.first), Answer(text=one.second)
            good, bad = (first, second) if total > 0 else (second, first)
            question = Question(code="CR", context=(one.concepts, one.reference), item=one.concepts)
            yield question.pair(good, bad)


def _sheet(path: PathLike) -> Iterator[_Compared]:
    name = display_name(path)
    concepts = reference = ""
    for line, found in cells(path):
        head = found[0].strip()
        if head.startswith(_CONCEPTS):
            concepts, reference = head.removeprefix(_CONCEPTS).strip(), ""
        elif head.startswith(_REFERENCE):
            reference = head.removeprefix(_REFERENCE).strip()
        elif concepts and reference:
            yield _compared(concepts, reference, found, f"{name}:{line}")
    if not concepts:
        raise InputError(f"{name}: has no line 'Concept set: …'; wanted a sheet of CommonGen's human evaluation")


def _compared(concepts: str, reference: str, found: list[str], place: str) -> _Compared:
    if len(found) < 3 or not found[0] or not found[1]:
        raise InputError(f"{place}: wanted two sentences and a score, got {found}")
    try:
        score = as_number("the score", found[2]) if found[2].strip() else None
    except RowError as fault:
        raise InputError(f"{place}: {fault}") from None
    return _Compared(concepts, reference, found[0], found[1], score)


# Counter narratives by five systems, judged by two raters each (Tekiroğlu and others, 2022).
#
# A row of the CSV is one rater's view of one hateful message: `Hate_Speech`, `TARGET`, the five systems' replies in the
# columns that bear their names, and for each system its name with `_suitable`, `_specific`, `_grammar` (1 to 5),
# `_choose_or_not` and `_is_best` (0 or 1).
#
# CNSu, CNSp, CNG: replies to one message, by the floor of the raters' mean.
# CCN: a reply that all raters would choose against one that not all would.
# BCN: a reply that some rater named the best against each that none did, once for each rater's best; replies of two
# raters' choice are not compared.


_SYSTEMS_COUNTER_NARRATIVES = ("dialoGPT", "BART", "BERT", "T5", "gpt2")
_RATINGS = {"CNG": "grammar", "CNSp": "specific", "CNSu": "suitable"}


def read_counter_narratives(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of BCN, CCN, CNG, CNSp and CNSu, criterion after criterion."""
    messages = grouped((_key(row), row) for row in rows(paths))
    for code in ("BCN", "CCN", *_RATINGS):
        for number, group in enumerate(messages if code in codes else (), 1):
            yield from _of(code, group, f"message {number}")


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("Hate_Speech", "TARGET", *_SYSTEMS_COUNTER_NARRATIVES))


def _of(code: str, group: list[Row], item: str) -> Iterator[GoodBad]:
    question = Question(code=code, context=(group[0].text("Hate_Speech"), group[0].text("TARGET")), item=item)
    if code == "BCN":
        return _best(question, group)
    replies = [
        _chosen(group, one) if code == "CCN" else _rated(group, one, code) for one in _SYSTEMS_COUNTER_NARRATIVES
    ]
    return two_by_two(question, replies)


def _best(question: Question, group: list[Row]) -> Iterator[GoodBad]:
    named = dict.fromkeys(one for row in group for one in _SYSTEMS_COUNTER_NARRATIVES if row.truth(f"{one}_is_best"))
    replies = {one: Answer(text=group[0].text(one), system=one) for one in _SYSTEMS_COUNTER_NARRATIVES}
    for best in named:
        yield from (
            question.pair(replies[best], replies[other]) for other in _SYSTEMS_COUNTER_NARRATIVES if other not in named
        )


def _chosen(group: list[Row], system: str) -> Answer:
    by_all = all(row.truth(f"{system}_choose_or_not") for row in group)
    return Answer(text=group[0].text(system), rank=by_all, system=system)


def _rated(group: list[Row], system: str, code: str) -> Answer:
    ratings = [row.number(f"{system}_{_RATINGS[code]}") for row in group]
    return rated(group[0].text(system), floor_mean(ratings), system)


# Defeasible inference: updates that make a hypothesis more or less likely (Rudinger and others, 2020).
#
# Two files are read. The human evaluation (JSONL) has one line an update: `premise`, `hypothesis`, `update`, `model`,
# `pred_label` (attenuator or intensifier: what the update was to be) and `human_label`, three ratings from -2
# (weakens a
# lot) to 2 (strengthens a lot). The data set itself has `Premise` (not in its Social part), `Hypothesis`, `Update`,
# `UpdateType` (weakener or strengthener), `UpdateTypeImpossible` and `AssignmentIdAnon`.
#
# DIA, DII from the evaluation: attenuators of one premise and hypothesis, and likewise intensifiers, by the floor of
# the
# mean rating; for attenuators its sign is turned after rounding, as HEAP's authors did.
# DIA, DII from the data set, which HEAP did not use: the weakener against the strengthener that one person wrote for
# one
# premise and hypothesis, and the other way round; those found impossible make no pair.


_LABELS = {"DIA": ("attenuator", -1.0), "DII": ("intensifier", 1.0)}
_TYPES = {"DIA": ("weakener", "strengthener"), "DII": ("strengthener", "weakener")}


def read_defeasible_inference(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of DIA and DII, criterion after criterion."""
    found = list(rows(paths))
    make = _written if found and found[0].has("UpdateType") else _rated_defeasible_inference
    for code in _LABELS:
        if code in codes:
            yield from make(found, code)


def _rated_defeasible_inference(found: list[Row], code: str) -> Iterator[GoodBad]:
    label, sign = _LABELS[code]
    asked = [row for row in found if _one_of(row, "pred_label", ("attenuator", "intensifier")) == label]
    for number, group in enumerate(grouped((_sentences(row), row) for row in asked), 1):
        question = Question(code=code, context=_sentences(group[0]), item=f"hypothesis {number}")
        yield from winners_first(question, [_update(row, sign) for row in group])


def _sentences(row: Row) -> tuple[str, str]:
    return row.text("premise"), row.text("hypothesis")


def _update(row: Row, sign: float) -> Answer:
    return rated(row.text("update"), sign * floor_mean(row.numbers("human_label")), row.text("model"))


def _written(found: list[Row], code: str) -> Iterator[GoodBad]:
    better, worse = _TYPES[code]
    possible = (row for row in found if not row.truth("UpdateTypeImpossible"))
    for group in grouped((_assignment(row), row) for row in possible):
        by_type = {_one_of(row, "UpdateType", ("weakener", "strengthener")): row for row in group}
        if len(by_type) == 2:
            good, bad = (Answer(text=by_type[one].text("Update")) for one in (better, worse))
            premise = group[0].text("Premise") if group[0].has("Premise") else ""
            question = Question(
                code=code, context=(premise, group[0].text("Hypothesis")), item=group[0].text("AssignmentIdAnon")
            )
            yield question.pair(good, bad)


def _assignment(row: Row) -> Hashable:
    premise = row.text("Premise") if row.has("Premise") else ""
    return row.text("AssignmentIdAnon"), premise, row.text("Hypothesis")


def _one_of(row: Row, field: str, known: tuple[str, str]) -> str:
    found = row.text(field)
    if found not in known:
        raise row.wrong(f"{field!r} must be {known[0]} or {known[1]}, got {found!r}")
    return found


# HellaSwag: the one true ending of a text among four.
#
# A line of hellaswag_train.jsonl or hellaswag_val.jsonl has `ctx`, four `endings` and `label`, the number of the true
# one; `ind` and, in the releases that have it, `source_id` name the text. The test file has no labels.
#
# HS: the true ending against each of the others.


def read_hellaswag(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of HS."""
    for row in rows(paths) if "HS" in codes else ():
        endings = row.texts("endings")
        true = _label(row, len(endings))
        question = Question(code="HS", context=(row.text("ctx"),), item=row.text("ind"))
        answers = [Answer(text=ending) for ending in endings]
        for number, other in enumerate(answers):
            if number != true:
                yield question.pair(answers[true], other)


def _label(row: Row, endings: int) -> int:
    if not row.has("label") or row.value("label") == "":
        raise row.wrong(
            "has no 'label': HellaSwag's test file comes without answers; take the training or validation file"
        )
    label = row.number("label")
    if label not in range(endings):
        raise row.wrong(f"'label' must be the number of an ending, 0 to {endings - 1}, got {label:g}")
    return int(label)


# TellMeWhy: why-questions about short stories, three answers each.
#
# The annotated subset (test_caters_subset, CSV or JSON) has one row an answer: `narrative`, `question`, `answer`,
# `is_ques_answerable` (Answerable or Not Answerable), `val_ann` and `gram_ann` (three ratings from -2 to 2 each) and
# `question_meta`. Other files of the data set have no ratings and give pairs of QA only.
#
# AG, AV: answers to one question, by the floor of the mean grammar or validity rating.
# QA: questions about one narrative, an answerable one against one that is not. A question stands in the file once for
# each of its answers, and HEAP pairs rows, so that one pair of questions comes several times.


_RATINGS_TELLMEWHY = {"AG": "gram_ann", "AV": "val_ann"}
_ANSWERABLE = {"Answerable": 1.0, "Not Answerable": 0.0}


def read_tellmewhy(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of AG, AV and QA."""
    found = list(rows(paths))
    for code, column in _RATINGS_TELLMEWHY.items():
        if code in codes:
            yield from _by_rating(found, code, column)
    if "QA" in codes:
        yield from _by_answerability(found)


def _by_rating(found: list[Row], code: str, column: str) -> Iterator[GoodBad]:
    with_ratings = (row for row in found if row.has(column) and row.value(column) not in ("", "[]", []))
    for group in grouped(((row.text("narrative"), row.text("question")), row) for row in with_ratings):
        context = group[0].text("narrative"), group[0].text("question")
        answers = [rated(row.text("answer"), floor_mean(row.numbers(column))) for row in group]
        yield from winners_first(Question(code=code, context=context, item=group[0].text("question_meta")), answers)


def _by_answerability(found: list[Row]) -> Iterator[GoodBad]:
    for number, group in enumerate(grouped((row.text("narrative"), row) for row in found), 1):
        question = Question(code="QA", context=(group[0].text("narrative"),), item=f"narrative {number}")
        yield from two_by_two(question, [_question(row) for row in group])


def _question(row: Row) -> Answer:
    judged = row.text("is_ques_answerable")
    if judged not in _ANSWERABLE:
        raise row.wrong(f"'is_ques_answerable' must be Answerable or Not Answerable, got {judged!r}")
    return Answer(text=row.text("question"), rank=_ANSWERABLE[judged])


# TimeTravel: stories whose second sentence was changed, with endings rewritten to fit (Qin and others, 2019).
#
# Two files are read. The human evaluation (CSV of Mechanical Turk) has one row a rater: `Input.X1` (premise),
# `Input.X2`
# (second sentence), `Input.Y` (ending), `Input.XX2` (changed second sentence), `Input.YY1` and `Input.YY2` (two
# rewritten endings), `Input.YY1_MODEL` and `Input.YY2_MODEL`, `Input.STORY`, and `Answer.premise`, `Answer.second`,
# `Answer.plot`, `Answer.ending`, `Answer.counterfactual`: A, B, S (the same) or IR (neither can be judged).
# The data set itself has `premise`, `initial`, `counterfactual`, `original_ending`, and `edited_ending` (a list of
# sentences) or `edited_endings` (a list of such lists), written by people.
#
# SRC, SRE, SRPl, SRPr, SRS from the evaluation: the ending that a rater chose; S and IR make no pair. Each rater's
# choice
# is a pair of its own. HEAP joins premise and changed sentence with nothing between.
# SRC, SRS from the data set, which HEAP did not use: a person's rewritten ending against the original one, which was
# written for another second sentence; endings left unchanged make no pair.


_ASKED = {"SRC": "counterfactual", "SRE": "ending", "SRPl": "plot", "SRPr": "premise", "SRS": "second"}
_WRITTEN = ("SRC", "SRS")
_CHOICES = ("A", "B", "S", "IR")


def read_timetravel(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of the five criteria, criterion after criterion."""
    found = list(rows(paths))
    if found and not found[0].has("Input.XX2"):
        yield from _written_timetravel(found, codes)
        return
    for code in _ASKED:
        for row in found if code in codes else ():
            yield from _chosen_timetravel(row, code)


def _chosen_timetravel(row: Row, code: str) -> Iterator[GoodBad]:
    answer = f"Answer.{_ASKED[code]}"
    choice = row.text(answer)
    if choice not in _CHOICES:
        raise row.wrong(f"{answer!r} must be A, B, S or IR, got {choice!r}")
    endings = [Answer(text=row.text(f"Input.{y}"), system=row.text(f"Input.{y}_MODEL")) for y in ("YY1", "YY2")]
    if choice in ("A", "B"):
        good, bad = endings if choice == "A" else reversed(endings)
        story = row.text("Input.X1") + row.text("Input.XX2")
        context = (story, row.text("Input.Y")) if code == "SRPl" else (story,)
        yield Question(code=code, context=context, item=row.text("Input.STORY")).pair(good, bad)


def _written_timetravel(found: list[Row], codes: Collection[str]) -> Iterator[GoodBad]:
    if not set(codes) & set(_WRITTEN):
        wanted = ", ".join(codes)
        raise InputError(
            f"{found[0].place}: {wanted} can be had from TimeTravel's human evaluation only, not from stories"
        )
    for code in _WRITTEN:
        for row in found if code in codes else ():
            story = row.text("premise") + row.text("counterfactual")
            question = Question(code=code, context=(story,), item=row.text("story_id"))
            original = Answer(text=row.text("original_ending"))
            for ending in _endings(row):
                if ending != original.text:
                    yield question.pair(Answer(text=ending), original)


def _endings(row: Row) -> list[str]:
    if row.has("edited_ending"):
        return [" ".join(row.texts("edited_ending"))]
    if not row.has("edited_endings"):
        raise row.wrong(
            "has neither 'edited_ending' nor 'edited_endings': this file of stories has no rewritten endings"
        )
    written = [Row(row.place, {"edited_endings": sentences}) for sentences in row.listed("edited_endings")]
    return [" ".join(one.texts("edited_endings")) for one in written]


# TuringAdvice: advice from Reddit and from systems, compared for helpfulness.
#
# A line of the evaluation's JSONL has `situation` (`title`, `selftext`, `id`), `best_advice` (`bestadvice_body`),
# and by
# system `model_advice` (its text) and `turk_ratings` (`is_preferred`: whether people preferred it to the best advice).
#
# AH: each system's advice against the best advice of the same situation. HEAP joins title and text with nothing
# between.


_BEST = "best_advice"


def read_turing_advice(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of AH."""
    for row in rows(paths) if "AH" in codes else ():
        situation = row.text("situation", "title") + row.text("situation", "selftext")
        question = Question(code="AH", context=(situation,), item=row.text("situation", "id"))
        best = Answer(text=row.text(_BEST, "bestadvice_body"), system=_BEST)
        for system in row.names("model_advice"):
            preferred = row.truth("turk_ratings", system, "is_preferred")
            advice = Answer(text=row.text("model_advice", system), system=system)
            good, bad = (advice, best) if preferred else (best, advice)
            yield question.pair(good, bad)
