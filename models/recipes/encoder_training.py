"""Train the heads of a text encoder by a table of a TOML recipe, with `metrist.train.encoder`.

    python encoder_training.py RECIPE.toml NAME WORK [--small]

The table [encoder.NAME] has the `base` and `out` folders and the files of `rows`, all below WORK, the `length` of a
sequence, `weights` of tasks, a `recipe` as in `metrist.train.recipe`, and the settings of an `EncoderTask`. --small
takes a few rows and steps. Each file of rows is a group of examples; balance 0 draws as many of each.

A file has lines of JSON with `split` (train or dev) and

    support      passage, sentences [[text, label, weight, errors or null, unsure], ...]   `english_support.py`
    preference   good, bad, instruction, certainty                                         `preference_pairs.py english`
    fluency      text and label, better and worse, or text and spans                        `fluency_data.py`
    translation  source, references, outputs, pairs                                         `translation_data.py`
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sets import hash_share, read_arguments, read_lines

from metrist.models.devices import Options
from metrist.models.loading import load_text_encoder
from metrist.models.reward_layout import RewardInput, RewardLayout, build_rows, read_frame, token_encoder
from metrist.models.text_encoder import EncodedText, TextEncoder
from metrist.train.encoder import VALUE, EncoderExample, EncoderTask
from metrist.train.fit import fit
from metrist.train.recipe import Recipe
from metrist.train.task import Evaluation, TrainingProgress

Ids = NDArray[np.int32]
Row = dict[str, Any]
#: Tokens of a sentence, of a text, and of a side of a translation.
_SENTENCE, _TEXT, _SIDE = 120, 250, 160
#: Tokens from this one on tell texts apart; the ones before are marks, letters and small words of BERT's vocabulary.
_RARE = 2_100
#: Weights: of all tags of a text; of an order by made faults; of matched tokens.
_TAGS, _MADE, _MATCHES = 0.5, 0.3, 0.5
#: Outputs of a source that are read at once.
_MOST_OUTPUTS = 12
_SMALL_ROWS = 8


@dataclass
class Reader:
    """Lays out rows for an encoder; `heads` maps each head to the number of its first output."""

    encoder: TextEncoder
    heads: Mapping[str, int]
    length: int
    #: Weights of the tasks' losses.
    weights: Mapping[str, float] = field(default_factory=dict)

    def read(self, paths: Sequence[Path], split: str, most: int | None = None) -> list[EncoderExample]:
        """Read the rows of a split, at most so many of a file; those without tokens are left out."""
        examples = []
        for path in paths:
            rows = [row for row in read_lines(path) if row.get("split") == split][:most]
            made = (self.lay_out(row, path.name) for row in rows)
            examples += [
                example for example in made if example.sequences and all(len(s[0]) > 2 for s in example.sequences)
            ]
        return examples

    def lay_out(self, row: Row, group: str) -> EncoderExample:
        kinds: dict[str, Callable[[Row, EncoderExample], None]] = {
            "passage": self._add_support, "good": self._add_preference, "outputs": self._add_translation,
        }  # fmt: skip
        add = next((add for key, add in kinds.items() if key in row), self._add_fluency)
        example = EncoderExample(group)
        add(row, example)
        return example

    def _encode(self, text: str) -> EncodedText:
        return self.encoder.encode([text])[0]

    # ---- Support: `[CLS] sentences [SEP] window of the source [SEP]`

    def _add_support(self, row: Row, example: EncoderExample) -> None:
        parts: list[tuple[EncodedText, Any]] = []
        size = 0
        for sentence in row["sentences"]:
            tokens = self._encode(sentence[0])
            ids = tokens.ids[:_SENTENCE]
            if len(ids) and (not parts or size + len(ids) <= self.length // 2):
                parts.append((EncodedText(ids, tokens.offsets[: len(ids)]), sentence[1:]))
                size += len(ids)
        if not parts:
            return
        own = np.concatenate([tokens.ids for tokens, _ in parts])
        window = choose_window(self._encode(row["passage"]).ids, own, self.length - len(own) - 3)
        sequence, at = self.encoder.join(own, window), 1
        for tokens, (label, weight, errors, unsure) in parts:
            span = (at, at + len(tokens.ids))
            share = weight * self.weights.get("support", 1.0) / len(parts)
            example.add_unit(sequence, span, self.heads["support"], label, share)
            if "errors" in self.heads and errors is not None:
                marks = mark_tokens(tokens, errors) * ~mark_tokens(tokens, unsure)
                known = np.flatnonzero(~mark_tokens(tokens, unsure)).tolist()
                example.add_tokens(((at + place, self.heads["errors"], float(marks[place])) for place in known), 1.0)
            at = span[1]

    # ---- Preference: as `metrist.models.reward_layout` builds it

    def _add_preference(self, row: Row, example: EncoderExample) -> None:
        tokenizer = self.encoder.tokenizer
        layout = RewardLayout(max_length=self.length, keep="both")
        inputs = [RewardInput(row["instruction"], tuple(map(tuple, row[side]))) for side in ("good", "bad")]
        rows = build_rows(token_encoder(tokenizer), read_frame(tokenizer), layout, inputs)
        units = [
            example.add_unit((ids, len(ids)), (start, len(ids)), self.heads["preference"])
            for ids, start in zip(rows.ids, rows.starts, strict=True)
        ]
        weight = self.weights.get("preference", 1.0)
        example.pairs.append((units[0], units[1], row.get("certainty", 1.0), weight))

    # ---- Fluency: `[CLS] text [SEP]`

    def _add_fluency(self, row: Row, example: EncoderExample) -> None:
        texts = [row["better"], row["worse"]] if "better" in row else [row["text"]]
        weight = self.weights.get("fluency", 1.0)
        units = []
        for text in texts:
            tokens = self._encode(text)
            ids = tokens.ids[:_TEXT]
            own = weight * row.get("weight", 1.0) if "label" in row else 0.0
            span = (1, 1 + len(ids))
            units.append(
                example.add_unit(self.encoder.join(ids), span, self.heads["fluency"], row.get("label", 0.0), own)
            )
            if "spans" in row:
                marks = mark_tokens(EncodedText(ids, tokens.offsets[: len(ids)]), row["spans"])
                example.add_tokens(
                    ((1 + at, self.heads["tags"], float(mark)) for at, mark in enumerate(marks)), _TAGS * weight
                )
        if len(units) > 1:
            example.pairs.append((units[0], units[1], 1.0, weight))

    # ---- Translations: `[CLS] output [SEP] reference [SEP] source [SEP]`, without the reference or without the source

    def _add_translation(self, row: Row, example: EncoderExample) -> None:
        quality = self.heads["translation"]
        chance = hash_share(row["source"])
        references = [self._encode(text).ids[:_SIDE] for text in row["references"][:1]]
        source = self._encode(row["source"]).ids[:_SIDE]
        sides = [*(references if chance < 0.5 else []), *([] if references and 0.36 <= chance < 0.5 else [source])]
        separator = np.array([self.encoder.sizes.end_token], np.int32)
        second = np.concatenate([part for side in sides for part in (side, separator)][:-1])
        others = [self.encoder.join(side) for side in (*references, source)]
        example.alone += others
        outputs = row["outputs"][:_MOST_OUTPUTS]
        for output in outputs:
            tokens = self._encode(output["text"])
            ids = tokens.ids[:_SIDE]
            sequence, rating = self.encoder.join(ids, second), output.get("value")
            weight = (0.0 if rating is None else 1.0) * self.weights.get("rating", 1.0) / len(outputs)
            span = (1, 1 + len(ids))
            example.add_unit(sequence, span, quality, rating or 0.0, weight, VALUE)
            example.add_unit(sequence, span, quality + 1)
            if output.get("spans") is not None:
                for number, least in ((2, 1), (3, 2)):
                    spans = [(start, end) for start, end, severity in output["spans"] if severity >= least]
                    marks = mark_tokens(EncodedText(ids, tokens.offsets[: len(ids)]), spans)
                    labels = ((1 + at, quality + number, float(mark)) for at, mark in enumerate(marks))
                    example.add_tokens(labels, self.weights.get("tags", 0.4) / len(outputs))
            example.alone.append(self.encoder.join(ids))
            example.matches += [(len(example.alone) - 1, other) for other in range(len(others))]
        self._order_outputs(row, len(outputs), len(others), example)

    def _order_outputs(self, row: Row, count: int, others: int, example: EncoderExample) -> None:
        """Order the outputs of a source by people's pairs or by their ranks; what was damaged is worse than before."""
        outputs = row["outputs"]
        ranks = [output.get("rank") for output in outputs[:count]]
        pairs = [(better, worse, 1.0) for better, worse in row.get("pairs") or () if max(better, worse) < count]
        for first, second in combinations([at for at in range(count) if ranks[at] is not None], 2):
            lead = ranks[first] - ranks[second]
            if abs(lead) > 0.05:
                pairs.append((*((first, second) if lead > 0 else (second, first)), min(abs(lead), 2.0)))
        total = sum(weight for *_, weight in pairs) or 1.0
        pairs = [(better, worse, weight / total) for better, worse, weight in pairs]
        made = [(output["parent"], at) for at, output in enumerate(outputs[:count]) if output.get("parent") is not None]
        pairs += [(parent, at, _MADE / len(made)) for parent, at in made]
        for better, worse, weight in pairs:
            example.pairs.append((2 * better + 1, 2 * worse + 1, 1.0, weight))
            example.matched += [
                (better * others + other, worse * others + other, _MATCHES * weight / others) for other in range(others)
            ]


def mark_tokens(tokens: EncodedText, spans: Iterable[Sequence[int]]) -> NDArray[np.bool_]:
    """Return which tokens overlap with spans of characters; an empty span marks the token that it touches."""
    starts, ends = tokens.offsets.T if len(tokens.offsets) else (np.zeros(0), np.zeros(0))
    marks = np.zeros(len(tokens.ids), bool)
    for first, last in spans:
        marks |= (starts < last) & (ends > first) if first < last else (starts <= first) & (first <= ends)
    return marks


def choose_window(passage: Ids, sentences: Ids, room: int) -> Ids:
    """Return the window of a passage that has most of the sentences' rarer tokens."""
    if len(passage) <= room:
        return passage
    sums = np.concatenate(([0], np.cumsum(np.isin(passage, sentences) & (passage > _RARE))))
    starts = np.arange(0, len(passage) - room + 1, 16)
    best = int(starts[int(np.argmax(sums[starts + room] - sums[starts]))])
    return passage[best : best + room]


# ---- Training


class PrintCallback:
    def on_progress(self, progress: TrainingProgress) -> None:
        if progress.step % 100 == 0:
            print(f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.4f}", flush=True)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        print(f"step {evaluation.step:,}: {name} {evaluation.figure:.4f}", flush=True)

    def on_message(self, text: str) -> None:
        print(text, flush=True)


def make_task(settings: Mapping[str, Any], work: Path, *, small: bool) -> EncoderTask:
    facts = dict(settings)
    base, out = (work / facts.pop(name) for name in ("base", "out"))
    recipe, paths = facts.pop("recipe"), [work / name for name in facts.pop("rows")]
    starts = np.cumsum([0, *facts["heads"].values()]).tolist()
    heads = dict(zip(facts["heads"], starts, strict=False))
    reader = Reader(load_text_encoder(str(base)), heads, facts.pop("length", 512), facts.pop("weights", {}))
    most = _SMALL_ROWS if small else None
    recipe |= {"epochs": 1, "batch": _SMALL_ROWS} if small else {}
    train, dev = (reader.read(paths, split, most) for split in ("train", "dev"))
    return EncoderTask(base=Options(model=str(base)), out=out, train=train, dev=dev, recipe=Recipe(**recipe), **facts)


def main() -> None:
    arguments = read_arguments(__doc__, "recipe", "name", "work", small=False)
    settings = tomllib.loads(arguments.recipe.read_text(encoding="utf-8"))["encoder"][str(arguments.name)]
    fit(make_task(settings, arguments.work, small=arguments.small), PrintCallback())
    print(f"wrote {arguments.work / settings['out']}")


if __name__ == "__main__":
    main()
