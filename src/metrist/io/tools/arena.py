"""MT-bench (FastChat's `llm_judge`): answers of models, and judgments of them; votes of Chatbot Arena without texts.

    questions  {"question_id", "category", "turns": […], "reference": […]}, for `metrist convert`
    answers    {"question_id", "answer_id", "model_id", "choices": [{"turns": […]}]}
    judgments  {"question_id", "model", "judge": [name, prompt], "score", "turn"}
               {"question_id", "model_1", "model_2", "g1_winner", "g2_winner", "judge", "turn"}
    votes      {"question_id", "model_a", "model_b", "winner", "judge"}

An item is a question and a turn: `81`, and `81:2` for the second. Rows of judgments have no texts: those are in the
answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from metrist.io.row_model import RowError, format_value
from metrist.io.tools.entries import Entries, Row, Rows, as_scores, convert_each, get_objects

_CHOICES = {"model_1": 1, "model_2": 2, "model_a": 1, "model_b": 2}
_TEXTS = frozenset(
    ("conversation_a", "response_a", "answer_a", "output_a", "text_a", "conversation", "full_conversation")
)


def is_entry(value: Row) -> bool:
    return any(
        fields <= value.keys()
        for fields in (
            {"question_id", "model_id", "choices"},
            {"question_id", "model", "judge", "score", "turn"},
            {"question_id", "model_1", "model_2", "g1_winner", "g2_winner"},
        )
    ) or ({"model_a", "model_b", "winner"} <= value.keys() and not value.keys() & _TEXTS)


def rows(entries: Entries) -> Rows:
    for line, entry in entries:
        yield from convert_each([(line, entry)], partial(_convert, line=line))


def _name_item(question: Any, turn: Any) -> str:
    return str(question) if turn in (None, 1) else f"{question}:{turn}"


def _convert(entry: Row, line: int) -> Iterable[Row]:
    # A vote may have no question: then its line is the item.
    item = _name_item(entry.get("question_id", line), entry.get("turn"))
    judge = entry.get("judge")
    judge = judge[0] if isinstance(judge, list) and judge else judge
    if "choices" in entry:
        for name in ("question_id", "model_id"):
            if name not in entry:
                raise RowError(f"an answer must have {name!r}")
        turns = next(iter(get_objects(entry, "choices")), {}).get("turns") or []
        for number, text in enumerate(turns, 1):
            yield {"item": _name_item(entry["question_id"], number), "system": entry["model_id"], "output": text}
    elif "score" in entry:
        # FastChat writes -1 where it finds no score in the judge's answer.
        if isinstance(entry["score"], int | float) and entry["score"] != -1:
            yield {"item": item, "system": entry["model"], "scores": as_scores({str(judge): entry["score"]})}
    else:
        sides = ("model_1", "model_2") if "g1_winner" in entry else ("model_a", "model_b")
        choice = _parse_choice(entry)
        if choice is not None:
            rater = {"raters": [str(judge)]} if judge is not None else {}
            systems = [entry[side] for side in sides]
            yield {"item": item, "systems": systems, "ratings": {"preference": [choice]}, **rater}


def _parse_choice(entry: Row) -> int | None:
    """Return 1, 2, or 0 for a tie. FastChat judges twice, with the answers in both orders: a model wins if it wins
    both times, and a judgment with an error does not count."""
    winners = [entry["g1_winner"], entry["g2_winner"]] if "g1_winner" in entry else [entry["winner"]]
    if "error" in winners:
        return None
    if wrong := [winner for winner in winners if winner not in _CHOICES and not str(winner).startswith("tie")]:
        raise RowError(f"the winner must be {', '.join(_CHOICES)} or tie, got {format_value(wrong[0])}")
    choices = {_CHOICES.get(winner, 0) for winner in winners}
    return choices.pop() if len(choices) == 1 else 0
