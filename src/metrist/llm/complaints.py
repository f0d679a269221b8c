"""What a server's error means: whose fault it is, and whether asking again can help."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metrist.llm.answers import Unreadable, decoded
from metrist.llm.retries import told_to_wait
from metrist.llm.verdicts import Again, Failed, Fatal, Refused, Reply, Verdict

_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|maximum context|n_ctx|(prompt|input|request).{0,40}too (long|large)"
    r"|token count.{0,40}exceeds|exceeds? the (maximum|available|model)|too many tokens",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content.?(filter|policy|management)|safety|moderat(ion|ed)|flagged", re.IGNORECASE)
_SPENT = re.compile(
    r"insufficient.?(quota|funds|credits?|balance)|billing|credit balance|exceeded your current quota", re.IGNORECASE
)
#: Other words for a field in servers' complaints.
_ALSO = {"response_format": ("schema", "grammar", "structured output", "guided decoding")}
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error in the server's words, with the code and the field that it names."""

    message: str
    code: str = ""
    field: str = ""

    def about(self, pattern: re.Pattern[str]) -> bool:
        return bool(pattern.search(self.message) or pattern.search(self.code))

    def names(self, field: str) -> bool:
        """Whether it is about that field of the request. A plain word such as 'stop' must stand in quotes."""
        if self.field:
            return self.field.split(".")[0] == field
        words = [field, *_ALSO.get(field, ())] if "_" in field or field in ("temperature", "logprobs") else []
        return self.quotes(field) or any(word in self.message.lower() for word in words)

    def quotes(self, word: str) -> bool:
        return bool(re.search(rf"""['"`]{re.escape(word)}['"`]""", self.message))


def judge(reply: Reply, model: str, optional: Sequence[str]) -> Verdict:
    """The verdict on a reply with an error. `optional` are fields that a request could do without."""
    complaint = complained(reply.body)
    said = f"the server answered {reply.status}: {complaint.message}"
    status = reply.status
    if status < 300:
        status, said = _told_status(complaint), f"the server answered {status} with an error: {complaint.message}"
    if status in (400, 429) and complaint.about(_SPENT):
        return Fatal(f"{said} (waiting does not help: look at the account's plan and balance)")
    if status in (408, 409, 425, 429) or status >= 500:
        return Again(said, told_to_wait(reply.headers, time.time()), crowded=status in (429, 529))
    if status in (400, 413, 422):
        return _bad_request(complaint, model, optional, said)
    if status == 403 and complaint.about(_FILTERED):
        return Failed(said, "filter")
    return Fatal(f"{said} ({_advice(status, reply)})")


def is_error(body: bytes) -> bool:
    """Whether a reply is an error by what it holds: gateways send those of others on as if all were well."""
    try:
        found = decoded(body)
    except Unreadable:
        return False
    return isinstance(found, dict) and bool(found.get("error")) and not found.get("choices")


def _told_status(complaint: Complaint) -> int:
    """The status of an error that came without: the one that it names, or what its words are usually sent with."""
    if re.fullmatch("[45][0-9]{2}", complaint.code):
        return int(complaint.code)
    return 400 if any(map(complaint.about, (_TOO_LONG, _FILTERED, _SPENT))) else 500


def _bad_request(complaint: Complaint, model: str, optional: Sequence[str], said: str) -> Verdict:
    if complaint.about(_TOO_LONG):  # First, since servers name max_tokens in this message too.
        return Failed(f"too long for the model's context: {said}", "length")
    for field in optional:
        if complaint.names(field):
            return Refused(field, said)
    if complaint.names("model") or complaint.quotes(model):
        return Refused("model", said)
    return Failed(said, "filter" if complaint.about(_FILTERED) else "other")


def _advice(status: int, reply: Reply) -> str:
    if status < 400:
        return f"it points to {reply.headers.get('location', 'another address')!r}; give that address as url=…"
    known = {
        401: "the key is wrong or missing: look at the environment variable that key=… names",
        402: "look at the account's balance",
        403: "this key may not use this model or address",
        404: "look at model=… and url=…, which must be the server's base address, as in http://127.0.0.1:8000/v1",
    }
    return known.get(status, "look at url=…")


def complained(body: bytes) -> Complaint:
    """The error in a body: OpenAI's form, bare text (Ollama), a list of one (Gemini), 'detail' (FastAPI), no JSON."""
    try:
        found = decoded(body)
    except Unreadable:
        return Complaint(_short(body.decode("utf-8", "replace")) or "nothing more")
    found = found[0] if isinstance(found, list) and found else found
    inner = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(inner, dict):
        return Complaint(_short(str(inner)))
    message = inner.get("message") or inner.get("detail") or inner
    return Complaint(_short(str(message)), _text(inner.get("code") or inner.get("type")), _text(inner.get("param")))


def _text(found: Any) -> str:
    return "" if found is None else str(found)


def _short(text: str) -> str:
    """One line that a table can hold."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
