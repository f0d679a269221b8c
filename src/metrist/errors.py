"""Exceptions, and words of their messages. Catch `MetristError` for all exceptions."""

from __future__ import annotations

import os
import traceback
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

#: Characters of an item that texts show whole.
_LONGEST_ITEM = 80
#: The folders of a checkout, below models/, with the packages of an extra.
_MODEL_FOLDERS = {
    "standard": ("", "english", "multilingual"),
    "large": ("", "english", "multilingual", "english-large"),
    "analyst": ("analyst",),
}


#: What went wrong, for programs. docs/reference/errors.md has the cause and the remedy of each.
ErrorCode = Literal[
    "budget",
    "cannot_write",
    "changed",
    "conflict",
    "damaged",
    "in_use",
    "invalid_row",
    "invalid_value",
    "llm_failed",
    "metric_failed",
    "missing_dependency",
    "missing_field",
    "missing_file",
    "missing_value",
    "model_unusable",
    "no_data",
    "out_of_memory",
    "run_failed",
    "too_large",
    "too_little_data",
    "unfinished",
    "unknown_name",
    "unreadable",
    "unsupported",
    "untrusted",
    "worker_died",
]


class MetristError(Exception):
    """Base of all errors that metrist reports. The message is written for the user, `code` for programs."""

    #: One of `ErrorCode`; an error of the service's client has the service's own.
    code: str = "run_failed"

    def __init__(self, message: object = "", *, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InputError(MetristError):
    """A file or row that cannot be read."""

    code = "unreadable"


class SpecError(MetristError):
    """A metric's text that cannot be parsed, or a setting that cannot be used."""

    code = "invalid_value"


class NeedsError(MetristError):
    """A metric needs a field that the records do not have."""

    code = "missing_field"


class ModelError(MetristError):
    """A model that cannot be found, loaded or run."""

    code = "model_unusable"


class RunError(MetristError):
    """A run, store or comparison that cannot continue."""


class MissingExtra(MetristError):
    """A feature needs an optional dependency that is not installed."""

    code = "missing_dependency"

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: {install_command(extra)}")
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        # Exceptions are pickled; the default would call __init__ with the message alone.
        return MissingExtra, (self.feature, self.extra)


def install_command(extra: str) -> str:
    """Return the command that installs an extra here: from the checkout, or next to the wheel, that metrist itself was
    installed from, else from the package index."""
    import shlex
    import shutil

    pip, origin = f"{find_pip()} install", find_origin()
    if origin is None:
        return f"{pip} 'metrist[{extra}]'"
    if origin.is_file():
        # `make wheel` and `make models-package` write to neighbouring folders.
        models = origin.parent.parent / "models"
        folders = [origin.parent, models] if any(models.glob("*.whl")) else [origin.parent]
        links = " ".join(f"--find-links {shlex.quote(str(folder))}" for folder in folders)
        return f"{pip} {links} 'metrist[{extra}]'"
    words = [shlex.quote(str(origin / "models" / part)) for part in _MODEL_FOLDERS.get(extra, ())]
    # Where metrist runs from the checkout itself, it is to stay so, and not be replaced by a copy.
    words += (["-e"] if origin == Path(__file__).resolve().parents[2] else []) + [f"'{origin}[{extra}]'"]
    # An open range of torch pulls gigabytes of CUDA libraries.
    if extra in ("neural", "train") and not shutil.which("nvidia-smi"):
        words += ["--constraint", shlex.quote(str(origin / "constraints-cpu.txt"))]
    return " ".join([pip, *words])


def quote_word(text: str) -> str:
    """Return a text as one word of a shell command. One with single quotes goes in double quotes, which people can
    read, unless a shell would interpret something in there."""
    import shlex

    return f'"{text}"' if "'" in text and not set('"$`\\!\n') & set(text) else shlex.quote(text)


def label_item(item: str, number: int | None = None) -> str:
    """Return an item for a text that people read: a long one, such as a source that serves as its own name, by its
    first words, and by its number where that is known."""
    words = " ".join(item.split())
    if len(item) <= _LONGEST_ITEM and "\n" not in item:
        return item
    if len(words) > _LONGEST_ITEM:
        # A text without spaces is cut anywhere.
        head = words[: _LONGEST_ITEM * 3 // 4]
        words = f"{head.rpartition(' ')[0] or head} …"
    return words if number is None else f"{words} (number {number:,})"


def format_path(path: str | os.PathLike[str]) -> str:
    """Return a path as one would type it in the current folder: relative to it, or absolute where that is shorter."""
    full = os.path.abspath(path)
    try:
        relative = os.path.relpath(full)
    except (ValueError, OSError):  # Another drive, or a current folder that was deleted.
        return full
    # A name that begins with a dash would be taken for an option.
    return min(f"./{relative}" if relative.startswith("-") else relative, full, key=len)


def find_pip() -> str:
    """Return `pip` if the one on the path is this environment's, else the longer command that surely is."""
    import shlex
    import shutil
    import sys

    on_path = shutil.which("pip")
    if on_path is not None and Path(on_path).parent.resolve().is_relative_to(Path(sys.prefix).resolve()):
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def find_origin() -> Path | None:
    """Return the checkout, or the wheel file, that metrist was installed from, if it is still there."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    checkout = Path(__file__).resolve().parents[2]
    if _is_checkout(checkout):
        return checkout
    # pip notes the origin of what does not come from a package index (PEP 610).
    try:
        text = metadata.distribution("metrist").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}")["url"])
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return None
    origin = Path(unquote(url.path))
    return origin if url.scheme == "file" and (origin.is_file() or _is_checkout(origin)) else None


def _is_checkout(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("pyproject.toml", "hatch_build.py", "models/pyproject.toml"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known ones, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = [by_lower[match] for match in get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def unknown_name(noun: str, name: str, known: Iterable[str], error: type[MetristError] = RunError) -> MetristError:
    """The error for a name that is none of those that are known."""
    names = list(known)
    return error(f"no {noun} {name!r}; known: {', '.join(names)}{did_you_mean(name, names)}", code="unknown_name")


def check_known(noun: str, name: str, known: Iterable[str], error: type[MetristError] = SpecError) -> None:
    """Raise an error for a name that is none of those that are known."""
    names = list(known)
    if name not in names:
        raise unknown_name(noun, name, names, error)


def agree(number: float, singular: str, plural: str) -> str:
    """The form of a word that goes with a number: `is` with 1, otherwise `are`."""
    return singular if number == 1 else plural


def format_count(number: int, noun: str, plural: str = "") -> str:
    """A number of things in words: `1 answer`, `1,200 answers`, `2 entries`."""
    return f"{number:,} {agree(number, noun, plural or noun + 's')}"


# These change the direction of the text after them: a name with one could reorder a table on screen.
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape_controls(text: str) -> str:
    """Escape characters that a terminal or a page would interpret instead of showing."""
    return text if text.isascii() and text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTION_CONTROLS:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def describe_exception(error: Exception) -> str:
    """An exception from code outside of metrist in one line: its type, its message, and the file and line at fault."""
    package = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((package, "<"))]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"
