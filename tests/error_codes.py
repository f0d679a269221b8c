"""Check an error by its code and the values that it names, not by its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from metrist.errors import ErrorCode, MetristError

Raised = TypeVar("Raised", bound=MetristError)


@contextmanager
def raises_code(error: type[Raised], code: ErrorCode, *values: object) -> Iterator[pytest.ExceptionInfo[Raised]]:
    """Expect an error of a class with a code, whose message contains each of the values."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.code == code
    message = str(caught.value)
    for value in values:
        assert str(value) in message
