"""Fine-tune an error analyst: a causal model learns to list the errors of an output in the form of TIGERScore.

All weights are trained, or a LoRA adapter beside them. Only the analysis counts in the loss, not the prompt before it.
Several examples share a row of tokens without seeing each other, so that little is padded; the gradients are those of
separate rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, ModelError, RunError, SpecError, agree, format_count
from metrist.io.row_model import RowError
from metrist.io.rows import open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.llm.messages import Message, Turns, encode_prompt, has_chat_template
from metrist.metrics.errors.tigerscore import build_prompt, parse_tiger_answer
from metrist.models.adapters import find_adapter
from metrist.models.devices import Options, Placement
from metrist.models.gguf_export import GGUF_FILE, check_architecture, write_gguf
from metrist.models.weights import Weights, file_digest, find_weights, quiet_transformers, read_model, read_tokenizer
from metrist.ratings import Error
from metrist.train.batches import Shuffled
from metrist.train.checkpoints import load_weights
from metrist.train.dataset import group_by_shared_texts, parse_share
from metrist.train.distributed import shard_model
from metrist.train.examples import IGNORED
from metrist.train.folder import TrainingFolder, copy_notices
from metrist.train.recipe import Recipe
from metrist.train.task import Batch, Learner, TrainingPlan, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.models.lora import LoraSettings
    from metrist.train.loop import Trainer

Method = Literal["lora", "full"]
#: The form in which a model is stored: an adapter beside the base, a model of its own, or that and a GGUF file.
Stored = Literal["adapter", "merged", "gguf"]
Row = NDArray[np.int32]
#: Tokens of prompt and analysis together, as in the TIGERScore paper.
MAX_LENGTH = 1024
#: The names of the trained metric and of its base in cards and tables.
TRAINED, BASE = "this metric", "the base, zero-shot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of a training that go together."""

    recipe: Recipe
    method: Method
    source: str


PRESETS: Mapping[str, Preset] = {
    "lora": Preset(
        recipe=Recipe(epochs=2, batch=32, lr=2e-4, schedule="cosine", warmup=0.1),
        method="lora",
        source="one GPU, or a small model",
    ),
    "tigerscore-7b": Preset(
        recipe=Recipe(epochs=3, batch=128, lr=2e-5, schedule="cosine", warmup=0.1),
        method="full",
        source="TIGERScore paper, section 2.4",
    ),
    "tigerscore-13b": Preset(
        recipe=Recipe(epochs=2, batch=128, lr=1e-5, schedule="cosine", warmup=0.1),
        method="full",
        source="TIGERScore paper, section 2.4",
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SpecError(f"no preset {name!r}; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


# ---- Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A prompt with the analysis to learn. The judged texts and `errors` are there if the file has them: held-out
    analyses are compared with what the trained model says about the same output."""

    prompt: str
    completion: str
    item: str = ""
    system: str = ""
    task: str | None = None
    channel: str | None = None
    instruction: str | None = None
    source: str = ""
    output: str | None = None
    errors: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisData:
    """Training and held-out analyses, and what the card says about their files. `dev_file` is None if the held-out
    analyses were split off."""

    train: tuple[Analysis, ...]
    dev: tuple[Analysis, ...] = ()
    files: tuple[Mapping[str, Any], ...] = ()
    dev_file: Mapping[str, Any] | None = None
    repeated: int = 0
    shared: int = 0

    def remarks(self) -> list[str]:
        remarks = []
        if self.repeated:
            remarks.append(f"{format_count(self.repeated, 'repeated analysis is', 'repeated analyses are')} ignored")
        if self.shared:
            remarks.append(
                f"{self.shared:,} of {len(self.dev):,} held-out analyses share their item, source or output with the "
                "training data, so their figures are too good"
            )
        return remarks


def read_analyses(path: str | Path) -> list[Analysis]:
    """Read a file of `metrist build error-analysis`, or any rows with a prompt and a completion, with chat messages, or
    with instruction, source, output and errors."""
    source = open_source(path)
    analyses = []
    for line, row in source.read():
        try:
            if isinstance(row, RowError):
                raise row
            analyses.append(_parse_row(parse_cells(row) if type(row) is Cells else row))
        except RowError as fault:
            raise InputError(f"{source.location(line)}: {fault}") from None
    if not analyses:
        raise InputError(
            f"{source.name}: has no analyses to learn from; expected rows as `metrist build error-analysis` writes them"
        )
    return analyses


def _parse_row(row: Any) -> Analysis:
    if not isinstance(row, Mapping):
        raise RowError(f"expected an object with 'prompt' and 'completion', got {type(row).__name__}")
    texts: dict[str, str | None] = {}
    for name in ("prompt", "completion", "item", "system", "task", "channel", "instruction", "source", "output"):
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            raise RowError(f"{name!r} must be a text, got {type(value).__name__}")
        texts[name] = value
    if texts["prompt"] is None and "messages" in row:
        texts["prompt"], texts["completion"] = _parse_messages(row["messages"])
    if texts["prompt"] is None and texts["output"] is not None:
        texts["prompt"] = build_prompt(texts["instruction"] or "", texts["source"] or "", texts["output"])
    prompt, completion = texts.pop("prompt"), texts.pop("completion")
    if not prompt or not (completion or "").strip():
        missing = "completion" if prompt else "prompt"
        raise RowError(
            f"has no {missing!r}; expected 'prompt' and 'completion', as `metrist build error-analysis` writes them, "
            "or 'messages'"
        )
    assert completion is not None
    # Without the prompt, in which only scoring must look for quotations: that takes most of the time.
    parsed = parse_tiger_answer(completion)
    if parsed.failure is not None:
        raise RowError(f"the completion cannot be read as an analysis: {parsed.failure}")
    return Analysis(
        prompt=prompt,
        completion=completion.strip(),
        item=texts["item"] or "",
        system=texts["system"] or "",
        task=texts["task"],
        channel=texts["channel"],
        instruction=texts["instruction"],
        source=texts["source"] or "",
        output=texts["output"],
        errors=_parse_errors(row.get("errors"), texts["output"]),
    )


def _parse_messages(messages: Any) -> tuple[str, str]:
    """The user's and the assistant's text of a conversation of one exchange."""
    if (
        not isinstance(messages, list)
        or not all(isinstance(turn, Mapping) and isinstance(turn.get("content"), str) for turn in messages)
        or [turn.get("role") for turn in messages] != ["user", "assistant"]
    ):
        raise RowError("'messages' must be a list of one user and one assistant message, each with 'content'")
    return messages[0]["content"], messages[1]["content"]


def _parse_errors(value: Any, output: str | None) -> tuple[Error, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise RowError("'errors' must be a list of objects")
    errors = []
    for number, row in enumerate(value, 1):
        start, end, penalty = row.get("start"), row.get("end"), row.get("penalty")
        if not all(at is None or (isinstance(at, int) and not isinstance(at, bool)) for at in (start, end)):
            raise RowError(f"error {number}: 'start' and 'end' must be whole numbers, got {start!r} and {end!r}")
        if penalty is not None and (isinstance(penalty, bool) or not isinstance(penalty, int | float)):
            raise RowError(f"error {number}: 'penalty' must be a number, got {penalty!r:.40}")
        side = "source" if row.get("side") == "source" else "output"
        placed = side == "output" and start is not None and end is not None and output is not None
        if placed and not 0 <= start <= end <= len(output or ""):
            raise RowError(
                f"error {number}: characters {start} to {end} are not in the output, which has {len(output or ''):,}"
            )
        errors.append(
            Error(
                aspect=str(row.get("aspect") or ""),
                severity=str(row["severity"]).lower() if row.get("severity") else None,
                penalty=None if penalty is None else float(penalty),
                explanation=str(row.get("explanation") or ""),
                revision=str(row.get("revision") or ""),
                text=str(row.get("text") or ""),
                start=start,
                end=end,
                side=side,  # type: ignore[arg-type]
            )
        )
    return tuple(errors)


def load_analyses(
    data: Sequence[Path],
    dev: str | None,
    *,
    seed: int,
    tasks: Sequence[str] = (),
    channels: Sequence[str] = (),
) -> AnalysisData:
    """Read the files and hold out a share of the items, or read held-out analyses from another file. Analyses that
    share an item, a source or an output stay on one side. `tasks` and `channels` select what is trained on, after the
    split, so that all selections are judged on the same held-out analyses."""
    read = {path: read_analyses(path) for path in data}
    everything = [analysis for analyses in read.values() for analysis in analyses]
    train = list(dict.fromkeys(everything))
    repeated = len(everything) - len(train)
    held_out: list[Analysis] = []
    share, dev_file = parse_share(dev), None
    if share is not None:
        train, held_out = _split_off(train, share, seed)
    elif dev is not None:
        held_out = list(dict.fromkeys(read_analyses(dev)))
        dev_file = _describe_file(Path(dev), held_out)
    for name, values in (("task", tasks), ("channel", channels)):
        train = _select(train, name, values)
    return AnalysisData(
        train=tuple(train),
        dev=tuple(held_out),
        files=tuple(_describe_file(path, analyses) for path, analyses in read.items()),
        dev_file=dev_file,
        repeated=repeated,
        shared=_count_shared(train, held_out) if dev_file else 0,
    )


def _select(analyses: list[Analysis], name: str, values: Sequence[str]) -> list[Analysis]:
    if not values:
        return analyses
    known = Counter(str(getattr(analysis, name)) for analysis in analyses)
    for value in values:
        if value not in known:
            listed = ", ".join(f"{one} ({count:,})" for one, count in known.most_common())
            raise InputError(f"no training analysis has the {name} {value!r}; there are {listed}")
    return [analysis for analysis in analyses if str(getattr(analysis, name)) in values]


def _keys(analysis: Analysis) -> tuple[str, ...]:
    """The texts that decide on which side an analysis is."""
    own = (f"item {analysis.task} {analysis.item}" if analysis.item else "", analysis.source, analysis.output or "")
    return tuple(text for text in own if text.strip()) or (analysis.prompt,)


def _split_off(analyses: Sequence[Analysis], share: float, seed: int) -> tuple[list[Analysis], list[Analysis]]:
    groups: dict[int, list[int]] = {}
    for number, group in enumerate(group_by_shared_texts([_keys(analysis) for analysis in analyses])):
        groups.setdefault(group, []).append(number)
    members, target = list(groups.values()), max(1, round(share * len(analyses)))
    chosen: set[int] = set()
    for at in np.random.default_rng([seed, 3]).permutation(len(members)):
        if len(chosen) + len(members[at]) <= target:
            chosen.update(members[at])
    if not chosen or len(chosen) == len(analyses):
        raise InputError(
            f"cannot hold out {target:,} of {format_count(len(analyses), 'analysis', 'analyses')}: too many share "
            "their item, source or output; give held-out analyses (--dev FILE), another share, or none (--dev 0)"
        )
    train = [analysis for number, analysis in enumerate(analyses) if number not in chosen]
    return train, [analyses[number] for number in sorted(chosen)]


def _count_shared(train: Sequence[Analysis], dev: Sequence[Analysis]) -> int:
    seen = {key for analysis in train for key in _keys(analysis)}
    return sum(bool(seen.intersection(_keys(analysis))) for analysis in dev)


def _describe_file(path: Path, analyses: Sequence[Analysis]) -> dict[str, Any]:
    channels = Counter(analysis.channel or "not stated" for analysis in analyses)
    counts = ", ".join(f"{name} {count:,}" for name, count in channels.most_common())
    return {"file": path.name, "sha256": file_digest(path), "analyses": len(analyses), "channels": counts}


# ---- Rows of tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisRows:
    """Examples for the training loop. An example's weight is the number of its target tokens: the loss is a mean over
    tokens. `packed`: examples share rows of up to `row_tokens` tokens. `left_out` are the numbers of analyses that are
    too long."""

    ids: list[Row]
    #: Where the analysis begins in each row.
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float64]
    pad: int
    row_tokens: int
    packed: bool
    left_out: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def spaces(self) -> NDArray[np.int64]:
        return self.lengths

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Lay the examples out in rows. `segments` numbers the examples of a row from 1 (0: padding), `owners` has the
        number of the example whose target a token is (-1: none), and `labels` the next token where it is one."""
        import torch

        rows = self._pack(indices)
        width = max(sum(len(self.ids[indices[at]]) for at in row) for row in rows)
        shape = len(rows), width
        ids = np.full(shape, self.pad, np.int64)
        labels, owners = np.full(shape, IGNORED, np.int64), np.full(shape, -1, np.int64)
        positions, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for line, row in enumerate(rows):
            begin = 0
            for segment, at in enumerate(row, 1):
                tokens, start = self.ids[indices[at]], int(self.starts[indices[at]])
                end = begin + len(tokens)
                ids[line, begin:end] = tokens
                positions[line, begin:end] = np.arange(len(tokens))
                segments[line, begin:end] = segment
                # The token at a position predicts the one after it.
                labels[line, begin + start - 1 : end - 1] = tokens[start:]
                owners[line, begin + start - 1 : end - 1] = at
                begin = end
        columns = {"input_ids": ids, "labels": labels, "owners": owners, "positions": positions, "segments": segments}
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def _pack(self, indices: NDArray[np.int64]) -> list[list[int]]:
        """Put places of `indices` into rows: the longest first, each into the first row with room."""
        if not self.packed:
            return [[at] for at in range(len(indices))]
        lengths = self.lengths[indices]
        room = max(self.row_tokens, int(lengths.max()))
        rows: list[list[int]] = []
        free: list[int] = []
        for at in np.argsort(-lengths, kind="stable"):
            length = int(lengths[at])
            line = next((line for line, left in enumerate(free) if left >= length), len(rows))
            if line == len(rows):
                rows.append([])
                free.append(room)
            rows[line].append(int(at))
            free[line] -= length
        return rows


def encode_analyses(
    tokenizer: Any,
    analyses: Sequence[Analysis],
    *,
    turns: Turns,
    max_length: int = MAX_LENGTH,
    packed: bool = True,
) -> AnalysisRows:
    """Tokenize prompts as `tigerscore` does, and analyses after them up to the token that ends an answer."""
    end = tokenizer.eos_token_id
    if end is None:
        raise ModelError("the base model's tokenizer has no token that ends a text, so answers would never end")
    ids: list[Row] = []
    starts, left_out = [], []
    for number, analysis in enumerate(analyses):
        prompt = encode_prompt(tokenizer, (Message("user", analysis.prompt),), turns)
        target = tokenizer(format_target(analysis.completion, turns), add_special_tokens=False, verbose=False)
        row = [*prompt, *target["input_ids"], end]
        if len(row) > max_length or not prompt:
            left_out.append(number)
            continue
        ids.append(np.array(row, np.int32))
        starts.append(len(prompt))
    lengths = np.array([len(row) for row in ids], np.int64)
    begin = np.array(starts, np.int64)
    return AnalysisRows(
        ids=ids,
        starts=begin,
        lengths=lengths,
        weights=(lengths - begin).astype(np.float64),
        pad=int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end),
        row_tokens=max_length,
        packed=packed,
        left_out=tuple(left_out),
    )


def format_target(completion: str, turns: Turns) -> str:
    """The text that follows the prompt: a bare prompt ends with its last word, and a chat template with a new line."""
    return f"\n{completion}" if turns == "none" else completion


def choose_turns(tokenizer: Any, turns: Turns | None) -> Turns:
    """The chat template, if the model has one; otherwise the bare prompt, as the published checkpoints."""
    if turns == "chat" and not has_chat_template(tokenizer):
        raise ModelError("the base model has no chat template: use the bare prompt (--turns none)")
    return turns or ("chat" if has_chat_template(tokenizer) else "none")


# ---- Loss


class AnalysisLoss:
    """The cross-entropy of the analyses' tokens. Only they go through the output layer, which takes most of the memory
    of a small model with a large vocabulary. The development figure is the mean log-probability of a token."""

    figure = "log-probability of the analyses per token"

    def __init__(self, model: Any, *, packed: bool) -> None:
        self._packed = packed
        self._layered = _has_plain_head(model)

    def use_whole_model(self) -> None:
        """Compute all logits: a sharded model gathers its weights only for a pass through all of it."""
        self._layered = False

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return -self.log_probabilities(model, batch).sum()

    def judge(self, model: Any, batch: Batch) -> Tensor:
        import torch

        values = self.log_probabilities(model, batch)
        owners = batch["owners"][batch["labels"] != IGNORED]
        count = int(owners.max()) + 1
        sums = torch.zeros(count, device=values.device).index_add(0, owners, values)
        return sums / torch.bincount(owners, minlength=count)

    def log_probabilities(self, model: Any, batch: Batch) -> Tensor:
        """The log-probability of each target token, row by row."""
        import torch

        targets = batch["labels"] != IGNORED
        inputs = self._arrange(model, batch)
        if self._layered:
            states = model.base_model(**inputs, use_cache=False).last_hidden_state[targets]
            logits = model.get_output_embeddings()(states)
        else:
            logits = model(**inputs, use_cache=False).logits[targets]
        labels = batch["labels"][targets][:, None]
        chosen: Tensor = torch.log_softmax(logits.float(), dim=-1).gather(1, labels)[:, 0]
        return chosen

    def _arrange(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        if not self._packed:
            return {"input_ids": batch["input_ids"], "attention_mask": (batch["segments"] > 0).long()}
        mask = make_packed_mask(batch["segments"])
        if getattr(model.config, "_attn_implementation", "") == "eager":
            import torch

            # Eager attention adds its mask to the scores.
            mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
        return {"input_ids": batch["input_ids"], "position_ids": batch["positions"], "attention_mask": mask}


def make_packed_mask(segments: Tensor) -> Tensor:
    """Whether the token in a column may be seen from a row (batch × 1 × row × column): it comes before it, in the same
    example. Padding sees itself, since a token that sees nothing has no defined attention."""
    import torch

    same = segments[:, :, None] == segments[:, None, :]
    length = segments.shape[1]
    return (same & torch.ones(length, length, dtype=torch.bool, device=segments.device).tril())[:, None]


def _has_plain_head(model: Any) -> bool:
    """Whether the logits are the output layer of the last states: some models scale or bound them."""
    import torch

    head, body = model.get_output_embeddings(), getattr(model, "base_model", None)
    if head is None or body is None or body is model:
        return False
    size = int(model.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(6, device=model.device)[None] * 7 + 3) % size
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, use_cache=False).logits
            states = body(input_ids=ids, use_cache=False).last_hidden_state
            return bool(torch.allclose(whole, head(states), rtol=1e-3, atol=1e-3))
    finally:
        model.train(was_training)


def check_packing(model: Any) -> None:
    """Raise an error if a text has other states behind another one in its row than alone."""
    import torch

    size = int(model.get_input_embeddings().weight.shape[0])
    tokens = torch.tensor([int(n) % size for n in np.random.default_rng(3).integers(5, 1 << 30, 16)])
    segments = torch.tensor([[1] * 6 + [2] * 10])
    positions = torch.tensor([[*range(6), *range(10)]])
    batch = {
        "input_ids": tokens[None],
        "positions": positions,
        "segments": segments,
        "labels": torch.cat([tokens[1:], tokens[:1]])[None],
    }
    alone = {name: value[:, 6:] for name, value in batch.items()} | {"segments": torch.ones(1, 10, dtype=torch.long)}
    was_training = model.training
    model.eval()
    loss = AnalysisLoss(model, packed=True)
    with torch.no_grad():
        together, apart = (
            loss.log_probabilities(model, {name: value.to(model.device) for name, value in part.items()})[-10:]
            for part in (batch, alone)
        )
    model.train(was_training)
    # Half precision differs by about a hundredth.
    if not torch.allclose(together, apart, rtol=0.02, atol=0.02):
        raise ModelError(
            f"a {model.config.model_type!r} model does not keep apart the texts that share a row: train with "
            "--no-packing"
        )


# ---- The task


class AnalysisPlan(NamedTuple):
    """Facts of a plan that only the card needs."""

    turns: Turns
    left_out: int
    dev_left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnalysisPlan(TrainingPlan):
    """Tokenized analyses, and how the prompt is given."""

    data: AnalysisData
    facts: AnalysisPlan
    max_length: int

    def remarks(self) -> list[str]:
        remarks = [*TrainingPlan.remarks(self), *self.data.remarks()]
        if self.facts.left_out:
            left = self.facts.left_out
            total = left + len(self.train)
            remarks.append(
                f"{left:,} of {format_count(total, 'training analysis', 'training analyses')} ({left / total:.1%}) "
                f"{agree(left, 'is', 'are')} left out: longer than {self.max_length:,} tokens with the prompt "
                "(--max-length)"
            )
        if self.facts.dev_left_out:
            held_out = format_count(self.facts.dev_left_out, "held-out analysis is", "held-out analyses are")
            remarks.append(f"{held_out} too long")
        return remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnalysisTask(TrainingTask):
    """Trains a causal model on analyses. `dev` is a file or a share of the items. `turns` None: the model's chat
    template, if it has one. `stored` None: an adapter for LoRA. `evaluate` gets the metrics that run the
    trained model and its base, and the held-out analyses, and returns what the card says about them. `sharded`: several
    processes divide all weights among them."""

    kind: ClassVar[str] = "error-analysis"

    data: tuple[Path, ...]
    dev: str | None = "0.05"
    method: Method = "lora"
    rank: int = 16
    alpha: float = 32.0
    adapter_dropout: float = 0.0
    targets: tuple[str, ...] = ()
    stored: Stored | None = None
    turns: Turns | None = None
    max_length: int = MAX_LENGTH
    packing: bool = True
    gradient_checkpointing: bool = False
    sharded: bool = False
    tasks: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    licence: str | None = None
    evaluate: Callable[[Mapping[str, str], Sequence[Analysis]], Mapping[str, Any] | None] | None = field(
        default=None, compare=False
    )

    def __post_init__(self) -> None:
        if self.method == "full" and self.stored == "adapter":
            raise SpecError("a training of all weights has no adapter: leave out --save adapter, or use --method lora")
        if self.sharded and self.method != "full":
            raise SpecError("--shard divides the weights of a training of all weights: add --method full")
        if self.max_length < 2:
            raise SpecError(f"--max-length must be at least 2, got {self.max_length}")
        if self.method == "lora":
            self._adapter_settings()

    def _adapter_settings(self) -> LoraSettings:
        from metrist.models.lora import LoraSettings

        return LoraSettings(
            rank=self.rank, alpha=self.alpha, dropout=self.adapter_dropout, targets=tuple(sorted(self.targets))
        )

    @property
    def form(self) -> Stored:
        """How the trained model is stored."""
        return self.stored or ("adapter" if self.method == "lora" else "merged")

    def load_data(self) -> AnalysisData:
        return load_analyses(self.data, self.dev, seed=self.recipe.seed, tasks=self.tasks, channels=self.channels)

    def identity(self, weights: Weights, data: AnalysisData) -> dict[str, Any]:
        lora = {"rank": self.rank, "alpha": self.alpha, "dropout": self.adapter_dropout, "targets": list(self.targets)}
        return {
            "kind": self.kind,
            "base": weights.fingerprint,
            "data": _digest(data.train),
            "dev": _digest(data.dev),
            "method": self.method,
            **(lora if self.method == "lora" else {}),
            "save": self.form,
            "turns": self.turns,
            "max_length": self.max_length,
            **self.recipe.identity(),
        }

    def plan(self, weights: Weights, data: AnalysisData) -> ErrorAnalysisPlan:
        if weights.runs_on_numpy or weights.config.get("is_encoder_decoder"):
            raise ModelError(
                f"{weights.name} is not a causal language model; an error analyst is trained from one, such as "
                "Qwen2.5-1.5B-Instruct or Llama-2-7b"
            )
        if self.recipe.patience is not None and not data.dev:
            raise RunError("early stopping (--patience) needs held-out analyses; give --dev")
        if self.form == "gguf":
            check_architecture(weights.config)
        tokenizer = read_tokenizer(weights, self.base)
        turns = choose_turns(tokenizer, self.turns)
        settings: dict[str, Any] = {"turns": turns, "max_length": self.max_length, "packed": self.packing}
        train = encode_analyses(tokenizer, data.train, **settings)
        if not len(train):
            longest = format_count(len(data.train), "analysis", "analyses")
            raise InputError(
                f"none of {longest} fits into {self.max_length:,} tokens with its prompt; give a larger --max-length"
                if data.train
                else "there is no analysis to train on"
            )
        dev = encode_analyses(tokenizer, data.dev, **settings)
        recipe = self.recipe
        sampler = Shuffled(lengths=train.lengths, batch=recipe.batch, seed=recipe.seed, bucket=recipe.bucket)
        return ErrorAnalysisPlan(
            train=train,
            dev=dev if len(dev) else None,
            sampler=sampler,
            steps=recipe.epochs * sampler.steps,
            data=data,
            facts=AnalysisPlan(turns, len(train.left_out), len(dev.left_out)),
            max_length=self.max_length,
        )

    def build(self, weights: Weights, plan: ErrorAnalysisPlan, placement: Placement) -> Learner:  # noqa: ARG002
        import torch

        # A frozen base need not be more precise than what is computed with it.
        half = self.method == "lora" and self.recipe.dtype == "bfloat16"
        place = replace(placement, dtype=torch.bfloat16) if half else placement
        if self.sharded:
            place = replace(place, device=torch.device("cpu"))  # A GPU need not have room for all of it.
        model = read_model("AutoModelForCausalLM", weights, self.base, place)
        if self.packing:
            check_packing(model)
        objective = AnalysisLoss(model, packed=self.packing)
        if self.method == "lora":
            from metrist.models.lora import add_adapter

            add_adapter(model, self._adapter_settings(), self.recipe.seed)
        else:
            model.requires_grad_(True)
        if self.gradient_checkpointing:
            if not getattr(model, "supports_gradient_checkpointing", False):
                raise ModelError(f"{weights.name} does not support --gradient-checkpointing: leave it out")
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.sharded and shard_model(model, placement.device):
            objective.use_whole_model()
        return Learner(model, objective)

    def publish(
        self, weights: Weights, data: AnalysisData, plan: ErrorAnalysisPlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        import torch

        turns = plan.facts.turns
        model = trainer.model
        if trainer.whole_weights is not None:
            place = Placement(device=torch.device("cpu"), dtype=torch.float32, tokens=1)
            model = read_model("AutoModelForCausalLM", weights, self.base, place)
            load_weights(model, trainer.whole_weights)
        folder.put_model(lambda part: self._write(weights, model, part))
        trainer.release()
        facts = {
            "files": list(data.files),
            "dev_file": data.dev_file,
            "training_analyses": len(plan.train),
            "too_long": plan.facts.left_out,
            "held_out_analyses": len(plan.dev) if plan.dev else 0,
            "repeated": data.repeated,
            "held_out_analyses_that_share_a_text": data.shared,
            "tokens": int(plan.train.lengths.sum()),
            "target_tokens": int(plan.train.weights.sum()),
            "without_errors": sum(analysis.completion.count("\n") == 0 for analysis in data.train),
            "by_task": _count(analysis.task for analysis in data.train),
            "by_channel": _count(analysis.channel for analysis in data.train),
        }
        lora = {
            "rank": self.rank,
            "alpha": self.alpha,
            "adapter_dropout": self.adapter_dropout,
            "targets": ", ".join(self.targets) or "all linear layers",
        }
        metric = self.metric(turns)
        bare = format_metric(self.base, adapter=None, turns=turns, dtype=self.recipe.dtype)
        return {
            "metric": metric,
            "data": facts,
            "choices": {
                "method": self.method,
                **(lora if self.method == "lora" else {}),
                "save": self.form,
                "turns": turns,
                "max_length": self.max_length,
                "packing": self.packing,
                "gradient_checkpointing": self.gradient_checkpointing,
                **({"sharded": True} if self.sharded else {}),
            },
            "evaluation": self.evaluate({TRAINED: metric, BASE: bare}, data.dev) if self.evaluate else None,
            "licence": self.licence or "that of the base, and that of the training data",
        }

    def metric(self, turns: Turns) -> str:
        """The metric that runs the trained model."""
        return format_metric(
            self.base if self.form == "adapter" else Options(model=str(self.out)),
            adapter=str(self.out) if self.form == "adapter" else None,
            turns=turns,
            dtype=self.recipe.dtype,
        )

    def fingerprint(self) -> str:
        if self.form == "adapter":
            return find_adapter(str(self.out)).fingerprint
        return find_weights(Options(model=str(self.out))).fingerprint

    def _write(self, weights: Weights, model: Any, part: Path) -> None:
        from metrist.models.lora import merge_adapter, save_adapter

        if self.method == "lora" and self.form == "adapter":
            save_adapter(model, self._adapter_settings(), self.base.model, part)
            copy_notices(weights.folder, part)
            return
        if self.method == "lora":
            merge_adapter(model)
        with quiet_transformers():
            model.save_pretrained(part)
            read_tokenizer(weights, self.base).save_pretrained(part)
        if self.form == "gguf":
            write_gguf(part, part / GGUF_FILE)
        copy_notices(weights.folder, part)


def format_metric(base: Options, *, adapter: str | None, turns: Turns, dtype: str) -> str:
    """The `tigerscore` that runs a model, with an adapter where there is one."""
    settings = {"model": base.model, "adapter": adapter, "revision": base.revision}
    if dtype == "bfloat16":
        settings["dtype"] = dtype
    if turns != "chat":
        settings["turns"] = turns
    listed = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
    trusted = ", trust_remote_code=True" if base.trust_remote_code else ""
    return f"tigerscore(llm=local({listed}{trusted}))"


def _count(values: Any) -> str:
    counts = Counter("not stated" if value is None else str(value) for value in values)
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


def _digest(analyses: Sequence[Analysis]) -> str:
    """Hash all that training reads of the analyses."""
    digest = hashlib.sha256()
    for analysis in analyses:
        digest.update(repr((analysis.prompt, analysis.completion)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
