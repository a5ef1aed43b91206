"""Print the requirements of a lock file that this Python does not have: missing_requirements.py LOCK.

An image of NVIDIA or AMD has special builds of torch, numpy and other packages, which are kept. Missing packages are
installed with the versions and checksums of the lock file.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path


def normalized(name: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(lock: str, installed: set[str]) -> str:
    """Return the entries (a requirement with its hashes) whose distribution is not installed."""
    entries = re.findall(r"^[A-Za-z0-9].*?(?=^[A-Za-z0-9]|\Z)", lock, re.M | re.S)
    return "".join(entry for entry in entries if normalized(re.split(r"[=\[; ]", entry)[0]) not in installed)


if __name__ == "__main__":
    here = {normalized(each.metadata["Name"]) for each in distributions() if each.metadata["Name"]}
    sys.stdout.write(missing(Path(sys.argv[1]).read_text(), here))
