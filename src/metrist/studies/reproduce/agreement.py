"""The shipped metrics task by task: agreement with people next to length and other baselines, with and without length.

Rated outputs are compared within an item or over all items, choices pair by pair. Every figure has an interval from
resampled items, and a second figure that shows what remains once the output's length is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from metrist.errors import MissingExtra, ModelError, RunError, SpecError
from metrist.evaluate.meta.dataset import JudgedDataset, MetricScores, compute_gold
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.evaluate.meta.preferences import vote
from metrist.metrics import registry
from metrist.metrics.agreement import BEST_LEXICAL, AgreementFigure, DatasetAgreement, load_agreements
from metrist.metrics.trained.quality import Mixture, Quality
from metrist.report.cells import Marked
from metrist.report.tables import Count, Estimate, Number, Table, name_columns
from metrist.stats import Codes, Floats, Mask
from metrist.studies.reproduce.figures import DataFolder, list_outputs
from metrist.studies.reproduce.published import NO_DATA, References, read_table_file
from metrist.studies.reproduce.sections import PageSection
from metrist.studies.reproduce.shipped import resolve_metric

METRICS_TABLE = "shipped-metrics"
_NEGATED = {"length": "−length", "likelihood": "−likelihood"}
_TRAINED = "†"
QUALITY = "quality"
_MINUS = "−"
_ROUNDING = 1e-12
#: Products of gold values, scores and lengths: variances, then covariances.
_THREE = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
#: The precision of the prior of coefficients.
_PRIOR = 1e-2

Measure = Literal["spearman", "pearson", "accuracy", "acc_eq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedSet:
    """A data set of the table, or a part of it. `every` scores only every n-th item."""

    data: str
    name: str
    task: str
    family: str = ""
    judged: bool = False
    measure: Measure = "spearman"
    group: Literal["item", "none"] = "item"
    #: All of the data set if there are none.
    aspects: tuple[str, ...] = ()
    #: Whether each aspect has a row of its own next to their mean.
    each: bool = False
    exclude: tuple[str, ...] = ()
    every: int = 1
    #: The beginning of the tasks in the data that belong to this part.
    part: str = ""
    english: bool = True


def make_agreement_table(folder: DataFolder, *, keep: Collection[str] = (), only: Collection[str] = ()) -> PageSection:
    """Compute the figures of all metrics on all sets. The columns `keep`, and rows of other data sets than `only`, if
    any, stay as published."""
    content = read_table_file(METRICS_TABLE)
    labels = [entry["label"] for entry in (*content["metrics"], *content["baselines"])]
    if unknown := [name for name in keep if name not in labels or name == content["length"]]:
        raise SpecError(f"{METRICS_TABLE} cannot keep the column {unknown[0]!r}; its columns are: {', '.join(labels)}")
    content = {
        **content,
        "computed": {
            group: [entry for entry in content[group] if entry["label"] not in keep]
            for group in ("metrics", "baselines")
        },
    }
    sets = parse_sets()
    if absent := [name for name in only if name not in {rated.data for rated in sets} or not folder.has(name)]:
        raise SpecError(f"{METRICS_TABLE} has no data set {absent[0]!r}, or it is not in the folder of data")
    rows: list[DatasetAgreement] = []
    for rated in sets:
        if only and rated.data not in only:
            rows += (row for row in load_agreements() if (row.data, row.name) == (rated.data, rated.name))
        elif folder.has(rated.data):
            rows += (_add_published(row, keep) if keep else row for row in _compare(rated, content, folder))
    shipped = tuple(entry["label"] for entry in content["metrics"])
    others = [entry["label"] for entry in content["baselines"]]
    columns = [*shipped, *others, BEST_LEXICAL]
    for name, negated in _NEGATED.items():
        columns.insert(columns.index(name) + 1 if name in others else len(columns), negated)
    present = {name for row in rows for name in row.figures}
    columns = [column for column in columns if column in present]
    cells: list[list[Any]] = []
    for row in rows:
        name = row.name if row.judged else f"{row.name} (not judged)"
        head = [row.task, name, row.aspect, row.measure, Count(row.n)]
        cells.append([*head, *_format_cells(row, row.figures, columns, content["decimals"])])
        if row.given_length:
            measure = "coefficient given length" if row.measure == "accuracy" else "given length"
            given = _format_cells(row, row.given_length, columns, content["decimals"])
            cells.append(["", "", "", measure, "", *given])
    nothing = ["", NO_DATA, Count(0), *(Number(math.nan) for _ in columns)]
    shown = {row.name for row in rows}
    cells += [[rated.task, rated.name, *nothing] for rated in sets if rated.name not in shown]
    return PageSection(
        name=METRICS_TABLE,
        title=content["title"],
        caption=content["caption"].strip(),
        summary=_summarize(rows, shipped),
        table=Table(
            columns=name_columns("task", "data", "aspect", "measure", right=("n", *columns)),
            rows=cells,
            notes=tuple(content.get("notes", ())),
        ),
        agreements=tuple(rows),
    )


def _format_cells(
    row: DatasetAgreement, figures: Mapping[str, AgreementFigure], columns: Sequence[str], decimals: int
) -> list[Any]:
    """The figures of a row; a metric without a figure has an empty cell."""
    cells: list[Any] = []
    for column in columns:
        figure = figures.get(column)
        if figure is None:
            cells.append(Number(math.nan))
            continue
        estimate = Estimate(figure.value, figure.low, figure.high, decimals)
        marks = _TRAINED if column.lstrip(_MINUS) in row.trained else ""
        if column == BEST_LEXICAL:
            marks = row.lexical
        cells.append(Marked(estimate, marks) if marks else estimate)
    return cells


def _summarize(rows: Sequence[DatasetAgreement], metrics: Sequence[str]) -> str:
    """How often each shipped metric is above length, and how often it runs against people."""
    if not rows:
        return "The data is missing."
    sentences = []
    for metric in metrics:
        own = [row for row in rows if row.whole and metric in row.figures and metric not in row.trained]
        if not own:
            continue
        above = sum(row.figures[metric].value > row.figures["length"].value for row in own)
        against = [row.name for row in own if row.contradicts(metric)]
        wrong = f" and points the wrong way on {', '.join(dict.fromkeys(against))}" if against else ""
        sentences.append(f"{metric} is above length in {above} of {len(own)} data sets{wrong}.")
    return " ".join(sentences)


def _add_published(row: DatasetAgreement, columns: Collection[str]) -> DatasetAgreement:
    """Add columns of the published table to a row of the same outputs."""
    identity = row.data, row.name, row.aspect, row.measure
    known = {(other.data, other.name, other.aspect, other.measure): other for other in reversed(load_agreements())}
    published = known.get(identity)
    if published is None or published.n != row.n:
        found = "no such row" if published is None else f"{published.n:,} outputs or pairs instead of {row.n:,}"
        raise RunError(
            f"no column of {row.name} ({row.aspect or row.measure}) can be kept: the table has {found}", code="changed"
        )
    kept = {name for name in [*published.figures, *published.given_length] if name.lstrip(_MINUS) in columns}
    added = {name: figure for name, figure in published.figures.items() if name in kept}
    added_given = {name: figure for name, figure in published.given_length.items() if name in kept}
    return replace(
        row,
        figures={**row.figures, **added},
        given_length={**row.given_length, **added_given},
        trained=(*row.trained, *(name for name in published.trained if name in columns)),
    )


def parse_sets() -> list[RatedSet]:
    """Return the data sets of the table."""
    entries = read_table_file(METRICS_TABLE)["sets"]
    rows: list[dict[str, Any]] = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()} for row in entries
    ]
    return [RatedSet(**{"family": row["data"], **row}) for row in rows]


# Scores of the columns.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """The scores of each output by column, and by lexical metric; NaN for all where one metric has none."""

    values: Mapping[str, Floats]
    lexical: Mapping[str, Floats]
    trained: tuple[str, ...]


def _score_columns(rated: RatedSet, content: Mapping[str, Any], folder: DataFolder) -> _Columns:
    references: References = "all" if folder.has_field(rated.data, "references") else "source"
    values: dict[str, Floats] = {}
    trained = []
    for entry in content["computed"]["metrics"]:
        label, metric = entry["label"], entry.get("metric", entry["label"])
        name = metric.partition("(")[0]
        if name not in registry.names() or rated.task not in entry.get("tasks", [rated.task]):
            continue
        if entry.get("english") and not rated.english:
            continue
        scores = _combine(folder, rated, metric) if name == QUALITY else _score(folder, rated, metric, "all")
        if scores is not None:
            values[label] = scores
            if name == QUALITY:
                # The metrics of the table that learned from data of this family.
                learned = {
                    other.get("metric", other["label"]).partition("(")[0]
                    for other in content["metrics"]
                    if rated.family in other.get("trained", ())
                }
                mixtures = filter(None, _choose_mixtures(folder, rated, metric))
                has_learned = any(part.name in learned for mixture in mixtures for part in mixture.parts)
            else:
                has_learned = rated.family in entry.get("trained", ())
            if has_learned:
                trained.append(label)
    for entry in content["computed"]["baselines"]:
        # BERTScore's model knows only English.
        if (metric := resolve_metric(entry)) and (rated.english or "model" not in entry):
            scores = _score(folder, rated, metric, references)
            if scores is not None:
                values[entry["label"]] = np.nan_to_num(scores) if entry["metric"] == "copy_rate" else scores
    lexical = {
        name: scores for name in content["lexical"] if (scores := _score(folder, rated, name, references)) is not None
    }
    shared = np.logical_and.reduce([np.isfinite(column) for column in (*values.values(), *lexical.values())])
    return _Columns(
        values={name: np.where(shared, column, np.nan) for name, column in values.items()},
        lexical={name: np.where(shared, column, np.nan) for name, column in lexical.items()},
        trained=tuple(trained),
    )


def _score(folder: DataFolder, rated: RatedSet, metric: str, references: References) -> Floats | None:
    """The scores; None if the data lacks what the metric needs, or its weights are missing."""
    needs = registry.build(metric).needs
    # Descriptions and shipped metrics read the records as they are.
    used: References = references if "references" in needs else "all"
    if not all(folder.has_field(rated.data, need, used) for need in needs):
        return None
    try:
        return folder.column(rated.data, metric, references=used, every=rated.every, part=rated.part)
    except (ModelError, MissingExtra):
        return None


def _choose_mixtures(folder: DataFolder, rated: RatedSet, text: str) -> list[Mixture | None]:
    """The mixture of `quality` for each output; None if it is not in this set or has none."""
    metric = registry.build(text)
    assert isinstance(metric, Quality)
    records = {(r.item, r.system): r for r in folder.select(rated.data, "all", rated.every, rated.part)}
    outputs = list_outputs(folder.judged(rated.data))
    return [metric.choose(records[key]) if key in records else None for key in outputs]


def _combine(folder: DataFolder, rated: RatedSet, text: str) -> Floats | None:
    """`quality` from the scores of its parts, which are computed once; None if a part cannot be had."""
    mixtures = _choose_mixtures(folder, rated, text)
    columns: dict[str, Floats] = {}
    for part_text in dict.fromkeys(part.metric for mixture in mixtures if mixture for part in mixture.parts):
        scores = _score(folder, rated, part_text, "all")
        if scores is None:
            return None
        columns[part_text] = scores
    combined = np.full(len(mixtures), np.nan)
    for mixture in {id(mixture): mixture for mixture in mixtures if mixture}.values():
        own = np.array([other is mixture for other in mixtures])
        combined[own] = mixture.combine({part.metric: columns[part.metric][own] for part in mixture.parts})
    return combined if np.isfinite(combined).any() else None


# Figures with intervals.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """A figure on the whole data, and in each resample of items."""

    value: float
    draws: Floats

    def figure(self) -> AgreementFigure:
        finite = self.draws[np.isfinite(self.draws)]
        low, high = np.percentile(finite, [2.5, 97.5]) if len(finite) else (math.nan, math.nan)
        return AgreementFigure(self.value, float(low), float(high))


def average_statistics(statistics: Sequence[Statistic]) -> Statistic:
    return Statistic(
        value=float(np.mean([statistic.value for statistic in statistics])),
        draws=np.mean([statistic.draws for statistic in statistics], axis=0),
    )


def _compare(rated: RatedSet, content: Mapping[str, Any], folder: DataFolder) -> Iterator[DatasetAgreement]:
    judged, columns = folder.judged(rated.data), _score_columns(rated, content, folder)
    values = {**columns.values, **columns.lexical}
    for name, negated in _NEGATED.items():
        if name in values:
            values[negated] = -values[name]
    lengths = values[content["length"]]
    selected = select_outputs(judged, rated) & np.isfinite(lengths)
    if rated.measure == "accuracy":
        pairs = find_pairs(judged, selected)
        figures = {name: compare_pairs(pairs, scores, content["draws"]).figure() for name, scores in values.items()}
        given = {
            name: regress_pairs(pairs, scores, lengths, content["draws"]).figure() for name, scores in values.items()
        }
        yield _make_row(rated, columns, "", len(pairs.first), figures, given)
        return
    by_aspect: dict[str, dict[str, tuple[Statistic, Statistic]]] = {}
    counts: list[int] = []
    for aspect in rated.aspects or judged.ratings:
        gold = compute_gold(judged, aspect, "mean")
        outputs = np.flatnonzero(selected & np.isfinite(gold))
        counts.append(len(outputs))
        by_aspect[aspect] = {
            name: correlate(
                gold[outputs],
                scores[outputs],
                lengths[outputs],
                judged.items.codes[outputs],
                by_item=rated.group == "item",
                ranked=rated.measure != "pearson",
                draws=content["draws"],
            )
            for name, scores in values.items()
        }
    names = {"": list(by_aspect)} if not rated.each else {**{name: [name] for name in by_aspect}, "": list(by_aspect)}
    for aspect, averaged in names.items():
        label = aspect or (averaged[0] if len(averaged) == 1 else f"mean of {len(averaged)}")
        plain, given = {}, {}
        for name in values:
            own, own_given = zip(*(by_aspect[part][name] for part in averaged), strict=True)
            plain[name] = average_statistics(own).figure()
            given[name] = average_statistics(own_given).figure()
        if rated.measure == "acc_eq":
            plain = _measure_ties(judged, rated, averaged[0], values, content["draws"])
        yield _make_row(rated, columns, label, min(counts), plain, given, whole=not aspect)


def _make_row(
    rated: RatedSet,
    columns: _Columns,
    aspect: str,
    n: int,
    figures: dict[str, AgreementFigure],
    given: dict[str, AgreementFigure],
    *,
    whole: bool = True,
) -> DatasetAgreement:
    """Make a row; of the lexical metrics, keep the best."""
    best = max(columns.lexical, key=lambda name: figures[name].value, default="")
    given = {name: figure for name, figure in given.items() if name.lstrip(_MINUS) != "length"}
    by_item = rated.measure != "accuracy" and rated.group == "item"
    for table in (figures, given):
        if best:
            table[BEST_LEXICAL] = table[best]
        for name in columns.lexical:
            del table[name]
        for name in [name for name, figure in table.items() if math.isnan(figure.value)]:
            del table[name]
    return DatasetAgreement(
        data=rated.data,
        name=rated.name,
        task=rated.task,
        judged=rated.judged,
        aspect=aspect,
        measure=f"{rated.measure}, by item" if by_item else rated.measure,
        n=n,
        figures=figures,
        given_length=given,
        lexical=best.partition("(")[0],
        trained=columns.trained,
        whole=whole,
    )


def select_outputs(judged: JudgedDataset, rated: RatedSet) -> Mask:
    """Return which outputs belong to the set."""
    selected = np.ones(len(judged), dtype=bool)
    if rated.exclude:
        excluded = [code for code, name in enumerate(judged.systems.names) if name in rated.exclude]
        selected &= ~np.isin(judged.systems.codes, excluded)
    if rated.part:
        tasks = judged.column("task")
        own = [code for code, name in enumerate(tasks.names) if name.startswith(rated.part)]
        selected &= np.isin(tasks.codes, own)
    return selected


def _measure_ties(
    judged: JudgedDataset, rated: RatedSet, aspect: str, values: Mapping[str, Floats], draws: int
) -> dict[str, AgreementFigure]:
    scores = {name: MetricScores(name=name, values=column, higher_is_better=True) for name, column in values.items()}
    evaluation = meta_evaluate(
        replace(judged, scores=scores),
        aspect,
        "acc_eq",
        group=rated.group,
        exclude_systems=rated.exclude,
        draws=draws,
        test="none",
        metrics=list(values),
    )
    return {figure.metric: AgreementFigure(figure.value, figure.low, figure.high) for figure in evaluation.figures}


# Correlations, and partial ones given the length.


def correlate(
    gold: Floats, scores: Floats, lengths: Floats, items: Codes, *, by_item: bool, ranked: bool, draws: int
) -> tuple[Statistic, Statistic]:
    """Return the correlation of gold values and scores, and the partial one given lengths: Spearman's if `ranked`, else
    Pearson's; the mean over items, or over all outputs."""
    if by_item:
        order = np.argsort(items, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(items[order])) + 1)
        rows = [_correlate_three(gold[group], scores[group], lengths[group], ranked) for group in groups]
        first, second = np.array(rows).T
        return _average_items(first, draws), _average_items(second, draws)
    plain, partial = _correlate_three(gold, scores, lengths, ranked)
    # Resamples keep the ranks of all outputs, so that one product of matrices has all their sums.
    columns = np.stack([rank(column) if ranked else column for column in (gold, scores, lengths)])
    columns -= columns.mean(axis=1, keepdims=True)
    products = np.stack([columns[i] * columns[j] for i, j in _THREE])
    _, number = np.unique(items, return_inverse=True)
    counts = _draw_counts(int(number.max()) + 1, draws)[:, number]
    totals = counts.sum(axis=1, keepdims=True)
    means = counts @ columns.T / totals
    moments = counts @ products.T / totals - np.stack([means[:, i] * means[:, j] for i, j in _THREE], axis=1)
    variances, covariances = moments[:, :3], moments[:, 3:]
    with np.errstate(invalid="ignore", divide="ignore"):
        # Gold values with scores, gold values with lengths, scores with lengths.
        own, with_gold, with_scores = (covariances / np.sqrt(variances[:, [0, 0, 1]] * variances[:, [1, 2, 2]])).T
        rest = (own - with_gold * with_scores) / np.sqrt((1 - with_gold**2) * (1 - with_scores**2))
    return Statistic(value=plain, draws=own), Statistic(value=partial, draws=rest)


def _draw_counts(size: int, draws: int) -> Floats:
    """How often each of `size` items is drawn; a row per draw, the same for every metric."""
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), size=draws)
    return counts.astype(float)


def _average_items(figures: Floats, draws: int) -> Statistic:
    """The mean over items that have a figure, in all items and in resamples of them."""
    counts = _draw_counts(len(figures), draws)
    finite = np.isfinite(figures)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = counts @ np.where(finite, figures, 0.0) / (counts @ finite)
    return Statistic(value=float(figures[finite].mean()) if finite.any() else math.nan, draws=means)


def _correlate_three(gold: Floats, scores: Floats, lengths: Floats, ranked: bool) -> tuple[float, float]:
    """The correlation of gold values and scores, and the partial one given lengths; NaN if a side is constant."""
    if ranked:
        gold, scores, lengths = (rank(values) for values in (gold, scores, lengths))
    plain, with_gold, with_scores = _pearson(gold, scores), _pearson(gold, lengths), _pearson(scores, lengths)
    if math.isnan(with_gold) or math.isnan(with_scores):  # A constant length explains nothing.
        return plain, plain
    rest = (1 - with_gold**2) * (1 - with_scores**2)
    return plain, (plain - with_gold * with_scores) / math.sqrt(rest) if rest > _ROUNDING else math.nan


def _pearson(first: Floats, second: Floats) -> float:
    first, second = first - first.mean(), second - second.mean()
    product = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / product if product > _ROUNDING else math.nan


def rank(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(times) - (times - 1) / 2)[place]
    return ranks


# Pairs.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatedPairs:
    """Pairs of outputs of which people prefer the first."""

    first: Codes
    second: Codes
    items: Codes


def find_pairs(judged: JudgedDataset, selected: Mask) -> RatedPairs:
    """Return the pairs with a winner: those that raters compared, or two outputs of an item with different ratings."""
    if judged.preferences:
        pairs = vote(next(iter(judged.preferences.values())))
        first, second, lead = pairs.first, pairs.second, pairs.choice
    else:
        gold = compute_gold(judged, next(iter(judged.ratings)), "mean")
        order = np.argsort(judged.items.codes, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(judged.items.codes[order])) + 1)
        both = np.array([(group[i], group[j]) for group in groups for i in range(len(group)) for j in range(i)])
        first, second = both.T
        lead = gold[first] - gold[second]
    used = np.isfinite(lead) & (lead != 0) & selected[first] & selected[second]
    better, worse = np.where(lead > 0, first, second)[used], np.where(lead > 0, second, first)[used]
    return RatedPairs(first=better, second=worse, items=judged.items.codes[better])


def compare_pairs(pairs: RatedPairs, scores: Floats, draws: int) -> Statistic:
    """Return the share of pairs in which the first output has the higher score."""
    right = (scores[pairs.first] > scores[pairs.second]).astype(float)
    counts = _count_items(pairs, draws)
    return Statistic(value=float(right.mean()), draws=counts @ right / counts.sum(axis=1))


def regress_pairs(pairs: RatedPairs, scores: Floats, lengths: Floats, draws: int) -> Statistic:
    """Return the coefficient of the score difference in a logistic regression of people's choices on it and on the
    length difference, both divided by their standard deviations."""
    leads = np.stack([column[pairs.first] - column[pairs.second] for column in (scores, lengths)], axis=1)
    spreads = leads.std(axis=0)
    if spreads[0] <= _ROUNDING:
        return Statistic(value=math.nan, draws=np.full(1, math.nan))
    leads /= np.where(spreads > _ROUNDING, spreads, 1.0)
    # Each draw is fitted step by step: a fifth of the draws is enough for an interval.
    counts = _count_items(pairs, max(draws // 5, 1))
    value = float(fit_logistic(leads, np.ones(len(leads)))[0])
    return Statistic(value=value, draws=np.array([fit_logistic(leads, count)[0] for count in counts]))


def _count_items(pairs: RatedPairs, draws: int) -> Floats:
    """How often each pair is drawn if items are resampled; a row per draw."""
    _, number = np.unique(pairs.items, return_inverse=True)
    return _draw_counts(int(number.max()) + 1, draws)[:, number]


def fit_logistic(leads: Floats, weights: Floats) -> Floats:
    """Return the coefficients by Newton's method. Each lead is that of the preferred output, so there is no intercept;
    a weak prior keeps a perfect separation finite."""
    coefficients = np.zeros(leads.shape[1])
    for _ in range(25):
        probability = 1 / (1 + np.exp(-leads @ coefficients))
        gradient = leads.T @ (weights * (1 - probability)) - _PRIOR * coefficients
        curvature = (leads * (weights * probability * (1 - probability))[:, None]).T @ leads
        step = np.linalg.solve(curvature + _PRIOR * np.eye(len(coefficients)), gradient)
        coefficients += step
        if np.abs(step).max() < 1e-8:
            break
    return coefficients
