"""Look for known vulnerabilities in the locked versions, with pip-audit.

    python .ci/audit_dependencies.py FILE…

Exits with 1 where there are any, and with 2 where nothing can be said: the advisory service was not reached, or does
not know a package. pip-audit itself ends with success there, as with mirrors of the package index without advisories.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

COMMAND = ["-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]


def main(files: Sequence[str]) -> int:
    codes = {_audit(file) for file in files}
    return 1 if 1 in codes else max(codes)


def _audit(file: str) -> int:
    done = subprocess.run(
        [sys.executable, *COMMAND, "--requirement", file], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"{file}: not audited, the advisory service cannot be reached or answers something else: {reason}")
        return 2
    code, lines = judge(packages)
    print("\n".join(f"{file}: {line}" for line in lines))
    return code


def judge(packages: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and the lines to print for what pip-audit reports of packages."""
    lines = [
        f"{package['name']} {package['version']}: {own['id']}, mended in {', '.join(own['fix_versions']) or 'none'}"
        for package in packages
        for own in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        lines.append(
            f"{len(skipped)} of {len(packages)} packages could not be audited: the advisory service does not know "
            f"them ({', '.join(skipped[:3])} …): does the package index have advisories, as pypi.org does?"
        )
    if not lines:
        return 0, [f"no known vulnerability in {len(packages)} packages"]
    return (1 if len(lines) > bool(skipped) else 2), lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
