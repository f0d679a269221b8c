"""What a large language model is to metrist: settings whose text is its identity, and one method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from metrist.models.llm.talk import Completion, Conversation, Sampling
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

    @property
    def spec(self) -> Spec:
        """Its name and the settings that differ from their defaults."""
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        given = {f.name: (getattr(self, f.name), f.default) for f in fields}
        return Spec(self.llm_name, {name: value for name, (value, default) in given.items() if value != default})

    def __str__(self) -> str:
        return str(self.spec)

    def facts(self) -> Mapping[str, str]:
        """What else its answers depend on, as far as it can be known: a hash of weights, a served model's name."""
        return {}

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        """One completion per conversation, in order. A conversation that could not be answered has a failure; a fault
        of the whole (no server, no key) is raised."""
        raise NotImplementedError
