"""Refuse files above 200 kB among those named on the command line: data and weights stay out of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 200_000


def main(names: list[str]) -> int:
    large = [(name, size) for name in names if (size := Path(name).stat().st_size) > LIMIT]
    for name, size in large:
        print(f"{name}: {size:,} bytes, the limit is {LIMIT:,}")
    return bool(large)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
