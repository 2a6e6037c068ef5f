"""Look the installed packages up in PyPI's data on vulnerabilities (pip-audit).

Exit status 1 if a package has one. A package index without that data, or none that can be reached,
is no failure; the output says so, since pip-audit itself then reports that nothing was found.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> int:
    """Print what is vulnerable and return the exit status."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--skip-editable"]
    command += ["--timeout", "10", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"pip-audit: skipped: its data cannot be had here ({type(error).__name__})")
        return 0
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        print(f"pip-audit: skipped: PyPI's data on the {len(packages)} packages cannot be had here")
        return 0
    vulnerable = [package for package in audited if package["vulns"]]
    for package in vulnerable:
        ids = ", ".join(found["id"] for found in package["vulns"])
        print(f"pip-audit: {package['name']} {package['version']}: {ids}")
    print(f"pip-audit: {len(vulnerable)} of {len(audited)} packages are vulnerable", end="")
    unknown = len(packages) - len(audited)
    print(f"; PyPI knows nothing of {unknown} more" if unknown else "")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
