"""What `metrist annotate --next informative` saves. `python -m bench.active_annotation DATA [--write]`

DATA is a folder of rated sets. Raters are simulated: each draw shows the outputs of a set in an order and takes their
ratings from the set. Three ways are compared: random order and plain means; random order and means that use scores of
metrics; and the order by what ratings tell, with the same means. Intervals are those that `metrist annotate` shows.
`--write` writes the table into docs/research/active-annotation.md, which explains its columns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import metrist
from bench.document import write_section
from metrist.evaluate.meta.dataset import compute_gold
from metrist.evaluate.meta.join import join
from metrist.stats import Codes, Floats
from metrist.stats.survey import (
    Design,
    draw_priorities,
    estimate_means,
    predict_residuals,
    probabilities_before,
    standardize_columns,
    weigh_phases,
)
from metrist.web.annotation.estimates import FIRST_TASKS
from metrist.web.annotation.sampling import EVEN

#: File, aspect and metrics, those that the file has or else those to compute.
SETS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("wmt23.en-de", "mqm", ("BLEU-refA", "chrF-refA", "BERTscore-refA", "COMET-refA", "CometKiwi-src")),
    ("wmt22.en-de", "mqm", ("GEMBA-GPT4-DA-refA", "GEMBA-GPT4-SQM-refA", "GEMBA-GPT4-Stars-refA")),
    ("wmt22.zh-en", "mqm", ("GEMBA-GPT4-DA-refA", "GEMBA-GPT4-SQM-refA", "GEMBA-GPT4-Stars-refA")),
    ("summeval", "coherence", ("rougeL", "chrf", "bleu")),
    ("summeval", "consistency", ("rougeL", "chrf", "bleu")),
    ("hanna", "coherence", ("BLEU Ξ§", "chrF Ξ§", "METEOR Ξ§", "BERTScore F1 Ξε")),
    ("realsumm-scored", "litepyramid_recall", ("rouge_1_recall", "rouge_2_recall", "mover_score", "bert_recall_score")),
    ("openmeva-roc", "overall", ("chatgpt", "bartscore_cnn", "bertscore-f", "fwppl")),
    ("simplicity-da", "meaning", ("bleu", "sari", "bertscore_F1", "fkgl")),
)
PAIRED = ("wmt23.en-de", "wmt22.en-de", "hanna", "openmeva-roc")
COLUMNS = (
    *("ratings", "outputs or pairs", "systems", "plain"),
    *("scores, by width", "informative, by width", "scores, by error", "informative, by error"),
    *("coverage: plain", "scores", "informative", "bias", "by disagreement"),
)
HEAD = f"| {' | '.join(COLUMNS)} |"
RULE = f"|---{'|--:' * (len(COLUMNS) - 1)}|"
PAGE = Path("docs/research/active-annotation.md")
#: Ratings in random order to compare with; fewer if that is more than a third of the outputs.
RATINGS = 400
#: Of fewer systems, four times as many draws are made.
FEW_SYSTEMS = 10


@dataclass(frozen=True, kw_only=True)
class Population:
    """What raters may rate: outputs, or pairs. Each has a value, a rating or a choice from -1 to 1, and standard scores
    of metrics, of a pair their differences. Entries are what means are of: an output, or either side of a pair."""

    name: str
    values: Floats
    scores: Floats
    place: Codes
    system: Codes
    sign: Floats
    signed: bool = False

    @property
    def entry_values(self) -> Floats:
        values = self.values[self.place]
        return (1 + self.sign * values) / 2 if self.signed else values

    @property
    def entry_scores(self) -> Floats:
        return self.sign[:, None] * self.scores[self.place]


def read_outputs(folder: Path, name: str, aspect: str, metrics: Sequence[str]) -> tuple[Population, Codes]:
    """Read the rated outputs of a set, with their items, and score them where the set has no scores."""
    path = folder / f"{name}.jsonl.xz"
    dataset = join(path)
    if not dataset.scores:
        dataset = join([path, metrist.score(path, list(metrics))])
    values = compute_gold(dataset, aspect, "mean")
    rated = np.isfinite(values)
    scores = np.stack([dataset.scores[metric].values for metric in metrics], axis=1)[rated]
    outputs = Population(
        name=f"{name}, {aspect}",
        values=values[rated],
        scores=standardize_columns(scores),
        place=np.arange(len(scores)),
        system=np.unique(dataset.systems.codes[rated], return_inverse=True)[1],
        sign=np.ones(len(scores)),
    )
    return outputs, dataset.items.codes[rated]


def pair_outputs(outputs: Population, item: Codes) -> Population:
    """Return all pairs of outputs of an item; people choose the one that they rate higher."""
    order = np.argsort(item, kind="stable")
    sides: list[tuple[Codes, Codes]] = []
    for own in np.split(order, np.flatnonzero(np.diff(item[order])) + 1):
        one, other = np.triu_indices(len(own), 1)
        sides.append((own[one], own[other]))
    first, second = (np.concatenate(side) for side in zip(*sides, strict=True))
    return Population(
        name=f"{outputs.name}, pairs",
        values=np.sign(outputs.values[first] - outputs.values[second]),
        scores=standardize_columns(outputs.scores[first] - outputs.scores[second], signed=True),
        place=np.tile(np.arange(len(first)), 2),
        system=outputs.system[np.concatenate([first, second])],
        sign=np.repeat([1.0, -1.0], len(first)),
        signed=True,
    )


#: Positions of what is rated, with weights and variances, see `Design`.
Rated = tuple[Codes, Floats, Floats]


def order_plainly(population: Population, sizes: Sequence[int], rng: np.random.Generator) -> list[Rated]:
    """Return the first ones in random order, as many as each of `sizes` says."""
    order, found = rng.permutation(len(population.values)), []
    for size in sizes:
        (weight, variance), _ = weigh_phases(len(order), size, np.empty(0))
        found.append((order[:size], np.full(size, weight), np.full(size, variance)))
    return found


def order_by_information(population: Population, sizes: Sequence[int], rng: np.random.Generator) -> list[Rated]:
    """Return the same in the order by what ratings tell."""
    order, found = rng.permutation(len(population.values)), []
    first, rest = order[:FIRST_TASKS], order[FIRST_TASKS:]
    known = np.full(len(order), np.nan)
    known[first] = population.values[first]
    expected = predict_residuals(known, population.scores, signed=population.signed)[rest]
    priorities = draw_priorities(expected, rng)
    ranked = np.argsort(priorities)
    for size in sizes:
        chosen = ranked[: size - FIRST_TASKS]
        probability = probabilities_before(priorities[ranked[len(chosen)]], expected[chosen])
        phases = zip(*weigh_phases(len(order), len(first), probability), strict=True)
        weight, variance = (np.concatenate([np.full(len(first), own), others]) for own, others in phases)
        found.append((np.concatenate([first, rest[chosen]]), weight, variance))
    return found


def simulate(population: Population, draws: int) -> str:
    """Return a row of the table."""
    values, scores, system = population.entry_values, population.entry_scores, population.system
    counts = np.bincount(system)
    truth = np.bincount(system, values) / counts
    known = np.zeros((len(counts), scores.shape[1]))
    np.add.at(known, system, scores)
    known /= counts[:, None]
    last = min(RATINGS, len(population.values) // 3)
    sizes = sorted({last, *np.linspace(FIRST_TASKS + 10, 1.3 * last, 9).astype(int).tolist()})
    at_last = sizes.index(last)
    # Of few systems, each draw tells less of the error.
    draws *= 4 if len(counts) < FEW_SYSTEMS else 1
    # For each way, number of ratings, draw and system: low, value and high.
    means = np.full((3, len(sizes), draws, 3, len(counts)), np.nan)
    rng = np.random.default_rng(0)
    for draw in range(draws):
        plain, informed = order_plainly(population, sizes, rng), order_by_information(population, sizes, rng)
        for way, (samples, used) in enumerate(((plain, 0), (plain, scores.shape[1]), (informed, scores.shape[1]))):
            for number, (rated, weight, variance) in enumerate(samples):
                place_of = np.full(len(population.values), -1)
                place_of[rated] = np.arange(len(rated))
                at = np.flatnonzero(place_of[population.place] >= 0)
                own = place_of[population.place[at]]
                design = Design.of(weight[own], variance[own], np.ones(len(at)))
                found = estimate_means(values[at], system[at], design, scores[at, :used], known[:, :used])
                means[way, number, draw] = found.low, found.value, found.high
    low, value, high = np.moveaxis(means, 3, 0)
    width = np.nanmean(high - low, axis=(2, 3))
    error = np.sqrt(np.nanmean((value - truth) ** 2, axis=(2, 3)))
    covered = ((low <= truth) & (truth <= high))[:, at_last].mean(axis=(1, 2))
    errors = value[2, at_last] - truth
    bias = np.abs(errors.mean(axis=0)) / np.sqrt((errors**2).mean(axis=0))
    cells = [population.name, f"{len(population.values):,}", f"{len(counts)}", f"{last}"]
    cells += [find_size(sizes, figures[way], figures[0, at_last]) for figures in (width, error) for way in (1, 2)]
    cells += [f"{share:.3f}" for share in covered]
    cells += [f"{bias.max():.2f}", f"{weigh_disagreement(population):.2f}"]
    return f"| {' | '.join(cells)} |"


def weigh_disagreement(population: Population) -> float:
    """Return how many ratings it takes, as a share of those in random order, to choose outputs by the disagreement of
    metrics, the standard deviation of their standard scores: the ratio of the variances of a mean of residuals, if few
    of many outputs are rated (Cochran, Sampling Techniques, 1977, section 9A.3)."""
    system, scores = population.system, population.entry_scores
    columns = np.column_stack([population.entry_values, scores])
    sums = np.zeros((system.max() + 1, columns.shape[1]))
    np.add.at(sums, system, columns)
    centred = columns - (sums / np.bincount(system)[:, None])[system]
    slopes = np.linalg.lstsq(centred[:, 1:], centred[:, 0], rcond=None)[0]
    squares = (centred[:, 0] - centred[:, 1:] @ slopes) ** 2
    disagreement = scores.std(axis=1)
    sizes = EVEN + (1 - EVEN) * disagreement / disagreement.mean()
    return float((squares / sizes).mean() * sizes.mean() / squares.mean())


def find_size(sizes: Sequence[int], figures: Floats, wanted: float) -> str:
    """Return the number of ratings with which a figure that falls comes down to another one, between those tried."""
    found = np.exp(np.interp(-math.log(wanted), -np.log(figures), np.log(sizes)))
    return f"{found:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--only", default="", help="a part of the set's name")
    parser.add_argument("--write", action="store_true", help="write the table into its page")
    arguments = parser.parse_args()
    lines = [HEAD, RULE]
    print("\n".join(lines))
    for name, aspect, metrics in SETS:
        if arguments.only in name:
            outputs, item = read_outputs(arguments.data, name, aspect, metrics)
            for population in (outputs, pair_outputs(outputs, item)) if name in PAIRED else (outputs,):
                lines.append(simulate(population, arguments.draws))
                print(lines[-1], flush=True)
    if arguments.write:
        write_section("active-annotation", "\n".join(lines), PAGE)


if __name__ == "__main__":
    main()
