"""`BLEU`, `CHRF`, `TER` and the functions of sacreBLEU 2.6: the same calls, the same numbers, the same signatures.

    from metrist.compat import sacrebleu  # instead of: import sacrebleu

It differs in three ways: outputs and references of different numbers are refused instead of cut to the shorter list,
warnings go to Python's `warnings` instead of a log, and the test sets and the tokenizer spBLEU-1K are left out.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.base import Metric, Shard
from metrist.metrics.lexical.bleu import FROM_SACREBLEU, SACREBLEU_VERSION, Bleu
from metrist.metrics.lexical.chrf import Chrf
from metrist.metrics.lexical.ter import Ter
from metrist.records import Record

#: Reference streams: the first reference of every output, then the second of every output, and so on. None is no
#: reference.
Streams = Sequence[Sequence[str | None]]

_SMOOTH_DEFAULTS = {"none": None, "floor": 0.1, "add-k": 1, "exp": None}
_TOKENIZER_OF_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
#: Resampled positions that are held at a time.
_MAX_POSITIONS = 1 << 21
#: Outputs that end in a period after a space, from which on they are taken for tokenised ones.
_TOKENISED = 100


_S = TypeVar("_S", bound="Score")


class _SacreMetric(Generic[_S]):
    """What the three metrics share: references, resampling, signatures."""

    _metric: Metric
    #: Names in a short signature beside those that all metrics share.
    _short_names: ClassVar[dict[str, str]] = {}

    def __init__(self, references: Streams | None) -> None:
        self.num_refs: int | None = None
        self.n_bootstrap: int | None = None
        self.seed: str | None = None
        self._references = None if references is None else self._transpose(references)

    def sentence_score(self, hypothesis: str, references: Sequence[str]) -> _S:
        """The score of one output."""
        if not isinstance(hypothesis, str):
            raise TypeError(f"{type(self).__name__}: the output must be one text, got a {type(hypothesis).__name__}")
        self._check_sequence("references", references)
        return self._to_score(self._stats([hypothesis], self._transpose([[text] for text in references])).sum(axis=0))

    def corpus_score(self, hypotheses: Sequence[str], references: Streams | None, n_bootstrap: int = 1) -> _S:
        """The score of all outputs together. With `n_bootstrap` above 1 it has a 95 % interval of that many
        resamples, drawn with the seed in the environment variable SACREBLEU_SEED (12345)."""
        self._check_sequence("outputs", hypotheses)
        transposed = self._references if references is None else self._transpose(references)
        if transposed is None:
            raise RuntimeError("no references: pass them here or to the constructor")
        stats = self._stats(hypotheses, transposed)
        score = self._to_score(stats.sum(axis=0))
        if n_bootstrap > 1:
            self.n_bootstrap = n_bootstrap
            self.seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
            # The same draws as sacreBLEU's.
            rng = np.random.default_rng(None if self.seed == "none" else int(self.seed))
            sums = np.empty((n_bootstrap, stats.shape[1]))
            step = max(1, _MAX_POSITIONS // len(stats))
            for start in range(0, n_bootstrap, step):
                block = sums[start : start + step]
                block[:] = stats[rng.choice(len(stats), size=(len(block), len(stats)), replace=True)].sum(axis=1)
            score.set_interval(self._compute(sums))
        return score

    def get_signature(self) -> Signature:
        """What the last score depends on."""
        if self.num_refs is None:
            raise ValueError("the number of references is not known yet: score something first")
        info: dict[str, Any] = {
            "nrefs": "var" if self.num_refs == -1 else self.num_refs,
            "bs": self.n_bootstrap,
            "seed": self.seed,
        }
        return Signature({**info, **self._settings(), "version": SACREBLEU_VERSION}, self._short_names)

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def _to_score(self, sums: Stats) -> _S:
        raise NotImplementedError

    def _compute(self, sums: Stats) -> Stats:
        return self._metric.pool(sums)

    def _stats(self, outputs: Sequence[str], references: list[tuple[str, ...]]) -> Stats:
        if len(outputs) != len(references):
            sizes = f"got {len(references):,} and {len(outputs):,}"
            raise ValueError(f"{type(self).__name__}: streams need a reference for each output, {sizes}")
        records = [
            Record(item=str(n), system="", output=output, references=references[n]) for n, output in enumerate(outputs)
        ]
        return self._metric.score(Shard(records)).stats

    def _transpose(self, streams: Streams) -> list[tuple[str, ...]]:
        """The references of each output, from streams of references."""
        self._check_sequence("references", streams)
        for stream in streams:
            self._check_sequence("a reference stream", stream)
        if len({len(stream) for stream in streams}) > 1:
            sizes = ", ".join(f"{len(stream):,}" for stream in streams)
            raise ValueError(f"{type(self).__name__}: reference streams have different lengths: {sizes}")
        rows = [tuple(text for text in row if text is not None) for row in zip(*streams, strict=True)]
        for number, row in enumerate(rows):
            if not row or not all(isinstance(text, str) for text in row):
                raise TypeError(f"{type(self).__name__}: output {number} needs at least one reference; each is a text")
        counts = {len(row) for row in rows}
        self.num_refs = counts.pop() if len(counts) == 1 else -1
        return rows

    def _check_sequence(self, name: str, values: Any) -> None:
        if isinstance(values, str) or not isinstance(values, Sequence):
            hint = "a list of lists of texts" if name == "references" else "a list of texts"
            raise TypeError(f"{type(self).__name__}: {name} must be {hint}, got {type(values).__name__}")
        if not values:
            raise ValueError(f"{type(self).__name__}: {name} must not be empty")


class BLEU(_SacreMetric["BLEUScore"]):
    """BLEU. `force=True` silences the warning about tokenised outputs."""

    SMOOTH_DEFAULTS: ClassVar[dict[str, float | None]] = _SMOOTH_DEFAULTS
    TOKENIZER_DEFAULT = "13a"
    TOKENIZERS: ClassVar[tuple[str, ...]] = ("none", "zh", "13a", "intl", "char", "spm", *FROM_SACREBLEU)

    def __init__(
        self,
        lowercase: bool = False,
        force: bool = False,
        tokenize: str | None = None,
        smooth_method: str = "exp",
        smooth_value: float | None = None,
        max_ngram_order: int = 4,
        effective_order: bool = False,
        trg_lang: str = "",
        references: Streams | None = None,
    ) -> None:
        self.lowercase, self._force, self.trg_lang = lowercase, force, trg_lang
        self.smooth_method, self.smooth_value = smooth_method, smooth_value
        self.max_ngram_order, self.effective_order = max_ngram_order, effective_order
        self.tokenize = tokenize or _TOKENIZER_OF_LANGUAGE.get(trg_lang, self.TOKENIZER_DEFAULT)
        self._metric: Bleu = Bleu(
            tokenize="flores101" if self.tokenize == "spm" else self.tokenize,
            lowercase=lowercase,
            smooth=smooth_method,  # type: ignore[arg-type]
            # sacreBLEU ignores a value that the method does not use.
            smooth_value=smooth_value if _SMOOTH_DEFAULTS.get(smooth_method) is not None else None,
            max_order=max_ngram_order,
        )
        super().__init__(references)

    def sentence_score(self, hypothesis: str, references: Sequence[str]) -> BLEUScore:
        """The score of one output. Without `effective_order`, one of fewer words than the highest order gets 0."""
        if not self.effective_order:
            warnings.warn("BLEU of one sentence needs effective_order=True", stacklevel=2)
        return super().sentence_score(hypothesis, references)

    def _stats(self, outputs: Sequence[str], references: list[tuple[str, ...]]) -> Stats:
        if not self._force and sum(text.endswith(" .") for text in outputs) >= _TOKENISED:
            reason = f"at least {_TOKENISED} outputs end in ' .' and seem to be tokenised, which lowers BLEU"
            warnings.warn(f"{reason}; detokenise them, or set force=True", stacklevel=3)
        return super()._stats(outputs, references)

    @staticmethod
    def compute_bleu(
        correct: Sequence[float],
        total: Sequence[float],
        sys_len: int,
        ref_len: int,
        smooth_method: str = "none",
        smooth_value: float | None = None,
        effective_order: bool = False,
        max_ngram_order: int = 4,
    ) -> BLEUScore:
        """BLEU from counts of matches and n-grams by order, and the lengths of outputs and references."""
        metric = BLEU(
            smooth_method=smooth_method,
            smooth_value=smooth_value,
            max_ngram_order=max_ngram_order,
            effective_order=effective_order,
        )
        return metric._to_score(np.array([sys_len, ref_len, *correct, *total, 1], np.float64))

    @property
    def _orders(self) -> Literal["all", "effective"]:
        return "effective" if self.effective_order else "all"

    def _compute(self, sums: Stats) -> Stats:
        return self._metric.compute(sums, self._orders).values

    def _to_score(self, sums: Stats) -> BLEUScore:
        values, precisions, brevity = self._metric.compute(sums, self._orders)
        counts, totals = ([int(n) for n in part] for part in np.split(sums[2:-1], 2))
        # Add-k smoothing adds to the counts that it shows.
        added: list[float] = [0] * self.max_ngram_order
        if self.smooth_method == "add-k" and any(counts):
            added[1:] = [1 if self.smooth_value is None else self.smooth_value] * (self.max_ngram_order - 1)
        return BLEUScore(
            float(values),
            [n + more for n, more in zip(counts, added, strict=True)],
            [n + more for n, more in zip(totals, added, strict=True)],
            precisions.tolist(),
            float(brevity),
            int(sums[0]),
            int(sums[1]),
        )

    def _settings(self) -> dict[str, Any]:
        smooth, default = self.smooth_method, _SMOOTH_DEFAULTS[self.smooth_method]
        if default is not None:
            smooth += f"[{default if self.smooth_value is None else self.smooth_value:.2f}]"
        tokenizer = self._metric.tokenize
        if tokenizer.endswith("-mecab"):  # It uses a dictionary, whose version sacreBLEU knows.
            from sacrebleu.metrics.bleu import BLEU as PeerBLEU

            tokenizer = str(PeerBLEU(tokenize=tokenizer).tokenizer_signature)
        return {
            "case": "lc" if self.lowercase else "mixed",
            "eff": self.effective_order,
            "tok": tokenizer,
            "smooth": smooth,
        }


class CHRF(_SacreMetric["CHRFScore"]):
    """chrF, or chrF++ with `word_order=2`."""

    CHAR_ORDER = 6
    WORD_ORDER = 0
    BETA = 2

    def __init__(
        self,
        char_order: int = CHAR_ORDER,
        word_order: int = WORD_ORDER,
        beta: int = BETA,
        lowercase: bool = False,
        whitespace: bool = False,
        eps_smoothing: bool = False,
        references: Streams | None = None,
    ) -> None:
        self.char_order, self.word_order, self.beta = char_order, word_order, beta
        self.lowercase, self.whitespace, self.eps_smoothing = lowercase, whitespace, eps_smoothing
        self._metric = Chrf(
            char_order=char_order,
            word_order=word_order,
            beta=beta,
            lowercase=lowercase,
            whitespace=whitespace,
            eps_smoothing=eps_smoothing,
        )
        super().__init__(references)

    def _to_score(self, sums: Stats) -> CHRFScore:
        return CHRFScore(float(self._compute(sums)), self.char_order, self.word_order, self.beta)

    def _settings(self) -> dict[str, Any]:
        return {
            "case": "lc" if self.lowercase else "mixed",
            "eff": not self.eps_smoothing,
            "nc": self.char_order,
            "nw": self.word_order,
            "space": self.whitespace,
        }


class TER(_SacreMetric["TERScore"]):
    """Translation edit rate, as Tercom computes it."""

    _short_names: ClassVar[dict[str, str]] = {"tok": "t"}

    def __init__(
        self,
        normalized: bool = False,
        no_punct: bool = False,
        asian_support: bool = False,
        case_sensitive: bool = False,
        references: Streams | None = None,
    ) -> None:
        self.normalized, self.no_punct = normalized, no_punct
        self.asian_support, self.case_sensitive = asian_support, case_sensitive
        self._metric = Ter(
            normalized=normalized, no_punct=no_punct, asian_support=asian_support, case_sensitive=case_sensitive
        )
        super().__init__(references)

    def _to_score(self, sums: Stats) -> TERScore:
        return TERScore(float(self._compute(sums)), float(sums[0]), float(sums[1]))

    def _settings(self) -> dict[str, Any]:
        return {
            "case": "mixed" if self.case_sensitive else "lc",
            "tok": "tercom",
            "norm": self.normalized,
            "punct": not self.no_punct,
            "asian": self.asian_support,
        }


METRICS: dict[str, type[BLEU] | type[CHRF] | type[TER]] = {"BLEU": BLEU, "CHRF": CHRF, "TER": TER}


# --- The functions of sacreBLEU

compute_bleu = BLEU.compute_bleu


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Streams,
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    force: bool = False,
    lowercase: bool = False,
    tokenize: str = "13a",
    use_effective_order: bool = False,
) -> BLEUScore:
    """BLEU of all outputs."""
    metric = BLEU(lowercase, force, tokenize, smooth_method, smooth_value, effective_order=use_effective_order)
    return metric.corpus_score(hypotheses, references)


def raw_corpus_bleu(hypotheses: Sequence[str], references: Streams, smooth_value: float | None = 0.1) -> BLEUScore:
    """BLEU of texts that are tokenised already, with smoothing 'floor'."""
    return corpus_bleu(hypotheses, references, "floor", smooth_value, True, False, "none", True)


def sentence_bleu(
    hypothesis: str,
    references: Sequence[str],
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    lowercase: bool = False,
    tokenize: str = "13a",
    use_effective_order: bool = True,
) -> BLEUScore:
    """BLEU of one output."""
    metric = BLEU(lowercase, False, tokenize, smooth_method, smooth_value, effective_order=use_effective_order)
    return metric.sentence_score(hypothesis, references)


def corpus_chrf(
    hypotheses: Sequence[str],
    references: Streams,
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    remove_whitespace: bool = True,
    eps_smoothing: bool = False,
) -> CHRFScore:
    """ChrF of all outputs."""
    metric = CHRF(char_order, word_order, beta, whitespace=not remove_whitespace, eps_smoothing=eps_smoothing)
    return metric.corpus_score(hypotheses, references)


def sentence_chrf(
    hypothesis: str,
    references: Sequence[str],
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    remove_whitespace: bool = True,
    eps_smoothing: bool = False,
) -> CHRFScore:
    """ChrF of one output."""
    metric = CHRF(char_order, word_order, beta, whitespace=not remove_whitespace, eps_smoothing=eps_smoothing)
    return metric.sentence_score(hypothesis, references)


def corpus_ter(
    hypotheses: Sequence[str],
    references: Streams,
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> TERScore:
    """TER of all outputs."""
    return TER(normalized, no_punct, asian_support, case_sensitive).corpus_score(hypotheses, references)


def sentence_ter(
    hypothesis: str,
    references: Sequence[str],
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> TERScore:
    """TER of one output."""
    return TER(normalized, no_punct, asian_support, case_sensitive).sentence_score(hypothesis, references)


# ---- Scores and signatures, as sacreBLEU returns them

Stats = NDArray[np.float64]


class Score:
    """A score that prints as sacreBLEU prints it."""

    def __init__(self, name: str, score: float) -> None:
        self.name = name
        self.score = score
        self._mean = -1.0
        self._ci = -1.0
        self._verbose = ""

    def format(self, width: int = 2, score_only: bool = False, signature: str = "", is_json: bool = False) -> str:
        """The score as a line of text, or as JSON."""
        value = f"{self.score:.{width}f}"
        fields: dict[str, Any] = {"name": self.name, "score": float(value), "signature": signature}
        if self._mean > 0:
            mean, half = f"{self._mean:.{width}f}", f"{self._ci:.{width}f}"
            interval = f"μ = {mean} ± {half}"
            value += f" ({interval})"
            fields |= {"confidence_mean": float(mean), "confidence_var": float(half), "confidence": interval}
        if score_only:
            return value
        if is_json:
            if self._verbose:
                fields["verbose_score"] = self._verbose
            fields |= dict(pair.split(":") for pair in signature.split("|"))
            return json.dumps(fields, indent=1, ensure_ascii=False)
        name = f"{self.name}|{signature}" if signature else self.name
        return f"{name} = {value}{' ' * bool(self._verbose)}{self._verbose}"

    def set_interval(self, resampled: Stats) -> None:
        """Store mean and half width of the 95 % interval of resampled scores."""
        ordered = np.sort(resampled)
        cut = len(ordered) // 40
        self._ci = float(0.5 * (ordered[len(ordered) - cut - 1] - ordered[cut]))
        self._mean = float(ordered.mean())

    def __repr__(self) -> str:
        return self.format()


class BLEUScore(Score):
    """BLEU with its n-gram counts, precisions and lengths."""

    def __init__(
        self,
        score: float,
        counts: list[Any],
        totals: list[Any],
        precisions: list[float],
        bp: float,
        sys_len: int,
        ref_len: int,
    ) -> None:
        super().__init__("BLEU", score)
        self.counts, self.totals, self.precisions = counts, totals, precisions
        self.bp, self.sys_len, self.ref_len = bp, sys_len, ref_len
        self.prec_str = "/".join(f"{precision:.1f}" for precision in precisions)
        self.ratio = sys_len / ref_len if ref_len else 0
        lengths = f"hyp_len = {sys_len:d} ref_len = {ref_len:d}"
        self._verbose = f"{self.prec_str} (BP = {bp:.3f} ratio = {self.ratio:.3f} {lengths})"


class CHRFScore(Score):
    """chrF with its orders and beta."""

    def __init__(self, score: float, char_order: int, word_order: int, beta: int) -> None:
        super().__init__(f"chrF{beta}{'+' * word_order}", score)
        self.char_order, self.word_order, self.beta = char_order, word_order, beta


class TERScore(Score):
    """TER with the number of edits and the mean length of the references."""

    def __init__(self, score: float, num_edits: float, ref_length: float) -> None:
        super().__init__("TER", score)
        self.num_edits, self.ref_length = int(num_edits), ref_length


class Signature:
    """What a score depends on, as `key:value` pairs. `short` names are sacreBLEU's."""

    _SHORT: ClassVar[dict[str, str]] = {
        "version": "v",
        "nrefs": "#",
        "bs": "bs",
        "seed": "rs",
        "case": "c",
        "eff": "e",
        "smooth": "s",
        "space": "s",
        "norm": "nr",
        "punct": "pn",
        "asian": "as",
    }

    def __init__(self, info: dict[str, Any], short: dict[str, str] | None = None) -> None:
        self.info = info
        self._short = {**self._SHORT, **(short or {})}

    def format(self, short: bool = False) -> str:
        """The pairs in sacreBLEU's order, the version last."""
        pairs = {name: value for name, value in self.info.items() if value is not None and name != "version"}
        pairs["version"] = self.info["version"]
        words = {True: "yes", False: "no"}
        return "|".join(
            f"{self._short.get(name, name) if short else name}:{words[value] if isinstance(value, bool) else value}"
            for name, value in pairs.items()
        )

    def update(self, key: str, value: Any) -> None:
        """Set a pair."""
        self.info[key] = value

    def __str__(self) -> str:
        return self.format()

    __repr__ = __str__
