"""What a search for prompts found: each prompt's agreement with people, and where prompts help at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrist.metrics.likelihood.likelihood import NO_PROMPT
from metrist.report.cells import Change, Count, Number, Share, or_none
from metrist.report.tables import Column, Table

#: All prompts together: the mean of the scores with each.
ALL = "(mean of all prompts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One prompt's agreement with people on one aspect."""

    prompt: str
    aspect: str
    value: float
    gain: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptStudy:
    """Figures of every prompt on every aspect. `aspect_groups` has the group of each aspect that has one, in
    small letters."""

    metric: str
    measure: str
    group: str
    figures: tuple[Tried, ...]
    aspect_groups: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"PromptStudy({len(self.prompts)} prompts on {', '.join(self.aspects)}; best {self.best!r})"

    @property
    def aspects(self) -> list[str]:
        """The aspects that prompts were tried on."""
        return list(dict.fromkeys(one.aspect for one in self.figures))

    @property
    def prompts(self) -> list[str]:
        """The prompts that were tried."""
        tried = dict.fromkeys(one.prompt for one in self.figures)
        return [prompt for prompt in tried if prompt not in (NO_PROMPT, ALL)]

    @property
    def best(self) -> str:
        """The prompt with the highest agreement on average over the aspects; `NO_PROMPT` where none does better."""
        return self._best_first([NO_PROMPT, *self.prompts])[0]

    def value(self, prompt: str, aspect: str) -> float:
        """A prompt's agreement with people on one aspect."""
        return next(one.value for one in self.figures if (one.prompt, one.aspect) == (prompt, aspect))

    def mean(self, prompt: str) -> float:
        """A prompt's agreement on average over the aspects."""
        return float(np.mean([self.value(prompt, aspect) for aspect in self.aspects]))

    def share_that_help(self, aspect: str) -> float:
        """The share of prompts that agree better with people on this aspect than no prompt does."""
        without = self.value(NO_PROMPT, aspect)
        return float(np.mean([self.value(prompt, aspect) > without for prompt in self.prompts]))

    def shares_by_group(self) -> dict[str, float]:
        """The same share per group of aspects, on average over its aspects."""
        found: dict[str, list[float]] = {}
        for aspect in self.aspects:
            if group := self.aspect_groups.get(aspect.lower()):
                found.setdefault(group, []).append(self.share_that_help(aspect))
        return {group: float(np.mean(shares)) for group, shares in found.items()}

    def table(self) -> Table:
        """The prompts, best first, with the score without a prompt and that over all of them among them."""
        several = len(self.aspects) > 1
        columns = [Column("prompt"), *(Column(aspect, "right") for aspect in self.aspects)]
        columns += [Column("mean", "right")] * several + [Column("gain", "right")]
        return Table(
            title=f"prompts by agreement with humans ({self.measure}, group: {self.group}): {self.metric}",
            columns=columns,
            rows=[self._row(prompt, several) for prompt in self._best_first([NO_PROMPT, ALL, *self.prompts])],
            notes=self.notes,
        )

    def shares(self) -> Table:
        """Where prompts help: per aspect, and on average per group of aspects."""
        heads = ("aspect", "group", "prompts that help", "no prompt", "best prompt", "gain", "n")
        rows = [self._aspect_row(aspect) for aspect in self.aspects]
        rows += [["(mean)", group, Share(share), "", "", "", ""] for group, share in self.shares_by_group().items()]
        columns = [Column(head, "left" if head in ("aspect", "group", "best prompt") else "right") for head in heads]
        return Table(title=f"where prompts help ({len(self.prompts)} prompts)", columns=columns, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "metric": self.metric,
            "measure": self.measure,
            "group": self.group,
            "best": self.best,
            "rows": [_plain(one) for one in self.figures],
            "share_that_help": {aspect: or_none(self.share_that_help(aspect)) for aspect in self.aspects},
            "share_by_group": {group: or_none(share) for group, share in self.shares_by_group().items()},
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def _best_first(self, prompts: Sequence[str]) -> list[str]:
        means = {prompt: self.mean(prompt) for prompt in prompts}
        return sorted(prompts, key=lambda prompt: math.inf if math.isnan(means[prompt]) else -means[prompt])

    def _row(self, prompt: str, several: bool) -> list[Any]:
        values = [Number(self.value(prompt, aspect), 4) for aspect in self.aspects]
        gain = Change(self.mean(prompt) - self.mean(NO_PROMPT), decimals=4) if prompt != NO_PROMPT else ""
        return [prompt, *values, *[Number(self.mean(prompt), 4)] * several, gain]

    def _aspect_row(self, aspect: str) -> list[Any]:
        own = [one for one in self.figures if one.aspect == aspect and one.prompt in self.prompts]
        best = max(own, key=lambda one: -math.inf if math.isnan(one.value) else one.value)
        without = self.value(NO_PROMPT, aspect)
        cells = [Share(self.share_that_help(aspect)), Number(without, 4), best.prompt, Change(best.gain, decimals=4)]
        return [aspect, self.aspect_groups.get(aspect.lower(), ""), *cells, Count(best.n)]


def _plain(one: Tried) -> dict[str, Any]:
    return {
        "prompt": one.prompt,
        "aspect": one.aspect,
        "value": or_none(one.value),
        "gain": or_none(one.gain),
        "n": one.n,
    }
