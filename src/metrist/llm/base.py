"""What a large language model is to metrist: settings whose text is its identity, and one method."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from metrist.errors import SpecError, did_you_mean
from metrist.llm.talk import Completion, Conversation, Sampling
from metrist.spec import Spec

#: Told of each answer as soon as it is there, with the number of its conversation: a paid answer is kept at once.
Arrived = Callable[[int, Completion], None]


class LLM:
    """Base of all LLMs. A subclass is a frozen dataclass: its fields are its settings, all of them part of its text.

    What does not change answers (how many requests at once, limits per minute, what may be spent) is no setting: it
    comes from the environment. A key is never a setting either, only the name of the variable that holds it.
    """

    llm_name: ClassVar[str]
    #: The optional dependency group that it needs.
    extra: ClassVar[str | None] = None
    #: Whether its answers are kept between runs; not where they come from a file anyway.
    kept: ClassVar[bool] = True
    #: Whether its answers cost no money: it runs in this process.
    free: ClassVar[bool] = False
    #: Why it is asked nothing; no part of what it is.
    mute: ClassVar[str | None] = None

    @property
    def spec(self) -> Spec:
        """Its name and the settings that differ from their defaults."""
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        given = {f.name: (getattr(self, f.name), f.default) for f in fields if f.init and f.compare}
        return Spec(self.llm_name, {name: value for name, (value, default) in given.items() if value != default})

    def full_spec(self) -> Spec:
        """Its name and all its settings."""
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        return Spec(self.llm_name, {f.name: getattr(self, f.name) for f in fields if f.init and f.compare})

    def __str__(self) -> str:
        return str(self.spec)

    def facts(self) -> Mapping[str, str]:
        """What else its answers depend on, as far as it can be known: a hash of weights, a served model's name."""
        return {}

    def muted(self, why: str) -> Self:
        """The same LLM, which `calls.complete` refuses to ask."""
        same = copy.copy(self)
        object.__setattr__(same, "mute", why)
        return same

    def risks(self) -> str | None:
        """What it would do that a text from a stranger must not decide, in words: run code, or send what an environment
        variable holds; None for nothing of the kind."""
        if getattr(self, "trust_remote_code", False):
            return f"{self.llm_name}(trust_remote_code=True) runs code that comes with the model"
        return None

    def remembered(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion | None]:  # noqa: ARG002
        """The answers that it has at hand, without asking anybody; None in the place of any other."""
        return [None] * len(conversations)

    def note_answered_before(self) -> None:
        """It is told here that the cache has answers of it: questions that fail now are then no sign that all will."""

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        """One completion per conversation, in order. A conversation that could not be answered has a failure; a fault
        of the whole (no server, no key) is raised."""
        raise NotImplementedError


def check_text(llm: LLM, *settings: str) -> None:
    """Refuse settings that are no text."""
    for name in settings:
        if not isinstance(value := getattr(llm, name), str) or not value:
            raise SpecError(f"{llm.llm_name}: {name} must be a string, got {value!r}")


def check_choice(llm: LLM, setting: str, choices: Iterable[object]) -> None:
    """Refuse a setting whose value is none of the choices, naming the nearest."""
    value, known = getattr(llm, setting), tuple(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        hint = did_you_mean(str(value), map(str, known))
        raise SpecError(f"{llm.llm_name}: {setting} must be one of {listed}, got {value!r}{hint}")
