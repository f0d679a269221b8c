"""The scores and signatures of sacreBLEU 2.6, as `metrist.compat.sacrebleu` returns them."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
