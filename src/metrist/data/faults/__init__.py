"""Faults that are put into good texts, and changes that do no harm.

`kinds` has the faults of any text, which `metrist.data.perturbations` puts into records. `fluency` and `support` have
faults for training data of the shipped models: they need words that were counted in good sentences, or a news article.
All of them are edits of an `EditableText`.
"""

from metrist.data.faults.kinds import HARMLESS, KINDS, Concern, Kind
from metrist.data.faults.text import Edit, EditableText, quote

__all__ = ["HARMLESS", "KINDS", "Concern", "Edit", "EditableText", "Kind", "quote"]
