"""Conversations: lists of messages, as APIs and data sets have them, read as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrist.io.fields import parse_literal

Message = tuple[str, str]
_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "Human"),
    **dict.fromkeys(("assistant", "gpt", "ai", "model"), "Assistant"),
}


def parse_messages(value: Any) -> list[Message] | None:
    """Return (role, text) of a list of messages, also one that is written as text; None if it is none."""
    if isinstance(value, str):
        value = parse_literal(value) if value.lstrip().startswith("[{") else None
    if not isinstance(value, list) or not value:
        return None
    messages = []
    for message in value:
        if not isinstance(message, dict):
            return None
        role = message.get("role", message.get("from"))
        content: Any = message.get("content", message.get("value"))
        if isinstance(content, list):
            # Parts of a message: texts count, images do not.
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        messages.append((role, content))
    return messages


def name_role(message: Message) -> str:
    return _ROLES.get(message[0].lower(), message[0].capitalize())


def describe_context(messages: Sequence[Message]) -> dict[str, str]:
    """Return the source, and as instruction a system prompt, of the messages before an answer."""
    context = {}
    if messages and messages[0][0].lower() == "system":
        context["instruction"] = messages[0][1]
        messages = messages[1:]
    if len(messages) == 1 and name_role(messages[0]) == "Human":
        context["source"] = messages[0][1]
    elif messages:
        context["source"] = "\n\n".join(f"{name_role(message)}: {message[1]}" for message in messages)
    return {name: text for name, text in context.items() if text}
