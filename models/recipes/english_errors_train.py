"""Add the head `errors` to a trained English encoder, and keep its other heads as they are.

    python english_errors_train.py BASE.pt PACK OUT.pt --seconds 600

BASE.pt comes from `english_model.py export`, the files in PACK from `english_errors_pack.py`. Each step reads rows of
all heads. The rows of `support` teach the new head, token by token; on all rows a frozen copy of the base teaches the
old heads their own outputs. The learning rate falls to 0 with the seconds. From --round-from of the training on,
weights and rows are rounded as in the exported model. The last report compares old and new outputs on the rows of
development.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from english_model import GTE, HEADS, Bits, Encoder, Packed, load_encoder, prefetch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

ALL_HEADS = (*HEADS, "errors")
TASKS = ("support", "preference", "fluency")
_ERRORS, _TAGS = ALL_HEADS.index("errors"), ALL_HEADS.index("tags")
_WARMUP_STEPS = 100
#: Sets whose errors people marked, and how often their rows are read while others are read once.
HUMAN = ("bump", "summedits", "wice-tokens", "qa-feedback")
#: Weights: of a token that is an error, of "some token is an error", of single tokens when old heads are kept.
_ERROR_WEIGHT, _ANY_WEIGHT, _TOKEN_WEIGHT = 2.0, 0.15, 0.3


class Batch(NamedTuple):
    rows: Packed
    #: For each token its label (-1: none), and the old head whose output it helps to keep (-1: none).
    labels: Tensor
    kept: Tensor
    #: The tokens of all units, the unit of each, and length, head, label, "any" and pair of each unit.
    unit_tokens: Tensor
    unit_of_token: Tensor
    unit_lengths: Tensor
    unit_heads: Tensor
    unit_labels: Tensor
    unit_any: Tensor


class Part:
    """The rows of one task, for training or for development."""

    def __init__(self, arrays: dict[str, NDArray[Any]], task: str) -> None:
        self.task = task
        self.ids, self.labels = arrays["ids"], arrays["labels"]
        self.lengths = arrays["lengths"].astype(np.int64)
        self.firsts = arrays["firsts"].astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.lengths)))
        self.names = [str(name) for name in arrays["names"]]
        self.sets = arrays["sets"]
        # Units are sorted by row.
        rows = arrays["unit_rows"]
        order = np.argsort(rows, kind="stable")
        self.order = order
        self.units = {name: arrays[f"unit_{name}"][order] for name in ("starts", "ends", "heads", "labels", "any")}
        self.unit_rows = rows[order]
        self.first_unit = np.searchsorted(self.unit_rows, np.arange(len(self.lengths) + 1))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        worse = arrays["unit_worse"].astype(np.int64)
        self.worse = np.where(worse >= 0, place[np.maximum(worse, 0)], -1)[order]

    def hide_labels(self, keep: tuple[str, ...]) -> None:
        """Drop the labels of tokens in all sets but some."""
        chosen = np.isin(self.sets, [number for number, name in enumerate(self.names) if name in keep])
        self.labels = np.where(np.repeat(chosen, self.lengths), self.labels, np.int8(-1))


def _ranges(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers of all ranges, one range after the other."""
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths).astype(np.int64) + offsets


def build_batch(chosen: list[tuple[Part, NDArray[np.int64]]]) -> Batch:
    """Pack rows of several tasks."""
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    size = count = 0
    for part, rows in chosen:
        lengths = part.lengths[rows]
        tokens = _ranges(part.starts[rows], lengths)
        places = _ranges(np.zeros(len(rows), np.int64), lengths)
        begins = size + np.cumsum(lengths) - lengths
        units = _ranges(part.first_unit[rows], part.first_unit[rows + 1] - part.first_unit[rows])
        owners = np.repeat(np.arange(len(rows)), part.first_unit[rows + 1] - part.first_unit[rows])
        unit_lengths = (part.units["ends"][units] - part.units["starts"][units]).astype(np.int64)
        unit_tokens = _ranges(begins[owners] + part.units["starts"][units], unit_lengths)
        head = part.units["heads"][units].astype(np.int64)
        kept = np.full(int(lengths.sum()), -1, np.int64)
        # The rows of `fluency` serve `tags` too: that head is kept on single tokens only.
        kept[unit_tokens - size] = _TAGS if part.task == "fluency" else np.repeat(head, unit_lengths)
        labels = part.labels[tokens] if part.task == "support" else np.full(len(tokens), -1, np.int8)
        for name, column in (
            ("ids", part.ids[tokens]), ("types", places >= np.repeat(part.firsts[rows], lengths)), ("places", places),
            ("lengths", lengths), ("labels", labels), ("kept", kept), ("unit_tokens", unit_tokens),
            ("unit_of_token", np.repeat(count + np.arange(len(units)), unit_lengths)), ("unit_lengths", unit_lengths),
            ("unit_heads", head), ("unit_labels", part.units["labels"][units]), ("unit_any", part.units["any"][units]),
        ):  # fmt: skip
            columns[name].append(column)
        size += int(lengths.sum())
        count += len(units)
    data = {name: np.concatenate(parts) for name, parts in columns.items()}
    lengths = data["lengths"]

    def as_tensor(name: str, kind: Any) -> Tensor:
        return torch.from_numpy(data[name].astype(kind))

    packed = Packed(
        as_tensor("ids", np.int64), as_tensor("types", np.int64), as_tensor("places", np.int64),
        torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)), int(lengths.max()),
    )  # fmt: skip
    return Batch(
        packed, as_tensor("labels", np.int64), as_tensor("kept", np.int64), as_tensor("unit_tokens", np.int64),
        as_tensor("unit_of_token", np.int64), as_tensor("unit_lengths", np.float32),
        as_tensor("unit_heads", np.int64), as_tensor("unit_labels", np.float32), as_tensor("unit_any", bool),
    )  # fmt: skip


def to_device(batch: Batch, device: str) -> Batch:
    if device == "cpu":
        return batch

    def move(value: Any) -> Any:
        return value.pin_memory().to(device, non_blocking=True) if isinstance(value, Tensor) else value

    return Batch(Packed(*map(move, batch.rows)), *map(move, batch[1:]))


def draw_batches(
    parts: dict[str, Part], shares: dict[str, float], tokens: int, repeats: int, seed: int
) -> Iterator[Batch]:
    """Yield batches of about so many tokens, with rows of all tasks, without end."""
    rng = np.random.default_rng(seed)

    def draw(part: Part) -> Iterator[int]:
        human = np.isin(part.sets, [number for number, name in enumerate(part.names) if name in HUMAN])
        rows = np.repeat(np.arange(len(part.lengths)), np.where(human, repeats, 1))
        while True:
            yield from rng.permutation(rows).tolist()

    streams = {task: draw(parts[task]) for task in shares}
    excess = dict.fromkeys(shares, 0.0)
    while True:
        chosen = []
        for task, share in shares.items():
            part, room, rows = parts[task], tokens * share - excess[task], []
            while room > 0:
                rows.append(next(streams[task]))
                room -= int(part.lengths[rows[-1]])
            excess[task] = -room
            if rows:
                chosen.append((part, np.array(rows)))
        yield build_batch(chosen)


# ---- Training


def compute_outputs(model: Encoder, batch: Batch, device: str) -> tuple[Tensor, Tensor]:
    """Return the outputs of all heads on all tokens, and each unit's output of its own head."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        states = model(batch.rows)
    known = [name for name in ALL_HEADS if name in model.heads]
    matrix = torch.cat([model.heads[name].weight for name in known])
    bias = torch.cat([model.heads[name].bias for name in known])
    outputs = states.float() @ matrix.T + bias
    heads = batch.unit_heads[batch.unit_of_token]
    values = outputs[batch.unit_tokens, heads]
    sums = torch.zeros(len(batch.unit_lengths), device=values.device).index_add(0, batch.unit_of_token, values)
    return outputs, sums / batch.unit_lengths


def compute_losses(
    outputs: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], scales: Tensor, batch: Batch
) -> dict[str, Tensor]:
    tokens, units = outputs
    old_tokens, old_units = old
    losses = {}
    # The new head.
    labelled = batch.labels >= 0
    labels = batch.labels.clamp_min(0).float()
    weights = labelled * (1 + (_ERROR_WEIGHT - 1) * labels)
    each = binary_cross_entropy_with_logits(tokens[:, _ERRORS], labels, reduction="none")
    losses["errors"] = (each * weights).sum() / weights.sum().clamp_min(1)
    highest = torch.full_like(units, -30.0).scatter_reduce(
        0, batch.unit_of_token, tokens[batch.unit_tokens, _ERRORS], "amax"
    )
    some = batch.unit_any.float()
    each = binary_cross_entropy_with_logits(highest, torch.ones_like(highest), reduction="none")
    losses["any"] = (each * some).sum() / some.sum().clamp_min(1)
    # The old ones, in units of their standard deviations.
    difference = smooth_l1_loss(
        units / scales[batch.unit_heads], old_units / scales[batch.unit_heads], reduction="none"
    )
    for number, name in enumerate(HEADS):
        if name == "tags":
            continue
        own = (batch.unit_heads == number).float()
        losses[f"keep {name}"] = (difference * own).sum() / own.sum().clamp_min(1)
    kept = batch.kept.clamp_min(0)[:, None]
    scale = scales[kept[:, 0]]
    each = smooth_l1_loss(
        tokens.gather(1, kept)[:, 0] / scale, old_tokens.gather(1, kept)[:, 0] / scale, reduction="none"
    )
    is_tags = (batch.kept == _TAGS).float()
    losses["keep tags"] = (each * is_tags).sum() / is_tags.sum().clamp_min(1)
    others = ((batch.kept >= 0) & (batch.kept != _TAGS)).float()
    losses["keep tokens"] = (each * others).sum() / others.sum().clamp_min(1)
    # Labels of people and of made faults.
    support = ((batch.unit_heads == 0) & ~batch.unit_labels.isnan()).float()
    each = binary_cross_entropy_with_logits(units, batch.unit_labels.nan_to_num(), reduction="none")
    losses["support"] = (each * support).sum() / support.sum().clamp_min(1)
    return losses


@torch.no_grad()
def measure_scales(teacher: Encoder, batches: list[Batch], device: str) -> Tensor:
    """Return the standard deviation of each old head's outputs."""
    values: dict[int, list[Tensor]] = defaultdict(list)
    for batch in batches:
        tokens, units = compute_outputs(teacher, batch, device)
        for number, name in enumerate(HEADS):
            own = tokens[batch.kept == _TAGS, _TAGS] if name == "tags" else units[batch.unit_heads == number]
            values[number].append(own)
    return torch.stack([torch.cat(values[number]).std() for number in range(len(HEADS))])


def area(scores: NDArray[Any], labels: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve; NaN if all labels are on one side."""
    from scipy.stats import rankdata

    count, rest = int(labels.sum()), int((~labels).sum())
    if not count or not rest:
        return float("nan")
    return float((rankdata(scores)[labels].sum() - count * (count + 1) / 2) / (count * rest))


@torch.no_grad()
def score_part(model: Encoder, part: Part, device: str, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the outputs of all heads on all tokens of some rows, and of their units."""
    tokens, units = [], []
    start = 0
    while start < len(rows):
        sizes = np.cumsum(part.lengths[rows[start:]])
        end = start + max(1, int(np.searchsorted(sizes, 65_536)))
        batch = to_device(build_batch([(part, rows[start:end])]), device)
        token, unit = compute_outputs(model, batch, device)
        tokens.append(token.cpu().numpy())
        units.append(unit.cpu().numpy())
        start = end
    return np.concatenate(tokens), np.concatenate(units)


def report(model: Encoder, teacher: Encoder, parts: dict[str, Part], device: str, most: int, out: Path) -> None:
    """Print the areas of the new head by set, and those of old heads before and after."""
    saved: dict[str, NDArray[Any]] = {}
    for task, part in parts.items():
        human = np.isin(part.sets, [number for number, name in enumerate(part.names) if name in HUMAN])
        others = np.flatnonzero(~human)
        if len(others) > most:
            # Pairs stand side by side.
            others = np.sort(np.random.default_rng(0).choice(len(others) // 2, most // 2, replace=False))
            others = np.flatnonzero(~human)[np.stack((2 * others, 2 * others + 1), 1).ravel()]
        rows = np.sort(np.concatenate((np.flatnonzero(human), others)))
        tokens, units = score_part(model, part, device, rows)
        old_tokens, old_units = score_part(teacher, part, device, rows)
        counts = part.first_unit[rows + 1] - part.first_unit[rows]
        chosen = _ranges(part.first_unit[rows], counts)
        labels = part.units["labels"][chosen]
        sets = np.repeat(part.sets[rows], counts)
        token_labels = part.labels[_ranges(part.starts[rows], part.lengths[rows])]
        token_sets = np.repeat(part.sets[rows], part.lengths[rows])
        print(f"{task}: correlation of units with the old outputs {np.corrcoef(units, old_units)[0, 1]:.4f}")
        figures: dict[str, tuple[float, ...]] = {}
        place = np.full(len(part.unit_rows), -1)
        place[chosen] = np.arange(len(chosen))
        worse = np.where(part.worse[chosen] >= 0, place[part.worse[chosen]], -1)
        for number, name in enumerate(part.names):
            own = (sets == number) & ~np.isnan(labels)
            if own.any():
                figures[name] = tuple(area(values[own], labels[own] > 0.5) for values in (old_units, units))
            pairs = (sets == number) & (worse >= 0)
            if pairs.any():
                figures[name] = tuple(
                    float((values[pairs] > values[worse[pairs]]).mean()) for values in (old_units, units)
                )
        means = np.nanmean(np.array(list(figures.values())), 0)
        print(f"{task}: mean of {len(figures)} sets {means[0]:.4f} -> {means[1]:.4f}")
        print({name: tuple(round(value, 3) for value in pair) for name, pair in figures.items()}, flush=True)
        known, head = token_labels >= 0, _ERRORS if task == "support" else _TAGS
        if known.any():
            columns = {}
            for number, name in enumerate(part.names):
                own = known & (token_sets == number)
                columns[name] = area(tokens[own, head], token_labels[own] > 0)
            name = ALL_HEADS[head]
            print(f"{name}, tokens: all {area(tokens[known, head], token_labels[known] > 0):.4f}")
            print({name: round(value, 3) for name, value in columns.items()}, flush=True)
        if task == "fluency":
            before = area(old_tokens[known, _TAGS], token_labels[known] > 0)
            both = np.corrcoef(old_tokens[known, _TAGS], tokens[known, _TAGS])[0, 1]
            print(f"tags before {before:.4f}, correlation {both:.4f}")
        if task == "support":
            saved = {"rows": rows, "errors": tokens[:, _ERRORS].astype(np.float16), "units": units.astype(np.float16)}
            for name in HUMAN:
                own = known & (token_sets == part.names.index(name)) if name in part.names else known & False
                if own.any():
                    print(f"{name}: token F1 {best_f1(tokens[own, _ERRORS], token_labels[own] > 0)}")
    np.savez_compressed(out.with_suffix(".dev.npz"), **saved)


def best_f1(scores: NDArray[Any], labels: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the highest F1 of all thresholds, and the threshold."""
    order = np.argsort(-scores)
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + labels.sum())
    best = int(np.argmax(f1))
    return round(float(f1[best]), 4), round(float(scores[order[best]]), 3)


def train(arguments: argparse.Namespace) -> None:
    begin = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    stored = {name: array for path in sorted(arguments.pack.glob("*.npz")) for name, array in np.load(path).items()}
    parts = {
        side: {
            task: Part({n.split(".", 2)[2]: a for n, a in stored.items() if n.startswith(f"{side}.{task}.")}, task)
            for task in TASKS
        }
        for side in ("train", "dev")
    }
    if arguments.human_only:
        parts["train"]["support"].hide_labels(HUMAN)
    model = load_encoder(GTE, arguments.base, 8, ALL_HEADS).to(device)
    teacher = load_encoder(GTE, arguments.base, 8, HEADS).to(device).eval().requires_grad_(False)
    shares = dict(zip(TASKS, map(float, arguments.shares.split(",")), strict=True))
    stream = draw_batches(parts["train"], shares, arguments.batch, arguments.repeats, arguments.seed)
    batches = prefetch(to_device(batch, device) for batch in stream)
    scales = measure_scales(teacher, [next(batches) for _ in range(4)], device)
    print(
        f"read in {time.time() - begin:.0f} s; standard deviations {[round(x, 3) for x in scales.tolist()]}", flush=True
    )
    decayed = [array for name, array in model.named_parameters() if array.ndim > 1 and not name.startswith("words")]
    rest = [array for name, array in model.named_parameters() if array.ndim <= 1 or name.startswith("words")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.98), fused=device == "cuda")
    weights = {
        "errors": arguments.error_weight, "any": _ANY_WEIGHT * arguments.error_weight,
        "keep support": arguments.keep, "keep preference": arguments.keep, "keep fluency": arguments.keep,
        "keep tags": 0.5 * arguments.keep, "keep tokens": _TOKEN_WEIGHT * arguments.keep, "support": arguments.labels,
    }  # fmt: skip
    start, tokens, step, skipped, rounds, half = time.time(), 0, 0, 0, False, False
    sums: dict[str, list[Tensor]] = defaultdict(list)
    model.train()
    while (share := (time.time() - start) / arguments.seconds) < 1 and step < arguments.steps:
        if share >= arguments.round_from and not rounds:
            model.start_rounding(Bits(matrices=arguments.bits, words=arguments.word_bits))
            rounds = True
        if share >= 0.8 and not half:
            torch.save(model.collect_state(), arguments.out)
            half = True
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - share)
        batch = next(batches)
        with torch.no_grad():
            old = compute_outputs(teacher, batch, device)
        losses = compute_losses(compute_outputs(model, batch, device), old, scales, batch)
        sum(losses[name] * weight for name, weight in weights.items() if weight).backward()
        if torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        else:
            skipped += 1
        optimizer.zero_grad(set_to_none=True)
        for name, loss in losses.items():
            sums[name].append(loss.detach())
        tokens += len(batch.labels)
        step += 1
        if step % arguments.every == 0:
            figures = {name: round(torch.stack(values).mean().item(), 4) for name, values in sums.items()}
            sums.clear()
            elapsed = time.time() - start
            print(f"{step} {figures} {share:.2f}, {tokens / 1e6:.1f} M tokens, {tokens / elapsed:.0f}/s", flush=True)
    if not rounds:
        model.start_rounding(Bits(matrices=arguments.bits, words=arguments.word_bits))
    torch.save(model.collect_state(), arguments.out)
    print(f"saved after {step} steps, {tokens / 1e6:.1f} M tokens; {skipped} steps skipped", flush=True)
    model.eval()
    report(model, teacher, parts["dev"], device, arguments.dev_rows, arguments.out)
    print(f"done after {time.time() - begin:.0f} s", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--shares", default=".6,.25,.15", help="of support, preference and fluency")
    parser.add_argument("--batch", type=int, default=32_768, help="tokens of a step")
    parser.add_argument("--error-weight", type=float, default=1.0)
    parser.add_argument("--keep", type=float, default=1.0, help="weight of the old outputs")
    parser.add_argument("--labels", type=float, default=0.1, help="weight of the labels of `support`")
    parser.add_argument("--human-only", action="store_true", help="learn errors from people's spans alone")
    parser.add_argument("--repeats", type=int, default=4, help="how often rows with people's spans are read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bits", type=int, default=7)
    parser.add_argument("--word-bits", type=int, default=6)
    parser.add_argument("--round-from", type=float, default=0.6, help="share of the training")
    parser.add_argument("--dev-rows", type=int, default=5_000)
    parser.add_argument("--every", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_arguments())
