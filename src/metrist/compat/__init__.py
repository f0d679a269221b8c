"""Classes and functions of other packages, with metrist's fast code behind them: change an import, keep the script.

| instead of | write |
|---|---|
| `from bart_score import BARTScorer` | `from metrist.compat import BARTScorer` |
| `from tigerscore import TIGERScorer` | `from metrist.compat import TIGERScorer` |
| `from rouge_score import rouge_scorer` | `from metrist.compat import rouge_scorer` |
| `import sacrebleu` | `from metrist.compat import sacrebleu` |
| `from bert_score import score, BERTScorer` | `from metrist.compat.bert_score import score, BERTScorer` |
| `import evaluate` | `from metrist.compat import evaluate` |
"""

from __future__ import annotations

from metrist.compat.bart_scorer import BARTScorer
from metrist.compat.bert_score import BERTScorer
from metrist.compat.rouge_scorer import BootstrapAggregator, RougeScorer
from metrist.compat.sacrebleu import BLEU, CHRF, TER, corpus_bleu, corpus_chrf, corpus_ter
from metrist.compat.tiger_scorer import TIGERScorer

__all__ = [
    "BLEU",
    "CHRF",
    "TER",
    "BARTScorer",
    "BERTScorer",
    "BootstrapAggregator",
    "RougeScorer",
    "TIGERScorer",
    "corpus_bleu",
    "corpus_chrf",
    "corpus_ter",
]
