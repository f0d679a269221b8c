"""What answers may cost and where they are kept: nothing of it changes one. It comes from the environment, and worker
processes inherit it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from metrist.errors import ModelError

#: US dollars that a run may cost; unset: any.
MAX_COST = "METRIST_MAX_COST"
#: The folder of the answer cache.
CACHE = "METRIST_LLM_CACHE"
#: A file of prices beside the shipped ones.
PRICES = "METRIST_PRICES"
#: Which run this process belongs to: what its processes spend is counted together.
RUN = "METRIST_LLM_RUN"


def max_cost() -> float | None:
    """US dollars that a run may cost; None: any."""
    text = os.environ.get(MAX_COST)
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise ModelError(f"{MAX_COST} must be an amount in US dollars such as 2.50, got {text!r}")
    return limit


def cache_folder() -> Path:
    """Where answers are kept: as the environment says, else in the user's folder for caches."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "llm"


def prices_file() -> Path | None:
    """The user's own prices, if any."""
    named = os.environ.get(PRICES)
    return Path(named).expanduser() if named else None
