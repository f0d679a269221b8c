"""What can go wrong, as a tree: catch `MetristError` for all of it, a branch for one kind.

MetristError
├── InputError      a file or row that cannot be read: where, which field, what was found, what was wanted
├── SpecError       a metric's text that cannot be read, or that names no metric or setting
├── NeedsError      a metric that needs a field which the records do not have
├── ModelError      a model that cannot be had, loaded or run, with what to do about it
├── MissingExtra    a feature whose optional dependency is not installed, with the command that installs it
└── RunError        a run, store or comparison that cannot go on
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MetristError(Exception):
    """Anything that metrist itself reports; its text is written for the user."""


class InputError(MetristError):
    """A file or row that cannot be read."""


class SpecError(MetristError):
    """A metric's text that cannot be read."""


class NeedsError(MetristError):
    """A metric needs a field that the records do not have."""


class ModelError(MetristError):
    """A model that cannot be had, loaded or run."""


class RunError(MetristError):
    """A run, store or comparison that cannot go on."""


class MissingExtra(MetristError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'metrist[{extra}]'")
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        # Exceptions cross process borders; the default would call __init__ with the message alone.
        return MissingExtra, (self.feature, self.extra)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known ones, or nothing."""
    by_small = {one.lower(): one for one in known}
    near = [by_small[one] for one in get_close_matches(name.lower(), list(by_small), n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
