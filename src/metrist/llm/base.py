"""What a large language model is to metrist: settings whose text is its identity, and one method."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, Self

from metrist.errors import SpecError, did_you_mean
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.spec import Spec, parse

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


# Which LLMs there are, by name. A module is imported only when its LLM is asked for.


_BUILTIN: Mapping[str, tuple[str, str]] = {
    "openai": ("metrist.llm.openai", "OpenAI"),
    "transformers": ("metrist.llm.local", "Transformers"),
    "vllm": ("metrist.llm.local", "VLLM"),
    "replay": ("metrist.llm.replay", "Replay"),
}


def llm_names() -> list[str]:
    """All names that an LLM's text can start with."""
    return list(_BUILTIN)


def build_llm(llm: str | Spec | LLM) -> LLM:
    """The LLM that a text such as `openai(model='gpt-4o-mini')` names."""
    if isinstance(llm, LLM):
        return llm
    spec = parse_llm(llm) if isinstance(llm, str) else llm
    if spec.name not in _BUILTIN:
        raise SpecError(_unknown(spec.name))
    module, attribute = _BUILTIN[spec.name]
    cls: type[LLM] = getattr(importlib.import_module(module), attribute)
    _check_names(cls, spec)
    return cls(**spec.settings)


def parse_llm(text: str) -> Spec:
    """A text as a name with settings. A model's name alone, which is what most people write first, is told from it."""
    if "(" not in text and text.strip() not in _BUILTIN:
        raise SpecError(_unknown(text.strip()))
    try:
        return parse(text)
    except SpecError as fault:
        said = str(fault).replace("the metric", "the LLM", 1).replace("chrf(word_order=2)", _SUCH)
        raise SpecError(f"{said} (texts stand in quotes, as in {_SUCH})") from None


_SUCH = "openai(model='gpt-4o-mini')"


def _unknown(name: str) -> str:
    near = did_you_mean(name, _BUILTIN)
    model = "" if near else f"; a model is named within one: openai(model={name!r}) or transformers(model={name!r})"
    return f"no LLM named {name!r}{near} (known are {', '.join(_BUILTIN)}){model}"


def _check_names(cls: type[LLM], spec: Spec) -> None:
    """Refuse settings that the LLM does not know, and the lack of one that has no default. Values it checks itself."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    known = [field.name for field in fields]
    for name in spec.settings:
        if name not in known:
            raise SpecError(
                f"{spec.name} has no setting {name!r}; it takes {', '.join(known)}{did_you_mean(name, known)}"
            )
    for field in fields:
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in spec.settings:
            raise SpecError(f"{spec.name} needs the setting {field.name!r}: {spec.name}({field.name}='…')")


# Whoever watches while LLMs are asked: told of questions, of answers, and of attempts that failed. A person before a
# silent terminal cannot tell a slow server from one that is down.


class Watcher(Protocol):
    """Told what happens in this process; `retried` may be called from any thread."""

    def asked(self, count: int) -> None:
        """So many more questions, each different from the others."""

    def arrived(self, count: int) -> None:
        """So many of them are answered, or given up."""

    def retried(self, reason: str, wait: float) -> None:
        """An attempt failed for that reason, and the next is made in so many seconds."""


class _Tally:
    """The watchers of this process, and how many answers it has put into the cache."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.kept = 0


_tally = _Tally()


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Inside, the watcher is told."""
    _tally.watchers.append(watcher)
    try:
        yield
    finally:
        _tally.watchers.remove(watcher)


def asked(count: int) -> None:
    """Tell of questions."""
    for watcher in _tally.watchers:
        watcher.asked(count)


def arrived(count: int) -> None:
    """Tell of answers."""
    for watcher in _tally.watchers:
        watcher.arrived(count)


def retried(reason: str, wait: float) -> None:
    """Tell of an attempt that failed."""
    for watcher in _tally.watchers:
        watcher.retried(reason, wait)


def note_kept() -> None:
    """Count an answer that was put into the cache."""
    _tally.kept += 1


def kept() -> int:
    """How many answers this process has put into the cache."""
    return _tally.kept
