"""BARTScore on a GPU: random weights of BART-large's shape, SummEval's texts, the original procedure and metrist's.

    PYTHONPATH=src python bench/seq2seq_gpu.py --data DIR     # DIR holds summeval.jsonl.xz

A byte-level BPE trained on the same texts replaces BART's tokenizer, which does not ship with metrist. Random weights
take as long as trained ones. `--tiny` runs the same steps with a small model on a CPU, to check that they run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from metrist.models import devices, tokenization
from metrist.models.batching import TokenBudget
from metrist.models.devices import Dtype, Options
from metrist.models.protocols import Likelihoods
from metrist.models.seq2seq import Seq2Seq
from metrist.models.weights import Weights

Pairs = list[tuple[str, str]]

_LARGE = {"d_model": 1024, "layers": 12, "heads": 16, "ffn": 4096, "vocabulary": 50_265, "positions": 1024}
_TINY = {"d_model": 64, "layers": 2, "heads": 4, "ffn": 128, "vocabulary": 3_000, "positions": 1024}
#: Dense peak of an H200 in TFLOP per second; other GPUs print a share of this one's.
_PEAK = {"float32": 67.0, "bfloat16": 989.0}
_OPENERS = ("In short", "To sum up", "Briefly", "All in all", "Overall", "In other words", "That is", "In brief")
_TURNS = ("", " then", " here", " again", " of course", " it seems", " as told", " in the end", " they say")
PROMPTS = [opener + turn for opener, turn in product(_OPENERS, _TURNS)][:70]


class Timing(NamedTuple):
    name: str
    scorings: int
    seconds: float

    def line(self) -> str:
        return f"{self.name:<46} {self.scorings:>8,} in {self.seconds:8.3f} s  {self.scorings / self.seconds:>9,.0f}/s"


def main() -> None:
    arguments = _arguments()
    shape = _TINY if arguments.tiny else _LARGE
    items = _read_items(arguments.data)[: 2 if arguments.tiny else None]
    pairs = [(source, output) for source, outputs in items for output in outputs]
    tokenizer = _tokenizer([*(source for source, _ in items), *(output for _, output in pairs)], shape["vocabulary"])
    model = _model(shape, tokenizer).to(arguments.device)
    _describe(arguments.device, pairs, tokenizer)
    timings: list[Timing] = []
    _compare(model, tokenizer, items[: 2 if arguments.tiny else 20], pairs, arguments.device, timings)
    dtype: Dtype = "float32" if arguments.tiny else "bfloat16"
    engine = _engine(model.to(getattr(torch, dtype)), tokenizer, dtype)
    print("path:", _describe_path(engine))
    timings.append(_best(f"ours, {dtype}{', again' if arguments.tiny else ''}", pairs, engine.log_probs))
    _breakdown(engine, pairs, shape, timings[-1], _PEAK[dtype])
    timings.extend(_time_prompts(engine, items, dtype, tiny=arguments.tiny))
    if arguments.sweep:
        _sweep(engine, pairs)
    if arguments.profile:
        _profile(engine, pairs)
    print("\n".join(["", *(timing.line() for timing in timings)]))
    print(json.dumps({timing.name: round(timing.scorings / timing.seconds, 1) for timing in timings}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with summeval.jsonl.xz")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, two sources")
    parser.add_argument("--sweep", action="store_true", help="also try other batch sizes")
    parser.add_argument("--profile", action="store_true", help="list the kernels that take longest")
    arguments = parser.parse_args()
    arguments.device = "cpu" if arguments.tiny else "cuda"
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU; --tiny runs on a CPU")
    return arguments


def _read_items(folder: Path) -> list[tuple[str, list[str]]]:
    """Read the sources, each with its outputs."""
    outputs: dict[str, list[str]] = {}
    with lzma.open(folder / "summeval.jsonl.xz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            outputs.setdefault(row["source"], []).append(row["output"])
    return list(outputs.items())


def _tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(30_000, vocabulary), special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=1024, **names)


def _model(shape: dict[str, int], tokenizer: Any) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    assert len(tokenizer) <= shape["vocabulary"]
    sizes = {f"{side}_{name}": shape[key] for side in ("encoder", "decoder") for name, key in _SIDES}
    config = BartConfig(
        vocab_size=shape["vocabulary"], d_model=shape["d_model"], max_position_embeddings=shape["positions"], **sizes
    )
    torch.manual_seed(7)
    return BartForConditionalGeneration(config).eval().requires_grad_(False)


_SIDES = (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "ffn"))


def _describe(device: str, pairs: Pairs, tokenizer: Any) -> None:
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    sources, outputs = ({text[side] for text in pairs} for side in (0, 1))
    means = [np.mean([len(ids) for ids in tokenizer(sorted(texts))["input_ids"]]) for texts in (sources, outputs)]
    print(f"{card}, torch {torch.__version__}; stand-in tokenizer of {len(tokenizer):,} byte-level pieces")
    print(f"{len(pairs):,} pairs, {len(sources)} sources of {means[0]:.0f} tokens, outputs of {means[1]:.0f}")


def _engine(model: Any, tokenizer: Any, dtype: Dtype) -> Seq2Seq:
    place = devices.resolve_placement(Options(model="random weights", dtype=dtype))
    return Seq2Seq(model, tokenizer, Weights(name="random weights", folder=Path(), fingerprint="none"), place)


def _describe_path(engine: Seq2Seq) -> str:
    path = engine._path
    attention = getattr(getattr(path.decoder, "_attention", None), "__name__", "the model's own")
    parts = [type(path.encoder).__name__, type(path.decoder).__name__, f"attention {attention}"]
    wide = getattr(path.head._project, "_float32_output", False)
    return ", ".join([*parts, f"head {path.head._reduce.__name__}", f"float32 logits from half precision: {wide}"])


def _original(model: Any, tokenizer: Any, pairs: Pairs, device: str) -> list[float]:
    """Score as the original does: four pairs at a time in input order, padded, with the loss computed twice."""
    scores: list[float] = []
    log_softmax = torch.nn.LogSoftmax(dim=1)
    each = torch.nn.NLLLoss(reduction="none", ignore_index=tokenizer.pad_token_id)
    settings = {"max_length": 1024, "truncation": True, "padding": True, "return_tensors": "pt"}
    for start in range(0, len(pairs), 4):
        some = pairs[start : start + 4]
        source, target = (tokenizer([texts[side] for texts in some], **settings).to(device) for side in (0, 1))
        labels, lengths = target["input_ids"], target["attention_mask"].sum(1)
        with torch.no_grad():
            logits = model(input_ids=source["input_ids"], attention_mask=source["attention_mask"], labels=labels).logits
            losses = each(log_softmax(logits.view(-1, logits.shape[-1])), labels.view(-1)).view(len(some), -1)
        scores += (-losses.sum(1) / lengths).tolist()
    return scores


def _compare(
    model: Any, tokenizer: Any, items: list[tuple[str, list[str]]], pairs: Pairs, device: str, timings: list[Timing]
) -> None:
    """Time the original on some sources, system by system, and ours on all in float32; print their difference."""
    some = [(source, outputs[system]) for system in range(len(items[0][1])) for source, outputs in items]
    timings.append(
        _best("the original's logic, float32, 4 at a time", some, lambda p: _original(model, tokenizer, p, device))
    )
    engine = _engine(model, tokenizer, "float32")
    timings.append(_best("ours, float32", pairs, engine.log_probs))
    expected, ours = np.array(_original(model, tokenizer, some, device)), engine.log_probs(some)
    means = np.array([ours.of(at).mean() for at in range(len(some))])
    print(f"float32 and the original: at most {np.abs(means - expected).max():.2g} apart on {len(some)} pairs")


def _best(name: str, pairs: Pairs, run: Callable[[Pairs], Any], times: int = 3) -> Timing:
    """Return the best time of some runs after a warm-up run."""
    run(pairs)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run(pairs)
        seconds.append(time.perf_counter() - start)
    timing = Timing(name, len(pairs), min(seconds))
    print(timing.line(), flush=True)
    return timing


def _time_prompts(engine: Seq2Seq, items: list[tuple[str, list[str]]], dtype: str, *, tiny: bool) -> Iterator[Timing]:
    """Time 70 prompts before every output: on twenty sources, best of three, then once on all."""

    def with_prompts(some: list[tuple[str, list[str]]]) -> Pairs:
        return [(source, f"{p}, {output}") for source, outputs in some for output in outputs for p in PROMPTS]

    yield _best(f"ours, {dtype}, 70 decoder prompts", with_prompts(items[: 1 if tiny else 20]), engine.log_probs)
    if not tiny:
        pairs = with_prompts(items)
        start = time.perf_counter()
        engine.log_probs(pairs)
        yield Timing(f"ours, {dtype}, 70 decoder prompts, all, once", len(pairs), time.perf_counter() - start)


def _count_flops(shape: dict[str, int], likelihoods: Likelihoods, engine: Seq2Seq, pairs: Pairs) -> dict[str, float]:
    """Count the operations that remain when each source is encoded once."""
    d, layers, ffn = shape["d_model"], shape["layers"], shape["ffn"]
    lengths = {text: len(ids) for text, ids in _token_lengths(engine, [source for source, _ in pairs])}
    source, target = sum(lengths.values()), float(likelihoods.starts[-1])
    targets = np.diff(likelihoods.starts).astype(float)
    over = np.array([lengths[text] for text, _ in pairs], dtype=float)
    return {
        "encoder": layers * (2 * source * (4 * d * d + 2 * d * ffn) + 4 * d * sum(n * n for n in lengths.values())),
        "cross K/V": layers * 4 * source * d * d,
        "decoder": layers
        * (2 * target * (6 * d * d + 2 * d * ffn) + float(2 * d * (targets**2).sum() + 4 * d * (targets * over).sum())),
        "head": 2 * target * d * shape["vocabulary"],
    }


def _token_lengths(engine: Seq2Seq, texts: Sequence[str]) -> Iterator[tuple[str, Sequence[int]]]:
    distinct = list(dict.fromkeys(texts))
    yield from zip(distinct, engine._conditions.ids(distinct), strict=True)


def _breakdown(engine: Seq2Seq, pairs: Pairs, shape: dict[str, int], best: Timing, peak: float) -> None:
    """Print the time of each stage, from a separate pass that waits for the device after every stage."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    start = time.perf_counter()
    engine._conditions.ids(texts)
    spent = {"tokenise (in the background)": time.perf_counter() - start}
    path = engine._path
    stages = (
        ("encoder", path.encoder, "encode"),
        ("cross K/V", path.decoder, "make_memory"),
        ("decoder", path.decoder, "states"),
        ("head", path.head, "log_probs"),
    )
    with _time_stages(stages, spent):
        start = time.perf_counter()
        likelihoods = engine.log_probs(pairs)
        total = time.perf_counter() - start
    device = sum(spent.get(name, 0.0) for name, *_ in stages)
    values = torch.zeros(int(likelihoods.starts[-1]), device=engine._place.device)
    _wait()
    start = time.perf_counter()
    values.cpu()
    spent["copy back"] = time.perf_counter() - start
    spent["host, while the device waits"] = total - device
    flops = _count_flops(shape, likelihoods, engine, pairs)
    for name, seconds in spent.items():
        rate = f"{flops[name] / seconds / 1e12:7.0f} TFLOP/s" if name in flops else ""
        print(f"  {name:<36} {seconds * 1000:9.1f} ms {rate}")
    floor = sum(flops.values()) / (peak * 1e12)
    each = sum(flops.values()) / len(pairs) / 1e9
    print(f"  {each:.1f} GFLOP per pair; floor {floor * 1000:.1f} ms at {peak:.0f} TFLOP/s,")
    print(f"  so {len(pairs) / floor:,.0f} pairs/s at most: reached {floor / best.seconds:.1%} of it")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _time_stages(stages: Sequence[tuple[str, Any, str]], spent: dict[str, float]) -> Iterator[None]:
    def add_timer(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed_run(*arguments: Any) -> Any:
            _wait()
            start = time.perf_counter()
            result = run(*arguments)
            _wait()
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start
            return result

        return timed_run

    for name, owner, method in stages:
        setattr(owner, method, add_timer(name, getattr(owner, method)))
    try:
        yield
    finally:
        for _, owner, method in stages:
            delattr(owner, method)


def _sweep(engine: Seq2Seq, pairs: Pairs) -> None:
    """Try sizes of batches, of logits in memory, and of the parts in which targets are tokenised."""
    part, rows = tokenization.BackgroundTokens._PART, engine._path.head._rows
    for tokens, size, share in product((16_384, 32_768, 65_536), (1 << 16, 1 << 17, 1 << 18), (4, 1)):
        engine._encoding, engine._decoding = TokenBudget(tokens), TokenBudget(tokens)
        tokenization.BackgroundTokens._PART, engine._path.head._rows = size, rows // share
        _best(f"  {tokens} tokens, parts of {size}, {rows // share} rows", pairs, engine.log_probs, 2)
    tokenization.BackgroundTokens._PART, engine._path.head._rows = part, rows


def _profile(engine: Seq2Seq, pairs: Pairs) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        engine.log_probs(pairs)
        _wait()
    print(seen.key_averages().table(sort_by="self_device_time_total", row_limit=20, max_name_column_width=70))


if __name__ == "__main__":
    main()
