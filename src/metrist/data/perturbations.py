"""Good texts with faults of known kinds at exactly known places.

    perturbed = perturb(record, ["number", "negation"], seed=7, donor=other_record)
    perturbed.record.output, perturbed.errors, perturbed.restore()

Edits that do not overlap are applied together, so that the place of each in the new text is exact and undoing all of
them gives the original back.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metrist.data.fault_kinds import HARMLESS, KINDS, Edit, Text, quote
from metrist.errors import SpecError, did_you_mean
from metrist.language import is_other_language
from metrist.ratings import Error
from metrist.records import Record

#: The aspect of each concern in the shipped tables of aspects, by task.
_ASPECTS: Mapping[str, Mapping[str, str]] = {
    "summarization": {"facts": "Fact Consistency", "content": "Relevance", "order": "Coherence", "style": "Fluency"},
    "translation": {"facts": "Accuracy", "content": "Accuracy", "order": "Fluency", "style": "Style Matching"},
    "data_to_text": {
        "facts": "Accuracy", "content": "Accuracy", "order": "Logical Coherence", "style": "Fluency",
    },
    "long_form_qa": {
        "facts": "Accuracy", "content": "Completeness", "order": "Clarity", "style": "Clarity", "language": "Clarity",
    },
    "math": {
        "facts": "Problem Understanding", "content": "Solution Interpretation", "order": "Problem Formulation",
        "language": "Solution Interpretation", "style": "Solution Interpretation", "calculation": "Computing Accuracy",
        "method": "Problem Formulation",
    },
    "story": {"facts": "Plot", "content": "Fit", "order": "Plot", "style": "Language", "language": "Language"},
    "instruction_following": {
        "facts": "Accuracy", "content": "Informativeness", "order": "Coherence", "style": "Coherence",
        "language": "Coherence",
    },
}  # fmt: skip


def choose_aspect(kind: str, task: str | None) -> str:
    """The aspect that a fault of this kind counts for in the table of a task."""
    table = _ASPECTS.get(task or "", _ASPECTS["instruction_following"])
    concern = KINDS[kind].concern if kind in KINDS else "style"
    return table.get(concern) or table.get("facts" if concern in ("calculation", "method") else "", "Fluency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbed:
    """A record with faults. `errors[i]` describes `edits[i]`, in the order of the text: its `start` and `end` bound the
    new text of the edit (they are equal where something was left out), its `revision` is the text of the original."""

    record: Record
    original: str
    edits: tuple[Edit, ...]
    errors: tuple[Error, ...]

    @property
    def penalty(self) -> float:
        """The sum of the errors' penalties."""
        return sum(error.penalty or 0.0 for error in self.errors)

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
    return [name for name, kind in KINDS.items() if not kind.tasks or task in kind.tasks]


def check_kinds(names: Sequence[str]) -> None:
    """Raise SpecError for a name that is no kind of fault and no harmless change."""
    for name in names:
        if name not in KINDS and name not in HARMLESS:
            known = [*KINDS, *HARMLESS]
            raise SpecError(f"there is no fault {name!r}{did_you_mean(name, known)} (available: {', '.join(known)})")


def perturb(
    record: Record, kinds: Sequence[str], *, seed: int | str = 0, donor: Record | None = None
) -> Perturbed | None:
    """Put one fault of each kind into the record's output; a kind may be named more than once. None if a kind finds no
    place. The same seed and record give the same result."""
    check_kinds(kinds)
    if not all(can_perturb(name, record, donor) for name in kinds):
        return None
    rng = random.Random(f"{seed}\0{record.item}\0{record.system}\0{','.join(kinds)}")
    text = Text(
        output=record.output,
        source=record.source or "",
        donor_output=donor.output if donor else "",
        donor_source=(donor.source or "") if donor else "",
    )
    edits: list[Edit] = []
    # The kinds that need much room come first.
    for name in sorted(
        kinds, key=lambda name: name not in ("empty", "truncation", "shuffle", "gibberish", "role_swap")
    ):
        edit = _propose(name, text, rng)
        if edit is None:
            return None
        edits.append(edit)
        text = replace(text, taken=(*text.taken, (edit.start, edit.end)))
    return apply_edits(record, edits)


def _propose(name: str, text: Text, rng: random.Random) -> Edit | None:
    propose = KINDS[name].propose if name in KINDS else HARMLESS[name]
    for _ in range(4):
        edit = propose(text, rng)
        if edit is not None and edit.text != text.output[edit.start : edit.end]:
            return edit
    return None


def apply_edits(record: Record, edits: Iterable[Edit]) -> Perturbed:
    """Apply edits that do not overlap."""
    ordered = tuple(sorted(edits, key=lambda edit: (edit.start, edit.end)))
    pieces: list[str] = []
    errors: list[Error] = []
    end = size = 0
    for edit in ordered:
        if edit.start < end:
            raise ValueError(f"the edits {edit.kind} at {edit.start} and the one before it overlap")
        pieces += [record.output[end : edit.start], edit.text]
        start = size + edit.start - end
        size = start + len(edit.text)
        end = edit.end
        errors.append(_describe(record, edit, start, size))
    new = "".join([*pieces, record.output[end:]])
    return Perturbed(record=replace(record, output=new), original=record.output, edits=ordered, errors=tuple(errors))


def _describe(record: Record, edit: Edit, start: int, end: int) -> Error:
    kind = KINDS.get(edit.kind)
    explanation = edit.explanation
    if edit.evidence is not None and record.source:
        explanation += f" The source: {quote(record.source[slice(*edit.evidence)], 160)}."
    return Error(
        aspect=choose_aspect(edit.kind, record.task),
        severity=kind.severity if kind else None,
        penalty=kind.penalty if kind else 0.0,
        explanation=explanation,
        revision=record.output[edit.start : edit.end],
        text=edit.text,
        start=start,
        end=end,
    )


def perturb_many(
    records: Sequence[Record], *, seed: int | str = 0, most: int = 3, kinds: Sequence[str] | None = None
) -> Iterator[Perturbed]:
    """Put one to `most` faults of random kinds into each record's output; the donor is another record of the same task.
    Records that take none of the faults are left out."""
    if kinds is not None:
        check_kinds(kinds)
    by_task: dict[str | None, list[Record]] = {}
    for record in records:
        by_task.setdefault(record.task, []).append(record)
    for record in records:
        rng = random.Random(f"{seed}\0{record.item}\0{record.system}")
        peers = by_task[record.task]
        donor = _choose_donor(record, peers, rng)
        possible = [name for name in kinds or list_kinds(record.task) if can_perturb(name, record, donor)]
        for _ in range(6):
            if not possible:
                break
            chosen = rng.sample(possible, min(rng.randint(1, most), len(possible)))
            perturbed = perturb(record, chosen, seed=f"{seed}", donor=donor)
            if perturbed is not None:
                yield perturbed
                break


def _choose_donor(record: Record, peers: Sequence[Record], rng: random.Random) -> Record | None:
    for _ in range(8):
        donor = rng.choice(peers)
        if donor.item != record.item and donor.output != record.output:
            return donor
    return None


def can_perturb(name: str, record: Record, donor: Record | None = None) -> bool:
    """Whether a record has what a kind of fault needs."""
    needs = KINDS[name].needs if name in KINDS else frozenset({"English"} if name in ("paraphrase", "padding") else ())
    return (
        not ("source" in needs and not record.source)
        and not ("donor" in needs and donor is None)
        and not ("English" in needs and is_other_language(record))
    )
