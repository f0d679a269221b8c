"""Faults that are put into good texts, and changes that do no harm.

Every kind proposes one edit of the original text: some characters are replaced by others. Kinds that exchange words of
a list are for English; the others work in any language with sentences and spaces. `metrist.data.perturbations` puts
them into records. The modules `fluency` and `support` have faults for training data of the shipped models: they need
words that were counted in good sentences, or a news article.
"""

# The order of the kinds decides what is drawn for a seed.
from metrist.data.faults import content, form
from metrist.data.faults.text import HARMLESS, KINDS, Concern, Edit, Kind, Text, quote

__all__ = ["HARMLESS", "KINDS", "Concern", "Edit", "Kind", "Text", "content", "form", "quote"]
