"""Check an error by its code and the values that it names, not by its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from metrist.errors import ErrorCode, MetristError, format_path

Raised = TypeVar("Raised", bound=MetristError)


@contextmanager
def raises_code(error: type[Raised], code: ErrorCode, *values: object) -> Iterator[pytest.ExceptionInfo[Raised]]:
    """Expect an error of a class with a code, whose message contains each of the values."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.code == code
    message = str(caught.value)
    for value in values:
        # Some messages name a path as it was given, others as one would type it.
        forms = {str(value), format_path(value) if isinstance(value, Path) else str(value)}
        assert any(form in message for form in forms)
