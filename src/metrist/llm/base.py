"""The LLM base class, the registry of LLMs by name, and the progress callbacks."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from metrist.errors import SpecError, did_you_mean
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.runtime import Runtime, call_watchers
from metrist.spec import Spec, parse


class Call:
    """The context of `LLM.complete_batch`: the runtime, and the callbacks of the caller.

    This base class has no caller behind it: completions are only returned, and nothing limits cost.
    """

    #: Whether the cache holds answers of this LLM: failures now do not mean that every request will fail.
    has_cached_answers = False

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.runtime = runtime or Runtime.current()

    def deliver(self, index: int, completion: Completion) -> None:
        """Hand over the completion of one conversation as soon as it is there, so that it is stored at once."""

    def reserve(self, conversation: Conversation, sampling: Sampling) -> bool:  # noqa: ARG002
        """Reserve the most that a request of the LLM's own may cost; False if the budget does not allow it."""
        return True

    def settle(self, conversation: Conversation, sampling: Sampling, completion: Completion | None) -> None:
        """Charge a request of the LLM's own to the budget and to the usage. None: it was sent, nothing came back."""

    def report_retry(self, reason: str, wait: float) -> None:
        """Tell watchers that an attempt failed and that the next one follows in `wait` seconds. Any thread may call."""
        for watcher in list(call_watchers):
            watcher.retried(reason, wait)


class LLM:
    """Base class of LLMs. Subclass it as a frozen dataclass and define `complete`.

    The fields are the settings and part of the LLM's text, which identifies it in metric specs and in the cache: two
    LLMs that may answer differently must differ in a field (or in `facts`). What does not change answers, such as
    concurrency, rate limits and budget, comes from the `Runtime`. An API key is never a setting, only the name of the
    environment variable that holds it.
    """

    #: The name in specs; the class name in lower case unless given.
    llm_name: ClassVar[str]
    #: The optional dependency group that it needs.
    extra: ClassVar[str | None] = None
    #: Whether its completions go into the cache.
    cacheable: ClassVar[bool] = True
    #: Whether it costs no money because it runs in this process.
    free: ClassVar[bool] = False
    #: Whether `gateway.complete` goes on although none of the first answers can be read.
    allows_unreadable: ClassVar[bool] = False
    #: Why `gateway.complete` refuses to call it; None: it does not.
    disabled_reason: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "llm_name"):
            cls.llm_name = cls.__name__.lower()

    @property
    def spec(self) -> Spec:
        """Its name and the settings that differ from their defaults."""
        settings = ((f.name, getattr(self, f.name), f.default) for f in _settings(self))
        return Spec(self.llm_name, {name: value for name, value, default in settings if value != default})

    def full_spec(self) -> Spec:
        """Its name and all settings."""
        return Spec(self.llm_name, {f.name: getattr(self, f.name) for f in _settings(self)})

    def __str__(self) -> str:
        return str(self.spec)

    def facts(self) -> Mapping[str, str]:
        """What else its answers depend on, such as a hash of the weights."""
        return {}

    def disable(self, reason: str) -> Self:
        """A copy that `gateway.complete` refuses to call."""
        disabled = copy.copy(self)
        object.__setattr__(disabled, "disabled_reason", reason)
        return disabled

    def allow_unreadable(self) -> Self:
        """A copy whose answers may all be unreadable: how many are is what is measured."""
        lenient = copy.copy(self)
        object.__setattr__(lenient, "allows_unreadable", True)
        return lenient

    def remarks(self) -> list[str]:
        """What a user should know about this LLM."""
        return []

    def risks(self) -> str | None:
        """What this spec does that untrusted input must not decide, such as running code or sending the value of an
        environment variable; None if nothing."""
        if getattr(self, "trust_remote_code", False):
            return f"{self.llm_name}(trust_remote_code=True) runs code that comes with the model"
        return None

    def recall(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion | None]:  # noqa: ARG002
        """The completions that it can give without sending anything; None for each of the others."""
        return [None] * len(conversations)

    def own_requests(self, sampling: Sampling) -> list[tuple[Conversation, Sampling]]:  # noqa: ARG002
        """Requests that it will send on its own account before it answers, which the budget must cover too."""
        return []

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """One completion per conversation, in order. A conversation without an answer gets a completion with a
        failure; raise `ModelError` only if no conversation can be answered (no server, no key)."""
        if type(self).complete_batch is LLM.complete_batch:
            raise NotImplementedError(f"{type(self).__name__} must define complete(self, conversations, sampling)")
        return self.complete_batch(conversations, sampling, Call())

    def complete_batch(
        self,
        conversations: Sequence[Conversation],
        sampling: Sampling,
        call: Call,  # noqa: ARG002
    ) -> list[Completion]:
        """As `complete`, with the call that it is part of. Override it to deliver completions one by one, so that an
        interrupted run keeps those that it paid for, or to follow the runtime."""
        return self.complete(conversations, sampling)


def _settings(llm: LLM) -> list[dataclasses.Field[Any]]:
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(llm) if dataclasses.is_dataclass(llm) else ()
    return [field for field in fields if field.init and field.compare]


def check_text(llm: LLM, *settings: str) -> None:
    """Raise SpecError unless these settings are non-empty strings."""
    for name in settings:
        if not isinstance(value := getattr(llm, name), str) or not value:
            found = f"{value} without quotes" if isinstance(value, Spec) else repr(value)
            raise SpecError(f"{llm.llm_name}: {name} must be a string, got {found}")


def check_choice(llm: LLM, setting: str, choices: Iterable[object]) -> None:
    """Raise SpecError unless the setting is one of the choices."""
    value, known = getattr(llm, setting), tuple(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        hint = did_you_mean(str(value), map(str, known))
        raise SpecError(f"{llm.llm_name}: {setting} must be one of {listed}, got {value!r}{hint}")


#: Module and class of each LLM; a module is imported only when its LLM is built.
_BUILTIN: Mapping[str, tuple[str, str]] = {
    "openai": ("metrist.llm.openai", "OpenAI"),
    "transformers": ("metrist.models.local_llm", "Transformers"),
    "local": ("metrist.models.local_llm", "Local"),
    "vllm": ("metrist.models.local_llm", "VLLM"),
    "replay": ("metrist.llm.replay", "Replay"),
    "fake": ("metrist.llm.replay", "FakeLLM"),
}
_EXAMPLE = "openai(model='gpt-4o-mini')"


def build_llm(llm: str | Spec | LLM) -> LLM:
    """The LLM that a spec such as `openai(model='gpt-4o-mini')` describes; an LLM is returned as it is."""
    if isinstance(llm, LLM):
        return llm
    spec = parse_llm(llm) if isinstance(llm, str) else llm
    if not isinstance(spec, Spec):
        raise SpecError(f"expected an LLM, or its text such as openai(model='gpt-4o-mini'), got {llm!r:.60}")
    if spec.name not in _BUILTIN:
        raise _unknown_llm(spec.name, "to ask a server with OpenAI's protocol, write openai(model='…', url='…')")
    module, attribute = _BUILTIN[spec.name]
    cls: type[LLM] = getattr(importlib.import_module(module), attribute)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    known = [field.name for field in fields]
    for name in spec.settings:
        if name not in known:
            raise SpecError(
                f"{spec.name} has no setting {name!r}{did_you_mean(name, known)} (available: {', '.join(known)})",
                code="unknown_name",
            )
    for field in fields:
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in spec.settings:
            raise SpecError(
                f"{spec.name} needs the setting {field.name!r}: {spec.name}({field.name}='…')", code="missing_value"
            )
    # The class itself checks the values.
    return cls(**spec.settings)


def parse_llm(text: str) -> Spec:
    """Parse an LLM spec. The bare name of a model, a common mistake, is answered with a suggestion."""
    if "(" not in text and text.strip() not in _BUILTIN:
        name = text.strip()
        raise _unknown_llm(name, f"to name a model, write openai(model={name!r}) or transformers(model={name!r})")
    try:
        return parse(text)
    except SpecError as error:
        message = str(error).replace("the metric", "the LLM", 1).replace("chrf(word_order=2)", _EXAMPLE)
        raise SpecError(f"{message} (write strings in quotes, as in {_EXAMPLE})") from None


def _unknown_llm(name: str, remedy: str) -> SpecError:
    near = did_you_mean(name, _BUILTIN)
    listed = ", ".join(_BUILTIN)
    message = f"no LLM named {name!r}{near} (available: {listed}){'' if near else f'; {remedy}'}"
    return SpecError(message, code="unknown_name")


#: How many completions this process has stored in the cache.
stored_completions = 0


def report_requests(count: int) -> None:
    for watcher in list(call_watchers):
        watcher.requested(count)


def report_completions(count: int) -> None:
    for watcher in list(call_watchers):
        watcher.completed(count)
