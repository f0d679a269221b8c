"""Check the wheels of shipped models in a folder: each below 95 MB, all together, adapters aside, below 260 MB.

Package indexes refuse files above 100 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path

LARGEST, TOTAL = 95_000_000, 260_000_000
#: Adapters of LLMs, which no metric takes by default.
ADAPTERS = "metrist_models_analyst-"


def main(folder: Path) -> int:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 1e6:8.1f} MB  {name}")
    problems = [
        f"{name} has {size:,} bytes, at most {LARGEST:,} may be" for name, size in sizes.items() if size > LARGEST
    ]
    total = sum(size for name, size in sizes.items() if not name.startswith(ADAPTERS))
    if total > TOTAL:
        problems.append(f"all wheels together have {total:,} bytes, at most {TOTAL:,} may be")
    if not sizes:
        problems.append(f"{folder} has no wheels")
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
