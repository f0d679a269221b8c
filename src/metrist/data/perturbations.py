"""Good texts with faults of known kinds at exactly known places.

    perturbed = perturb(record, ["number", "negation"], seed=7, donor=other_record)
    perturbed.record.output, perturbed.errors, perturbed.restore()

Edits that do not overlap are applied together, so that the place of each in the new text is exact and undoing all of
them gives the original back.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from metrist.data.faults import HARMLESS, KINDS, Concern, Edit, EditableText, Kind, quote
from metrist.data.faults.text import apply_edits as write_edits
from metrist.errors import check_known
from metrist.language import is_english
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.prompt_layout import resolve_task
from metrist.ratings import Error
from metrist.records import Record

#: The aspect of each concern in the shipped tables of aspects, by task.
_ASPECTS: Mapping[str, Mapping[Concern, str]] = {
    "summarization": {
        "facts": "Fact Consistency", "content": "Relevance", "excess": "Relevance", "order": "Coherence",
        "language": "Fluency", "style": "Fluency",
    },
    "translation": {
        "facts": "Accuracy", "content": "Accuracy", "excess": "Accuracy", "order": "Fluency", "language": "Fluency",
        "style": "Style Matching", "terminology": "Terminology",
    },
    "data_to_text": {
        "facts": "Accuracy", "content": "Accuracy", "excess": "Accuracy", "order": "Logical Coherence",
        "language": "Fluency", "style": "Fluency",
    },
    "long_form_qa": {
        "facts": "Accuracy", "content": "Completeness", "excess": "Informativeness", "order": "Clarity",
        "language": "Clarity", "style": "Clarity",
    },
    "math": {
        "facts": "Problem Understanding", "content": "Solution Interpretation", "excess": "Solution Interpretation",
        "order": "Problem Formulation", "language": "Solution Interpretation", "style": "Solution Interpretation",
        "calculation": "Computing Accuracy", "method": "Problem Formulation",
    },
    "story": {
        "facts": "Plot", "content": "Plot", "excess": "Fit", "order": "Plot", "language": "Language",
        "style": "Language",
    },
    "instruction_following": {
        "facts": "Accuracy", "content": "Informativeness", "excess": "Informativeness", "order": "Coherence",
        "language": "Coherence", "style": "Coherence",
    },
}  # fmt: skip


def find_kind(name: str) -> Kind:
    return KINDS.get(name) or HARMLESS[name]


def choose_aspect(kind: str, task: str | None) -> str:
    """The aspect that a fault of this kind counts for in the table of a task."""
    if kind == "repetition" and choose_table(task).task == "story":
        return "Language"
    return find_aspect(find_kind(kind).concern, task)


def find_aspect(concern: Concern, task: str | None) -> str:
    """The aspect of a concern in the table of a task, under any of its names; tasks without a table have the general
    one."""
    table = _ASPECTS[choose_table(task).task]
    return table.get(concern) or table["facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbed:
    """A record with faults. `errors[i]` describes `edits[i]`, in the order of the text: its `start` and `end` bound the
    new text of the edit (they are equal where something was left out), its `revision` is the text of the original."""

    record: Record
    original: str
    edits: tuple[Edit, ...]
    errors: tuple[Error, ...]

    def restore(self) -> str:
        """Undo all edits in the new output."""
        text, end = [], 0
        for error in self.errors:
            assert error.start is not None
            assert error.end is not None
            text += [self.record.output[end : error.start], error.revision]
            end = error.end
        return "".join([*text, self.record.output[end:]])


def list_kinds(task: str | None = None) -> list[str]:
    """The names of the faults that are made for a task."""
    known = resolve_task(task)
    return [name for name, kind in KINDS.items() if not kind.tasks or known in kind.tasks]


def check_kinds(names: Sequence[str]) -> None:
    """Raise SpecError for a name that is no kind of fault and no harmless change."""
    for name in names:
        check_known("fault", name, (*KINDS, *HARMLESS))


def perturb(
    record: Record, kinds: Sequence[str], *, seed: int | str = 0, donor: Record | None = None
) -> Perturbed | None:
    """Put one fault of each kind into the record's output; a kind may be named more than once. None if a kind finds no
    place. The same seed and record give the same result."""
    check_kinds(kinds)
    if not all(can_perturb(name, record, donor) for name in kinds):
        return None
    rng = random.Random(f"{seed}\0{record.item}\0{record.system}\0{','.join(kinds)}")
    text = EditableText(
        output=record.output,
        source=record.source or "",
        donor_output=donor.output if donor else "",
        donor_source=(donor.source or "") if donor else "",
    )
    edits: list[Edit] = []
    large = ("empty", "truncation", "shuffle", "gibberish", "role_swap")
    for name in sorted(kinds, key=lambda name: name not in large):  # Those that need much room come first.
        proposals = (find_kind(name).propose(text, rng) for _ in range(4))
        edit = next((edit for edit in proposals if edit and edit.text != text.output[edit.start : edit.end]), None)
        if edit is None:
            return None
        edits.append(edit)
        text = replace(text, taken=(*text.taken, (edit.start, edit.end)))
    return apply_edits(record, edits)


def apply_edits(record: Record, edits: Iterable[Edit]) -> Perturbed:
    """Apply edits that do not overlap."""
    ordered = tuple(sorted(edits, key=lambda edit: (edit.start, edit.end)))
    errors: list[Error] = []
    end = shift = 0
    for edit in ordered:
        if edit.start < end:
            raise ValueError(f"the edits {edit.kind} at {edit.start} and the one before it overlap")
        end, start = edit.end, edit.start + shift
        shift += len(edit.text) - (edit.end - edit.start)
        kind, explanation = find_kind(edit.kind), edit.explanation
        if edit.evidence is not None and record.source:
            explanation += f" The source: {quote(record.source[slice(*edit.evidence)], 160)}."
        errors.append(
            Error(
                aspect=choose_aspect(edit.kind, record.task),
                severity=kind.severity,
                penalty=kind.penalty,
                explanation=explanation,
                revision=record.output[edit.start : edit.end],
                text=edit.text,
                start=start,
                end=start + len(edit.text),
            )
        )
    new = write_edits(record.output, ordered)
    return Perturbed(record=replace(record, output=new), original=record.output, edits=ordered, errors=tuple(errors))


def choose_donor(record: Record, peers: Sequence[Record], rng: random.Random) -> Record | None:
    """A record of another item with another output; None if a few tries find none."""
    for _ in range(8):
        donor = rng.choice(peers)
        if donor.item != record.item and donor.output != record.output:
            return donor
    return None


def can_perturb(name: str, record: Record, donor: Record | None = None) -> bool:
    """Whether a record has what a kind of fault needs."""
    needs = find_kind(name).needs
    return (
        not ("source" in needs and not record.source)
        and not ("donor" in needs and donor is None)
        and not ("English" in needs and _is_in_other_language(record.output, record.language))
    )


# Asked for every kind of fault.
@lru_cache(maxsize=256)
def _is_in_other_language(output: str, language: str | None) -> bool:
    return is_english(Record(item="", system="", output=output, language=language)) is False
