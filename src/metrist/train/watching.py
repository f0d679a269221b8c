"""What a training tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The development figure after so many steps."""

    step: int
    figure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it has come. `loss` is the mean over the latest steps, `tokens` counts those learned from so far."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens: int


class Watcher(Protocol):
    """Told of what happens, in the process that trains."""

    def moved(self, progress: Progress) -> None: ...

    def evaluated(self, evaluation: Evaluation, name: str) -> None: ...

    def said(self, remark: str) -> None: ...


class Silent:
    """Watches nothing."""

    def moved(self, progress: Progress) -> None:
        pass

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        pass

    def said(self, remark: str) -> None:
        pass
