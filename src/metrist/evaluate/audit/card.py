"""The judge card: findings with 95 % intervals, as a table, Markdown or JSON.

Shares get Wilson's interval, which stays wide with few or no cases; means and correlations a bootstrap over items.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, format_count, unknown_name
from metrist.metrics.llm_metric import describe_replay
from metrist.names import encode_names, take_names
from metrist.report.tables import Column, Estimate, Table, or_none, shorten
from metrist.stats import Floats
from metrist.stats.measures import divide
from metrist.stats.resampling import pooled_interval

#: A value with the ends of its interval.
ValueWithLimits = tuple[float, float, float]
FindingVerdict = Literal["found", "not found", "info", "not measured"]

#: A finding needs at least this many cases.
FEWEST = 5
_BOOTSTRAP_DRAWS, _SEED = 1000, 0
#: The 97.5 % point of the standard normal distribution.
_Z = 1.959963984540054
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number of the card.

    `verdict` is 'found' where the whole interval lies beyond `limit`, 'info' where the number is not a fault in itself,
    and 'not measured' where `reason` says why there is none. `baseline` is what an uninformed judge would reach.
    """

    part: str
    name: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    unit: str = ""
    verdict: FindingVerdict = "info"
    limit: str = ""
    reason: str = ""
    baseline: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    #: Whether the number is a share from 0 to 1, which tables show in percent.
    is_share: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data; NaN is null, and empty texts are left out."""
        texts = {
            "unit": self.unit,
            "verdict": "told" if self.verdict == "info" else self.verdict,  # as in earlier cards
            "limit": self.limit,
            "beside": self.baseline,
            "reason": self.reason,
        }
        details = {key: or_none(value) if isinstance(value, float) else value for key, value in self.details.items()}
        return {
            "part": self.part,
            "name": self.name,
            **{name: or_none(getattr(self, name)) for name in ("value", "low", "high")},
            "n": self.n,
            **{name: text for name, text in texts.items() if text},
            **({"details": details} if details else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeCard:
    """The result of an audit. `judge` is the judge's text, `signature` all that is needed to repeat its calls."""

    judge: str
    signature: str
    data: Mapping[str, Any]
    findings: tuple[Finding, ...]
    usage: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def finding(self, name: str) -> Finding:
        """The finding of that name."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise unknown_name("finding", name, (finding.name for finding in self.findings))

    @property
    def verdict(self) -> str:
        """What the audit found, in a sentence: the problems in plain words, or how many checks found none."""
        problems = [_describe_problem(finding) for finding in self.findings if finding.verdict == "found"]
        checks = sum(finding.verdict in ("found", "not found") for finding in self.findings)
        others = {
            "unclear": sum(map(_is_unclear, self.findings)),
            "not measured": sum(finding.verdict == "not measured" for finding in self.findings),
        }
        listed = ", ".join(f"{count} {what}" for what, count in others.items() if count)
        rest = f" ({listed})" if listed else ""
        if not checks:
            return f"Nothing could be checked{rest}."
        if not problems:
            return f"No problem found in {format_count(checks, 'check')}{rest}."
        count = f"{format_count(len(problems), 'problem')} in {format_count(checks, 'check')}"
        return f"{count}{rest}: {'; '.join(problems)}."

    @property
    def problems(self) -> tuple[str, ...]:
        """The names of the findings whose verdict is 'found'."""
        return tuple(finding.name for finding in self.findings if finding.verdict == "found")

    def table(self) -> Table:
        """The verdict, and one row per finding that was measured, grouped by part."""
        sizes = ", ".join(f"{value} {name}" for name, value in self.data.items() if isinstance(value, int))
        intervals = "Intervals are 95 %: Wilson's for shares, bootstrap over items for the rest."
        ranks = {part: rank for rank, part in enumerate(_PARTS)}
        measured = [finding for finding in self.findings if finding.verdict != "not measured"]
        measured.sort(key=lambda finding: ranks.get(finding.part, len(ranks)))
        parts = [_PARTS.get(finding.part, finding.part) for finding in measured]
        baselines = dict.fromkeys(
            f"{finding.name.partition(',')[0]}: {finding.baseline}" for finding in measured if "," in finding.baseline
        )
        missing: dict[str, list[str]] = {}
        for finding in self.findings:
            if finding.verdict == "not measured":
                missing.setdefault(finding.reason, []).append(finding.name)
        notes = [
            f"Judge card of {self.judge}. Audited on {sizes}. {intervals}",
            *(f"{', '.join(names)}: not measured: {reason}" for reason, names in missing.items()),
            *baselines,
        ]
        if "length" in parts:
            notes.append("length: the logarithm of the number of characters")
        if any(finding.name.startswith(("acc_eq", "spearman")) for finding in measured):
            notes.append("acc_eq and spearman compare outputs of all items; `metrist meta` those of one item")
        if any(map(_is_unclear, measured)):
            notes.append("unclear: the number is beyond the limit, but not its whole interval; more items may decide")
        notes += [*describe_replay("The audit", self.usage), *self.notes]
        names = ("part", "what", "value", "n", "verdict", "problem if")
        return Table(
            title=self.verdict,
            columns=[Column(name, "right" if name in ("value", "n") else "left") for name in names],
            rows=[
                # The part stands where it begins.
                ["" if number and parts[number - 1] == part else part, *_card_row(finding)]
                for number, (part, finding) in enumerate(zip(parts, measured, strict=True))
            ],
            notes=notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return {
            "format": "metrist judge card 1",
            "judge": self.judge,
            "signature": self.signature,
            "verdict": self.verdict,
            "problems": list(self.problems),
            "data": dict(self.data),
            "findings": [finding.to_dict() for finding in self.findings],
            "usage": dict(self.usage),
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The card as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    def to_markdown(self) -> str:
        """The card as a page."""
        lines = []
        for finding in self.findings:
            details = [
                f"{key}: {value:.3g}" if isinstance(value, float) else f"{key}: {value}"
                for key, value in finding.details.items()
            ]
            if details:
                lines.append(f"- **{finding.name}**: {'; '.join(details)}")
        section = ["", "## Behind the numbers", "", *lines] if lines else []
        return "\n".join([self.table().render("markdown"), *section, "", f"Signature: `{self.signature}`", ""])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the card atomically to a .json or .md file."""
        from metrist.io.writer import atomic_write

        text = self.to_json() + "\n" if check_card_path(path).suffix == ".json" else self.to_markdown()
        with atomic_write(path) as file:
            file.write(text)

    def __repr__(self) -> str:
        return f"JudgeCard({self.judge}, found: {', '.join(self.problems) or 'no problem'})"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def check_card_path(path: str | os.PathLike[str]) -> Path:
    """Return the path, or raise before any call is made if a card cannot be written there."""
    card_path = Path(path)
    if card_path.suffix not in (".json", ".md"):
        raise RunError(
            f"cannot choose a format for the card {card_path}: the name must end in .json or .md", code="cannot_write"
        )
    if not card_path.parent.is_dir():
        raise RunError(f"cannot write {card_path}: there is no folder {card_path.parent}", code="cannot_write")
    return card_path


#: The parts of the card in the order in which it is read, with the names that a reader sees.
_PARTS = {
    "failures": "failures",
    "scale": "scale",
    "position": "position",
    "repeats": "repeats",
    "length": "length",
    "injection": "injection",
    "gold": "reference",
    "own outputs": "own",
    "analyses": "reasons",
    "people": "people",
    "cost": "cost",
}
#: What the table calls a finding, where that is not its name.
_LABELS = {
    "flips": "choices changed by the order",
    "first place chosen": "choices of the first one shown",
    "correlation, human ratings fixed": "the same at equal ratings",
    "probes that raise the grade": "grades raised by planted text",
    "grade with the reference minus without": "change with reference shown",
    "own outputs' lead over others, beyond people's": "the same beyond people's",
    "made-up analyses": "reasons with made-up content",
}
_LONGEST_LABEL = 30


@dataclass(frozen=True, slots=True)
class _Percent:
    """A share with its interval, in percent: `33 % [20, 48]`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        decimals = 1 if 0 < self.value < 0.1 else 0
        value, low, high = (f"{100 * number:.{decimals}f}" for number in (self.value, self.low, self.high))
        return f"{value} % [{low}, {high}]"

    def plain(self) -> dict[str, float | None]:
        return Estimate(self.value, self.low, self.high).plain()


@dataclass(frozen=True, slots=True)
class _Counted:
    """A number of cases and what they are: `40 pairs`."""

    number: int
    unit: str

    def __str__(self) -> str:
        return f"{self.number:,} {self.unit}".strip()

    def plain(self) -> int:
        return self.number


def _is_unclear(finding: Finding) -> bool:
    """Whether the number is beyond its limit, but not its whole interval: more data may show a problem."""
    if finding.verdict != "not found":
        return False
    if finding.limit.startswith("beyond"):
        return abs(finding.value) > float(finding.limit.split()[-1])
    sides = [side.split() for side in finding.limit.split(" or ")]
    return any(finding.value > float(x) if sign == ">" else finding.value < float(x) for sign, x in sides)


def _describe_problem(finding: Finding) -> str:
    value = finding.value
    share = f"{100 * value:.{1 if value < 0.1 else 0}f} %"
    if finding.part == "scale":
        return f"{share} of outputs get one grade of {finding.name.removeprefix('most used grade of ')}"
    longer, raises, better = ("longer", "raises", "better") if value > 0 else ("shorter", "lowers", "worse")
    sentences = {
        "flips": f"the order of two outputs decides {share} of pairs",
        "first place chosen": f"the output shown first is chosen {share} of the time",
        "equal grades": f"only {share} of outputs get the same grade each time",
        "grades moved by neutral edits": f"neutral edits move {share} of grades",
        "correlation, human ratings fixed": f"{longer} outputs get better grades than people give (r {value:+.2f})",
        "padding that raises the grade": f"padding raises {share} of grades",
        "probes that raise the grade": f"orders inside outputs raise {share} of grades",
        "grade with the reference minus without": f"the reference {raises} grades by {abs(value):.2g} on average",
        "own outputs' lead over others, beyond people's": (
            f"its own outputs get {better} grades than people give ({value:+.2f} SD)"
        ),
        "made-up analyses": f"{share} of its reasons hold made-up content",
        "answers without a grade": f"{share} of answers have no grade",
        "refusals": f"{share} of its answers are refusals",
        "pairs without a choice": f"{share} of pairs have no choice",
    }
    return sentences.get(finding.name, f"{finding.name}: {value:.3g}")


def _card_row(finding: Finding) -> Sequence[Any]:
    name = finding.name
    label = f"same grade in all {finding.details['answers']} answers" if "answers" in finding.details else name
    if finding.part == "people":
        label = re.sub(" with | by ", ", ", label.replace("people's", "people"), count=1)
        label = label.replace(", reference ", ", ref ")
    label = _LABELS.get(name, label)
    value: _Percent | Estimate = _Percent(finding.value, finding.low, finding.high)
    limit = re.sub(r"[0-9.]+", lambda number: f"{100 * float(number[0]):g} %", finding.limit)
    if not finding.is_share:
        # A small amount of money gets two significant digits.
        small = finding.part == "cost" and 0 < finding.value < 0.1
        decimals = 1 - math.floor(math.log10(finding.value)) if small else 2
        value = Estimate(finding.value, finding.low, finding.high, decimals)
        limit = finding.limit
    if " or " in limit:
        limit = "not {1}–{0}".format(*(part[2:] for part in limit.split(" or "))).replace(" %–", "–")
    if not limit:
        # Of several baselines the one that is hardest to beat, the first of equals.
        baselines = (text.rpartition(" ") for text in finding.baseline.split(", "))
        baseline, _, level = max(baselines, key=lambda parts: float(parts[2] or 0))
        level = f"{100 * float(level):.0f} %" if finding.is_share and level else level
        limit = f"{baseline} {level}".strip()
    verdict = {"found": "problem", "not found": "ok", "info": ""}.get(finding.verdict, finding.verdict)
    verdict = "unclear" if _is_unclear(finding) else verdict
    return [
        shorten(label, _LONGEST_LABEL),
        value,
        _Counted(finding.n, finding.unit.partition(",")[0]) if finding.n else None,
        verdict,
        limit,
    ]


def build_unmeasured(part: str, name: str, reason: str) -> Finding:
    """A finding without a number."""
    return Finding(part=part, name=name, verdict="not measured", reason=reason)


def build_share(
    part: str,
    name: str,
    hits: int,
    n: int,
    unit: str,
    *,
    above: float | None = None,
    below: float | None = None,
    details: Mapping[str, object] | None = None,
) -> Finding:
    """A share with its interval; 'found' where the whole interval lies above, or below, a limit."""
    if n < FEWEST:
        return build_unmeasured(part, name, f"only {n} {unit}, at least {FEWEST} are needed")
    low, high = wilson_interval(hits, n)
    beyond = (above is not None and low > above) or (below is not None and high < below)
    limits = ("> ", above), ("< ", below)
    limit = " or ".join(f"{sign}{number:g}" for sign, number in limits if number is not None)
    return Finding(
        part=part,
        name=name,
        value=hits / n,
        low=low,
        high=high,
        n=n,
        unit=unit,
        verdict="info" if not limit else "found" if beyond else "not found",
        limit=limit,
        details=details or {},
        is_share=True,
    )


def build_estimate(
    part: str,
    name: str,
    interval: ValueWithLimits,
    n: int,
    unit: str,
    limit: float | None = None,
    details: Mapping[str, object] | None = None,
) -> Finding:
    """A number with its interval; 'found' where the whole interval lies further from 0 than the limit."""
    value, low, high = interval
    if n < FEWEST or math.isnan(value):
        return build_unmeasured(part, name, f"only {n} {unit} that differ, at least {FEWEST} are needed")
    beyond = limit is not None and (low > limit or high < -limit)
    return Finding(
        part=part,
        name=name,
        value=value,
        low=low,
        high=high,
        n=n,
        unit=unit,
        verdict="info" if limit is None else "found" if beyond else "not found",
        limit=f"beyond ± {limit:.2g}" if limit is not None else "",
        details=details or {},
    )


def wilson_interval(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, shrink = hits / n, 1 + _Z**2 / n
    middle = (share + _Z**2 / (2 * n)) / shrink
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / shrink
    # Rounding must not put the interval outside [0, 1].
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mean_by_item(values: Floats, items: Sequence[str]) -> ValueWithLimits:
    """The mean of the values that are not NaN, with its interval over resamples of the items."""
    known = ~np.isnan(values)
    rows = np.stack([values, np.ones_like(values)], axis=1)[known]
    return _bootstrap_by_item(rows, _encode_items(items, known), lambda sums: divide(sums[..., 0], sums[..., 1]))


def correlation_by_item(first: Floats, second: Floats, items: Sequence[str]) -> ValueWithLimits:
    """Pearson's correlation of two variables within items: item means are subtracted first."""
    known = ~(np.isnan(first) | np.isnan(second))
    codes = _encode_items(items, known)
    x, y = _center(first[known], codes), _center(second[known], codes)
    rows = np.stack([x * x, y * y, x * y], axis=1)
    return _bootstrap_by_item(rows, codes, lambda sums: divide(sums[..., 2], np.sqrt(sums[..., 0] * sums[..., 1])))


def partial_correlation_by_item(first: Floats, second: Floats, fixed: Floats, items: Sequence[str]) -> ValueWithLimits:
    """The correlation of two variables within items with a third held fixed."""
    known = ~(np.isnan(first) | np.isnan(second) | np.isnan(fixed))
    codes = _encode_items(items, known)
    x, y, z = (_center(values[known], codes) for values in (first, second, fixed))
    return _bootstrap_by_item(np.stack([x * x, y * y, x * y, x * z, y * z, z * z], axis=1), codes, _pool_partial)


def _bootstrap_by_item(rows: Floats, codes: NDArray[np.intp], pool: Callable[[Floats], Floats]) -> ValueWithLimits:
    """Pool the rows, with an interval; the rows of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan, math.nan
    sums = np.zeros((int(codes.max()) + 1, rows.shape[1]))
    np.add.at(sums, codes, rows)
    low, high = pooled_interval(sums, pool, _BOOTSTRAP_DRAWS, np.random.default_rng(_SEED))
    return float(pool(sums.sum(axis=0))), low, high


def _encode_items(items: Sequence[str], known: NDArray[np.bool_]) -> NDArray[np.intp]:
    return take_names(encode_names(items), np.flatnonzero(known)).codes.astype(np.intp)


def _center(values: Floats, codes: NDArray[np.intp]) -> Floats:
    means = np.bincount(codes, weights=values) / np.maximum(np.bincount(codes), 1)
    centered: Floats = values - means[codes]
    return centered


def _pool_partial(sums: Floats) -> Floats:
    xx, yy, xy, xz, yz, zz = np.moveaxis(sums, -1, 0)
    # Residual sums of x and y after regression on z.
    slope = np.divide(1.0, zz, out=np.zeros_like(zz), where=zz > 0)
    res_xx, res_yy, res_xy = xx - xz * xz * slope, yy - yz * yz * slope, xy - xz * yz * slope
    # Grades that follow z exactly have no residual; rounding errors must not be correlated.
    no_residual = (res_xx <= _ROUNDING * xx) | (res_yy <= _ROUNDING * yy)
    return np.where(no_residual, 0.0, divide(res_xy, np.sqrt(np.where(no_residual, 1.0, res_xx * res_yy))))
